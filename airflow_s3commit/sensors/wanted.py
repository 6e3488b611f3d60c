"""Which manifest is *the* manifest: what a waiter asks for, and the search for it on the store."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_s3commit.exceptions import InvalidRecord, NoSuchKey
from airflow_s3commit.protocol.destination import join_uri
from airflow_s3commit.protocol.layout import Layout
from airflow_s3commit.protocol.manifest import read_manifest, read_success

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow_s3commit.protocol.destination import Destination
    from airflow_s3commit.protocol.records import ManifestRecord
    from airflow_s3commit.store.base import ObjectStore

__all__ = ["ManifestSearch", "Wanted"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a manifest must be.

    Attributes:
        job_id: It is of this job.
        context: Its run has all of these facts (``dag_id``, ``run_id``, ``partition_key``, …).
        newer_than: It was committed after this time, in seconds since the epoch by the committer's clock.
        min_files: It lists at least this many files.
        partitions: It brought data to all of these partitions, such as ``dt=2013-01-01``.

    """

    job_id: str | None = None
    context: Mapping[str, str] = field(default_factory=dict)
    newer_than: float | None = None
    min_files: int = 0
    partitions: frozenset[str] = frozenset()

    def shortcoming(self, manifest: ManifestRecord) -> str | None:
        """Say what keeps a manifest from being the one that is wanted; None if nothing does."""
        if self.job_id is not None and manifest.job_id != self.job_id:
            return f"is of job {manifest.job_id}, not {self.job_id}"
        for name, value in self.context.items():
            found = manifest.context.get(name)
            if found != value:
                return f"has {name} {found!r}, not {value!r}"
        if self.newer_than is not None and manifest.committed <= self.newer_than * 1000:
            return f"was committed at {manifest.committed} ms, not after {self.newer_than * 1000:.0f} ms"
        if missing := self.partitions - manifest.partitions.keys():
            return f"has no data for {', '.join(sorted(missing)[:3])}"
        if manifest.counts.files < self.min_files:
            return f"lists {manifest.counts.files} files, fewer than {self.min_files}"
        return None


class ManifestSearch:
    """Looks for a wanted manifest at one destination, again and again.

    ``_SUCCESS`` names the last commit only, and the wanted one may have been followed by others, so the
    manifests that stay at the destination are looked through as well, the newest first. A manifest never
    changes: one that was judged is not read again by the same search.

    Args:
        store: Where to look.
        destination: The dataset.
        wanted: What to look for.
        depth: How many of the newest manifests to read at most in one look.

    """

    def __init__(
        self, store: ObjectStore, destination: Destination, wanted: Wanted, *, depth: int = 100
    ) -> None:
        self._store = store
        self._destination = destination
        self._wanted = wanted
        self._depth = depth
        self._judged: set[str] = set()

    def look(self) -> tuple[ManifestRecord | None, str]:
        """Return the manifest, if it is there by now, and what was seen, in words.

        Raises:
            NoSuchBucket: The destination's bucket is not there.
            AccessDenied: The credentials may not look.

        """
        if self._wanted.job_id is not None:
            return self._look_at(self._wanted.job_id)
        seen = self._look_at_success()
        for job_id in self._newest():
            manifest, _ = self._look_at(job_id)
            if manifest is not None:
                return manifest, f"manifest of job {job_id}"
        return None, seen

    def _look_at(self, job_id: str) -> tuple[ManifestRecord | None, str]:
        layout = Layout.of(self._destination, job_id)
        where = join_uri(self._destination.bucket, layout.manifest)
        try:
            manifest = read_manifest(self._store, self._destination, job_id)
        except NoSuchKey:
            return None, f"no manifest at {where} yet"
        except InvalidRecord as error:
            return None, f"{where} is no manifest: {error}"
        shortcoming = self._wanted.shortcoming(manifest)
        self._judged.add(job_id)
        return (manifest, f"manifest {where}") if shortcoming is None else (None, f"{where} {shortcoming}")

    def _look_at_success(self) -> str:
        """Say what ``_SUCCESS`` is: what people look at first when a sensor goes on waiting."""
        where = join_uri(self._destination.bucket, self._destination.key("_SUCCESS"))
        try:
            size = self._store.head(self._destination.bucket, self._destination.key("_SUCCESS")).size
            if size == 0:
                return f"{where} has 0 bytes: a classic committer's marker, which says nothing of the data"
            success = read_success(self._store, self._destination)
        except NoSuchKey:
            return f"no {where} yet"
        except InvalidRecord as error:
            return f"{where} is not a manifest of ours: {error}"
        if success.jobId in self._judged:
            return f"{where} is of job {success.jobId}, which is not the wanted one"
        if not success.jobId or success.manifest_uri is None:
            return f"{where} was written by another S3A committer, and names no manifest of ours"
        return self._look_at_named(success.jobId, where)

    def _look_at_named(self, job_id: str, where: str) -> str:
        manifest, seen = self._look_at(job_id)
        if manifest is not None:
            self._judged.discard(job_id)  # it is the wanted one: the search below returns it
        return f"{where} is of job {job_id}: {seen}"

    def _newest(self) -> Iterable[str]:
        """Return the jobs whose manifests are unread and new enough, the newest first."""
        home = Layout.of(self._destination, "any").manifest.removesuffix("any.json")
        found = [
            info
            for info in self._store.list_objects(self._destination.bucket, home, recursive=False)
            if info.key.endswith(".json")
        ]
        found.sort(key=lambda info: info.modified, reverse=True)
        names = [info.key.removeprefix(home).removesuffix(".json") for info in found[: self._depth]]
        return [name for name in names if name not in self._judged]

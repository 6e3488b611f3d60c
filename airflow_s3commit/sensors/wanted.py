"""Which manifest is *the* manifest: what a waiter asks for, and the search for it on the store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from airflow_s3commit.exceptions import (
    AccessDenied,
    InvalidRecord,
    NoSuchBucket,
    NoSuchKey,
    Refused,
    Unavailable,
)
from airflow_s3commit.protocol.destination import join_uri
from airflow_s3commit.protocol.layout import Layout, manifests_prefix
from airflow_s3commit.protocol.manifest import read_manifest, read_success

if TYPE_CHECKING:
    from airflow_s3commit.protocol.destination import Destination
    from airflow_s3commit.protocol.records import ManifestRecord
    from airflow_s3commit.store.base import ObjectStore

__all__ = ["FINAL", "Look", "ManifestSearch", "Outcome", "Wanted", "manifests_at", "outcome_of"]

#: What a look came to. ``absent``: nothing is there. ``stale``: manifests are, but not the wanted one.
#: ``empty``: a marker of 0 bytes, a classic committer's. ``half-written``: JSON that is cut short.
#: ``foreign``: another program's marker. The others are errors: ``missing-bucket``, ``no-permission``,
#: ``refused`` (the request itself is wrong), ``unavailable`` (look again later), ``error``.
Outcome: TypeAlias = Literal[
    "found",
    "absent",
    "stale",
    "empty",
    "half-written",
    "foreign",
    "missing-bucket",
    "no-permission",
    "refused",
    "unavailable",
    "error",
]

#: Outcomes that waiting does not mend.
FINAL: Final[frozenset[Outcome]] = frozenset({"missing-bucket", "no-permission", "refused"})


class Look(NamedTuple):
    """What one look found.

    Attributes:
        manifest: The wanted manifest, if it is there.
        seen: What was seen, in words.
        outcome: The same in one word.

    """

    manifest: ManifestRecord | None
    seen: str
    outcome: Outcome


def outcome_of(error: Exception) -> Outcome:
    """Return what an error makes of a look."""
    if isinstance(error, NoSuchBucket):
        return "missing-bucket"
    if isinstance(error, AccessDenied):
        return "no-permission"
    if isinstance(error, Refused):
        return "refused"
    return "unavailable" if isinstance(error, Unavailable) else "error"


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

    @classmethod
    def of(
        cls,
        *,
        job: Any = None,
        run_id: str | None = None,
        context: Mapping[str, Any] | None = None,
        newer_than: datetime | str | None = None,
        partitions: Iterable[str] | str | None = None,
        min_files: int | str | None = None,
    ) -> Wanted:
        """Read it from what users give, after templates are rendered: text counts as the value it writes.

        Args:
            job: A job reference or a job id.
            run_id: The run that committed.
            context: Further facts of that run.
            newer_than: A datetime or ISO 8601 text; without a time zone it is UTC.
            partitions: One partition or several.
            min_files: The least number of files.

        """
        facts = {name: str(value) for name, value in (context or {}).items()}
        if run_id:
            facts["run_id"] = run_id
        job_id = job["job_id"] if isinstance(job, Mapping) else job
        names = [partitions] if isinstance(partitions, str) else list(partitions or [])
        return cls(
            job_id=job_id or None,
            context=facts,
            newer_than=_seconds(newer_than),
            min_files=int(min_files or 0),
            partitions=frozenset(name.strip("/") for name in names),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON values, for another process."""
        return {
            "job_id": self.job_id,
            "context": dict(self.context),
            "newer_than": self.newer_than,
            "min_files": self.min_files,
            "partitions": sorted(self.partitions),
        }

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any]) -> Wanted:
        """Read it from what `to_dict` returned."""
        return cls(**{**mapping, "partitions": frozenset(mapping.get("partitions", ()))})

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

    def look(self) -> Look:
        """Return the manifest, if it is there by now, and what was seen.

        Raises:
            NoSuchBucket: The destination's bucket is not there.
            AccessDenied: The credentials may not look.

        """
        if self._wanted.job_id is not None:
            return self._look_at(self._wanted.job_id)
        success = self._look_at_success()
        for job_id in self._newest():
            look = self._look_at(job_id)
            if look.manifest is not None:
                return look
        if success.outcome == "absent" and self._judged:
            seen = f"{success.seen}, and none of the {len(self._judged)} manifests there is the wanted one"
            return Look(None, seen, "stale")
        return success

    def _look_at(self, job_id: str) -> Look:
        layout = Layout.of(self._destination, job_id)
        where = join_uri(self._destination.bucket, layout.manifest)
        try:
            manifest = read_manifest(self._store, self._destination, job_id)
        except NoSuchKey:
            return Look(None, f"no manifest at {where} yet", "absent")
        except InvalidRecord as error:
            return Look(None, f"{where} is no manifest: {error}", _damage(error))
        shortcoming = self._wanted.shortcoming(manifest)
        self._judged.add(job_id)
        if shortcoming is None:
            return Look(manifest, f"manifest {where}", "found")
        return Look(None, f"{where} {shortcoming}", "stale")

    def _look_at_success(self) -> Look:
        """Say what ``_SUCCESS`` is: what people look at first when a sensor goes on waiting."""
        where = join_uri(self._destination.bucket, self._destination.key("_SUCCESS"))
        try:
            size = self._store.head(self._destination.bucket, self._destination.key("_SUCCESS")).size
            if size == 0:
                seen = f"{where} has 0 bytes: a classic committer's marker, which says nothing of the data"
                return Look(None, seen, "empty")
            success = read_success(self._store, self._destination)
        except NoSuchKey:
            return Look(None, f"no {where} yet", "absent")
        except InvalidRecord as error:
            return Look(None, f"{where} is not a manifest of ours: {error}", _damage(error))
        if success.jobId in self._judged:
            return Look(None, f"{where} is of job {success.jobId}, which is not the wanted one", "stale")
        if not success.jobId or success.manifest_uri is None:
            seen = f"{where} was written by another S3A committer, and names no manifest of ours"
            return Look(None, seen, "foreign")
        return self._look_at_named(success.jobId, where)

    def _look_at_named(self, job_id: str, where: str) -> Look:
        look = self._look_at(job_id)
        if look.manifest is not None:
            self._judged.discard(job_id)  # the search goes on: a newer one may fit too
        return Look(look.manifest, f"{where} is of job {job_id}: {look.seen}", look.outcome)

    def _newest(self) -> Iterable[str]:
        """Return the jobs whose manifests are unread, the newest first."""
        found = manifests_at(self._store, self._destination)
        names = [job_id for _, job_id in sorted(found, reverse=True)[: self._depth]]
        return [name for name in names if name not in self._judged]


def manifests_at(store: ObjectStore, destination: Destination) -> list[tuple[float, str]]:
    """Return when each manifest of a destination was written, by the store's clock, and its job's id."""
    home = manifests_prefix(destination)
    return [
        (info.modified, info.key.removeprefix(home).removesuffix(".json"))
        for info in store.list_objects(destination.bucket, home, recursive=False)
        if info.key.endswith(".json")
    ]


def _damage(error: InvalidRecord) -> Outcome:
    """Tell JSON that ends too soon from a record of something else."""
    cause = error.__cause__
    broken = isinstance(cause, msgspec.DecodeError) and not isinstance(cause, msgspec.ValidationError)
    return "half-written" if broken else "foreign"


def _seconds(moment: datetime | str | None) -> float | None:
    if not moment:
        return None
    known = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    return (known if known.tzinfo else known.replace(tzinfo=UTC)).timestamp()

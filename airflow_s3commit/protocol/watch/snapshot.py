"""Cached snapshot of a destination's manifests, shared by all waiters of a process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from airflow_s3commit.exceptions import NoSuchKey, S3CommitError
from airflow_s3commit.protocol.metadata.manifests import manifests_at, read_manifest, read_success
from airflow_s3commit.protocol.model.destination import join_uri
from airflow_s3commit.protocol.model.layout import SUCCESS, Layout
from airflow_s3commit.protocol.model.success import SuccessData

if TYPE_CHECKING:
    from airflow_s3commit.protocol.model.destination import Destination
    from airflow_s3commit.protocol.model.manifest import ManifestRecord
    from airflow_s3commit.store.base import ObjectStore

T = TypeVar("T")


class Snapshot:
    """Manifests and ``_SUCCESS`` of a destination, each fetched once until the next `refresh`.

    Manifests never change and stay cached, as does a ``_SUCCESS`` whose ETag is the same. Errors are cached
    until the next `refresh`, so that waiters do not each retry against a failing store. Not thread-safe.

    Args:
        store: The store of the destination.
        destination: The dataset.
        shared: Whether many waiters share the snapshot. If so, it fetches a job's manifest only if the
            listing shows it, because one listing serves all waiters.
        depth: Number of manifests to cache, newest first.

    """

    def __init__(
        self, store: ObjectStore, destination: Destination, *, shared: bool = False, depth: int = 100
    ) -> None:
        self.destination = destination
        self._store = store
        self._shared = shared
        self.depth = depth
        self._manifests: dict[str, ManifestRecord] = {}
        self._known_success: tuple[str, SuccessData] | None = None
        self._cache: dict[tuple[str, str], object] = {}

    def refresh(self) -> None:
        """Drop everything that may have changed since; the next call sends requests again."""
        self._cache.clear()

    def success(self) -> SuccessData | None:
        """Return the contents of ``_SUCCESS``; None if it has 0 bytes.

        Raises:
            NoSuchKey: It does not exist.
            InvalidRecord: It is truncated, or from another program.

        """
        return self._cached(("success", ""), self._read_success)

    def newest(self) -> list[str]:
        """Return the ids of all jobs that have a manifest, newest first."""
        return self._cached(("listing", ""), self._list)

    def manifest(self, job_id: str) -> ManifestRecord:
        """Return the manifest of a job.

        Raises:
            NoSuchKey: The job has not committed to this destination.
            InvalidRecord: The manifest is damaged.

        """
        if job_id in self._manifests:
            return self._manifests[job_id]
        return self._cached(("manifest", job_id), lambda: self._read_manifest(job_id))

    def where(self, job_id: str) -> str:
        """Return the URI of a job's manifest, whether it exists or not."""
        return join_uri(self.destination.bucket, Layout.of(self.destination, job_id).manifest)

    @property
    def where_success(self) -> str:
        """The URI of ``_SUCCESS``."""
        return join_uri(self.destination.bucket, self.destination.key(SUCCESS))

    def _cached(self, key: tuple[str, str], fetch: Callable[[], T]) -> T:
        if key not in self._cache:
            try:
                self._cache[key] = fetch()
            except S3CommitError as error:
                self._cache[key] = error
        cached = self._cache[key]
        if isinstance(cached, S3CommitError):
            # Each waiter raises the same exception: drop the traceback of the previous waiter.
            raise cached.with_traceback(None)
        return cached  # type: ignore[return-value]

    def _read_success(self) -> SuccessData | None:
        info = self._store.head(self.destination.bucket, self.destination.key(SUCCESS))
        if info.size == 0:
            return None
        if self._known_success is None or self._known_success[0] != info.etag:
            self._known_success = (info.etag, read_success(self._store, self.destination))
        return self._known_success[1]

    def _list(self) -> list[str]:
        found = sorted(manifests_at(self._store, self.destination), reverse=True)
        newest = [job_id for _, job_id in found]
        kept = set(newest[: self.depth])
        self._manifests = {job: record for job, record in self._manifests.items() if job in kept}
        return newest

    def _read_manifest(self, job_id: str) -> ManifestRecord:
        if self._shared and job_id not in self.newest():
            raise NoSuchKey(f"no manifest at {self.where(job_id)}")
        record = read_manifest(self._store, self.destination, job_id)
        self._manifests[job_id] = record
        return record

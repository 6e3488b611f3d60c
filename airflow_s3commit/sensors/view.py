"""A destination's manifests as one process sees them, so that many who wait ask the store but once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from airflow_s3commit.exceptions import NoSuchKey, S3CommitError
from airflow_s3commit.protocol.destination import join_uri
from airflow_s3commit.protocol.layout import SUCCESS, Layout, manifests_prefix
from airflow_s3commit.protocol.manifest import read_manifest, read_success
from airflow_s3commit.protocol.success import SuccessData

if TYPE_CHECKING:
    from airflow_s3commit.protocol.destination import Destination
    from airflow_s3commit.protocol.records import ManifestRecord
    from airflow_s3commit.store.base import ObjectStore

__all__ = ["DestinationView", "manifests_at"]

T = TypeVar("T")


class DestinationView:
    """What is at a destination. Asks for each thing once, and again only after `refresh`.

    What cannot change is kept for good: a manifest, and a ``_SUCCESS`` whose ETag is still the same. Errors
    are kept until the next `refresh`, so that a store in trouble is not asked by every waiter anew.

    Not for several threads at once.

    Args:
        store: Where to look.
        destination: The dataset.
        shared: Many look through it: whether one job's manifest is there is told from the listing, which all
            of them need but once, and not by asking for it.
        depth: How many of the newest manifests it keeps in memory.

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
        self._seen: dict[tuple[str, str], object] = {}

    def refresh(self) -> None:
        """Forget what may have changed."""
        self._seen.clear()

    def success(self) -> SuccessData | None:
        """Return what ``_SUCCESS`` says; None if it has 0 bytes.

        Raises:
            NoSuchKey: There is none.
            InvalidRecord: It is cut short, or something else.

        """
        return self._once(("success", ""), self._read_success)

    def newest(self) -> list[str]:
        """Return the jobs whose manifests are there, the newest first."""
        return self._once(("listing", ""), self._list)

    def manifest(self, job_id: str) -> ManifestRecord:
        """Return the manifest of a job.

        Raises:
            NoSuchKey: The job has not committed to this destination.
            InvalidRecord: What is there is no manifest.

        """
        if job_id in self._manifests:
            return self._manifests[job_id]
        return self._once(("manifest", job_id), lambda: self._read_manifest(job_id))

    def where(self, job_id: str) -> str:
        """Return the URI of a job's manifest, which need not be there."""
        return join_uri(self.destination.bucket, Layout.of(self.destination, job_id).manifest)

    @property
    def where_success(self) -> str:
        """The URI of ``_SUCCESS``."""
        return join_uri(self.destination.bucket, self.destination.key(SUCCESS))

    def _once(self, what: tuple[str, str], ask: Callable[[], T]) -> T:
        if what not in self._seen:
            try:
                self._seen[what] = ask()
            except S3CommitError as error:
                self._seen[what] = error
        seen = self._seen[what]
        if isinstance(seen, S3CommitError):
            # Raised many times over: without what the last one who met it added.
            raise seen.with_traceback(None)
        return seen  # type: ignore[return-value]

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


def manifests_at(store: ObjectStore, destination: Destination) -> list[tuple[float, str]]:
    """Return when each manifest of a destination was written, by the store's clock, and its job's id."""
    home = manifests_prefix(destination)
    return [
        (info.modified, info.key.removeprefix(home).removesuffix(".json"))
        for info in store.list_objects(destination.bucket, home, recursive=False)
        if info.key.endswith(".json")
    ]

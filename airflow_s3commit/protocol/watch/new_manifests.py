"""How a destination's new manifests are found: a cached snapshot for waiters, and a feed of each one once.

A destination's log tells with one request whether there was a commit: its next entry is there or not. The
snapshot, which all waiters of a process share, lists the manifests at first, and from then on reads only the
entry after the newest known one. For a destination whose log was deleted everything is listed again from time
to time.

The feed yields manifests in the order of their commits. Where there is a log, it reads the entry after the
last one that it has read; until there is one, it lists the manifests.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_s3commit.exceptions import AccessDenied, InvalidRecord, NoSuchKey, S3CommitError
from airflow_s3commit.protocol.metadata.log import next_entries, read_entry
from airflow_s3commit.protocol.metadata.log_end import find_head
from airflow_s3commit.protocol.metadata.manifests import manifests_at, read_manifest, read_success
from airflow_s3commit.protocol.model.destination import join_uri
from airflow_s3commit.protocol.model.layout import SUCCESS, Layout
from airflow_s3commit.protocol.model.manifest import SuccessData

if TYPE_CHECKING:
    from airflow_s3commit.protocol.model.destination import Destination
    from airflow_s3commit.protocol.model.log import LogEntry
    from airflow_s3commit.protocol.model.manifest import ManifestRecord
    from airflow_s3commit.store.base import ObjectStore

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Refreshes from one that lists the manifests to the next, where there is a log.
_LIST_EVERY = 20


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
        self._refreshes = 0
        #: Number of the newest entry that was read; None while the manifests are listed.
        self._position: int | None = None
        #: Jobs whose entries were read, newest first.
        self._entered: list[str] = []
        self._listed: list[str] = []
        self._failure: S3CommitError | None = None

    def refresh(self) -> None:
        """Find out what has changed: read the next entry of the log, or drop what was listed.

        Does not raise: an error of the store is raised by the next call, until the next refresh.
        """
        self._refreshes += 1
        self._failure = None
        try:
            if self._position is not None and self._refreshes % _LIST_EVERY:
                self._follow(self._position)
            else:
                self._begin()
        except (AccessDenied, InvalidRecord) as error:
            # Whatever waiters need beside the log, they may still find.
            logger.warning("%s: using its manifests, not its log: %s", self.destination.uri, error)
            self._position = None
            self._cache.clear()
        except S3CommitError as error:
            self._failure = error

    def success(self) -> SuccessData | None:
        """Return the contents of ``_SUCCESS``; None if it has 0 bytes.

        Raises:
            NoSuchKey: It does not exist.
            InvalidRecord: It is truncated, or from another program.

        """
        return self._cached(("success", ""), self._read_success)

    def newest(self) -> list[str]:
        """Return the ids of all jobs that have a manifest, newest first."""
        listed = self._cached(("listing", ""), self._list)
        return [*self._entered, *(job for job in listed if job not in self._entered)]

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

    def _begin(self) -> None:
        """Drop what was listed, and find the newest entry of the log, before the manifests are listed.

        The first refresh does not look for the log: most sensors find their manifest, or end, with it.
        Where there is no log, later ones do not either, until a marker or manifest has a generation.
        """
        known = [manifest.generation for manifest in self._manifests.values()]
        if self._known_success is not None:
            known.append(self._known_success[1].generation or 0)
        self._cache.clear()
        self._entered.clear()
        self._position = None
        if self._refreshes == 1 or not (self._refreshes == 2 or any(known)):  # noqa: PLR2004
            return
        head = find_head(self._store, self.destination)
        if head:
            # Its manifest may not be there yet.
            self._take(read_entry(self._store, self.destination, head))

    def _follow(self, position: int) -> None:
        """Read the entries after a position. Errors are dropped, but for those that only an entry changes."""
        self._cache = {
            key: value
            for key, value in self._cache.items()
            if isinstance(value, NoSuchKey) or not isinstance(value, S3CommitError)
        }
        for entry in next_entries(self._store, self.destination, position):
            self._take(entry)
            self._cache.pop(("success", ""), None)

    def _take(self, entry: LogEntry) -> None:
        self._position = entry.number
        if (
            entry.kind == "commit"
            and entry.manifest is not None
            and entry.destination == self.destination.uri
        ):
            self._entered = [entry.job_id, *self._entered][: self.depth]
            self._manifests[entry.job_id] = entry.manifest
            self._forget_old()

    def _cached(self, key: tuple[str, str], fetch: Callable[[], T]) -> T:
        if self._failure is not None:
            raise self._failure.with_traceback(None)
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
        self._listed = [job_id for _, job_id in found]
        self._forget_old()
        return self._listed

    def _forget_old(self) -> None:
        kept = {*self._entered, *self._listed[: self.depth]}
        self._manifests = {job: record for job, record in self._manifests.items() if job in kept}

    def _read_manifest(self, job_id: str) -> ManifestRecord:
        if self._shared and job_id not in self.newest():
            raise NoSuchKey(f"no manifest at {self.where(job_id)}")
        record = read_manifest(self._store, self.destination, job_id)
        self._manifests[job_id] = record
        return record


#: Seconds. ``Last-Modified`` is the start of the PUT request in whole seconds, so a manifest may appear after
#: one with a later time. Within this window the feed compares job ids instead of times.
_OVERLAP = 300.0


class ManifestFeed:
    """Yields each new manifest of a destination once.

    `memory` holds the state of the feed as JSON values, to continue in another process. A new feed skips the
    manifests that exist at its first poll.

    Args:
        store: The store of the destination.
        destination: The dataset.
        unmet: Returns why to skip a manifest, such as `Criteria.unmet`; nothing to yield it.
        memory: The `memory` of an earlier feed; None for a new feed.

    """

    def __init__(
        self,
        store: ObjectStore,
        destination: Destination,
        unmet: Callable[[ManifestRecord], list[str]],
        memory: Mapping[str, Any] | None = None,
    ) -> None:
        self._store = store
        self._destination = destination
        self._unmet = unmet
        self._job_id: str | None = None
        self._seen: dict[str, float] | None = None
        #: Number of the newest entry that was read; 0 while there is no log, None before it was looked for.
        self._position: int | None = None
        if memory is not None:
            self._job_id = memory.get("job_id")
            self._seen = {str(job): float(written) for job, written in memory["met"].items()}
            self._position = memory.get("log")

    @property
    def memory(self) -> dict[str, Any] | None:
        """State of the feed: the last job yielded, the newest listed manifests, and the position in the log.

        None before the first poll. A state of an earlier version has no ``log``.
        """
        if self._seen is None:
            return None
        return {"job_id": self._job_id, "met": dict(self._seen), "log": self._position}

    def look(self) -> Iterator[ManifestRecord]:
        """Poll once, and yield the new manifests, oldest first. Reads only.

        A manifest counts as seen once the next one is requested. Damaged manifests are logged and skipped.

        Raises:
            InvalidRecord: An entry of the log is damaged or missing.
            NoSuchBucket: The destination's bucket does not exist.
            AccessDenied: The credentials may not read the destination.
            S3CommitError: Another request failed.

        """
        if self._seen is None:
            head = find_head(self._store, self._destination)
            self._seen = {}
            for written, job_id in [] if head else sorted(manifests_at(self._store, self._destination)):
                self._mark_seen(written, job_id)
            self._position = head
        elif self._position:
            yield from self._entered(next_entries(self._store, self._destination, self._position))
        else:
            yield from self._begin()

    def _begin(self) -> Iterator[ManifestRecord]:
        """Yield the new manifests by listing them, and go over to the log if there is one."""
        position = self._position
        if position is None:
            # The manifest of the newest entry may not be there yet.
            position = max(find_head(self._store, self._destination) - 1, 0)
        entries = list(next_entries(self._store, self._destination, position))
        since = self._since()
        for written, job_id in sorted(manifests_at(self._store, self._destination)):
            if written < since or job_id in (self._seen or {}):
                continue
            manifest = self._read(job_id)
            if manifest is not None and manifest.generation > position:
                continue  # Its entry yields it.
            if manifest is not None and self._is_wanted(manifest):
                yield manifest
                self._job_id = job_id
            self._mark_seen(written, job_id)
        self._position = position
        yield from self._entered(entries)

    def _entered(self, entries: Iterable[LogEntry]) -> Iterator[ManifestRecord]:
        """Yield the manifests in entries of the log, without those that a listing has shown."""
        for entry in entries:
            manifest = entry.manifest if entry.kind == "commit" else None
            is_new = entry.destination == self._destination.uri and entry.job_id not in (self._seen or {})
            if manifest is not None and is_new and self._is_wanted(manifest):
                yield manifest
                self._job_id = entry.job_id
            self._position = entry.number

    def _read(self, job_id: str) -> ManifestRecord | None:
        try:
            return read_manifest(self._store, self._destination, job_id)
        except (NoSuchKey, InvalidRecord) as error:
            logger.warning("skipping the manifest of job %s: %s", job_id, error)
            return None

    def _is_wanted(self, manifest: ManifestRecord) -> bool:
        unmet = self._unmet(manifest)
        if unmet:
            logger.info("skipping the manifest of job %s: %s", manifest.job_id, "; ".join(unmet))
        return not unmet

    def _mark_seen(self, written: float, job_id: str) -> None:
        self._seen = {**(self._seen or {}), job_id: written}
        since = self._since()
        self._seen = {job: time for job, time in self._seen.items() if time >= since}

    def _since(self) -> float:
        return max((self._seen or {}).values(), default=_OVERLAP) - _OVERLAP

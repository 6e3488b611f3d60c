"""Feed of new manifests, each once, in the order of their commits.

Where a destination has a log, the feed reads the entry after the last one that it has read: one request if
there was no commit. Until there is a log, it lists the manifests.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow_s3commit.exceptions import InvalidRecord, NoSuchKey
from airflow_s3commit.protocol.metadata.log import next_entries
from airflow_s3commit.protocol.metadata.log_end import find_head
from airflow_s3commit.protocol.metadata.manifests import manifests_at, read_manifest

if TYPE_CHECKING:
    from airflow_s3commit.protocol.model.destination import Destination
    from airflow_s3commit.protocol.model.log import LogEntry
    from airflow_s3commit.protocol.model.manifest import ManifestRecord
    from airflow_s3commit.protocol.watch.criteria import Criteria
    from airflow_s3commit.store.base import ObjectStore

logger = logging.getLogger(__name__)

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
        criteria: Skip manifests that do not meet these.
        memory: The `memory` of an earlier feed; None for a new feed.

    """

    def __init__(
        self,
        store: ObjectStore,
        destination: Destination,
        criteria: Criteria,
        memory: Mapping[str, Any] | None = None,
    ) -> None:
        self._store = store
        self._destination = destination
        self._criteria = criteria
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
        mismatch = self._criteria.mismatch(manifest)
        if mismatch is not None:
            logger.info("skipping the manifest of job %s: it %s", manifest.job_id, mismatch)
        return mismatch is None

    def _mark_seen(self, written: float, job_id: str) -> None:
        self._seen = {**(self._seen or {}), job_id: written}
        since = self._since()
        self._seen = {job: time for job, time in self._seen.items() if time >= since}

    def _since(self) -> float:
        return max((self._seen or {}).values(), default=_OVERLAP) - _OVERLAP

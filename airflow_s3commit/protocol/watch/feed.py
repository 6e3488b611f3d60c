"""Feed of new manifests, each once, in the order of their commits."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow_s3commit.exceptions import InvalidRecord, NoSuchKey
from airflow_s3commit.protocol.metadata.manifests import manifests_at, read_manifest

if TYPE_CHECKING:
    from airflow_s3commit.protocol.model.destination import Destination
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
        if memory is not None:
            self._job_id = memory.get("job_id")
            self._seen = {str(job): float(written) for job, written in memory["met"].items()}

    @property
    def memory(self) -> dict[str, Any] | None:
        """State of the feed: the last job yielded and the newest manifests; None before the first poll."""
        return None if self._seen is None else {"job_id": self._job_id, "met": dict(self._seen)}

    def look(self) -> Iterator[ManifestRecord]:
        """Poll once, and yield the new manifests, oldest first. Reads only.

        A manifest counts as seen once the next one is requested. Damaged manifests are logged and skipped.

        Raises:
            NoSuchBucket: The destination's bucket does not exist.
            AccessDenied: The credentials may not read the destination.
            S3CommitError: Another request failed.

        """
        found = sorted(manifests_at(self._store, self._destination))
        if self._seen is None:
            self._seen = {}
            for written, job_id in found:
                self._mark_seen(written, job_id)
            return
        since = self._since()
        for written, job_id in found:
            if written < since or job_id in self._seen:
                continue
            manifest = self._read(job_id)
            if manifest is not None:
                yield manifest
                self._job_id = job_id
            self._mark_seen(written, job_id)

    def _read(self, job_id: str) -> ManifestRecord | None:
        try:
            manifest = read_manifest(self._store, self._destination, job_id)
        except (NoSuchKey, InvalidRecord) as error:
            logger.warning("skipping the manifest of job %s: %s", job_id, error)
            return None
        mismatch = self._criteria.mismatch(manifest)
        if mismatch is not None:
            logger.info("skipping the manifest of job %s: it %s", job_id, mismatch)
            return None
        return manifest

    def _mark_seen(self, written: float, job_id: str) -> None:
        self._seen = {**(self._seen or {}), job_id: written}
        since = self._since()
        self._seen = {job: time for job, time in self._seen.items() if time >= since}

    def _since(self) -> float:
        return max((self._seen or {}).values(), default=_OVERLAP) - _OVERLAP

"""Feed of new manifests: each commit once, in commit order."""

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

#: Seconds. A store dates an object by the start of its request, in whole seconds, so a manifest may appear
#: after one that is dated later. Within this window the feed compares job ids instead of times.
_OVERLAP = 300.0


class ManifestFeed:
    """Yields the manifests of a destination that it has not seen before.

    Its `memory` is small and made of JSON values, to be stored between processes. A feed without one takes
    all manifests of its first poll as seen.

    Args:
        store: The store of the destination.
        destination: The dataset.
        criteria: Manifests that do not meet these are skipped.
        memory: The `memory` of an earlier feed.

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
        self._met: dict[str, float] | None = None
        if memory is not None:
            self._job_id = memory.get("job_id")
            self._met = {str(job): float(written) for job, written in memory["met"].items()}

    @property
    def memory(self) -> dict[str, Any] | None:
        """The job of the last manifest yielded, and the newest manifests seen; None before the first poll."""
        return None if self._met is None else {"job_id": self._job_id, "met": dict(self._met)}

    def look(self) -> Iterator[ManifestRecord]:
        """Yield the new manifests, oldest first. One counts as seen when the next is requested.

        Raises:
            NoSuchBucket: The destination's bucket does not exist.
            AccessDenied: The credentials may not read the destination.

        """
        found = sorted(manifests_at(self._store, self._destination))
        if self._met is None:
            self._met = {}
            for written, job_id in found:
                self._meet(written, job_id)
            return
        since = self._since()
        for written, job_id in found:
            if written < since or job_id in self._met:
                continue
            manifest = self._read(job_id)
            if manifest is not None:
                yield manifest
                self._job_id = job_id
            self._meet(written, job_id)

    def _read(self, job_id: str) -> ManifestRecord | None:
        try:
            manifest = read_manifest(self._store, self._destination, job_id)
        except (NoSuchKey, InvalidRecord) as error:
            logger.warning("passing over the manifest of job %s: %s", job_id, error)
            return None
        mismatch = self._criteria.mismatch(manifest)
        if mismatch is not None:
            logger.info("passing over the manifest of job %s: it %s", job_id, mismatch)
            return None
        return manifest

    def _meet(self, written: float, job_id: str) -> None:
        met = {**(self._met or {}), job_id: written}
        self._met = met
        since = self._since()
        self._met = {job: moment for job, moment in met.items() if moment >= since}

    def _since(self) -> float:
        return max((self._met or {}).values(), default=_OVERLAP) - _OVERLAP

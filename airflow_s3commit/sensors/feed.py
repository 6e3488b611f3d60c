"""Which manifests are new since the last look: every commit once, in the order they were made."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow_s3commit.exceptions import InvalidRecord, NoSuchKey
from airflow_s3commit.protocol.manifest import read_manifest
from airflow_s3commit.sensors.view import manifests_at

if TYPE_CHECKING:
    from airflow_s3commit.protocol.destination import Destination
    from airflow_s3commit.protocol.records import ManifestRecord
    from airflow_s3commit.sensors.wanted import Wanted
    from airflow_s3commit.store.base import ObjectStore

__all__ = ["ManifestFeed"]

logger = logging.getLogger(__name__)

#: Stores date an object by when its request began, in whole seconds: a manifest may turn up behind one that
#: seems newer. So many seconds back, manifests are told apart by their job instead of by their time.
_OVERLAP = 300.0


class ManifestFeed:
    """Finds the manifests at a destination that it has not met before.

    What was met is small, made of plain JSON values, and can be kept from one process to the next. Without
    such a memory, what is there at the first look counts as met: it is of the day before.

    Args:
        store: Where to look.
        destination: The dataset.
        wanted: Manifests that fall short of this are passed over.
        memory: What an earlier feed's `memory` was.

    """

    def __init__(
        self,
        store: ObjectStore,
        destination: Destination,
        wanted: Wanted,
        memory: Mapping[str, Any] | None = None,
    ) -> None:
        self._store = store
        self._destination = destination
        self._wanted = wanted
        self._job_id: str | None = None
        self._met: dict[str, float] | None = None
        if memory is not None:
            self._job_id = memory.get("job_id")
            self._met = {str(job): float(written) for job, written in memory["met"].items()}

    @property
    def memory(self) -> dict[str, Any] | None:
        """The last wanted manifest's job, and the newest manifests met; None before the first look."""
        return None if self._met is None else {"job_id": self._job_id, "met": dict(self._met)}

    def look(self) -> Iterator[ManifestRecord]:
        """Yield the new manifests, the oldest first. One counts as met when the next is asked for.

        Raises:
            NoSuchBucket: The destination's bucket is not there.
            AccessDenied: The credentials may not look.

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
        shortcoming = self._wanted.shortcoming(manifest)
        if shortcoming is not None:
            logger.info("passing over the manifest of job %s: it %s", job_id, shortcoming)
            return None
        return manifest

    def _meet(self, written: float, job_id: str) -> None:
        met = {**(self._met or {}), job_id: written}
        self._met = met
        since = self._since()
        self._met = {job: moment for job, moment in met.items() if moment >= since}

    def _since(self) -> float:
        return max((self._met or {}).values(), default=_OVERLAP) - _OVERLAP

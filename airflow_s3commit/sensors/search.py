"""The search for a wanted manifest at a destination."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from airflow_s3commit.exceptions import InvalidRecord, NoSuchKey
from airflow_s3commit.sensors.wanted import Look, Outcome, Wanted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_s3commit.sensors.view import DestinationView

__all__ = ["ManifestSearch"]


class ManifestSearch:
    """Looks for a wanted manifest at one destination, again and again.

    ``_SUCCESS`` names the last commit only, and the wanted one may have been followed by others, so the
    manifests that stay at the destination are looked through as well, the newest first. A manifest never
    changes: one that was judged is not judged again by the same search.

    Args:
        view: What is at the destination; refresh it between two looks.
        wanted: What to look for.
        depth: How many of the newest manifests to read at most in one look.

    """

    def __init__(self, view: DestinationView, wanted: Wanted, *, depth: int = 100) -> None:
        self._view = view
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
        where = f"the manifest of job {job_id!r}"
        try:
            where = self._view.where(job_id)
            manifest = self._view.manifest(job_id)
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
        where = self._view.where_success
        try:
            success = self._view.success()
        except NoSuchKey:
            return Look(None, f"no {where} yet", "absent")
        except InvalidRecord as error:
            return Look(None, f"{where} is not a manifest of ours: {error}", _damage(error))
        if success is None:
            seen = f"{where} has 0 bytes: a classic committer's marker, which says nothing of the data"
            return Look(None, seen, "empty")
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
        """Return the jobs whose manifests are not judged yet, the newest first."""
        newest = self._view.newest()[: self._depth]
        return [name for name in newest if name not in self._judged]


def _damage(error: InvalidRecord) -> Outcome:
    """Tell JSON that ends too soon from a record of something else."""
    cause = error.__cause__
    broken = isinstance(cause, msgspec.DecodeError) and not isinstance(cause, msgspec.ValidationError)
    return "half-written" if broken else "foreign"

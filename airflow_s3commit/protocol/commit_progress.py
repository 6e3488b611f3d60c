"""How far running commits are, told by which of their uploads are still pending."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from msgspec import Struct

from airflow_s3commit.protocol.destination import Destination
from airflow_s3commit.protocol.layout import owner_of
from airflow_s3commit.protocol.survey import JobSummary
from airflow_s3commit.store.base import ObjectStore

__all__ = ["CommitProgress", "commit_progress"]

#: Uploads that are listed at most: twenty requests.
_LISTED = 20_000


class CommitProgress(Struct, frozen=True, kw_only=True):
    """How far a running commit is.

    Attributes:
        completed: Uploads that it has completed; each was one request.
        files: Uploads that it has to complete.
        rate: Completions a second since it began; None before its first second is over.
        left: Seconds until it has completed all at this rate; None if it cannot be told.

    """

    completed: int
    files: int
    rate: float | None = None
    left: float | None = None

    @property
    def share(self) -> float:
        """How much of it is done, from 0 to 1."""
        return self.completed / self.files if self.files else 1.0


def commit_progress(
    store: ObjectStore, destination: Destination, jobs: Iterable[JobSummary]
) -> dict[str, CommitProgress]:
    """Tell how far those of the jobs are that are being committed, by job id; nothing is changed.

    Left out are jobs that chose file names without the job's id, because a listing does not show whose
    uploads are whose, and all of them where more uploads are pending than are listed.

    Raises:
        S3CommitError: The store could not be asked.

    """
    committing = [
        job
        for job in jobs
        if job.state == "committing" and job.options is not None and job.options.unique_filenames
    ]
    if not committing:
        return {}
    listed = list(islice(store.list_uploads(destination.bucket, destination.prefix), _LISTED + 1))
    if len(listed) > _LISTED:
        return {}
    keys = [upload.key for upload in listed]
    return {job.job_id: _progress(job, keys) for job in committing}


def _progress(job: JobSummary, keys: Iterable[str]) -> CommitProgress:
    pending = sum(owner_of(key) == job.job_id for key in keys)
    files = job.output.files
    completed = max(files - pending, 0)
    rate = completed / job.age if job.age is not None and job.age >= 1 else None
    left = (files - completed) / rate if rate else None
    return CommitProgress(completed=completed, files=files, rate=rate, left=left)

"""One process's run of a job's commit: what it was told, what it holds, and how it learns of others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from airflow_s3commit.exceptions import InvalidRecord, JobClosed, S3CommitError
from airflow_s3commit.protocol.conflicts import find_plan, planned_objects
from airflow_s3commit.protocol.context import JobContext
from airflow_s3commit.protocol.file_list import FileList
from airflow_s3commit.protocol.lock import CommitLock, release_lock
from airflow_s3commit.protocol.progress import Progress
from airflow_s3commit.protocol.records import PlanRecord, SealRecord, StateRecord
from airflow_s3commit.protocol.sealed import load_seal
from airflow_s3commit.protocol.state import pinned_etags
from airflow_s3commit.protocol.uploads import delete_objects
from airflow_s3commit.store.base import Doomed

__all__ = ["CommitRun", "Overtaken", "Verdict"]


class Overtaken(Exception):
    """Another process moved the job on; its state says what is left to do."""


class Verdict(Exception):
    """This process moved the job's state because of an error, and the error is the outcome.

    Args:
        reason: The error.

    """

    def __init__(self, reason: S3CommitError) -> None:
        super().__init__(str(reason))
        self.reason = reason


@dataclass
class CommitRun:
    """What one process knows while it commits a job.

    Attributes:
        context: The job.
        seal_etag: The seal that the caller was told of.
        plan_etag: The plan that the caller was told of.
        progress: Told of every completed upload, if it is wanted.
        shards: Into how many shards the commit is cut when it begins.
        lock: The destination's lock, once taken.
        lock_in_doubt: It was taken, and may have been lost since.
        metrics: Durations in milliseconds, for the manifest.
        files: The list of all files, if this process completed them all.
        requests: Counts this process's requests by Hadoop's statistic names.

    """

    context: JobContext
    seal_etag: str | None = None
    plan_etag: str | None = None
    progress: Callable[[Progress], None] | None = None
    shards: int = 1
    lock: CommitLock | None = None
    lock_in_doubt: bool = False
    metrics: dict[str, int] = field(default_factory=dict)
    requests: Callable[[], dict[str, int]] = dict
    files: FileList | None = None

    def keep_lease(self) -> None:
        """Renew the lock when that is due.

        Raises:
            Overtaken: Another job took it, and settled this one before it did.

        """
        if self.lock is not None and not self.lock.renew_if_due():
            raise Overtaken

    def drop_lock(self) -> None:
        """Give up a lock that was taken for a job that turned out to have ended."""
        if self.lock is not None or self.lock_in_doubt:
            release_lock(self.context)
            self.lock, self.lock_in_doubt = None, False

    def pinned(self, state: StateRecord) -> tuple[SealRecord, PlanRecord]:
        """Read the seal and plan that the state names; a caller's own expectation must agree."""
        seal_etag, plan_etag = pinned_etags(self.context, state)
        for told, pinned, what in (
            (self.seal_etag, seal_etag, "seal"),
            (self.plan_etag, plan_etag, "plan"),
        ):
            if told is not None and told.strip('"') != pinned:
                raise JobClosed(
                    f"{self.context.name} is being committed with another {what} than the one handed over"
                )
        plan = find_plan(self.context, plan_etag)
        if plan is None:
            raise InvalidRecord(
                f"{self.context.staging_uri(self.context.layout.plan)} is missing; plan again"
            )
        return load_seal(self.context, seal_etag).record, plan.record

    def delete_planned(self, plan: PlanRecord) -> None:
        """Delete what the plan replaces, each object only as it was planned; not what the job overwrote."""
        delete_objects(self.context, self._replaced(plan))

    def _replaced(self, plan: PlanRecord) -> Iterator[Doomed]:
        """Yield what the plan replaces for as long as the lock is this job's."""
        for item in planned_objects(self.context, plan):
            self.keep_lease()
            if not item.overwritten:
                yield Doomed(item.key, item.etag)

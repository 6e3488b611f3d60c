"""One process's run of a job's commit: what it was told, what it holds, and how it learns of others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from airflow_s3commit.exceptions import InvalidRecord, JobClosed, S3CommitError
from airflow_s3commit.protocol.conflicts import find_plan, nothing_planned, replaced_objects
from airflow_s3commit.protocol.context import JobContext
from airflow_s3commit.protocol.file_list import FileList
from airflow_s3commit.protocol.lock import CommitLock, release_lock
from airflow_s3commit.protocol.progress import Progress
from airflow_s3commit.protocol.records import JobRecord, PlanRecord, SealRecord, StateRecord
from airflow_s3commit.protocol.removal import delete_objects
from airflow_s3commit.protocol.sealed import load_seal
from airflow_s3commit.protocol.state import pinned_etags
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
        keep_replaced: What the job replaces is not deleted, and its plan is not read: it is damaged.
        files: The list of all files, if this process completed them all.
        requests: Counts this process's requests by Hadoop's statistic names.

    """

    context: JobContext
    seal_etag: str | None = None
    plan_etag: str | None = None
    progress: Callable[[Progress], None] | None = None
    shards: int = 1
    keep_replaced: bool = False
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

    def pinned_seal(self, state: StateRecord) -> SealRecord:
        """Read the seal that the state names; a caller's own expectation must agree.

        Raises:
            JobClosed: It does not.
            InvalidRecord: The seal is damaged, missing, or was changed.

        """
        self._check_told(self.seal_etag, state.seal_etag, "seal")
        return load_seal(self.context, state.seal_etag).record

    def pinned_plan(self, state: StateRecord) -> PlanRecord:
        """Read the plan that the state names; a caller's own expectation must agree.

        Raises:
            JobClosed: It does not.
            InvalidRecord: The plan is damaged, missing, or was changed; the message says what can be done.

        """
        self._check_told(self.plan_etag, state.plan_etag, "plan")
        if self.keep_replaced and state.seal_etag is not None:
            return nothing_planned(self.context, state.seal_etag)
        try:
            _, plan_etag = pinned_etags(self.context, state)
            plan = find_plan(self.context, plan_etag)
            if plan is None:
                raise InvalidRecord(f"{self.context.staging_uri(self.context.layout.plan)} is missing")
        except InvalidRecord as error:
            error.add_note(
                f"{self.context.name} is {state.state}: finish it and leave the files that it replaces where"
                " they are with: s3commit recover --keep-replaced; or undo it, while it is committing, with:"
                " s3commit recover --rollback"
            )
            raise
        return plan.record

    def _check_told(self, told: str | None, pinned: str | None, what: str) -> None:
        if told is not None and told.strip('"') != pinned:
            raise JobClosed(
                f"{self.context.name} is being committed with another {what} than the one handed over"
            )

    def delete_planned(self, job: JobRecord, seal: SealRecord, plan: PlanRecord) -> None:
        """Delete what the plan replaces, each object only as it was planned; not what the job overwrote."""
        delete_objects(self.context, self._replaced(job, seal, plan), "plan")

    def _replaced(self, job: JobRecord, seal: SealRecord, plan: PlanRecord) -> Iterator[Doomed]:
        """Yield what the plan replaces for as long as the lock is this job's."""
        for item in replaced_objects(self.context, job, seal, plan):
            self.keep_lease()
            if not item.overwritten:
                yield Doomed(item.key, item.etag)

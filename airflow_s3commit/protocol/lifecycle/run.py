"""State of one process while it commits a job, and the signals by which it learns of other processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from airflow_s3commit.exceptions import InvalidRecord, JobClosed, S3CommitError
from airflow_s3commit.protocol.lifecycle.manifest import FileList
from airflow_s3commit.protocol.lifecycle.plan import nothing_planned, replaced_objects
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.lock import (
    CommitLock,
    is_held_by_another,
    release_lock,
    take_lock,
)
from airflow_s3commit.protocol.metadata.log import Log
from airflow_s3commit.protocol.metadata.plans import load_plan
from airflow_s3commit.protocol.metadata.records import Stored
from airflow_s3commit.protocol.metadata.removal import delete_objects
from airflow_s3commit.protocol.metadata.seals import load_seal
from airflow_s3commit.protocol.metadata.state import pinned_etags
from airflow_s3commit.protocol.model.job import JobRecord, StateRecord
from airflow_s3commit.protocol.model.log import LogEntry
from airflow_s3commit.protocol.model.plan import PlanRecord
from airflow_s3commit.protocol.model.progress import Progress
from airflow_s3commit.protocol.model.seal import SealRecord
from airflow_s3commit.store.base import ObjectToDelete


class Overtaken(Exception):
    """Another process moved the job on; continue from its state."""


class Verdict(Exception):
    """This process moved the job's state because of an error, which is the outcome of the commit.

    Args:
        reason: The error.

    """

    def __init__(self, reason: S3CommitError) -> None:
        super().__init__(str(reason))
        self.reason = reason


@dataclass
class CommitRun:
    """State of one process while it commits a job.

    Attributes:
        context: The job.
        settle: Finishes, aborts or fences off the job of a lapsed lock.
        seal_etag: Expected ETag of the seal, if the caller has one.
        plan_etag: Expected ETag of the plan, if the caller has one.
        progress: Called after each completed upload.
        shards: Number of shards of a commit that begins.
        lock: The destination's lock, once taken.
        lock_in_doubt: The lock was taken and may have been lost.
        metrics: Durations in milliseconds, for the manifest.
        keep_replaced: Skip the damaged plan, and delete nothing that the job replaces.
        files: The list of all files, if this process completed them all.
        log: The destination's log.
        moved: The job's state after this process moved it, until the next step has taken it.
        requests: Returns this process's request counts by Hadoop's statistic names.
        is_history_open: This process has begun the destination's history, or found it empty.

    """

    context: JobContext
    settle: Callable[[JobContext], None]
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
    moved: Stored[StateRecord] | None = None
    is_history_open: bool = False

    def __post_init__(self) -> None:
        """Begin to read the log where the job's record says."""
        self.log = Log(self.context)
        self._seals: dict[str, SealRecord] = {}
        self._plans: dict[str, PlanRecord] = {}

    def take_lock(self) -> None:
        """Take the destination's lock, and read what was entered in the log during the wait.

        Raises:
            LockHeld: Another live job held it for all the time to wait.

        """
        self.lock = take_lock(self.context, self.settle)
        self.log.read()

    def lock_if_unnamed(self, plan: PlanRecord) -> bool:
        """Take the lock if another job holds it and a plan has files without a job's id in their names.

        They may be of a job with fixed names that is publishing. Returns whether it took the lock: then plan
        again.
        """
        if not plan.unnamed or self.lock is not None or not is_held_by_another(self.context):
            return False
        self.take_lock()
        return True

    def keep_lease(self) -> None:
        """Renew the lock if due.

        Raises:
            Overtaken: Another job took the lock, after it settled this one.

        """
        if self.lock is not None and not self.lock.renew_if_due():
            raise Overtaken

    def drop_lock(self) -> None:
        """Release the lock of a job that has ended."""
        if self.lock is not None or self.lock_in_doubt:
            release_lock(self.context)
            self.lock, self.lock_in_doubt = None, False

    def pinned_seal(self, state: StateRecord) -> SealRecord:
        """Read the seal that the state names.

        Raises:
            JobClosed: The caller expects another seal.
            InvalidRecord: The seal is damaged, missing, or was changed.

        """
        self._check_expected(self.seal_etag, state.seal_etag, "seal")
        etag = state.seal_etag
        if etag is None or etag not in self._seals:
            seal = load_seal(self.context, etag)
            self._seals[seal.etag] = seal.record
            etag = seal.etag
        return self._seals[etag]

    def pinned_plan(self, state: StateRecord) -> PlanRecord:
        """Read the plan that the state names.

        Raises:
            JobClosed: The caller expects another plan.
            InvalidRecord: The plan is damaged, missing, or was changed; a note names the remedies.

        """
        self._check_expected(self.plan_etag, state.plan_etag, "plan")
        if self.keep_replaced and state.seal_etag is not None:
            return nothing_planned(self.context, state.seal_etag)
        _, etag = pinned_etags(self.context, state)
        return self._load_plan(state.plan_id, etag, state)

    def entered_plan(self, entry: LogEntry, state: StateRecord) -> PlanRecord | None:
        """Read the plan that the job's entry names; None if the commit deletes nothing.

        Raises:
            InvalidRecord: The plan is damaged, missing, or was changed; a note names the remedies.

        """
        if entry.plan is None or self.keep_replaced:
            return None
        return self._load_plan(entry.plan.plan_id, entry.plan.etag, state)

    def _load_plan(self, plan_id: str | None, etag: str, state: StateRecord) -> PlanRecord:
        try:
            if etag not in self._plans:
                self._plans[etag] = load_plan(self.context, plan_id, etag).record
            return self._plans[etag]
        except InvalidRecord as error:
            error.add_note(
                f"{self.context.name} is {state.state}: finish it and leave the files that it replaces where"
                " they are with: s3commit recover --keep-replaced; or undo it, while it is committing, with:"
                " s3commit recover --rollback"
            )
            raise

    def _check_expected(self, expected: str | None, pinned: str | None, what: str) -> None:
        if expected is not None and expected.strip('"') != pinned:
            raise JobClosed(
                f"{self.context.name} is being committed with another {what} than the one handed over"
            )

    def delete_planned(self, job: JobRecord, seal: SealRecord, plan: PlanRecord) -> None:
        """Delete the planned objects, unless they changed, or the job overwrote or retains them."""
        delete_objects(self.context, self._replaced(job, seal, plan), "plan")

    def _replaced(self, job: JobRecord, seal: SealRecord, plan: PlanRecord) -> Iterator[ObjectToDelete]:
        """Yield the planned objects to delete while this job holds the lock."""
        for item in replaced_objects(self.context, job, seal, plan):
            self.keep_lease()
            if not (item.overwritten or item.retained):
                yield ObjectToDelete(item.key, item.etag)

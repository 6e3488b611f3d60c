"""One process's run of a commit: what it knows, its progress, and the loop that takes one step after another.

Other processes may commit or abort the job at the same time. The steps tell the loop by signals.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from airflow_s3commit._causes import noting
from airflow_s3commit._clock import Clock, SystemClock
from airflow_s3commit._format import size
from airflow_s3commit.exceptions import InvalidRecord, JobClosed, S3CommitError
from airflow_s3commit.protocol.lifecycle.manifest import FileList
from airflow_s3commit.protocol.lifecycle.plan import replaced_objects
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.log import Log
from airflow_s3commit.protocol.metadata.records import Stored
from airflow_s3commit.protocol.metadata.removal import clean_staging, delete_objects
from airflow_s3commit.protocol.metadata.sealed_job import (
    load_plan,
    load_seal,
    load_stage_seals,
    nothing_planned,
)
from airflow_s3commit.protocol.metadata.state import is_same_state, pinned, read_state
from airflow_s3commit.protocol.model.job import JobOptions, JobRecord, SavedSuccess, State, StateRecord
from airflow_s3commit.protocol.model.layout import partition_of
from airflow_s3commit.protocol.model.log import LogEntry
from airflow_s3commit.protocol.model.sealed_job import PlanRecord, SealRecord, StageSealRecord
from airflow_s3commit.store.base import ObjectToDelete


class Progress(NamedTuple):
    """Progress of completing uploads.

    Attributes:
        files_done: Files completed.
        files_total: Files to complete.
        bytes_done: Bytes of the completed files.
        seconds: Seconds since the start.
        concurrency: Current limit of concurrent requests.
        retries: Requests repeated since the start.

    """

    files_done: int
    files_total: int
    bytes_done: int
    seconds: float
    concurrency: int = 0
    retries: int = 0

    @property
    def files_per_second(self) -> float:
        """Average files completed per second; 0 at the start."""
        return self.files_done / self.seconds if self.seconds > 0 else 0.0

    def __str__(self) -> str:
        """Return the figures for people."""
        return f"{self.files_done:,} of {self.files_total:,} files, {self.pace}"

    @property
    def pace(self) -> str:
        """The rate, for people."""
        return (
            f"{size(self.bytes_done)}, {self.files_per_second:,.0f} files/s,"
            f" {self.concurrency} requests at once, {self.retries:,} sent again"
        )


class _Log(Protocol):
    """A log: Python's own, or Airflow's."""

    def info(self, msg: str, /, *args: object) -> object: ...


class ProgressLog:
    """Logs the progress every few seconds, and at the end.

    Args:
        log: The log.
        every: Seconds between two lines.
        clock: Source of time.

    """

    def __init__(self, log: _Log, every: float = 5.0, clock: Clock | None = None) -> None:
        self._log = log
        self._every = every
        self._clock = clock or SystemClock()
        self._due = self._clock.monotonic() + every

    def __call__(self, progress: Progress) -> None:
        """Log the progress if a line is due."""
        now = self._clock.monotonic()
        if now >= self._due or progress.files_done == progress.files_total:
            self._due = now + self._every
            self._log.info("Completed %s", progress)


logger = logging.getLogger(__name__)

T = TypeVar("T")


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
        seal_etag: Expected ETag of the seal, if the caller has one.
        plan_etag: Expected ETag of the plan, if the caller has one.
        progress: Called after each completed upload.
        shards: Number of shards of a commit that begins.
        metrics: Durations in milliseconds, for the manifest.
        keep_replaced: Skip the damaged plan, and delete nothing that the job replaces.
        files: The list of all files, if this process completed them all.
        log: The destination's log.
        moved: The job's state after this process moved it, until the next step has taken it.
        requests: Returns this process's request counts by Hadoop's statistic names.
        is_history_open: This process has begun the destination's history, or found it empty.
        begins_from: States from which the commit begins; also ``open``, if this process has sealed the job.
        marker: The ``_SUCCESS`` that this process wrote last: of the commit before, until this one has begun.
        is_marker_assumed: The state names that marker, and no request has shown yet that it is there.

    """

    context: JobContext
    seal_etag: str | None = None
    plan_etag: str | None = None
    progress: Callable[[Progress], None] | None = None
    shards: int = 1
    keep_replaced: bool = False
    metrics: dict[str, int] = field(default_factory=dict)
    requests: Callable[[], dict[str, int]] = dict
    files: FileList | None = None
    moved: Stored[StateRecord] | None = None
    is_history_open: bool = False
    begins_from: tuple[State, ...] = ("sealed",)
    marker: SavedSuccess | None = None
    is_marker_assumed: bool = False

    def __post_init__(self) -> None:
        """Begin to read the log where the job's record says."""
        self.log = Log(self.context)
        self._seals: dict[str, SealRecord] = {}
        self._plans: dict[str, PlanRecord] = {}
        self._stages: tuple[SealRecord, list[StageSealRecord]] | None = None

    def knows(self, seal: Stored[SealRecord], plan: Stored[PlanRecord]) -> None:
        """Keep the records that this process has read or written, so that no step reads them again."""
        self._seals[seal.etag] = seal.record
        self._plans[plan.etag] = plan.record

    def stage_seals(self, seal: SealRecord) -> list[StageSealRecord]:
        """Read the seals of the sealed stages, once.

        Raises:
            InvalidRecord: One is missing or was changed.

        """
        if self._stages is None or self._stages[0] != seal:
            self._stages = seal, load_stage_seals(self.context, seal)
        return self._stages[1]

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
        _, plan = pinned(self.context, state)
        return self._load_plan(plan.plan_id, plan.etag, state)

    def entered_plan(self, entry: LogEntry, state: StateRecord) -> PlanRecord | None:
        """Read the plan that an entry of the job names; None if the commit deletes nothing.

        Raises:
            InvalidRecord: The plan is damaged, missing, or was changed; a note names the remedies.

        """
        if entry.plan is None or self.keep_replaced:
            return None
        return self._load_plan(entry.plan.plan_id, entry.plan.etag, state)

    def _load_plan(self, plan_id: str, etag: str, state: StateRecord) -> PlanRecord:
        try:
            if etag not in self._plans:
                self._plans[etag] = load_plan(self.context, plan_id, etag, state.seal_etag or "").record
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

    def planned_partitions(self, job: JobRecord, seal: SealRecord, plan: PlanRecord) -> set[str]:
        """Return the partitions with planned objects."""
        replaced = replaced_objects(self.context, job, seal, plan)
        return {partition_of(self.context.layout.destination.relative(item.key) or "") for item in replaced}

    def delete_planned(self, job: JobRecord, seal: SealRecord, plan: PlanRecord) -> None:
        """Delete the planned objects, unless they changed, or the job retains them."""
        replaced = replaced_objects(self.context, job, seal, plan)
        doomed = (ObjectToDelete(item.key, item.etag) for item in replaced if not item.retained)
        delete_objects(self.context, doomed, "plan")


_Step: TypeAlias = Callable[[CommitRun, Stored[StateRecord] | None], T | None]


def drive(run: CommitRun, step: _Step[T]) -> T:
    """Take steps until one returns a result; read the state before each, unless this process moved it.

    A process that finds the job moved on by another one reads the state again and goes on from there. If the
    job has ended, it removes what it may have written since.

    Args:
        run: The commit.
        step: Does what the state asks for; None unless that was the last step.

    Raises:
        S3CommitError: A step failed, and no other process has moved the job on.

    """
    context = run.context
    current: Stored[StateRecord] | None = None
    is_overtaken = False
    while True:
        try:
            current, run.moved = run.moved or read_state(context), None
            if is_overtaken and (current is None or current.record.state == "aborted"):
                # A plan, for example, after the other process had listed the staging.
                clean_staging(context)
        except S3CommitError as error:
            _add_what_is_visible(error, run, current)
            raise
        try:
            result = step(run, current)
        except Verdict as outcome:
            raise outcome.reason from outcome.reason.__cause__
        except Overtaken:
            logger.info("%s: another process moved this job on", context.name)
        except S3CommitError as error:
            # A process that moves the job on also removes what this one may be reading: compare the states
            # first.
            is_moved = False
            with noting(error, "reading the job's state again", "another process may have moved it on"):
                is_moved = not is_same_state(current, read_state(context)) or _has_ended(run, current)
            if not is_moved:
                _add_what_is_visible(error, run, current)
                raise
        else:
            if result is not None:
                return result
            continue
        is_overtaken, run.log.is_read = True, False


def _has_ended(run: CommitRun, current: Stored[StateRecord] | None) -> bool:
    """Return whether another process has ended the job, by the log: a commit leaves the state as it is."""
    if current is None or current.record.state != "committing" or run.log.has_ended(run.context.job_id):
        return False
    run.log.read()
    return run.log.has_ended(run.context.job_id)


def _add_what_is_visible(error: S3CommitError, run: CommitRun, current: Stored[StateRecord] | None) -> None:
    """Add a note of what a reader of the destination sees, by the last known state."""
    if current is None:
        return
    if current.record.state == "committing" and not run.log.has_ended(run.context.job_id):
        error.add_note(
            "the job is committing: files of it may be visible; commit it again, or: s3commit recover"
        )
    elif current.record.state in ("committing", "committed"):
        error.add_note(
            "the job is committed: all files of it are visible; commit it again to finish what is left"
        )


def touched(options: JobOptions, seal: SealRecord) -> Collection[str] | None:
    """Return the partitions of which a commit changes the files; None for all."""
    is_whole = options.whole_destination and options.conflict_mode != "append"
    return None if is_whole else seal.partitions

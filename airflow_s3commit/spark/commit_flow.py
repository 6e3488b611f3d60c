"""The driver's side of a write: which job it is for, and what becomes of it when the tasks have ended.

A job in the Spark conf is someone else's (Airflow's): the write only seals its stage. Without one the write
sets a job up by itself, and seals, plans and commits it.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_s3commit.clock import SystemClock
from airflow_s3commit.exceptions import (
    AccessDenied,
    AlreadyCommitted,
    InvalidDestination,
    JobMismatch,
    S3CommitError,
)
from airflow_s3commit.protocol.destination import Destination
from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.layout import Layout
from airflow_s3commit.protocol.records import (
    CommittedTask,
    JobOptions,
    JobReference,
    ManifestRecord,
    SealReference,
)
from airflow_s3commit.spark.executor_store import forget_store, store_of_process
from airflow_s3commit.spark.session import (
    DEFAULT_STAGE,
    DEFAULT_STAGE_ATTEMPT,
    ConfGet,
    JobInConf,
    StoreSettings,
    job_from_conf,
    store_from_conf,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from airflow_s3commit.clock import Clock
    from airflow_s3commit.spark.options import WriteOptions

__all__ = [
    "Target",
    "abort_failed_write",
    "abort_until_quiet",
    "abort_write",
    "commit_write",
    "own_target",
    "ready_job",
    "renewing_store",
    "target_of",
]

logger = logging.getLogger(__name__)

#: States in which a write's own job may be aborted; in the others a commit is, or was, under way.
_ABORTABLE = ("open", "sealed", "aborting", "aborted")

#: Spark calls an abort before it kills the tasks that still run, and gives a worker two seconds more. So an
#: abort looks again: until nothing new was found for the shorter time, but not beyond the longer (seconds).
_QUIET = 4.0
_LONGEST_LOOK = 10.0
_PAUSE = 1.0


@dataclass(frozen=True, slots=True)
class Target:
    """The job that a write is for, and how to reach it; plain data.

    Attributes:
        reference: The job.
        stage: Name of this write in the job.
        stage_attempt: Which attempt at it.
        own: Whether the write set the job up by itself, and so commits it.
        store: How to reach the store.

    """

    reference: JobReference
    stage: str
    stage_attempt: str
    own: bool
    store: StoreSettings

    def job(self) -> Job:
        """Return the job, with this process's store."""
        return Job.at(store_of_process(self.store), self.reference)


@contextmanager
def renewing_store(settings: StoreSettings) -> Iterator[None]:
    """Let whoever asks next look for credentials anew, if those that this process has are refused."""
    try:
        yield
    except AccessDenied:
        forget_store(settings)
        raise


def own_target(options: WriteOptions, job_id: str) -> Target:
    """Return the job that a write sets up where the conf names none.

    Raises:
        InvalidDestination: The write has no path.

    """
    if options.destination is None:
        raise InvalidDestination(
            'nothing says where to write: give .save("s3://bucket/table"), or a job in the Spark conf'
            " (spark.s3commit.job.id and what else committer_conf returns)"
        )
    layout = Layout.of(Destination.parse(options.destination), job_id)
    reference = JobReference(job_id=job_id, destination=layout.destination.uri, staging=layout.staging.uri)
    return Target(reference, options.stage or DEFAULT_STAGE, DEFAULT_STAGE_ATTEMPT, True, options.store)


def target_of(options: WriteOptions, job_id: str, conf: ConfGet, given: JobInConf | None = None) -> Target:
    """Return the job a write is for: the one given or in the conf, checked against the options, or its own.

    Args:
        options: The options of the write.
        job_id: Id of the job that the write sets up if the conf names none.
        conf: The session's conf.
        given: The job that the caller gave, which beats the conf's.

    Raises:
        InvalidDestination: The write has no path, or another than the job.
        InvalidRecord: The conf names a job in part.

    """
    store = options.store.or_else(store_from_conf(conf))
    found = given or job_from_conf(conf)
    if found is None:
        own = own_target(options, job_id)
        return Target(own.reference, own.stage, own.stage_attempt, True, store)
    destination = Destination.parse(found.reference.destination).uri
    if options.destination not in (None, destination):
        raise InvalidDestination(
            f"the write goes to {options.destination}, but its job {found.reference.job_id} commits to"
            f" {destination}; leave the path out, or the job (spark.s3commit.job.* in the Spark conf)"
        )
    return Target(found.reference, options.stage or found.stage, found.stage_attempt, False, store)


def ready_job(target: Target, options: WriteOptions) -> Job:
    """Return the job, set up if it is the write's own, and checked against what the user asked for.

    Raises:
        JobMismatch: The save mode, or the option ``conflictMode``, contradicts the job's conflict mode.
        S3CommitError: The job could not be set up.

    """
    with renewing_store(target.store):
        job = target.job()
        if not target.own:
            _check_modes(job, options)
            return job
        if job.state() is not None:
            return job
        return Job.setup(
            store_of_process(target.store),
            target.reference.destination,
            options=JobOptions(committer=options.committer, conflict_mode=options.own_conflict_mode),
            job_id=target.reference.job_id,
            context={"engine": "spark"},
        )


def commit_write(
    target: Target, tasks: Iterable[CommittedTask]
) -> tuple[SealReference, ManifestRecord | None]:
    """Seal the stage with the tasks that succeeded; commit the job if it is the write's own.

    Returns:
        The stage's seal; and the manifest, if the job was committed.

    Raises:
        S3CommitError: As `Job.seal_stage` and `Job.commit` do.

    """
    with renewing_store(target.store):
        job = target.job()
        seal = job.seal_stage(target.stage, target.stage_attempt, tasks)
        logger.info("sealed %d files at %s", seal.counts.files, seal.location)
        if not target.own:
            return seal, None
        job.seal()
        job.plan()
        manifest = job.commit()
    logger.info("committed %d files to %s", manifest.counts.files, manifest.destination)
    return seal, manifest


def abort_write(target: Target, *, tasks_ended: bool = False) -> None:
    """Leave nothing of a failed write pending, as far as it is this write's to decide.

    Of a job in the conf only this stage attempt is aborted, and only if it was not sealed: the job's owner
    does the rest. A commit that is under way, or whose outcome is unknown, is left for ``recover``.

    Args:
        target: The job, and which stage attempt of it.
        tasks_ended: Whether no task of the write can be running any more.

    Raises:
        S3CommitError: Something is left; ``s3commit abort`` of the job finds it.

    """
    with renewing_store(target.store):
        job = target.job()
        state = job.state()
        if not target.own:
            if state is not None and job.stage_seal(target.stage, target.stage_attempt) is None:
                job.abort_stage(target.stage, target.stage_attempt)
        elif state is None or state.state in _ABORTABLE:
            # Without a state too: no task may set the job up from now on.
            abort_until_quiet(job, quiet=0.0 if tasks_ended else _QUIET)
        else:
            logger.warning(
                "job %s on %s is %s: not aborted; run `s3commit recover` if it should go on",
                target.reference.job_id, target.reference.destination, state.state,
            )  # fmt: skip


def abort_failed_write(
    target: Target, *, tasks_ended: bool = False, instead: str = "run `s3commit abort` for it"
) -> None:
    """Abort as `abort_write` does; if that fails too, only say so: what failed the write is the error to see.

    Args:
        target: The job, and which stage attempt of it.
        tasks_ended: Whether no task of the write can be running any more.
        instead: What removes the write's uploads if this does not.

    """
    try:
        abort_write(target, tasks_ended=tasks_ended)
    except S3CommitError:
        logger.warning(
            "job %s on %s could not be aborted; %s",
            target.reference.job_id, target.reference.destination, instead, exc_info=True,
        )  # fmt: skip


def abort_until_quiet(job: Job, clock: Clock | None = None, quiet: float = _QUIET) -> int:
    """Abort a job whose tasks may still be running, and look again until they seem to have ended.

    What a task uploads afterwards, before it finds out that its job is gone, only a sweep finds.

    Args:
        job: The write's own job.
        clock: Where time comes from.
        quiet: Seconds without a find after which it is enough.

    Returns:
        How many uploads were aborted.

    Raises:
        S3CommitError: As `Job.abort` does.

    """
    clock = clock or SystemClock()
    began = changed = clock.monotonic()
    aborted = 0
    while True:
        try:
            found = job.abort(reason="the Spark write failed").uploads
        except AlreadyCommitted:
            logger.info("job %s is committed: not aborted", job.reference.job_id)
            return aborted
        aborted += found
        now = clock.monotonic()
        if found:
            changed = now
        if now - changed >= quiet or now - began >= _LONGEST_LOOK:
            return aborted
        clock.sleep(_PAUSE)


def _check_modes(job: Job, options: WriteOptions) -> None:
    asked = "replace" if options.overwrite else options.conflict_mode
    if asked is None:
        return
    mode = job.record().options.conflict_mode
    if asked != mode:
        said = "save mode overwrite" if options.overwrite else f"conflict mode {options.conflict_mode}"
        raise JobMismatch(
            f"{said} contradicts conflict mode {mode} of job {job.reference.job_id} on"
            f' {job.reference.destination}; leave the choice to the job: .mode("append") without'
            " conflictMode, or write_pending without a mode"
        )

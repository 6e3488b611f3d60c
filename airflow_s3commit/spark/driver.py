"""The driver's side of a write: which job it is for, and what becomes of it when the tasks have ended.

A job in the Spark conf is someone else's (Airflow's): the write only seals its stage. Without one the write
sets a job up by itself, and seals, plans and commits it.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from airflow_s3commit._causes import add_failure
from airflow_s3commit._clock import SystemClock
from airflow_s3commit.exceptions import (
    AccessDenied,
    AlreadyCommitted,
    InvalidDestination,
    JobMismatch,
    S3CommitError,
)
from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.model.destination import Destination, split_uri
from airflow_s3commit.protocol.model.job import JobOptions, JobReference
from airflow_s3commit.protocol.model.layout import Layout
from airflow_s3commit.protocol.model.manifest import ManifestRecord
from airflow_s3commit.protocol.model.object_options import ObjectOptions
from airflow_s3commit.protocol.model.seal import CommittedTask, SealReference
from airflow_s3commit.spark.s3a_conf import S3ASettings, s3a_settings
from airflow_s3commit.spark.session import (
    DEFAULT_STAGE,
    DEFAULT_STAGE_ATTEMPT,
    ConfGet,
    JobInConf,
    forget_store,
    job_from_conf,
    store_from_conf,
    store_of_process,
    tasks_have_twins,
)
from airflow_s3commit.store.credentials import StoreAddress
from airflow_s3commit.store.headers import with_headers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from airflow_s3commit._clock import Clock
    from airflow_s3commit.spark.options import WriteOptions
    from airflow_s3commit.store.base import ObjectStore

logger = logging.getLogger(__name__)


#: States in which a write's own job may be aborted; in the others a commit is, or was, under way.
_ABORTABLE = ("open", "sealed", "aborting", "aborted")


@dataclass(frozen=True, slots=True)
class Target:
    """The job that a write is for, and how to reach it; plain data.

    Attributes:
        reference: The job.
        stage: Name of this write in the job.
        stage_attempt: Which attempt at it.
        own: Whether the write set the job up by itself, and so commits it.
        store: How to reach the store.
        twins: Whether Spark may run a second attempt at a task beside the first.
        object_options: How the objects of a write's own job are kept.
        session: The session's S3A settings for the bucket.

    """

    reference: JobReference
    stage: str
    stage_attempt: str
    own: bool
    store: StoreAddress
    twins: bool = False
    object_options: ObjectOptions = field(default_factory=ObjectOptions)
    session: S3ASettings = field(default_factory=S3ASettings)

    def job(self) -> Job:
        """Return the job, with this process's store."""
        return Job.at(self.job_store(), self.reference)

    def job_store(self) -> ObjectStore:
        """Return this process's store, whose writes have what an own job's records are to have."""
        return with_headers(store_of_process(self.store), self.object_options.of_records)


@contextmanager
def renewing_store(settings: StoreAddress) -> Iterator[None]:
    """Drop this process's store if its credentials are refused, so that the next call loads new ones."""
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
    return Target(
        reference, options.stage or DEFAULT_STAGE, DEFAULT_STAGE_ATTEMPT, True, options.store,
        object_options=options.object_options,
    )  # fmt: skip


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
        InvalidOption: The session asks S3A for encryption that this package cannot do.

    """
    store = options.store.or_else(store_from_conf(conf))
    found = given or job_from_conf(conf)
    if found is None:
        target = own_target(options, job_id)
        session = s3a_settings(conf, split_uri(target.reference.destination)[0])
        kept = session.fill(options.object_options)
        return replace(target, store=store, twins=tasks_have_twins(conf), object_options=kept)
    destination = Destination.parse(found.reference.destination).uri
    if options.destination not in (None, destination):
        raise InvalidDestination(
            f"the write goes to {options.destination}, but its job {found.reference.job_id} commits to"
            f" {destination}; leave the path out, or the job (spark.s3commit.job.* in the Spark conf)"
        )
    session = s3a_settings(conf, split_uri(destination)[0])
    return Target(
        found.reference, options.stage or found.stage, found.stage_attempt, False, store, session=session
    )


def ready_job(target: Target, options: WriteOptions) -> Job:
    """Return the job, set up if it is the write's own, and checked against what the user asked for.

    Raises:
        JobMismatch: The save mode, the option ``conflictMode``, or what options or session say of how objects
            are kept contradicts the job.
        S3CommitError: The job could not be set up.

    """
    with renewing_store(target.store):
        job = target.job()
        if not target.own:
            _check_modes(job, options)
            _check_object_options(job, options, target.session)
            return job
        if job.state() is not None:
            return job
        return Job.setup(
            target.job_store(),
            target.reference.destination,
            options=JobOptions(
                committer=options.committer,
                conflict_mode=options.own_conflict_mode,
                object_options=target.object_options,
            ),
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
        if target.twins:
            abort_twins(job)
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
            abort_until_quiet(job, quiet=0.0 if tasks_ended else QUIET)
        else:
            logger.warning(
                "job %s on %s is %s: not aborted; run `s3commit recover` if it should go on",
                target.reference.job_id, target.reference.destination, state.state,
            )  # fmt: skip


def abort_failed_write(
    target: Target,
    *,
    tasks_ended: bool = False,
    instead: str = "run `s3commit abort` for it",
    cause: BaseException | None = None,
) -> None:
    """Abort as `abort_write` does; log a failure to abort, since the write's own error is the one to raise.

    Args:
        target: The job, and which stage attempt of it.
        tasks_ended: Whether no task of the write can be running any more.
        instead: What removes the write's uploads if this fails.
        cause: The write's error, if it is known here; a failure to abort is added to it.

    """
    try:
        abort_write(target, tasks_ended=tasks_ended)
    except Exception as error:
        if cause is not None:
            left = f"uploads of it may stay pending; {instead}"
            add_failure(cause, error, f"aborting job {target.reference.job_id}", left)
        logger.warning(
            "job %s on %s could not be aborted; %s",
            target.reference.job_id, target.reference.destination, instead, exc_info=True,
        )  # fmt: skip


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


def _check_object_options(job: Job, options: WriteOptions, session: S3ASettings) -> None:
    """Refuse a write whose options, or whose session, ask for other object options than its job has."""
    kept = job.record().options.object_options
    for said, asked in (
        ("the write's options", options.object_options.or_else(kept)),
        ("fs.s3a.* of the Spark session", session.fill(kept)),
    ):
        others = [
            f"{name}={getattr(asked, name)!r}"
            for name in kept.__struct_fields__
            if getattr(asked, name) != getattr(kept, name)
        ]
        if others:
            raise JobMismatch(
                f"{said} ask for {', '.join(others)}, which job {job.reference.job_id} on"
                f" {job.reference.destination} does not: say it with the job, in its object_options"
            )


#: Seconds without a new upload after which the tasks are taken to have ended.
QUIET = 4.0

#: Seconds after which no further abort begins, and seconds between two.
_LONGEST_LOOK = 10.0

_PAUSE = 1.0


def abort_until_quiet(job: Job, clock: Clock | None = None, quiet: float = QUIET) -> int:
    """Abort a job whose tasks may still be running, and repeat until they seem to have ended.

    A sweep removes what a task uploads afterwards, before it finds its job aborted.

    Args:
        job: The write's own job.
        clock: Where time comes from.
        quiet: Seconds without a new upload after which to stop.

    Returns:
        How many uploads were aborted.

    Raises:
        S3CommitError: As `Job.abort` does.

    """
    try:
        return _look_until_quiet(lambda: job.abort(reason="the Spark write failed").uploads, clock, quiet)
    except AlreadyCommitted:
        logger.info("job %s is committed: not aborted", job.reference.job_id)
        return 0


def abort_twins(job: Job, clock: Clock | None = None) -> int:
    """Abort what speculative attempts upload after the job's commit, until Spark has killed them.

    A failure here is no failure of the write, which is committed: it is logged, and a sweep finds the rest.

    Args:
        job: The write's own job, committed.
        clock: Where time comes from.

    Returns:
        How many uploads were aborted.

    """
    try:
        return _look_until_quiet(job.abort_late, clock, QUIET)
    except S3CommitError:
        logger.warning(
            "job %s on %s is committed, but what its speculative tasks left pending could not be aborted; run"
            " `s3commit sweep`",
            job.reference.job_id, job.reference.destination, exc_info=True,
        )  # fmt: skip
        return 0


def _look_until_quiet(look: Callable[[], int], clock: Clock | None, quiet: float) -> int:
    """Repeat an abort until it finds no uploads for a while; return how many it found."""
    clock = clock or SystemClock()
    began = changed = clock.monotonic()
    total = 0
    while True:
        found = look()
        total += found
        now = clock.monotonic()
        if found:
            changed = now
        if now - changed >= quiet or now - began >= _LONGEST_LOOK:
            return total
        clock.sleep(_PAUSE)

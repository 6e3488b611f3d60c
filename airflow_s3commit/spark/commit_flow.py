"""The driver's side of a write: which job it is for, and what becomes of it when the tasks have ended.

A job in the Spark conf is someone else's (Airflow's): the write only seals its stage. Without one the write
sets a job up by itself, and seals, plans and commits it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_s3commit.exceptions import InvalidDestination, JobMismatch
from airflow_s3commit.protocol.destination import Destination
from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.layout import Layout
from airflow_s3commit.protocol.records import CommittedTask, JobOptions, JobReference
from airflow_s3commit.spark.executor_store import store_of_process
from airflow_s3commit.spark.session import (
    DEFAULT_STAGE,
    DEFAULT_STAGE_ATTEMPT,
    ConfGet,
    StoreSettings,
    job_from_conf,
    store_from_conf,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_s3commit.spark.options import WriteOptions

__all__ = ["Target", "abort_write", "commit_write", "own_target", "target_of"]

logger = logging.getLogger(__name__)

#: States in which a write's own job may be aborted; in the others a commit is, or was, under way.
_ABORTABLE = ("open", "sealed", "aborting")


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
    reference = JobReference(
        job_id=job_id, destination=layout.destination.uri, staging=layout.staging.uri
    )
    return Target(reference, options.stage or DEFAULT_STAGE, DEFAULT_STAGE_ATTEMPT, True, options.store)


def target_of(options: WriteOptions, job_id: str, conf: ConfGet) -> Target:
    """Return the job a write is for: the one in the conf, checked against the options, or its own.

    Args:
        options: The options of the write.
        job_id: Id of the job that the write sets up if the conf names none.
        conf: The session's conf.

    Raises:
        InvalidDestination: The write has no path, or another than the job in the conf.
        InvalidRecord: The conf names a job in part.

    """
    store = options.store.or_else(store_from_conf(conf))
    found = job_from_conf(conf)
    if found is None:
        own = own_target(options, job_id)
        return Target(own.reference, own.stage, own.stage_attempt, True, store)
    destination = Destination.parse(found.reference.destination).uri
    if options.destination not in (None, destination):
        raise InvalidDestination(
            f"the write goes to {options.destination}, but job {found.reference.job_id} of the Spark conf"
            f" commits to {destination}; leave the path out, or unset spark.s3commit.job.* for this write"
        )
    return Target(found.reference, options.stage or found.stage, found.stage_attempt, False, store)


def ready_job(target: Target, options: WriteOptions) -> Job:
    """Return the job, set up if it is the write's own, and checked against what the user asked for.

    Raises:
        JobMismatch: The save mode, or the option ``conflictMode``, contradicts the job's conflict mode.
        S3CommitError: The job could not be set up.

    """
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


def commit_write(target: Target, tasks: Iterable[CommittedTask]) -> None:
    """Seal the stage with the tasks that succeeded; commit the job if it is the write's own.

    Raises:
        S3CommitError: As `Job.seal_stage` and `Job.commit` do.

    """
    job = target.job()
    seal = job.seal_stage(target.stage, target.stage_attempt, tasks)
    logger.info("sealed %d files at %s", seal.counts.files, seal.location)
    if target.own:
        job.seal()
        job.plan()
        manifest = job.commit()
        logger.info("committed %d files to %s", manifest.counts.files, manifest.destination)


def abort_write(target: Target) -> None:
    """Leave nothing of a failed write pending, as far as it is this write's to decide.

    Of a job in the conf only this stage attempt is aborted, and only if it was not sealed: the job's owner
    does the rest. A commit that is under way, or whose outcome is unknown, is left for ``recover``.
    """
    job = target.job()
    state = job.state()
    if state is None:
        return
    if not target.own:
        if job.stage_seal(target.stage, target.stage_attempt) is None:
            job.abort_stage(target.stage, target.stage_attempt)
    elif state.state in _ABORTABLE:
        job.abort()
    else:
        logger.warning(
            "job %s on %s is %s: not aborted; run `s3commit recover` if it should go on",
            target.reference.job_id, target.reference.destination, state.state,
        )  # fmt: skip


def _check_modes(job: Job, options: WriteOptions) -> None:
    asked = "replace" if options.overwrite else options.conflict_mode
    if asked is None:
        return
    mode = job.record().options.conflict_mode
    if asked != mode:
        said = "save mode overwrite" if options.overwrite else f"conflictMode={options.conflict_mode}"
        raise JobMismatch(
            f"{said} contradicts conflict mode {mode} of job {job.reference.job_id} on"
            f' {job.reference.destination}; use .mode("append"), which leaves the choice to the job'
        )

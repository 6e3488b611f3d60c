"""Jobs that an application begins and ends while it runs, for what Spark's own writers write meanwhile.

The jar keeps the files of a write pending. It finds the write's job by the path among those that this module
has begun in the driver's JVM, and by the thread if several have one destination.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec

from airflow_s3commit.exceptions import InvalidOption, JobClosed
from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.job import JobOptions, JobReference, ObjectOptions
from airflow_s3commit.protocol.model.layout import Layout
from airflow_s3commit.spark.driver import Target, abort_failed_write, abort_twins, renewing_store
from airflow_s3commit.spark.session import (
    DEFAULT_STAGE,
    DEFAULT_STAGE_ATTEMPT,
    PROTOCOL,
    tasks_have_twins,
)
from airflow_s3commit.spark.shipping import PROTOCOL_CLASS, MissingJar
from airflow_s3commit.spark.writer_settings import conf_of, is_classic, s3a_address, s3a_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from airflow_s3commit.protocol.model.sealed_job import SealReference


#: Spark's local property with the id of the job that a thread writes for.
_OF_THREAD = "spark.s3commit.pending.now"

#: Spark's own local property of threads that run a batch of a streaming query.
_BATCH = "streaming.sql.batchId"


@contextmanager
def commit_job(
    spark: SparkSession, destination: str | Destination, *, options: JobOptions | None = None
) -> Iterator[Job]:
    """Commit, at the end of the block, all that Spark's own writers write to a destination within it.

    The writes stay pending until then and become visible together, with the meaning that their save modes
    have in Spark. If the block raises, the job is aborted and nothing becomes visible. A session can have
    many jobs, for several destinations, one after the other or in several threads. It needs the conf of
    `pending_conf` and the jar of `pending_jar` from its start.

    A write is for its thread's job if several jobs have the destination. Other threads that write must end
    before the block does.

    Args:
        spark: The session, not one of Spark Connect.
        destination: URI of the destination.
        options: How the job commits; by default as the save modes say (``as-written``). Encryption, storage
            class and ACL are those that the session sets for S3A.

    Yields:
        The job. After the block ``job.manifest()`` has what was committed.

    Raises:
        InvalidOption: The session cannot have such jobs, or a streaming query runs the block.
        MissingJar: The session has no jar, or an older one.
        JobClosed: The block has written nothing through Spark's commit protocol.
        S3CommitError: The job could not be set up, sealed or committed.
    """
    home = Destination.of(destination)
    jobs, conf = _jobs_of(spark), conf_of(spark)
    if spark.sparkContext.getLocalProperty(_BATCH) is not None:
        raise InvalidOption(
            f"a streaming query runs the block of commit_job for {home.uri}, and a repeated batch would be"
            " committed twice: use airflow_s3commit.spark.foreach_batch"
        )
    options = options or JobOptions(conflict_mode="as-written")
    objects = s3a_settings(conf.get, home.bucket).fill(ObjectOptions())
    if options.object_options not in (ObjectOptions(), objects):
        raise InvalidOption(
            f"object_options of the job for {home.uri} differ from fs.s3a.* of the session, which writes the"
            " files: leave them out, and set encryption, storage class and ACL in the session"
        )
    layout = Layout.of(home, str(uuid4()))
    target = Target(
        JobReference(job_id=layout.job_id, destination=home.uri, staging=layout.staging.uri),
        DEFAULT_STAGE,
        DEFAULT_STAGE_ATTEMPT,
        own=True,
        store=s3a_address(spark, home.bucket),
        twins=tasks_have_twins(conf.get),
        object_options=objects,
    )
    with renewing_store(target.store):
        job = Job.setup(
            target.job_store(),
            home,
            options=msgspec.structs.replace(options, object_options=objects),
            job_id=layout.job_id,
            context={"engine": "spark"},
        )
        try:
            with _writes_for(spark, jobs, target):
                yield job
            job.seal_stage(target.stage, target.stage_attempt)
            job.commit(stages=[(target.stage, target.stage_attempt)])
        except BaseException as error:
            abort_failed_write(target, cause=error)
            raise
        if target.twins:
            abort_twins(job)


def write_stage(spark: SparkSession, target: Target, write: Callable[[], None]) -> SealReference:
    """Write a stage of another owner's job with Spark's own writers, and return its seal.

    If the write fails, the stage attempt's uploads are aborted.

    Args:
        target: The job and the stage attempt.
        write: Writes to the job's destination, in this thread.

    Raises:
        InvalidOption: The session cannot have such jobs.
        JobClosed: The stage attempt is sealed already, or the job has ended.
        S3CommitError: The stage could not be sealed.
    """
    jobs = _jobs_of(spark)
    with renewing_store(target.store):
        job = target.job()
        if job.stage_seal(target.stage, target.stage_attempt) is not None:
            raise JobClosed(
                f"stage {target.stage}-{target.stage_attempt} of job {target.reference.job_id} on"
                f" {target.reference.destination} is sealed: give each write a stage of its own, or run the"
                " stage again as a new attempt"
            )
        try:
            with _writes_for(spark, jobs, target):
                write()
            return job.seal_stage(target.stage, target.stage_attempt)
        except BaseException as error:
            abort_failed_write(target, cause=error)
            raise


@contextmanager
def _writes_for(spark: SparkSession, jobs: Any, target: Target) -> Iterator[None]:
    """Let this thread's writes to the job's destination be for the job."""
    context, job_id = spark.sparkContext, target.reference.job_id
    before = context.getLocalProperty(_OF_THREAD)
    jobs.begin(job_id, target.reference.destination, target.stage, target.stage_attempt)
    context.setLocalProperty(_OF_THREAD, job_id)
    is_complete = False
    try:
        yield
        is_complete = True
    finally:
        # PySpark's stubs do not know that None unsets it.
        context.setLocalProperty(_OF_THREAD, before)  # type: ignore[arg-type]
        jobs.end(job_id, is_complete, target.own)


def _jobs_of(spark: SparkSession) -> Any:
    """Return the jar's jobs in the driver's JVM.

    Raises:
        InvalidOption: The session is Spark Connect's, or its conf lacks what `pending_conf` returns.
        MissingJar: The session has no jar, or an older one.
    """
    if not is_classic(spark):
        raise InvalidOption(
            "a client of Spark Connect has no JVM in which jobs could begin: run the application on the"
            " driver, or give the server the conf of a job (committer_conf(…, writer='spark'))"
        )
    if spark.conf.get(PROTOCOL, None) != PROTOCOL_CLASS:
        raise InvalidOption(
            f"the session has no {PROTOCOL}={PROTOCOL_CLASS}, so Spark would publish files at once: start it"
            " with what airflow_s3commit.spark.pending_conf returns"
        )
    jobs = spark.sparkContext._jvm.s3commit.spark.Jobs  # type: ignore[union-attr] # noqa: SLF001
    if type(jobs).__name__ != "JavaClass":
        raise MissingJar(
            "the session has no jar of airflow-s3commit, or an older one: start it with --jars, or"
            " spark.jars, set to what airflow_s3commit.spark.pending_jar returns"
        )
    return jobs

"""What Spark's own writers write for a job: jobs that an application begins and ends, and `write_pending`.

The jar keeps the files of a write pending. It finds the write's job by the path among those that this module
has begun in the driver's JVM, and by the thread if several have one destination.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec

from airflow_s3commit.exceptions import (
    DestinationNotEmpty,
    InvalidDestination,
    InvalidOption,
    JobClosed,
    JobMismatch,
)
from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.job import JobOptions, JobReference, ObjectOptions
from airflow_s3commit.protocol.model.layout import Layout
from airflow_s3commit.spark.driver import (
    PendingWrite,
    Target,
    abort_failed_write,
    abort_twins,
    renewing_store,
)
from airflow_s3commit.spark.options import DEFAULT_MODE, SaveMode
from airflow_s3commit.spark.session import (
    DEFAULT_STAGE,
    DEFAULT_STAGE_ATTEMPT,
    PROTOCOL,
    JobInConf,
    getter_of,
    job_from_conf,
    tasks_have_twins,
)
from airflow_s3commit.spark.shipping import PROTOCOL_CLASS, MissingJar
from airflow_s3commit.spark.writer_settings import conf_of, is_classic, s3a_address, s3a_settings, with_s3a

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

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
    objects = with_s3a(ObjectOptions(), s3a_settings(conf.get, home.bucket))
    if options.object_options not in (ObjectOptions(), objects):
        raise InvalidOption(
            f"object_options of the job for {home.uri} differ from fs.s3a.* of the session, which writes the"
            " files: leave them out, and set encryption, storage class and ACL in the session"
        )
    layout = Layout.of(home, str(uuid4()))
    target = Target(
        JobReference(**layout.place),
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


def _write_stage(spark: SparkSession, target: Target, write: Callable[[], None]) -> SealReference:
    """Write a stage of another owner's job and return its seal; abort the stage attempt if that fails."""
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


#: Options that only this package's own writer has, in lower case.
_ONLY_OURS = frozenset(
    {"targetfilebytes", "rowbytes", "openfiles", "committer", "publish", "partbytes", "uploadbytes"}
    | {"storageclass", "sse", "ssekmskeyid", "ssebucketkey", "acl", "objecttags", "objectheaders"}
    | {"endpointurl", "region", "pathstyle"}
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where and how Spark's own writer is to write; see `write_pending`."""

    destination: str | None
    partition_by: tuple[str, ...]
    mode: SaveMode | None
    format: str
    options: dict[str, str]

    def save(self, frame: DataFrame, destination: str, *, overwrite: bool) -> None:
        """Write a frame. An overwrite replaces the partitions that get rows, unless an option decides."""
        writer = frame.write.format(self.format).mode("overwrite" if overwrite else "append")
        if self.partition_by:
            writer = writer.partitionBy(*self.partition_by)
            if overwrite:
                writer = writer.option("partitionOverwriteMode", "dynamic")
        writer.options(**self.options).save(f"s3a://{destination.removeprefix('s3://').rstrip('/')}")


def write_by_spark(
    frame: DataFrame,
    place: Place,
    given: JobInConf | None,
    stage_attempt: str | None,
) -> PendingWrite:
    """Write a frame for a job, whose stage is then sealed; or for a job of its own, which is then committed.

    Raises:
        InvalidOption: An option is one of this package's own writer, or the session cannot have such jobs.
        InvalidDestination: There is no destination, or it differs from the job's.
        JobMismatch: The mode contradicts the job.
        JobClosed: The stage attempt is sealed already, or the job has ended.
        DestinationNotEmpty: The mode is ``errorifexists`` and the destination has data.
        S3CommitError: The stage could not be sealed, or the job not committed.
    """
    spark = frame.sparkSession
    found = given or job_from_conf(getter_of(spark))
    mode = place.mode or (DEFAULT_MODE if found is None else "append")
    for name in place.options:
        if name.lower() in _ONLY_OURS:
            raise InvalidOption(
                f"Spark's own writer has no option {name}: leave it out, or use engine='python'"
            )
    if found is None:
        return _commit_by_spark(frame, place, mode)
    reference = found.reference
    home = Destination.parse(reference.destination)
    if place.destination is not None and Destination.parse(place.destination) != home:
        raise InvalidDestination(
            f"the write goes to {place.destination}, but job {reference.job_id} commits to {home.uri}: leave"
            " the destination out, or the job"
        )
    attempt = stage_attempt or found.stage_attempt
    target = Target(reference, found.stage, attempt, own=False, store=s3a_address(spark, home.bucket))
    decides = target.job().record().options.conflict_mode
    is_accepted = mode == "append" or (mode == "overwrite" and decides in ("as-written", "replace"))
    if not is_accepted:
        raise JobMismatch(
            f"save mode {mode} contradicts conflict mode {decides} of job {reference.job_id} on {home.uri};"
            " let the job decide: leave the mode out"
        )
    overwrite = mode == "overwrite" and decides == "as-written"
    seal = _write_stage(spark, target, lambda: place.save(frame, home.uri, overwrite=overwrite))
    return PendingWrite(home.uri, reference, target.stage, target.stage_attempt, seal=seal)


def _commit_by_spark(frame: DataFrame, place: Place, mode: SaveMode) -> PendingWrite:
    """Write with a job of the write's own."""
    if place.destination is None:
        raise InvalidDestination("the write has no destination: name it, or a job")
    adds = mode in ("append", "overwrite")
    options = JobOptions(conflict_mode="as-written") if adds else JobOptions(committer="directory")
    try:
        with commit_job(frame.sparkSession, place.destination, options=options) as job:
            place.save(frame, job.reference.destination, overwrite=mode == "overwrite")
    except DestinationNotEmpty:
        if mode != "ignore":
            raise
        return PendingWrite(place.destination, ignored=True)
    return PendingWrite(place.destination, job.reference, manifest=job.manifest())

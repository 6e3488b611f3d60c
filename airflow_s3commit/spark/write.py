"""``write_pending`` and ``commit_job``: writes of DataFrames, by this package in Python or by Spark itself.

A write in Python needs no registration, because the tasks run a plain function. Each task returns its
committed attempt, and Spark keeps the result of one successful attempt of each task.

The jar keeps the files of Spark's own writers pending. Among the jobs that this module has begun in the
driver's JVM, it finds a write's job by the path, and by the thread if several have that destination.
"""

from __future__ import annotations

import json
import logging
import os
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import functions as F  # noqa: N812 - the name that PySpark's users know it by
from pyspark.sql.types import StringType

from airflow_s3commit.exceptions import DestinationNotEmpty, InvalidOption, JobClosed
from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.model.codec import decode, encode
from airflow_s3commit.protocol.model.destination import Destination, as_uri
from airflow_s3commit.protocol.model.job import JobOptions, ObjectOptions
from airflow_s3commit.protocol.model.sealed_job import CommittedTask
from airflow_s3commit.spark.driver import (
    BATCH,
    PendingWrite,
    Target,
    aborting,
    batch_repeats,
    check_mode,
    check_site,
    check_table,
    commit_write,
    ready_job,
    target_of,
)
from airflow_s3commit.spark.options import (
    ARGUMENTS,
    CONFLICT_MODES,
    DEFAULT_MODE,
    WRITE_OPTIONS,
    SaveMode,
    WriteOptions,
    parse_options,
    quoted,
    refuse_arguments,
)
from airflow_s3commit.spark.session import (
    DEFAULT_STAGE,
    PROTOCOL,
    JobInConf,
    Writer,
    job_from_conf,
    renewing_store,
    rows_counted,
)
from airflow_s3commit.spark.shipping import PROTOCOL_CLASS, MissingJar
from airflow_s3commit.spark.task import partition_types, plan_table, task_ids, write_task
from airflow_s3commit.spark.writer_settings import (
    class_of_jar,
    conf_of,
    is_classic,
    s3a_address,
    site_conf,
    with_file_settings,
)
from airflow_s3commit.tables.columns import resolve_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from airflow_s3commit.protocol.model.job import ConflictMode, JobReference
    from airflow_s3commit.tables.write import TablePlan

logger = logging.getLogger(__name__)

#: Spark's local property with the id of the job that a thread writes for.
_OF_THREAD = "spark.s3commit.pending.now"

#: The options with which a write is checked that Spark's own writer does, in lower case.
_CHECKED = {"path", "partitionby", "partitionoverwritemode"}

#: Options that only this package's own writer has, in lower case.
_ONLY_OURS = {option.name.lower() for option in WRITE_OPTIONS} - _CHECKED
_ONLY_OURS -= {"format", "compression", "maxrecordsperfile", "parquet.block.size"}

#: The stage of what Spark's own writers write in a block: not the default one, which is ``write_pending``'s.
_BLOCK = "commit_job"


def write_pending(
    frame: DataFrame,
    *,
    destination: str | Destination | None = None,
    partition_by: Sequence[str] = (),
    mode: SaveMode | None = None,
    job: JobReference | Job | None = None,
    stage: str | None = None,
    stage_attempt: str | None = None,
    cluster: bool = True,
    format: str | None = None,  # noqa: A002 - as Spark calls it
    options: Mapping[str, str] | None = None,
    engine: Writer = "python",
) -> PendingWrite:
    """Write a DataFrame as pending uploads; seal them for a job, or commit them as a job of their own.

    For the job in the arguments, or else in the Spark conf, the write only seals its stage. Without a job it
    sets up its own job, commits it, and aborts it if anything fails. For a job, the call may be repeated with
    a new ``stage_attempt``; without a job, each call is a separate write.

    Args:
        frame: The rows.
        destination: URI of the destination, or a `Destination`; by default the job's.
        partition_by: One column's name, or several, outermost first: directories named as by Spark's writer.
        mode: Spark's save mode. ``overwrite`` replaces the partitions that get rows, or with
            ``partitionOverwriteMode=static`` the whole table. Without a job the default is ``errorifexists``.
            With a job its conflict mode decides: ``append`` accepts any, other modes must not contradict it.
        job: The job to write for; by default the Spark conf's. Records that a `Job` knows are not read again.
        stage: The stage's name in the argument ``job``, by default ``spark``; the conf names that of its job.
        stage_attempt: Id of the stage attempt, new in each run: letters and digits.
        cluster: Cluster rows by partition first (a shuffle and a sort), for one file of each partition, not
            one per task. To sort rows, or spread a partition over tasks, arrange them and pass False.
        format: ``parquet``; with the engine ``spark`` any format that Spark can write.
        options: Other ``s3commit`` options, by name; with the engine ``spark``, those of Spark's own writer.
        engine: ``python`` writes Parquet with pyarrow and boto3. ``spark`` writes with Spark's own writer and
            S3A; the session needs the conf of `pending_conf` and the jar of `pending_jar`.

    Raises:
        InvalidOption: An option is unknown, malformed, or an argument of this function; the session sets
            something for files that s3commit cannot do; or an overwrite without a job would replace other
            data than intended: it has no rows, the table has other partition columns, or the session sets
            Spark's ``partitionOverwriteMode=static``.
        UnsupportedPartition: A column is missing, Spark too refuses its type, or a value cannot be in a path.
        UnsupportedColumn: Arrow or Parquet cannot hold a column's type.
        InvalidDestination: There is no destination, or it differs from the job's, or the conf has a job that
            keeps what Spark's own writers write there pending.
        JobMismatch: The mode or the object options contradict the job.
        DestinationNotEmpty: The mode is ``errorifexists`` and the destination has data.
        S3CommitError: Sealing the stage or committing the job failed; see `Job.seal_stage` and `Job.commit`.
    """
    destination = as_uri(destination)
    session = frame.sparkSession
    if stage is not None and job is None:
        raise InvalidOption(
            f"stage={stage!r} names a stage of the argument job, and there is none: the owner of a job in the"
            " Spark conf commits the stage that the conf names (spark.s3commit.stage)"
        )
    if mode is not None and mode not in CONFLICT_MODES:
        raise InvalidOption(f"mode {mode!r} is not one of {', '.join(CONFLICT_MODES)}")
    refuse_arguments(options or (), **ARGUMENTS)
    partition_by = [partition_by] if isinstance(partition_by, str) else [*partition_by]
    conf = conf_of(session)
    reference = job.reference if isinstance(job, Job) else job
    given = JobInConf(reference, stage or DEFAULT_STAGE) if reference else job_from_conf(conf.get)
    if given is not None and stage_attempt is not None:
        given = replace(given, stage_attempt=stage_attempt)
    if (given is not None or mode != "overwrite") and _runs_batch(session):
        raise batch_repeats(f"calls write_pending for {destination or 'the job in the conf'}")
    try:
        columns = json.dumps(partition_by)
        texts = {**(options or {}), "path": destination, "partitionBy": columns, "format": format}
        if engine == "spark":
            save = _saving(frame, partition_by, format or "parquet", options or {}, cluster=cluster)
            texts = {name: text for name, text in texts.items() if name.lower() in _CHECKED}
        parsed = parse_options({k: text for k, text in texts.items() if text is not None}, overwrite=False)
        parsed = replace(parsed, conflict_mode=_conflict_mode(mode, own=given is None))
        target = target_of(parsed, str(uuid4()), conf, given)
        if engine == "spark":
            return _write_by_spark(session, target, parsed, save)
        parsed = with_file_settings(parsed, conf)
        frame, plan = planned(frame, parsed, cluster=cluster)
        ready = ready_job(target, parsed, job if isinstance(job, Job) else None)
        tasks = run_tasks(frame, plan, parsed, target, ready)
        with aborting(target, tasks_ended=True):
            seal, manifest = commit_write(target, parsed, tasks, ready)
    except DestinationNotEmpty:
        if mode != "ignore" or destination is None:
            raise
        return PendingWrite(Destination.parse(destination).uri, ignored=True)
    of_stage = (target.reference, target.stage, target.stage_attempt)
    written = PendingWrite(target.reference.destination, *of_stage, tuple(tasks), seal, manifest)
    logger.info("%s", written)
    return written


def _runs_batch(session: Any) -> bool:
    """Return whether this thread runs a batch of a streaming query, or the session is a running query's.

    In other threads that the batch's function starts, its DataFrame still has the query's session.
    """
    if not is_classic(session):
        return False
    if session.sparkContext.getLocalProperty(BATCH) is not None:
        return True
    from py4j.protocol import Py4JError  # noqa: PLC0415 - Spark Connect's own client lacks it

    ours = session._jsparkSession  # noqa: SLF001 - there is no other way
    # A vendor's Spark may have other names; then only the thread of a batch is recognised.
    with suppress(Py4JError):
        # Tested for emptiness first: iterating takes 75 calls, for the error that ends it.
        found = ours.sharedState().activeStreamingQueries()
        queries = found.values() if found else ()
        # A query that has ended meanwhile is None, and so is a query's execution before its first batch.
        last = [query.lastExecution() for query in queries if query is not None]
        return any(one is not None and one.sparkSession().equals(ours) for one in last)
    return False


def _conflict_mode(mode: SaveMode | None, *, own: bool) -> ConflictMode | None:
    """Return what a save mode means for the write's job."""
    if own:
        return CONFLICT_MODES[mode or DEFAULT_MODE]
    if mode == "ignore":
        raise InvalidOption(
            "mode ignore is only for writes without a job: leave mode out, or set the job's conflict mode"
        )
    # Append is Spark's own default for a job's writes: it never contradicts the job.
    return None if mode in (None, "append") else CONFLICT_MODES[mode]


def planned(frame: DataFrame, options: WriteOptions, *, cluster: bool) -> tuple[DataFrame, TablePlan]:
    """Return a frame as its tasks are to write it, and their plan; errors are those of `plan_table`."""
    names = options.table.partition_by
    # Directories are named as asked, as in Spark, whatever the case of the frame's columns.
    for name in names:
        found = resolve_name(frame.columns, name)
        frame = frame if found == name else frame.withColumnRenamed(found, name)
    given = frame.schema
    for name in names:
        if not isinstance(given[name].dataType, StringType):
            frame = frame.withColumn(name, F.col(quoted(name)).cast("string"))
    frame = _arranged(frame, names, cluster=cluster)
    # In this schema partition columns are text, as Spark casts them.
    plan = plan_table(frame.schema, options)
    return frame, replace(plan, partition_types=partition_types(given, plan.partition_by))


def _arranged(frame: DataFrame, partition_by: Sequence[str], *, cluster: bool) -> DataFrame:
    """Return a frame, clustered by its partition columns if asked."""
    if not (partition_by and cluster):
        return frame
    # A shuffle by the partition columns gives all rows of a partition to one task, which writes one file.
    columns = [F.col(quoted(name)) for name in partition_by]
    return frame.repartition(*columns).sortWithinPartitions(*columns)


def run_tasks(
    frame: DataFrame, plan: TablePlan, options: WriteOptions, target: Target, job: Job
) -> list[CommittedTask]:
    """Write a planned frame as pending uploads, and return the tasks to seal; abort if anything fails."""
    write_id = str(uuid4())
    with aborting(target):
        # Only the machines of a Spark Connect server have the configuration files that count.
        sites = not is_classic(frame.sparkSession)
        run = partial(_run_task, plan=plan, options=options, target=target, write_id=write_id, sites=sites)
        # PySpark takes a name with a dot for a field of a struct, so columns are renamed on the way.
        plain = frame.toDF(*(f"c{number}" for number in range(len(frame.columns))))
        with rows_counted(frame.sparkSession, frame.schema):
            reports = plain.mapInArrow(run, "task string").collect()
        tasks = [decode(CommittedTask, row["task"].encode(), "a task's result") for row in reports]
        if tasks:
            return tasks
        # Spark runs no task for a frame that it knows to be empty; write the file with the schema here.
        return [write_task(job, [], plan, task_ids(target, write_id, None), options)]


def _run_task(
    batches: Iterator[pa.RecordBatch],
    *,
    plan: TablePlan,
    options: WriteOptions,
    target: Target,
    write_id: str,
    sites: bool,
) -> Iterator[pa.RecordBatch]:
    job = target.job()
    if sites:
        check_site(job, options, site_conf(os.environ))
    ids = task_ids(target, write_id, TaskContext.get())
    named = (pa.RecordBatch.from_arrays(batch.columns, names=plan.schema.names) for batch in batches)
    task = write_task(job, named, plan, ids, options)
    yield pa.RecordBatch.from_pydict({"task": [encode(task).decode()]})


@contextmanager
def commit_job(
    spark: SparkSession, destination: str | Destination, *, options: JobOptions | None = None
) -> Iterator[Job]:
    """Commit, at the end of the block, all that Spark's own writers write to a destination within it.

    The writes, and what `write_pending` writes in Python for the job, become visible together at that end,
    with the meaning of Spark's save modes. If the block raises, the job is aborted and nothing is visible. A
    session can have many jobs, for several destinations, one after the other or in several threads. It needs
    the conf of `pending_conf` and the jar of `pending_jar` from its start.

    If jobs share the destination, a write is for its thread's job. Writing threads must end before the block.

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
    written = WriteOptions(destination=Destination.of(destination).uri)
    with _block(spark, written, options or JobOptions(conflict_mode="as-written")) as job:
        yield job


@contextmanager
def _block(spark: SparkSession, written: WriteOptions, options: JobOptions) -> Iterator[Job]:
    """Do as `commit_job`, for one write if ``written`` has a mode: then what it is to do is checked too."""
    checked = written if written.conflict_mode is not None else None
    home = Destination.parse(str(written.destination))
    if _runs_batch(spark):
        raise batch_repeats(f"runs the block of commit_job for {home.uri}")
    jobs, target = _jobs_of(spark), target_of(written, str(uuid4()), conf_of(spark))
    target = replace(target, store=s3a_address(spark, home.bucket), stage=_BLOCK)
    objects = target.object_options
    if options.object_options not in (ObjectOptions(), objects):
        raise InvalidOption(
            f"object_options of the job for {home.uri} differ from fs.s3a.* of the session, which writes the"
            " files: leave them out, and set encryption, storage class and ACL in the session"
        )
    with renewing_store(target.store):
        if checked is not None:
            check_table(target, checked)
        job = Job.setup(
            target.job_store(),
            home,
            options=msgspec.structs.replace(options, object_options=objects),
            job_id=target.reference.job_id,
            context={"engine": "spark"},
            alone="driver",
        )
    with aborting(target):
        with _writes_for(spark, jobs, target):
            yield job
        commit_write(target, checked, job=job)
    jobs.refresh(spark._jsparkSession, home.uri)  # noqa: SLF001 - there is no other way


@contextmanager
def _writes_for(spark: SparkSession, jobs: Any, target: Target) -> Iterator[None]:
    """Assign this thread's writes to the job's destination to the job, within the block."""
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
    """Return the jar's class ``Jobs`` in the driver's JVM; refuse a session that cannot have jobs."""
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
    jobs = class_of_jar(spark, "Jobs")
    if jobs is None:
        raise MissingJar(
            "the session has no jar of airflow-s3commit, or an older one: start it with --jars, or"
            " spark.jars, set to what airflow_s3commit.spark.pending_jar returns"
        )
    return jobs


def _saving(
    frame: DataFrame, partition_by: Sequence[str], name: str, options: Mapping[str, str], *, cluster: bool
) -> Callable[[str, bool], None]:
    """Return a function of a destination and an overwrite flag that has Spark's own writer write a frame.

    An overwrite of a partitioned frame replaces the partitions that get rows, unless an option decides.
    """
    for option in options:
        if option.lower() in _ONLY_OURS:
            raise InvalidOption(
                f"Spark's own writer has no option {option}: leave it out, or use engine='python'"
            )
    arranged = _arranged(frame, partition_by, cluster=cluster)

    def save(destination: str, overwrite: bool) -> None:
        writer = arranged.write.format(name).mode("overwrite" if overwrite else "append")
        if partition_by:
            writer = writer.partitionBy(*partition_by)
            if overwrite:
                writer = writer.option("partitionOverwriteMode", "dynamic")
        writer.options(**options).save(f"s3a://{destination.removeprefix('s3://').rstrip('/')}")

    return save


def _write_by_spark(
    spark: SparkSession, target: Target, options: WriteOptions, save: Callable[[str, bool], None]
) -> PendingWrite:
    home, overwrites = target.reference.destination, options.conflict_mode == "replace"
    if target.own:
        fails = options.conflict_mode == "fail"
        of_job = options.own_job() if fails else JobOptions(conflict_mode="as-written")
        with _block(spark, options, of_job) as job:
            save(home, overwrites)
        return PendingWrite(home, job.reference, manifest=job.manifest())
    target = replace(target, store=s3a_address(spark, Destination.parse(home).bucket))
    job = target.job()
    decides = job.record().options.conflict_mode
    overwrites = overwrites and decides == "as-written"
    if not overwrites:
        check_mode(target, options.conflict_mode, decides)
    jobs = _jobs_of(spark)
    with aborting(target):
        if job.stage_seal(target.stage, target.stage_attempt) is not None:
            raise JobClosed(
                f"stage {target.stage}-{target.stage_attempt} of job {job.reference.job_id} on {home} is"
                " sealed: give each write a stage of its own, or run the stage again as a new attempt"
            )
        with _writes_for(spark, jobs, target):
            save(home, overwrites)
        seal, _ = commit_write(target, job=job)
        return PendingWrite(home, target.reference, target.stage, target.stage_attempt, seal=seal)

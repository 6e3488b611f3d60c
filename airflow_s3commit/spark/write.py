"""``write_pending``: writes a DataFrame, optionally clustered by partition, and returns a summary.

It needs no registration, because the tasks run a plain function. Each task returns its committed attempt, and
Spark keeps the result of one successful attempt of each task.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import functions as F  # noqa: N812 - the name that PySpark's users know it by
from pyspark.sql.types import StringType

from airflow_s3commit.exceptions import (
    DestinationNotEmpty,
    InvalidOption,
)
from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.model.codec import decode, encode
from airflow_s3commit.protocol.model.destination import Destination, as_uri
from airflow_s3commit.protocol.model.sealed_job import CommittedTask
from airflow_s3commit.spark.by_spark import Place, write_by_spark
from airflow_s3commit.spark.driver import (
    PendingWrite,
    Target,
    abort_failed_write,
    check_site,
    commit_write,
    ready_job,
    target_of,
)
from airflow_s3commit.spark.options import (
    ARGUMENTS,
    CONFLICT_MODES,
    DEFAULT_MODE,
    Engine,
    SaveMode,
    parse_options,
    refuse_arguments,
)
from airflow_s3commit.spark.plan import (
    first_data_path,
    partition_types,
    plan_table,
)
from airflow_s3commit.spark.session import (
    DEFAULT_STAGE,
    DEFAULT_STAGE_ATTEMPT,
    JobInConf,
    rows_counted,
    store_of_process,
)
from airflow_s3commit.spark.task import TaskIds, refusals_first, write_task
from airflow_s3commit.spark.writer_settings import (
    conf_of,
    is_classic,
    site_conf,
    with_file_settings,
)
from airflow_s3commit.tables.partitions import resolve_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame

    from airflow_s3commit.protocol.model.job import ConflictMode, JobReference
    from airflow_s3commit.spark.options import WriteOptions
    from airflow_s3commit.tables.write import TablePlan

logger = logging.getLogger(__name__)


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
    engine: Engine = "python",
) -> PendingWrite:
    """Write a DataFrame as pending uploads; seal them for a job, or commit them as a job of their own.

    For the job in the arguments, or else in the Spark conf, the write only seals its stage. Without a job it
    sets up its own job, commits it, and aborts it if anything fails. For a job, the call may be repeated with
    a new ``stage_attempt``; without a job, each call is a separate write.

    Args:
        frame: The rows.
        destination: URI of the destination, or a `Destination`; by default the job's.
        partition_by: Partition columns, outermost first. They become directories with the names that Spark's
            own writer gives them.
        mode: Spark's save mode. ``overwrite`` replaces the partitions that get rows, or with the option
            ``partitionOverwriteMode=static`` the whole table. Without a job the default is
            ``errorifexists``, as in Spark. With a job the job's conflict mode decides: ``append`` accepts
            any, and other modes must not contradict it.
        job: The job to write for; by default the one in the Spark conf. The records that a `Job` knows are
            not read again.
        stage: Name of the write's stage in the argument ``job``, by default ``spark``. The job in the conf
            has its stage there too.
        stage_attempt: Id of the stage attempt, new in each run: letters and digits.
        cluster: Cluster rows by partition first (a shuffle and a sort), so that each partition has one file,
            not one from each task with rows of it. Rows that should be sorted, or spread over several tasks,
            are arranged by the caller, with False here.
        format: ``parquet``; with the engine ``spark`` any format that Spark can write.
        options: Further options of the data source ``s3commit``, by the same names. With the engine ``spark``
            those of Spark's own writer.
        engine: ``python`` writes Parquet with pyarrow and boto3. ``spark`` writes with Spark's own writer and
            S3A; the session needs the conf of `pending_conf` and the jar of `pending_jar`.

    Raises:
        InvalidOption: An option is unknown, malformed, or an argument of this function; the session sets
            something for files that s3commit cannot do; or an overwrite without a job would replace other
            data than intended: it has no rows, the table has other partition columns, or the session sets
            Spark's ``partitionOverwriteMode=static``.
        UnsupportedPartition: A partition column is missing, or a value cannot be part of a path.
        UnsupportedColumn: Arrow or Parquet cannot hold a column's type.
        InvalidDestination: There is no destination, or it differs from the job's.
        JobMismatch: The mode or the object options contradict the job.
        DestinationNotEmpty: The mode is ``errorifexists`` and the destination has data.
        S3CommitError: The stage could not be sealed, or the job not committed; see `Job.seal_stage` and
            `Job.commit`.
    """
    destination = as_uri(destination)
    given_job = None
    if stage is not None and job is None:
        raise InvalidOption(
            f"stage={stage!r} names a stage of the argument job, and there is none: the owner of a job in the"
            " Spark conf commits the stage that the conf names (spark.s3commit.stage)"
        )
    if job is not None:
        reference = job.reference if isinstance(job, Job) else job
        given_job = JobInConf(reference, stage or DEFAULT_STAGE, stage_attempt or DEFAULT_STAGE_ATTEMPT)
    if mode is not None and mode not in CONFLICT_MODES:
        raise InvalidOption(f"mode {mode!r} is not one of {', '.join(CONFLICT_MODES)}")
    refuse_arguments(options or (), **ARGUMENTS)
    if engine == "spark":
        where = Place(destination, tuple(partition_by), mode, format or "parquet", dict(options or {}))
        arranged = _arranged(frame, partition_by, cluster=cluster)
        return write_by_spark(arranged, where, given_job, stage_attempt)
    columns = json.dumps(list(partition_by))
    arguments = {"path": destination, "partitionBy": columns, "format": format}
    given = {name: text for name, text in arguments.items() if text is not None}
    conf = conf_of(frame.sparkSession)
    parsed = with_file_settings(parse_options({**(options or {}), **given}, overwrite=False), conf)
    target = target_of(parsed, str(uuid4()), conf.get, given_job)
    if stage_attempt is not None:
        target = replace(target, stage_attempt=stage_attempt)
    parsed = replace(parsed, conflict_mode=_conflict_mode(target, mode))
    if target.own and mode == "ignore" and _has_data(target):
        return PendingWrite(target.reference.destination, ignored=True)
    try:
        return write_frame(frame, parsed, target, job if isinstance(job, Job) else None, cluster=cluster)
    except DestinationNotEmpty:
        if mode != "ignore":
            raise
        return PendingWrite(target.reference.destination, ignored=True)


def _conflict_mode(target: Target, mode: SaveMode | None) -> ConflictMode | None:
    """Return what a save mode means for the write's job."""
    if target.own:
        return CONFLICT_MODES[mode or DEFAULT_MODE]
    if mode == "ignore":
        raise InvalidOption(
            "mode ignore is only for writes without a job: leave mode out, or set the job's conflict mode"
        )
    # Append is Spark's own default for a job's writes: it never contradicts the job.
    return None if mode in (None, "append") else CONFLICT_MODES[mode]


def write_frame(
    frame: DataFrame,
    options: WriteOptions,
    target: Target,
    job: Job | None = None,
    *,
    cluster: bool,
    layout_known: bool = False,
) -> PendingWrite:
    """Write a frame and seal its stage, or commit it as a job of its own; abort it if anything fails.

    Errors are those of `write_pending`.

    Args:
        options: The options of the write, with the session's settings.
        job: The job, if this process has it already.
        layout_known: Whether the table is known to have the write's layout.
    """
    write_id = str(uuid4())
    # Directories are named as asked, as in Spark, whatever the case of the frame's columns.
    for name in options.table.partition_by:
        found = resolve_name(frame.columns, name)
        frame = frame if found == name else frame.withColumnRenamed(found, name)
    given = frame.schema
    frame = _arranged(frame, options.table.partition_by, cluster=cluster)
    # In this schema partition columns are text.
    plan = plan_table(frame.schema, options)
    plan = replace(plan, partition_types=partition_types(given, plan.partition_by))
    job = ready_job(target, options, job)
    tasks_ended = False
    try:
        # Only the machines of a Spark Connect server have the configuration files that count.
        sites = not is_classic(frame.sparkSession)
        run = partial(_run_task, plan=plan, options=options, target=target, write_id=write_id, sites=sites)
        # PySpark takes a name with a dot for a field of a struct, so columns are renamed on the way.
        plain = frame.toDF(*(f"c{number}" for number in range(len(frame.columns))))
        with rows_counted(frame.sparkSession, frame.schema):
            reports = plain.mapInArrow(run, "task string").collect()
        tasks = [decode(CommittedTask, row["task"].encode(), "a task's result") for row in reports]
        if not tasks:
            # Spark runs no task for a frame that it knows to be empty; write the file with the schema here.
            ids = TaskIds.of_spark(target.stage, target.stage_attempt, write_id, 0, 0)
            tasks = [write_task(job, [], plan, ids, options)]
        tasks_ended = True
        seal, manifest = commit_write(target, options, tasks, job, layout_known=layout_known)
    except BaseException as error:
        abort_failed_write(target, tasks_ended=tasks_ended, cause=error)
        raise
    written = PendingWrite(
        destination=target.reference.destination,
        job=target.reference,
        stage=target.stage,
        stage_attempt=target.stage_attempt,
        tasks=tuple(tasks),
        seal=seal,
        manifest=manifest,
    )
    logger.info("%s", written)
    return written


def _arranged(frame: DataFrame, partition_by: Sequence[str], *, cluster: bool) -> DataFrame:
    """Return a frame with partition columns cast to text by Spark, and clustered by them if asked.

    A shuffle by the partition columns gives all rows of a partition to one task, which writes one file.
    """
    for name in partition_by:
        if not isinstance(frame.schema[name].dataType, StringType):
            frame = frame.withColumn(name, F.col(_quoted(name)).cast("string"))
    if not (partition_by and cluster):
        return frame
    columns = [F.col(_quoted(name)) for name in partition_by]
    return frame.repartition(*columns).sortWithinPartitions(*columns)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _run_task(
    batches: Iterator[pa.RecordBatch],
    *,
    plan: TablePlan,
    options: WriteOptions,
    target: Target,
    write_id: str,
    sites: bool,
) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    if context is None:
        raise RuntimeError("this runs in Spark tasks only")
    ids = TaskIds.of_spark(
        target.stage, target.stage_attempt, write_id, context.partitionId(), context.taskAttemptId()
    )
    job = target.job()
    with refusals_first():
        if sites:
            check_site(job, options, site_conf(os.environ))
    task = write_task(job, _named(batches, plan.schema.names), plan, ids, options)
    yield pa.RecordBatch.from_pydict({"task": [encode(task).decode()]})


def _named(batches: Iterator[pa.RecordBatch], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        fields = [field.with_name(name) for field, name in zip(batch.schema, names, strict=True)]
        yield pa.RecordBatch.from_arrays(batch.columns, schema=pa.schema(fields))


def _has_data(target: Target) -> bool:
    destination = Destination.parse(target.reference.destination)
    return first_data_path(store_of_process(target.store), destination) is not None

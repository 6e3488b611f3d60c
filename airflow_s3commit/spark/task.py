"""The plan that the tasks of a write share, and what each task does: write its rows as pending uploads."""

from __future__ import annotations

import inspect
import os
import re
from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa
import pyspark
from pyspark.errors import PySparkTypeError
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, AtomicType, DataType, MapType, NullType, StructField, StructType

from airflow_s3commit.spark.options import OTHER_WRITER, PART_BYTES, WriteOptions
from airflow_s3commit.spark.session import DEFAULT_STAGE
from airflow_s3commit.tables.columns import ROW_METADATA, UnsupportedColumn, resolve_columns, unfit
from airflow_s3commit.tables.write import TablePlan, file_stem, write_batches

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark import TaskContext

    from airflow_s3commit.protocol.job import Job
    from airflow_s3commit.protocol.model.sealed_job import CommittedTask
    from airflow_s3commit.spark.driver import Target


def task_ids(target: Target, write_id: str, context: TaskContext | None) -> tuple[str, str, int, str]:
    """Return a task attempt's stage, stage attempt, partition and id; a frame without tasks has no context.

    The id has digits of the driver's UUID of the write, because Spark numbers the attempts of each
    application from 0, and a restarted application has the same conf.
    """
    partition, number = (context.partitionId(), context.taskAttemptId()) if context else (0, 0)
    return target.stage, target.stage_attempt, partition, f"{number}w{write_id[:8]}"


def write_task(
    job: Job,
    batches: Iterable[pa.RecordBatch],
    plan: TablePlan,
    ids: tuple[str, str, int, str],
    options: WriteOptions | None = None,
) -> CommittedTask:
    """Write a task's rows as pending uploads and commit them as one pendingset; ``ids`` are as in `task_ids`.

    Any exception here aborts the attempt's uploads. A failure of the operators that produce the rows raises
    no exception here: Spark ends the batches as if complete (seen with 4.3) and drops the task's message, and
    the pendingset lacks rows. So only task attempts with a message may be sealed, whatever pendingsets exist.
    """
    stage, stage_attempt, partition, attempt_id = ids
    try:
        with job.task_attempt(
            stage,
            stage_attempt,
            f"{partition:05d}",
            attempt_id,
            part_bytes=PART_BYTES,
            streamed=options is not None and options.committer == "magic",
            buffered_bytes=(options or WriteOptions()).in_flight_bytes,
            local_dir=_local_dir(partition),
        ) as attempt:
            named = None if stage == DEFAULT_STAGE else stage
            stem = file_stem(f"{partition:05d}", named, job.reference.job_id)
            # As in Spark, the first task writes a file with the schema for an empty table.
            written = write_batches(attempt, batches, plan, stem, empty_file=partition == 0)
            attempt.describe(written.files, written.schema)
            return attempt.commit()
    finally:
        # A worker outlives its tasks, and is idle between them. The C library's memory is left to the next
        # task, which needs it at once, or returns it when its buffer is full.
        pa.default_memory_pool().release_unused()


def _local_dir(partition: int) -> str | None:
    """Return one of Spark's local directories, which are removed with the executor even if it is killed."""
    directories = [name for name in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if name]
    return directories[partition % len(directories)] if directories else None


#: Spark's names of types whose values change on the way through Arrow or pyarrow, or are lost.
_REFUSED = re.compile(r"geometry|geography|time\(|variant|interval (year|month)")

#: Spark's names of atomic types that its own partition columns cannot have.
_NOT_IN_PATHS = re.compile("variant|string collate")

#: The entry of a column's metadata with its id, which Spark's own writer puts into the file's schema.
_FIELD_ID = "parquet.field.id"


def plan_table(schema: StructType, options: WriteOptions) -> TablePlan:
    """Check a write's options against the schema, and return the settings that its tasks share.

    Raises:
        UnsupportedPartition: A partition column is missing, or has a type that a partition cannot have.
        UnsupportedColumn: There are no columns, a column has a field id or a type that Arrow or pyarrow
            cannot hold, or two columns' names differ only in case.
    """
    _check_fields("the frame", schema)
    for field in schema.fields:
        _check_type(field.name, field.dataType)
    if _FIELD_ID in schema.json():
        raise UnsupportedColumn(
            f"columns have ids ({_FIELD_ID}), which s3commit does not write in Python; {OTHER_WRITER}"
        )
    arrow = _arrow_schema(schema)
    partition_by = resolve_columns(arrow, options.table.partition_by)
    in_files = StructType([field for field in schema.fields if field.name not in partition_by])
    # As Spark's own writer adds them. Without a legacy calendar key, Spark reads dates and times of a file
    # with its version in the proleptic Gregorian calendar, which is Arrow's calendar too.
    footer = {"org.apache.spark.version": pyspark.__version__, ROW_METADATA: in_files.json()}
    return TablePlan(arrow, partition_by, options.table, footer, partition_types(schema, partition_by))


def partition_types(schema: StructType, names: Sequence[str]) -> tuple[pa.DataType, ...]:
    """Return the types of partition columns; text for a type that Arrow lacks.

    Raises `UnsupportedPartition` for a type that Spark's own writer refuses: equal values may differ as text.
    """
    kinds = [schema[name].dataType for name in names]
    for name, kind in zip(names, kinds, strict=True):
        if not isinstance(kind, AtomicType) or _NOT_IN_PATHS.match(kind.simpleString()):
            raise unfit(name, kind.simpleString())
    return tuple(_arrow_type(kind) or pa.string() for kind in kinds)


def _arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema in which Spark passes rows of a schema to Python, with timestamps in UTC."""
    # PySpark 4.2 requires a time zone for timestamps; earlier releases take UTC and no argument.
    wants_zone = "timezone" in inspect.signature(to_arrow_schema).parameters
    return to_arrow_schema(schema, timezone="UTC") if wants_zone else to_arrow_schema(schema)


def _arrow_type(kind: DataType) -> pa.DataType | None:
    """Return the Arrow type of a column; None if Arrow lacks it."""
    try:
        return _arrow_schema(StructType([StructField("c", kind)])).field(0).type
    except PySparkTypeError:
        return None


def _check_type(name: str, kind: DataType) -> None:
    """Refuse a type, at any depth, that would not come back from the files."""
    type_name = kind.simpleString()
    inner: list[DataType] = []
    if isinstance(kind, StructType):
        _check_fields(f"column {name!r} has the type {type_name}, which", kind)
        inner = [field.dataType for field in kind.fields]
    elif isinstance(kind, MapType | ArrayType):
        inner = [kind.keyType, kind.valueType] if isinstance(kind, MapType) else [kind.elementType]
        if any(isinstance(each, NullType) for each in inner):
            typed = type_name.replace("void", "string")
            raise UnsupportedColumn(
                f"column {name!r} has the type {type_name}, an empty {kind.typeName()} without a type of its"
                f" values: cast it, for example with cast({name} as {typed})"
            )
    elif _REFUSED.match(type_name) or _arrow_type(kind) is None:
        raise UnsupportedColumn(
            f"column {name!r} has or holds the type {type_name}, which s3commit does not write in Python:"
            f" cast it, for example to string, or {OTHER_WRITER}"
        )
    for each in inner:
        _check_type(name, each)


def _check_fields(what: str, kind: StructType) -> None:
    if not kind.fields:
        raise UnsupportedColumn(f"{what} has no fields, and parquet needs one: add one, or leave it out")
    repeated, times = Counter(field.lower() for field in kind.names).most_common(1)[0]
    if times > 1:
        raise UnsupportedColumn(
            f"{what} has several fields {repeated!r} to Spark, whose names have no case and which cannot read"
            " such files: rename one of them"
        )

"""Plans a write: refuses to replace or mix data by accident, and returns the settings of the tasks.

Spark's default overwrite mode, ``static``, replaces the whole table; here the default replaces the partitions
that get rows.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa
import pyspark
from pyspark.errors import PySparkTypeError
from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    NullType,
    StructField,
    StructType,
)

from airflow_s3commit.exceptions import InvalidOption, JobMismatch
from airflow_s3commit.protocol.model.destination import Destination, is_data, is_hidden
from airflow_s3commit.spark.options import OTHER_WRITER
from airflow_s3commit.spark.pyspark_private import arrow_schema
from airflow_s3commit.tables.columns import UnsupportedColumn
from airflow_s3commit.tables.encoder import spark_footer
from airflow_s3commit.tables.partitions import escape, resolve_columns, resolve_name
from airflow_s3commit.tables.write import TablePlan

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from airflow_s3commit.protocol.job import Job
    from airflow_s3commit.protocol.model.sealed_job import CommittedTask
    from airflow_s3commit.spark.options import WriteOptions
    from airflow_s3commit.spark.session import ConfGet
    from airflow_s3commit.store.base import ObjectStore

#: Spark's own key.
OVERWRITE_MODE = "spark.sql.sources.partitionOverwriteMode"

_CHOICES = (
    "set the write's option partitionOverwriteMode to dynamic to replace the partitions that get rows, or to"
    " static to replace the whole table"
)


def sets_static(get: ConfGet) -> bool:
    """Return whether a session sets ``spark.sql.sources.partitionOverwriteMode`` to ``static`` itself."""
    return (get(OVERWRITE_MODE) or "").lower() == "static"


def check_own_overwrite(
    store: ObjectStore, destination: str, options: WriteOptions, *, session_static: bool
) -> None:
    """Refuse an overwrite, by a job of its own, that would replace other data than the user expects.

    Raises:
        InvalidOption: The session sets ``static`` and the write does not choose, or the table has other
            partition columns than the write.
    """
    if options.conflict_mode != "replace" or options.replaces_table:
        return
    if session_static and options.table.partition_by and options.partition_overwrite is None:
        raise InvalidOption(
            f"overwrite of {destination}: the session sets {OVERWRITE_MODE}=static, but s3commit replaces"
            f" only the partitions that get rows; {_CHOICES}"
        )
    path = first_data_path(store, Destination.parse(destination))
    theirs = _partition_columns(path)
    if theirs is not None and theirs != [escape(name) for name in options.table.partition_by]:
        raise InvalidOption(
            f"overwrite of {destination}: the table is {_layout(theirs)}, but the write is"
            f" {_layout(options.table.partition_by)}, so old rows would stay beside the new ones (such as"
            f" {path}); partition the write like the table, or replace the whole table with the option"
            " partitionOverwriteMode=static"
        )


def check_layout(store: ObjectStore, destination: str, options: WriteOptions) -> None:
    """Refuse a write without partition columns to a table that has some.

    In SQL, partition columns are easily lost: Spark does not pass on a table's ``PARTITIONED BY``.

    Raises:
        InvalidOption: The table is partitioned, and the write is not.
    """
    if options.table.partition_by:
        return
    path = first_data_path(store, Destination.parse(destination))
    if theirs := _partition_columns(path):
        columns = ",".join(theirs)
        raise InvalidOption(
            f"the write to {destination} is not partitioned, but the table is {_layout(theirs)} (such as"
            f" {path}): set the write's option partitionBy to {columns}, in SQL INSERT INTO t WITH"
            f" (partitionBy = '{columns}'), or write to another path"
        )


def _partition_columns(path: str | None) -> list[str] | None:
    """Return the escaped partition columns in a data file's path; None if other directories are in it."""
    directories = path.split("/")[:-1] if path is not None else None
    if directories is None or not all("=" in directory for directory in directories):
        return None
    return [directory.partition("=")[0] for directory in directories]


def check_job_overwrite(job: Job, options: WriteOptions, *, session_static: bool) -> None:
    """Refuse a write for a given job whose overwrite mode contradicts what the job replaces.

    Raises:
        JobMismatch: They contradict each other.
    """
    of_job = job.record().options
    if of_job.conflict_mode != "replace":
        return
    scope = "static" if of_job.whole_destination else "dynamic"
    chosen = options.partition_overwrite
    source = f"partitionOverwriteMode={chosen}"
    if (
        chosen is None
        and session_static
        and options.conflict_mode == "replace"
        and options.table.partition_by
    ):
        chosen, source = "static", f"{OVERWRITE_MODE}=static of the session"
    if chosen not in (None, scope):
        replaced = "the whole table" if of_job.whole_destination else "the partitions that get rows"
        raise JobMismatch(
            f"{source} contradicts job {job.reference.job_id} on {job.reference.destination}, which replaces"
            f' {replaced}; let the job decide: use .mode("append"), without partitionOverwriteMode'
        )


def check_rows(
    store: ObjectStore, destination: str, options: WriteOptions, tasks: Iterable[CommittedTask]
) -> None:
    """Refuse to commit the write's own overwrite without rows, unless its option says what it replaces.

    Raises:
        InvalidOption: There are no rows, and the table has data.
    """
    if options.conflict_mode != "replace" or options.replaces_table or options.partition_overwrite:
        return
    if any(task.rows != 0 for task in tasks):
        return
    if first_data_path(store, Destination.parse(destination)) is not None:
        effect = "replace nothing" if options.table.partition_by else "empty the table"
        raise InvalidOption(
            f"overwrite of {destination} has no rows and would {effect}; skip the write, or set its option"
            " partitionOverwriteMode to static to empty the table, or to dynamic to go on"
        )


def first_data_path(store: ObjectStore, destination: Destination) -> str | None:
    """Return the path of a table's first data file, relative to the table; None if it has none."""
    after: str | None = None
    while True:
        for info in store.list_objects(destination.bucket, destination.prefix, start_after=after):
            relative = info.key.removeprefix(destination.prefix)
            if is_data(relative):
                return relative
            directory, slash, _ = relative.partition("/")
            # Hidden directories may have very many objects. The character after "/" is "0".
            beyond = f"{destination.prefix}{directory}0"
            if slash and is_hidden(directory) and (after is None or beyond > after):
                after = beyond
                break
        else:
            return None


def _layout(columns: Iterable[str]) -> str:
    named = ", ".join(columns)
    return f"partitioned by {named}" if named else "not partitioned"


#: Spark's names of types whose values change on the way through Arrow or pyarrow, or are lost.
_REFUSED = re.compile(r"geometry|geography|time\(|variant|interval (year|month)")

#: The entry of a column's metadata with its id, which Spark's own writer puts into the file's schema.
_FIELD_ID = "parquet.field.id"


def plan_table(schema: StructType, options: WriteOptions) -> TablePlan:
    """Check a write's options against the schema, and return the settings that its tasks share.

    Raises:
        UnsupportedPartition: A partition column is missing, or has a type that a partition cannot have.
        UnsupportedColumn: There are no columns, a column has a type that Arrow or pyarrow cannot hold, or two
            columns' names differ only in case.
    """
    if not schema.fields:
        raise UnsupportedColumn("the frame has no columns, and files need one: select at least one column")
    for name in options.table.partition_by:
        resolve_name(schema.names, name)
    _check_names(schema.names)
    for field in schema.fields:
        _check_type(field.name, field.dataType)
    if _FIELD_ID in schema.json():
        raise UnsupportedColumn(
            f"columns have ids ({_FIELD_ID}), which s3commit does not write in Python; {OTHER_WRITER}"
        )
    arrow = arrow_schema(schema)
    partition_by = resolve_columns(arrow, options.table.partition_by)
    in_files = StructType([field for field in schema.fields if field.name not in partition_by])
    footer = spark_footer(pyspark.__version__, in_files.json())
    return TablePlan(arrow, partition_by, options.table, footer)


def partition_types(schema: StructType, names: Sequence[str]) -> tuple[pa.DataType, ...]:
    """Return the types of partition columns; text for a type that Arrow lacks."""

    def arrow_type(field: StructField) -> pa.DataType:
        try:
            return arrow_schema(StructType([field])).field(0).type
        except PySparkTypeError:
            return pa.string()

    return tuple(arrow_type(schema[name]) for name in names)


def _check_names(names: Sequence[str]) -> None:
    known: dict[str, str] = {}
    for name in names:
        if (other := known.get(name.lower())) is not None:
            raise UnsupportedColumn(
                f"columns {other!r} and {name!r} have the same name to Spark, which cannot read such files:"
                " rename one of them"
            )
        known[name.lower()] = name


def _check_type(name: str, kind: DataType) -> None:
    """Refuse a type, at any depth, that would not come back from the files."""
    type_name = kind.simpleString()
    if isinstance(kind, StructType):
        _check_fields(name, kind)
        inner = [field.dataType for field in kind.fields]
    elif isinstance(kind, MapType | ArrayType):
        inner = [kind.keyType, kind.valueType] if isinstance(kind, MapType) else [kind.elementType]
        if any(isinstance(each, NullType) for each in inner):
            typed = type_name.replace("void", "string")
            raise UnsupportedColumn(
                f"column {name!r} has the type {type_name}, an empty {kind.typeName()} without a type of its"
                f" values: cast it, for example with cast({name} as {typed})"
            )
    else:
        inner = []
        if _REFUSED.match(type_name) or not _is_in_arrow(kind):
            raise UnsupportedColumn(
                f"column {name!r} has or holds the type {type_name}, which s3commit does not write in Python:"
                f" cast it, for example to string, or {OTHER_WRITER}"
            )
    for each in inner:
        _check_type(name, each)


def _is_in_arrow(kind: DataType) -> bool:
    try:
        arrow_schema(StructType([StructField("c", kind)]))
    except PySparkTypeError:
        return False
    return True


def _check_fields(name: str, kind: StructType) -> None:
    type_name = kind.simpleString()
    if not kind.fields:
        raise UnsupportedColumn(
            f"column {name!r} has the type {type_name}, a struct without fields, which parquet cannot hold:"
            " leave it out, or give the struct a field"
        )
    repeated, times = Counter(field.lower() for field in kind.names).most_common(1)[0]
    if times > 1:
        raise UnsupportedColumn(
            f"column {name!r} has the type {type_name}, with several fields {repeated!r} to Spark, whose"
            " names have no case and which cannot read such files: rename one of them"
        )

"""Plans a write: refuses to replace or mix data by accident, and returns the settings of the tasks.

Spark's default overwrite mode, ``static``, replaces the whole table; here the default replaces the partitions
that get rows. The rows of CSV and JSON of `write_pending` are rendered as lines by Spark, with ``to_csv`` and
``to_json``.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyspark
from pyspark.errors import PySparkTypeError
from pyspark.sql import functions as F  # noqa: N812 - the name that PySpark's users know it by
from pyspark.sql.types import (
    ArrayType,
    DataType,
    IntegerType,
    MapType,
    NullType,
    StructField,
    StructType,
    YearMonthIntervalType,
)

from airflow_s3commit.exceptions import InvalidOption, JobMismatch
from airflow_s3commit.protocol.model.destination import Destination, is_data, is_hidden
from airflow_s3commit.spark.clustering import quoted
from airflow_s3commit.spark.options import OTHER_WRITER
from airflow_s3commit.spark.pyspark_private import arrow_schema
from airflow_s3commit.tables.formats import FORMATS, SparkFooter, UnsupportedColumn
from airflow_s3commit.tables.options import parse_flag
from airflow_s3commit.tables.partitions import escape, resolve_columns, resolve_name
from airflow_s3commit.tables.text_file import LinesForm
from airflow_s3commit.tables.write import TablePlan, form_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame

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

    Args:
        store: The store.
        destination: URI of the destination.
        options: The options of the write.
        session_static: Whether the session sets ``static``.

    Raises:
        InvalidOption: The session sets ``static`` and the write does not choose, or the table has other
            partition columns than the write.

    """
    if options.own_conflict_mode != "replace" or options.replaces_table:
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
    if chosen is None and session_static and options.overwrites and options.table.partition_by:
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
    if options.own_conflict_mode != "replace" or options.replaces_table or options.partition_overwrite:
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


#: Python's names of Spark's encodings, and the byte order mark that Java writes.
_ENCODINGS = {
    "utf-8": ("utf-8", b""),
    "us-ascii": ("ascii", b""),
    "iso-8859-1": ("latin-1", b""),
    "utf-16be": ("utf-16-be", b""),
    "utf-16le": ("utf-16-le", b""),
    "utf-16": ("utf-16-be", b"\xfe\xff"),
    "utf-32": ("utf-32-be", b""),
}

#: Types that Spark's own CSV writer refuses, but ``to_csv`` does not.
_NOT_IN_CSV = ("array", "map", "struct", "variant", "void")


def plan_table(schema: StructType, options: WriteOptions, months: frozenset[str] = frozenset()) -> TablePlan:
    """Check a write's options against the schema, and return the settings that its tasks share.

    Args:
        schema: Spark's schema of the rows.
        options: The options of the write.
        months: Columns of year-month intervals, which tasks receive as integer numbers of months.

    Raises:
        UnsupportedPartition: A partition column is missing, or has a type that a partition cannot have.
        UnsupportedColumn: The format, or Arrow, cannot hold a column's type; or two columns' names differ
            only in case.

    """
    check_schema(schema, options)
    arriving = [_arriving(field, months) for field in schema.fields]
    _check_kinds(arriving)
    arrow = arrow_schema(StructType(arriving))
    partition_by = resolve_columns(arrow, options.table.partition_by)
    in_files = [field for field in schema.fields if field.name not in partition_by]
    types = {field.name: field.dataType.simpleString() for field in in_files}
    form = form_of(options.table, SparkFooter(pyspark.__version__, StructType(in_files).json(), types))
    with naming_other_writer():
        form.check(pa.schema([field for field in arrow if field.name not in partition_by]))
    return TablePlan(arrow, partition_by, form, options.table)


@contextmanager
def naming_other_writer() -> Iterator[None]:
    """Suggest Spark's own writer too for a column that the formats of this package cannot hold."""
    try:
        yield
    except UnsupportedColumn as error:
        raise UnsupportedColumn(f"{error}; or {OTHER_WRITER}") from error


def partition_types(schema: StructType, names: Sequence[str]) -> tuple[pa.DataType, ...]:
    """Return the types of partition columns; text for a type that Arrow lacks."""

    def arrow_type(field: StructField) -> pa.DataType:
        try:
            return arrow_schema(StructType([field])).field(0).type
        except PySparkTypeError:
            return pa.string()

    return tuple(arrow_type(schema[name]) for name in names)


def check_schema(schema: StructType, options: WriteOptions) -> None:
    """Refuse partition columns that are missing, and columns that files of the format cannot hold.

    Raises:
        UnsupportedPartition: A partition column is missing.
        UnsupportedColumn: There are no columns, the format cannot hold a column's type, or two names differ
            only in case.

    """
    if not schema.fields:
        raise UnsupportedColumn("the frame has no columns, and files need one: select at least one column")
    for name in options.table.partition_by:
        resolve_name(schema.names, name)
    _check_names(schema.names)
    for field in schema.fields:
        _check_type(field.name, field.dataType, options.table.format)


def months_columns(schema: StructType, options: WriteOptions) -> frozenset[str]:
    """Return the columns of year-month intervals that can be written as integer numbers of months.

    Spark's own writer stores them so in Parquet, but Spark passes no such interval to Python.
    """
    if options.table.format != "parquet":
        return frozenset()
    return frozenset(
        field.name for field in schema.fields if isinstance(field.dataType, YearMonthIntervalType)
    )


def _arriving(field: StructField, months: frozenset[str]) -> StructField:
    return StructField(field.name, IntegerType(), field.nullable) if field.name in months else field


def plan_again(plan: TablePlan, options: WriteOptions) -> TablePlan:
    """Return a plan with other options of the same format.

    Raises:
        UnsupportedColumn: The format cannot hold a column's type with these options.

    """
    if options.table == plan.options:
        return plan
    form = form_of(options.table, getattr(plan.form, "spark", None))
    with naming_other_writer():
        form.check(pa.schema([field for field in plan.schema if field.name not in plan.partition_by]))
    return replace(plan, form=form, options=options.table)


def _check_names(names: Sequence[str]) -> None:
    known: dict[str, str] = {}
    for name in names:
        if (other := known.get(name.lower())) is not None:
            raise UnsupportedColumn(
                f"columns {other!r} and {name!r} have the same name to Spark, which cannot read such files:"
                " rename one of them"
            )
        known[name.lower()] = name


def _check_type(name: str, kind: DataType, file_format: str, *, within: bool = False) -> None:
    """Refuse a type, at any depth, whose values would change in the files."""
    _check_plain(name, kind, file_format, within=within)
    if isinstance(kind, ArrayType | MapType | StructType):
        inner: list[DataType]
        if isinstance(kind, StructType):
            inner = [field.dataType for field in kind.fields]
            if not FORMATS[file_format].text:
                _check_fields(name, kind, file_format)
        elif isinstance(kind, MapType):
            inner = [kind.keyType, kind.valueType]
        else:
            inner = [kind.elementType]
        for each in inner:
            if isinstance(each, NullType) and not isinstance(kind, StructType):
                raise UnsupportedColumn(
                    f"column {name!r} has the type {kind.simpleString()}, an empty {kind.typeName()} without"
                    f" a type of its values: cast it, for example with cast({name} as {_typed(kind)})"
                )
            _check_type(name, each, file_format, within=True)


def _check_plain(name: str, kind: DataType, file_format: str, *, within: bool) -> None:
    """Refuse a type that is not nested and whose values the files cannot hold as Spark's files do."""
    type_name = kind.simpleString()
    has, of_column = ("holds", "") if within else ("has", f"({name})")
    if type_name.startswith(("geometry", "geography")):
        raise UnsupportedColumn(
            f"column {name!r} {has} the type {type_name}, which s3commit cannot write: convert it to binary"
            f" with st_asbinary{of_column}, or {OTHER_WRITER}"
        )
    if type_name.startswith("time("):
        raise UnsupportedColumn(
            f"column {name!r} {has} the type {type_name}, which s3commit cannot write: cast it, for example"
            f" to string, or {OTHER_WRITER}"
        )
    if isinstance(kind, NullType) and file_format == "orc":
        raise UnsupportedColumn(
            f"column {name!r} {has} the type {type_name}, which orc cannot hold: cast it, for example"
            " to string"
        )
    if type_name == "variant" and file_format not in ("parquet", "json"):
        raise UnsupportedColumn(
            f"column {name!r} has the type variant, which s3commit cannot write to {file_format}: write"
            f" to_json({name}), or parquet"
        )


def _check_fields(name: str, kind: StructType, file_format: str) -> None:
    type_name = kind.simpleString()
    if not kind.fields:
        raise UnsupportedColumn(
            f"column {name!r} has the type {type_name}, a struct without fields, which {file_format} cannot"
            " hold: leave it out, or give the struct a field"
        )
    repeated, times = Counter(field.lower() for field in kind.names).most_common(1)[0]
    if times > 1:
        raise UnsupportedColumn(
            f"column {name!r} has the type {type_name}, with several fields {repeated!r} to Spark, whose"
            " names have no case and which cannot read such files: rename one of them"
        )


def _typed(kind: DataType) -> str:
    return kind.simpleString().replace("void", "string")


def _check_kinds(fields: list[StructField]) -> None:
    for field in fields:
        try:
            arrow_schema(StructType([field]))
        except PySparkTypeError as error:
            raise UnsupportedColumn(
                f"column {field.name!r} has the type {field.dataType.simpleString()}, which Spark does not"
                f" pass to a Python writer; {_remedy(field.dataType)}"
            ) from error


def _remedy(kind: DataType) -> str:
    if isinstance(kind, YearMonthIntervalType):
        return f"write_pending can write it to parquet; or {OTHER_WRITER}"
    return f"cast it in Spark, for example to string, or {OTHER_WRITER}"


def plan_lines(frame: DataFrame, options: WriteOptions) -> tuple[TablePlan, DataFrame]:
    """Return the plan of a write of CSV or JSON, and the frame of partition columns and rendered lines.

    Args:
        frame: The rows, with partition columns as text.
        options: The options of the write.

    Raises:
        InvalidOption: Spark has no such encoding, or the JSON would not have a row in each line.
        UnsupportedPartition: A partition column is missing, or all columns are partition columns.
        UnsupportedColumn: The format cannot hold a column's type; or two names differ only in case.

    """
    schema, given, file_format = frame.schema, dict(options.text), options.table.format
    check_schema(schema, options)
    partition_by = options.table.partition_by
    # Checks the partition columns, which are text by now; the other columns' types do not matter to it.
    resolve_columns(pa.schema([(name, pa.string()) for name in schema.names]), partition_by)
    kept = [name for name in schema.names if name not in partition_by]
    if file_format == "csv":
        _check_csv(schema, kept)
    encoding = given.pop("encoding", "UTF-8")
    if encoding.lower() not in _ENCODINGS:
        known = ", ".join(name.upper() for name in _ENCODINGS)
        raise InvalidOption(f"option encoding={encoding!r} of s3commit: not one of {known}")
    python, begin = _ENCODINGS[encoding.lower()]
    header = parse_flag(given.pop("header", "false"))
    form = LinesForm(
        file_format,
        options.table.codec,
        # Spark's CSV also turns line feeds in values into the line separator.
        line_separator=given.get("lineSep", "\n"),
        encoding=python,
        begin=begin,
    )
    if file_format == "json":
        given.pop("lineSep", None)
    render = F.to_csv if file_format == "csv" else F.to_json
    row = F.struct(*(F.col(quoted(name)) for name in kept))
    line = _free_name(partition_by)
    lines = frame.select(*(quoted(name) for name in partition_by), render(row, given).alias(line))
    if header:
        names = F.struct(*(F.lit(name).alias(f"c{number}") for number, name in enumerate(kept)))
        (first,) = frame.sparkSession.range(1).select(F.to_csv(names, given).alias("line")).collect()
        form = replace(form, header=first["line"])
    arriving = pa.schema([(name, pa.string()) for name in (*partition_by, line)])
    return TablePlan(arriving, partition_by, form, options.table), lines


def _check_csv(schema: StructType, kept: list[str]) -> None:
    for name in kept:
        kind = schema[name].dataType
        if kind.typeName() in _NOT_IN_CSV:
            raise UnsupportedColumn(
                f"column {name!r} has the type {kind.simpleString()}, which CSV cannot hold: cast it to"
                f" string, write json, parquet or orc, or {OTHER_WRITER}"
            )


def _free_name(taken: tuple[str, ...]) -> str:
    name = "line"
    while name in {each.lower() for each in taken}:
        name += "_"
    return name

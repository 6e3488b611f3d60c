"""CSV and JSON of `write_pending`: Spark renders the rows as lines, with ``to_csv`` and ``to_json``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - the name that PySpark's users know it by

from airflow_s3commit.exceptions import InvalidOption
from airflow_s3commit.spark.clustering import quoted
from airflow_s3commit.spark.options import OTHER_WRITER
from airflow_s3commit.spark.plan import check_schema
from airflow_s3commit.tables.formats import UnsupportedColumn
from airflow_s3commit.tables.option_values import parse_flag
from airflow_s3commit.tables.partitions import resolve_columns
from airflow_s3commit.tables.text_file import LinesForm
from airflow_s3commit.tables.write import TablePlan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from airflow_s3commit.spark.options import WriteOptions

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
        # Spark's CSV also turns line feeds within values into the line separator.
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

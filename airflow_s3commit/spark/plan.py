"""Plans a write: checks its options against a DataFrame's schema, and returns the settings of its tasks."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import pyarrow as pa
import pyspark
from pyspark.errors import PySparkTypeError
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, IntegerType, StructField, StructType, YearMonthIntervalType

from airflow_s3commit.tables.formats import SparkFooter, UnsupportedColumn
from airflow_s3commit.tables.partitions import resolve_columns, resolve_name
from airflow_s3commit.tables.write import TablePlan, form_of

if TYPE_CHECKING:
    from airflow_s3commit.spark.options import WriteOptions


def plan_table(schema: StructType, options: WriteOptions, months: frozenset[str] = frozenset()) -> TablePlan:
    """Check a write's options against the schema, and return the settings that its tasks share.

    Args:
        schema: Spark's schema of the rows.
        options: The options of the write.
        months: Columns of year-month intervals, which tasks receive as integer numbers of months.

    Raises:
        UnsupportedPartition: A partition column is missing, or has a type that a partition cannot have.
        UnsupportedColumn: The format, or Arrow, cannot hold a column's type.

    """
    for name in options.table.partition_by:
        resolve_name(schema.names, name)
    arriving = [_arriving(field, months) for field in schema.fields]
    _check_kinds(arriving)
    arrow = _arrow_schema(StructType(arriving))
    partition_by = resolve_columns(arrow, options.table.partition_by)
    in_files = [field for field in schema.fields if field.name not in partition_by]
    types = {field.name: field.dataType.simpleString() for field in in_files}
    form = form_of(options.table, SparkFooter(pyspark.__version__, StructType(in_files).json(), types))
    form.check(pa.schema([field for field in arrow if field.name not in partition_by]))
    return TablePlan(arrow, partition_by, form, options.table)


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


def _check_kinds(fields: list[StructField]) -> None:
    for field in fields:
        try:
            _arrow_schema(StructType([field]))
        except PySparkTypeError as error:
            raise UnsupportedColumn(
                f"column {field.name!r} has the type {field.dataType.simpleString()}, which Spark does not"
                f" pass to a Python writer; {_remedy(field.dataType)}"
            ) from error


def _remedy(kind: DataType) -> str:
    if isinstance(kind, YearMonthIntervalType):
        return "write_pending can write it to parquet"
    return "cast it in Spark, for example to string"


def _arrow_schema(schema: StructType) -> pa.Schema:
    # Newer PySpark requires a time zone for timestamps; files hold UTC in any case.
    wants_zone = "timezone" in inspect.signature(to_arrow_schema).parameters
    return to_arrow_schema(schema, timezone="UTC") if wants_zone else to_arrow_schema(schema)

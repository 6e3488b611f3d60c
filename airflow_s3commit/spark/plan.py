"""The plan of a write: from a DataFrame's schema and options to what every task needs to know."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import pyspark
from pyspark.errors import PySparkTypeError
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, IntegerType, StructField, StructType, YearMonthIntervalType

from airflow_s3commit.tables.formats import SparkFooter, UnsupportedColumn
from airflow_s3commit.tables.partitions import resolve_columns, resolve_name
from airflow_s3commit.tables.write import TablePlan, form_of

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_s3commit.spark.options import WriteOptions


def plan_table(schema: StructType, options: WriteOptions, months: frozenset[str] = frozenset()) -> TablePlan:
    """Check a write's options against the schema, and return what its tasks need to know.

    Args:
        schema: Schema of the rows, as their writer knows it.
        options: The options of the write.
        months: Columns of year-month intervals, which arrive as whole numbers of months.

    Raises:
        UnsupportedPartition: A partition column is missing, or has a type that is to be cast first.
        UnsupportedColumn: The format, or Arrow, has no equal of a column's type.

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
    form.check(_without(arrow, partition_by))
    return TablePlan(arrow, partition_by, form, options.table)


def months_columns(schema: StructType, options: WriteOptions) -> frozenset[str]:
    """Return the columns of year-month intervals that can be written as whole numbers of months.

    Spark stores them so itself, but hands no such interval over to Python.
    """
    if options.table.format != "parquet":
        return frozenset()
    return frozenset(
        field.name for field in schema.fields if isinstance(field.dataType, YearMonthIntervalType)
    )


def _without(schema: pa.Schema, names: tuple[str, ...]) -> pa.Schema:
    """Return a schema without some of its columns."""
    for name in names:
        schema = schema.remove(schema.get_field_index(name))
    return schema


def _arriving(field: StructField, months: frozenset[str]) -> StructField:
    return StructField(field.name, IntegerType(), field.nullable) if field.name in months else field


def _check_kinds(fields: list[StructField]) -> None:
    for field in fields:
        try:
            _arrow_schema(StructType([field]))
        except PySparkTypeError as error:
            raise UnsupportedColumn(
                f"column {field.name!r} has the type {field.dataType.simpleString()}, which Spark hands over"
                f" to no Python writer; {_way_out(field.dataType)}"
            ) from error


def _way_out(kind: DataType) -> str:
    if isinstance(kind, YearMonthIntervalType):
        return "write_pending writes it to parquet as Spark does"
    return "cast it in Spark, to string for one"


def _arrow_schema(schema: StructType) -> pa.Schema:
    # Newer PySpark wants the time zone of timestamps said; files hold UTC whatever it is.
    wants_zone = "timezone" in inspect.signature(to_arrow_schema).parameters
    return to_arrow_schema(schema, timezone="UTC") if wants_zone else to_arrow_schema(schema)

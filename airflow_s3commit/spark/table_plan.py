"""From a DataFrame's schema and a write's options to what every task is told."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import pyspark
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from airflow_s3commit.spark.encoders import ParquetFormat
from airflow_s3commit.spark.partitions import resolve_columns
from airflow_s3commit.spark.write_task import TablePlan

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_s3commit.spark.options import WriteOptions

__all__ = ["plan_table"]


def plan_table(schema: StructType, options: WriteOptions) -> TablePlan:
    """Check a write's options against the schema, and return what its tasks need to know.

    Raises:
        UnsupportedPartition: A partition column is missing, or has a type that is to be cast first.

    """
    arrow = _arrow_schema(schema)
    partition_by = resolve_columns(arrow, options.partition_by)
    in_files = StructType([field for field in schema.fields if field.name not in partition_by])
    form = ParquetFormat(options.compression, pyspark.__version__, in_files.json())
    return TablePlan(arrow, partition_by, form, options)


def _arrow_schema(schema: StructType) -> pa.Schema:
    # Newer PySpark wants the time zone of timestamps said; files hold UTC whatever it is.
    wants_zone = "timezone" in inspect.signature(to_arrow_schema).parameters
    return to_arrow_schema(schema, timezone="UTC") if wants_zone else to_arrow_schema(schema)

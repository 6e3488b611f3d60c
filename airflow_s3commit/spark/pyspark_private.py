"""PySpark's private functions, whose signatures and defaults change between releases."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql.pandas import types

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import TaskContext
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource
    from pyspark.sql.types import DataType, StructType


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema in which Spark passes rows of a schema to Python, with timestamps in UTC.

    Raises:
        PySparkTypeError: Arrow lacks a column's type.
    """
    # PySpark 4.2 requires a time zone for timestamps; earlier releases take UTC and no argument.
    wants_zone = "timezone" in inspect.signature(types.to_arrow_schema).parameters
    return types.to_arrow_schema(schema, timezone="UTC") if wants_zone else types.to_arrow_schema(schema)


def local_properties(context: TaskContext) -> dict[str, str]:
    """Return what a task's session sets. Its public functions have no list of the keys."""
    return dict(context._localProperties or {})  # noqa: SLF001 - as the module says


def register_source(spark: SparkSession, source: type[DataSource]) -> None:
    """Register a data source with a session, in place of one of its name that Spark found by itself.

    Raises:
        AnalysisException: PySpark 4.0 found one by itself on a server of Spark Connect.
    """
    try:
        spark.dataSource.register(source)
    except AnalysisException as error:
        session = getattr(spark, "_jsparkSession", None)
        if error.getErrorClass() != "DATA_SOURCE_ALREADY_EXISTS" or session is None:
            raise
        # PySpark 4.0 alone lets no registration override what it found, and has no way to forget that.
        manager = session.sessionState().dataSourceManager()
        found = manager.getClass().getDeclaredField("staticDataSourceBuilders")
        found.setAccessible(True)
        found.set(manager, found.get(manager).removed(source.name()))
        spark.dataSource.register(source)


def spark_type(kind: pa.DataType) -> DataType:
    """Return Spark's type of an Arrow type; a timestamp without a time zone has none in Spark either.

    Raises:
        PySparkTypeError: Spark lacks the type.
    """
    # The default has changed between releases.
    return types.from_arrow_type(kind, prefer_timestamp_ntz=True)

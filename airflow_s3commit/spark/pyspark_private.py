"""PySpark's private functions, whose signatures and defaults change between releases."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from pyspark.sql.pandas import types

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema in which Spark passes rows of a schema to Python, with timestamps in UTC.

    Raises:
        PySparkTypeError: Arrow lacks a column's type.

    """
    # PySpark 4.2 requires a time zone for timestamps; earlier releases take UTC and no argument.
    wants_zone = "timezone" in inspect.signature(types.to_arrow_schema).parameters
    return types.to_arrow_schema(schema, timezone="UTC") if wants_zone else types.to_arrow_schema(schema)


def spark_type(kind: pa.DataType) -> DataType:
    """Return Spark's type of an Arrow type; a timestamp without a time zone has none in Spark either.

    Raises:
        PySparkTypeError: Spark lacks the type.

    """
    # The default has changed between releases.
    return types.from_arrow_type(kind, prefer_timestamp_ntz=True)

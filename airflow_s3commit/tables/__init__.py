"""Encodes Arrow rows as files in Spark's layout, without Spark.

The only interface to storage is "open this path, write, close". Importing this package or its `options` does
not import pyarrow; the other modules do.
"""

from __future__ import annotations

from airflow_s3commit._names import lazy

TYPE_CHECKING = False  # type checkers take it for true
if TYPE_CHECKING:
    from airflow_s3commit.tables.columns import UnsupportedColumn, UnsupportedPartition
    from airflow_s3commit.tables.options import TABLE_OPTIONS
    from airflow_s3commit.tables.write import WrittenTable

__all__ = ["TABLE_OPTIONS", "UnsupportedColumn", "UnsupportedPartition", "WrittenTable"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy(__spec__)

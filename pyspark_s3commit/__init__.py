"""Where Spark finds the data source ``s3commit`` by itself.

Spark imports every top-level module whose name begins with ``pyspark_`` and registers its ``DefaultSource``.
"""

from __future__ import annotations

import logging

try:
    from airflow_s3commit.spark.datasource import S3CommitDataSource as DefaultSource
except ImportError:
    # An error here would take every other Python data source of the session down with it.
    logging.getLogger(__name__).warning("the data source s3commit is not available", exc_info=True)

__all__ = ["DefaultSource"]

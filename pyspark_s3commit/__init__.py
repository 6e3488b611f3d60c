"""Where Spark finds the data source ``s3commit`` by itself.

Spark imports every top-level module whose name begins with ``pyspark_`` and registers its ``DefaultSource``.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_s3commit.spark.datasource import S3CommitDataSource as DefaultSource

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> Any:
    """Return the data source; raise `AttributeError` for any other name."""
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from airflow_s3commit.spark.datasource import S3CommitDataSource  # noqa: PLC0415
    except ImportError as error:
        # With any other error, Spark would register no Python data source of the session at all.
        logging.getLogger(__name__).warning("the data source s3commit is not available", exc_info=True)
        raise AttributeError(f"the data source s3commit is not available: {error}") from error
    return S3CommitDataSource

"""Where Spark finds the data source ``s3commit`` by itself.

Spark imports every top-level module whose name begins with ``pyspark_`` and registers its ``DefaultSource``.
That lookup alone may use the name: any other use of it warns.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any
from warnings import warn

if TYPE_CHECKING:
    from airflow_s3commit.spark.datasource import S3CommitDataSource as DefaultSource

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> Any:
    """Return the data source; warn if the caller is not Spark. For any other name, raise `AttributeError`."""
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    caller = sys._getframe(1).f_globals.get("__package__")  # noqa: SLF001 - no other way to know
    if not str(caller).startswith("pyspark."):
        message = (
            "importing pyspark_s3commit.DefaultSource is deprecated: the name is for Spark's own lookup;"
            " use: from airflow_s3commit.spark import S3CommitDataSource"
        )
        warn(message, DeprecationWarning, stacklevel=2)
    try:
        from airflow_s3commit.spark.datasource import S3CommitDataSource  # noqa: PLC0415
    except ImportError as error:
        # With any other error, Spark would register no Python data source of the session at all.
        logging.getLogger(__name__).warning("the data source s3commit is not available", exc_info=True)
        raise AttributeError(f"the data source s3commit is not available: {error}") from error
    return S3CommitDataSource

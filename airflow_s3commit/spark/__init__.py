"""The PySpark door: DataFrames become pending multipart uploads.

Importing this package imports neither PySpark nor pyarrow; `register`, `write_pending`, `foreach_batch` and
the data source do.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from airflow_s3commit.spark.libraries import require_libraries

# Before the first import of anything that needs them: executors get this package without its libraries.
require_libraries()

from airflow_s3commit.spark.row_batches import batch_conf, count_rows  # noqa: E402
from airflow_s3commit.spark.session import committer_conf, store_from_conf  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_s3commit.spark.pending import PendingWrite, write_pending
    from airflow_s3commit.spark.shipping import py_files
    from airflow_s3commit.spark.streaming import foreach_batch

__all__ = [
    "PendingWrite",
    "batch_conf",
    "committer_conf",
    "foreach_batch",
    "py_files",
    "register",
    "write_pending",
]

_LAZY = {
    "PendingWrite": "airflow_s3commit.spark.pending",
    "foreach_batch": "airflow_s3commit.spark.streaming",
    "py_files": "airflow_s3commit.spark.shipping",
    "write_pending": "airflow_s3commit.spark.pending",
}


def register(spark: SparkSession) -> None:
    """Make ``df.write.format("s3commit")`` known to a session.

    Needed where the driver's Python finds this package but not the top-level module ``pyspark_s3commit``
    (``--py-files``, ``addPyFile``, Spark Connect); harmless elsewhere. The session's
    ``spark.s3commit.endpoint.*`` and ``spark.s3commit.path.style`` become the defaults of the data source's
    options of the same meaning; a job in the conf is looked up anew at each write. How S3A is told to keep
    objects (encryption, storage class, ACL: ``fs.s3a.*``, from Hadoop's files too) is found here as well.

    It also spares writes a fifth to two fifths of their processor time: unless the session says itself how
    large an Arrow batch may be (``spark.sql.execution.arrow.maxRecordsPerBatch`` or
    ``….maxBytesPerBatch``), a batch has 2,000 rows from now on and no limit in bytes, which Spark would
    find out anew at each row. Where rows have more than about 32 KiB on average, set ``maxBytesPerBatch``
    yourself, to ``64m``. `write_pending` does the same for as long as it takes, and not for rows with
    binary or variant columns.
    """
    # PySpark is heavy, and Airflow's processes import this package without it.
    from airflow_s3commit.spark.datasource import S3CommitDataSource  # noqa: PLC0415
    from airflow_s3commit.spark.s3a_conf import hadoop_conf  # noqa: PLC0415

    store = store_from_conf(lambda key: spark.conf.get(key, None))
    defaults = {"store_defaults": store, "s3a_defaults": hadoop_conf(spark)}
    source = type("S3CommitDataSource", (S3CommitDataSource,), defaults)
    spark.dataSource.register(source)
    count_rows(spark)


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

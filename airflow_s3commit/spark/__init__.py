"""The PySpark interface: writes DataFrames as pending multipart uploads.

This imports neither PySpark nor pyarrow; `register`, `write_pending`, `foreach_batch` and the data source do.
"""

from __future__ import annotations

from airflow_s3commit._names import lazy
from airflow_s3commit.spark.shipping import require_libraries

# Executors may get this package without its libraries: name the missing ones before an import fails.
require_libraries()

TYPE_CHECKING = False  # type checkers take it for true
if TYPE_CHECKING:
    from airflow_s3commit.spark.datasource import S3CommitDataSource, register
    from airflow_s3commit.spark.driver import PendingWrite
    from airflow_s3commit.spark.session import batch_conf, committer_conf, pending_conf
    from airflow_s3commit.spark.shipping import MissingJar, MissingLibrary, pending_jar, py_files
    from airflow_s3commit.spark.stream import foreach_batch
    from airflow_s3commit.spark.tables import read_table, register_partitions
    from airflow_s3commit.spark.write import commit_job, write_pending

__all__ = [
    "MissingJar",
    "MissingLibrary",
    "PendingWrite",
    "S3CommitDataSource",
    "batch_conf",
    "commit_job",
    "committer_conf",
    "foreach_batch",
    "pending_conf",
    "pending_jar",
    "py_files",
    "read_table",
    "register",
    "register_partitions",
    "write_pending",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy(__spec__)

"""The data source of ``format("s3commit")`` and its writer; `airflow_s3commit.spark.tables` reads.

Spark creates the data source and the writer in a Python process beside the driver. That process has the
options but not the session. Only tasks have the session's conf, as local properties, so the tasks find the
job and send it to the driver in their messages.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn
from uuid import uuid4

import pyspark
from pyspark import TaskContext
from pyspark.errors import AnalysisException

from airflow_s3commit.exceptions import InvalidOption, InvalidRecord
from airflow_s3commit.spark.driver import (
    BATCH,
    Target,
    abort_write,
    batch_repeats,
    commit_write,
    named,
    own_target,
    ready_job,
    target_of,
)
from airflow_s3commit.spark.options import parse_options
from airflow_s3commit.spark.session import count_rows, getter_of, job_from_conf, store_from_conf
from airflow_s3commit.spark.shipping import MissingLibrary
from airflow_s3commit.spark.task import plan_table, task_ids, write_task
from airflow_s3commit.spark.writer_settings import hadoop_conf, site_conf, with_file_settings
from airflow_s3commit.store.credentials import StoreAddress

try:
    from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
except ModuleNotFoundError as error:
    raise MissingLibrary(
        'format("s3commit") needs the Python data source API of PySpark 4.0, and this is PySpark'
        f" {pyspark.__version__}: write with airflow_s3commit.spark.write_pending or foreach_batch, and read"
        " with read_table",
        name=error.name,
    ) from error

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from airflow_s3commit.protocol.model.sealed_job import CommittedTask
    from airflow_s3commit.spark.options import WriteOptions
    from airflow_s3commit.tables.write import TablePlan

logger = logging.getLogger(__name__)

#: Why the format cannot be read, and what to do instead.
_NO_READER = (
    'format("s3commit") only writes: read a table with airflow_s3commit.spark.read_table(spark, uri), and the'
    " files of new commits with its since=, in a session that has S3A. For a table of SQL to write to, name"
    " the columns, CREATE TABLE t (id BIGINT, dt STRING) USING s3commit"
)


class S3CommitDataSource(DataSource):
    """The data source ``s3commit``, whose files appear all at once when the job commits.

    A write's options are `airflow_s3commit.spark.options.WRITE_OPTIONS`, with ``partitionBy``: Spark passes
    no ``.partitionBy()`` to a Python data source, and only the save modes ``append`` and ``overwrite``.
    """

    #: The store settings of the session's conf, read at registration.
    store_defaults: ClassVar[StoreAddress] = StoreAddress()

    #: The settings of files and stored objects in the session's Hadoop configuration, read at registration;
    #: if None, each write reads Hadoop's configuration files instead.
    hadoop_defaults: ClassVar[Mapping[str, str] | None] = None

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "s3commit"

    def schema(self) -> NoReturn:
        """Refuse ``spark.read.format("s3commit")``."""
        raise InvalidOption(_NO_READER)

    def reader(self, schema: StructType) -> NoReturn:  # noqa: ARG002 - as Spark calls it
        """Refuse a read with a schema; see `schema`."""
        raise InvalidOption(_NO_READER)

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: ARG002, N802 - Spark's names
        """Refuse ``writeStream.format("s3commit")``."""
        path = self.options.get("path") or "s3://bucket/table/"
        raise InvalidOption(
            'writeStream has no format("s3commit"): call writeStream.foreachBatch(foreach_batch('
            f"destination={path!r})) instead, with airflow_s3commit.spark.foreach_batch, which commits each"
            " micro-batch exactly once"
        )

    def writer(self, schema: StructType, overwrite: bool) -> S3CommitWriter:
        """Check the options against the schema, and return the writer, which is pickled to the tasks."""
        options = parse_options(self.options, overwrite=overwrite, store_defaults=self.store_defaults)
        hadoop = site_conf(os.environ) if self.hadoop_defaults is None else self.hadoop_defaults
        return S3CommitWriter(plan_table(schema, options), options, str(uuid4()), hadoop)


@dataclass
class TaskMessage(WriterCommitMessage):
    """The message of a successful task to the driver: the attempt, and the job that it wrote for."""

    task: CommittedTask
    target: Target


@dataclass
class S3CommitWriter(DataSourceArrowWriter):
    """Writes in the tasks, and seals or commits on the driver; pickled to both.

    Attributes:
        write_id: A UUID for this write. Without a job in the conf the write sets up a job with this id.
        hadoop: The settings of files and stored objects in Hadoop's configuration.
    """

    plan: TablePlan
    options: WriteOptions
    write_id: str
    hadoop: Mapping[str, str]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        """Write one task's rows as pending uploads; see `target_of`, `ready_job` and `write_task`."""
        context: Any = TaskContext.get()
        # What the session sets; no public function of the context lists the keys.
        properties = context._localProperties or {}  # noqa: SLF001
        conf = dict(self.hadoop) | {key: value for key, value in properties.items() if value}
        options = with_file_settings(self.options, conf)
        target = target_of(options, self.write_id, conf, job_from_conf(conf.get))
        if BATCH in properties and not (target.own and options.conflict_mode == "replace"):
            raise batch_repeats(f'writes format("s3commit") to {target.reference.destination}')
        job = ready_job(target, options)
        ids = task_ids(target, self.write_id, context)
        plan = replace(self.plan, options=options.table)
        return TaskMessage(write_task(job, iterator, plan, ids, options), target)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Seal the stage with the task attempts that Spark counts; commit the job if the write set it up.

        If it raises, for example because a task did not report, Spark calls `abort`.
        """
        reports = [message for message in messages if isinstance(message, TaskMessage)]
        if len(reports) != len(messages) or not reports:
            raise InvalidRecord(
                f"{len(reports)} of {len(messages)} tasks reported: an incomplete write is not sealed; write"
                " again"
            )
        commit_write(reports[0].target, self.options, [message.task for message in reports])

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Abort this write's uploads; a failure to abort is logged with the job's id, not raised."""
        reports = [message for message in messages if isinstance(message, TaskMessage)]
        if reports:
            target = reports[0].target
        elif self.options.destination is not None:
            # No task reported its job. If the conf names one, the write has no job of its own to abort.
            store, objects = self.options.store, self.options.object_options
            target = own_target(self.options.destination, self.write_id, store, object_options=objects)
        else:
            return
        try:
            abort_write(target, tasks_ended=len(reports) == len(messages))
        except Exception:
            words = "%s could not be aborted; run `s3commit abort` for it"
            logger.warning(words, named(target), exc_info=True)


def register(spark: SparkSession) -> None:
    """Register the data source ``s3commit`` with a session. Repeatable.

    A session needs this if the driver's Python finds this package but not the top-level module
    ``pyspark_s3commit``: with ``--py-files``, ``addPyFile`` or Spark Connect. The session's
    ``spark.s3commit.endpoint.*`` and ``spark.s3commit.path.style`` become the options' defaults. Hadoop's
    settings of files and stored objects (``parquet.*``, and encryption, storage class and ACL of
    ``fs.s3a.*``) are read here too: register again after changing them with ``hadoopConfiguration.set``,
    which no write sees. Without this call, and with Spark Connect, a write reads the driver's configuration
    files (``core-site.xml``). A job in the conf, and ``spark.sql.*``, are read at each write.

    It also cuts the processor time of writes by a fifth to two fifths. Unless the session sets the size of an
    Arrow batch (``spark.sql.execution.arrow.maxRecordsPerBatch`` or ``….maxBytesPerBatch``), a batch has
    2,000 rows from now on, and no limit in bytes, which Spark would check for each row. If rows have more
    than about 32 KiB on average, set ``maxBytesPerBatch`` to ``64m``. `write_pending` sets these limits only
    during the write, and not for rows with binary columns.

    Args:
        spark: The session, classic or Spark Connect.

    Raises:
        AnalysisException: PySpark 4.0 found the data source by itself on a server of Spark Connect.
        ImportError: PySpark or pyarrow is missing.
        ValueError: One of these settings is not a size or number.
    """
    defaults = {
        "store_defaults": store_from_conf(getter_of(spark)),
        # A client of Spark Connect cannot read it; the server reads its configuration files.
        "hadoop_defaults": hadoop_conf(spark) or None,
    }
    source = type("S3CommitDataSource", (S3CommitDataSource,), defaults)
    try:
        spark.dataSource.register(source)
    except AnalysisException as error:
        session = getattr(spark, "_jsparkSession", None)
        if error.getErrorClass() != "DATA_SOURCE_ALREADY_EXISTS" or session is None:
            raise
        # Only PySpark 4.0 refuses to override a data source that it found, and it has no way to forget one.
        manager = session.sessionState().dataSourceManager()
        found = manager.getClass().getDeclaredField("staticDataSourceBuilders")
        found.setAccessible(True)
        found.set(manager, found.get(manager).removed(S3CommitDataSource.name()))
        spark.dataSource.register(source)
    count_rows(spark)

"""``format("s3commit")``: the data source, and the writer that Spark calls; the reader is in `reading`.

The data source and the writer are made in a Python process that Spark starts beside the driver and that
knows the options and nothing of the session. The session's conf reaches the tasks, as local properties; so
the tasks find the job, and tell the driver's side in their messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from airflow_s3commit.exceptions import InvalidRecord
from airflow_s3commit.spark.driver import (
    Target,
    abort_failed_write,
    commit_write,
    own_target,
    ready_job,
    target_of,
)
from airflow_s3commit.spark.options import parse_options
from airflow_s3commit.spark.plan import plan_table
from airflow_s3commit.spark.session import count_rows, store_from_conf
from airflow_s3commit.spark.task import TaskIds, write_task
from airflow_s3commit.store.credentials import StoreAddress

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from airflow_s3commit.protocol.model.seal import CommittedTask
    from airflow_s3commit.spark.options import WriteOptions
    from airflow_s3commit.spark.reading import S3CommitReader
    from airflow_s3commit.tables.write import TablePlan


class S3CommitDataSource(DataSource):
    """The data source ``s3commit``: files that appear all at once, when the job commits.

    The options of a write are `airflow_s3commit.spark.options.WRITE_OPTIONS`. Partition columns are among
    them, as ``partitionBy``: what ``.partitionBy()`` says Spark does not pass on. Save modes are ``append``
    and ``overwrite``: Spark passes no others on.

    Options of a read: ``path`` (or ``.load(path)``), ``job`` (the last that committed by default),
    ``endpointUrl``, ``region``, ``pathStyle``.
    """

    #: The store settings of the session's conf, found at registration.
    store_defaults: ClassVar[StoreAddress] = StoreAddress()

    #: The session's S3A settings of how objects are stored.
    s3a_defaults: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "s3commit"

    def schema(self) -> StructType:
        """Return the columns of what is to be read, and settle for this read which job's files those are.

        Raises:
            InvalidOption: An option is unknown or malformed, or there is no path.
            S3CommitError: As `airflow_s3commit.reader.dataset` does.

        """
        # Tasks that write import this module, and need none of what it takes to read.
        from airflow_s3commit.spark.reading import parse_read_options, read_schema  # noqa: PLC0415

        job_id, schema = read_schema(parse_read_options(self.options, self.store_defaults))
        # Spark plans each action anew from this object, and each must read what the schema was made for.
        self.options["job"] = job_id
        return schema

    def reader(self, schema: StructType) -> S3CommitReader:
        """Return what plans the read and is sent to the tasks.

        Raises:
            InvalidOption: An option is unknown or malformed, or there is no path.

        """
        from airflow_s3commit.spark.reading import S3CommitReader, parse_read_options  # noqa: PLC0415

        return S3CommitReader(schema, parse_read_options(self.options, self.store_defaults))

    def writer(self, schema: StructType, overwrite: bool) -> S3CommitWriter:
        """Check the options against the schema, and return what Spark sends to the tasks.

        Raises:
            InvalidOption: An option is unknown, malformed, or contradicts another or the save mode.
            UnsupportedPartition: A partition column is missing, or has a type that is to be cast first.
            UnsupportedColumn: The format, or Arrow, has no equal of a column's type.

        """
        options = parse_options(self.options, overwrite=overwrite, store_defaults=self.store_defaults)
        return S3CommitWriter(plan_table(schema, options), options, str(uuid4()), self.s3a_defaults)


@dataclass
class TaskMessage(WriterCommitMessage):
    """The message of a successful task to the driver's side.

    Attributes:
        task: Its pendingset.
        target: The job it wrote for.

    """

    task: CommittedTask
    target: Target


class S3CommitWriter(DataSourceArrowWriter):
    """Writes in the tasks, and seals or commits on the driver's side; plain data, pickled to both.

    Args:
        plan: How the table is written.
        options: The options of the write.
        write_id: A UUID for this write; the job that it sets up by itself, where the conf names none, has it
            as its id.
        s3a: The session's S3A settings of how objects are stored, found at registration.

    """

    def __init__(self, plan: TablePlan, options: WriteOptions, write_id: str, s3a: Mapping[str, str]) -> None:
        self._plan = plan
        self._options = options
        self._write_id = write_id
        self._s3a = dict(s3a)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        """Write one task's rows as pending uploads.

        Raises:
            JobMismatch: The save mode contradicts the job's conflict mode.
            InvalidDestination: There is no path, or another than the job's.
            S3CommitError: As `write_task` does.

        """
        context = TaskContext.get()
        if context is None:
            raise RuntimeError("S3CommitWriter.write runs in Spark tasks only")
        options, s3a, session = self._options, self._s3a, context.getLocalProperty
        target = target_of(options, self._write_id, lambda key: session(key) or s3a.get(key))
        job = ready_job(target, options)
        ids = TaskIds.of_spark(
            target.stage,
            target.stage_attempt,
            self._write_id,
            context.partitionId(),
            context.taskAttemptId(),
        )
        return TaskMessage(write_task(job, iterator, self._plan, ids, options), target)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Seal the stage with the task attempts that Spark counts; commit the job if it is the write's own.

        Raises:
            S3CommitError: As `commit_write` does. Spark then calls `abort`.

        """
        told = _task_messages(messages)
        if len(told) != len(messages) or not told:
            raise InvalidRecord(f"{len(told)} of {len(messages)} tasks reported: a part is not sealed")
        commit_write(told[0].target, [message.task for message in told])

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Leave nothing of this write pending; what cannot be done here is logged with the job's id."""
        told = _task_messages(messages)
        if told:
            target = told[0].target
        elif self._options.destination is not None:
            # No task said whose job it was. If it was one of the conf's, none of this id is found.
            target = own_target(self._options, self._write_id)
        else:
            return
        abort_failed_write(target, tasks_ended=len(told) == len(messages))


def _task_messages(messages: list[WriterCommitMessage | None]) -> list[TaskMessage]:
    return [message for message in messages if isinstance(message, TaskMessage)]


def register(spark: SparkSession) -> None:
    """Make ``df.write.format("s3commit")`` known to a session.

    Needed where the driver's Python finds this package but not the top-level module ``pyspark_s3commit``
    (``--py-files``, ``addPyFile``, Spark Connect); harmless elsewhere, and repeatable. The session's
    ``spark.s3commit.endpoint.*`` and ``spark.s3commit.path.style`` become the defaults of the data source's
    options of the same meaning; a job in the conf is looked up at each write. How S3A stores objects
    (encryption, storage class, ACL: ``fs.s3a.*``, Hadoop's files included) is read here too.

    It also saves writes a fifth to two fifths of their processor time: unless the session sets the size of
    an Arrow batch (``spark.sql.execution.arrow.maxRecordsPerBatch`` or ``….maxBytesPerBatch``), a batch has
    2,000 rows from now on and no limit in bytes, which Spark would check at each row. Where rows have more
    than about 32 KiB on average, set ``maxBytesPerBatch`` to ``64m``. `write_pending` does the same for the
    length of the write, and not for rows with binary or variant columns.

    Args:
        spark: The session, classic or Spark Connect.

    Raises:
        ImportError: PySpark or pyarrow is missing.

    """
    # PySpark is heavy, and Airflow's processes import this package without it.
    from airflow_s3commit.spark.s3a_conf import hadoop_conf  # noqa: PLC0415

    store = store_from_conf(lambda key: spark.conf.get(key, None))
    defaults = {"store_defaults": store, "s3a_defaults": hadoop_conf(spark)}
    source = type("S3CommitDataSource", (S3CommitDataSource,), defaults)
    spark.dataSource.register(source)
    count_rows(spark)

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
from airflow_s3commit.spark.commit_flow import (
    Target,
    abort_failed_write,
    commit_write,
    own_target,
    ready_job,
    target_of,
)
from airflow_s3commit.spark.options import parse_options
from airflow_s3commit.spark.session import StoreSettings
from airflow_s3commit.spark.table_plan import plan_table
from airflow_s3commit.spark.write_task import TaskIds, write_task

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from airflow_s3commit.protocol.records import CommittedTask
    from airflow_s3commit.spark.options import WriteOptions
    from airflow_s3commit.spark.reading import S3CommitReader
    from airflow_s3commit.tables.write import TablePlan

__all__ = ["S3CommitDataSource", "S3CommitWriter", "TaskMessage"]


class S3CommitDataSource(DataSource):
    """The data source ``s3commit``: files that appear all at once, when the job commits.

    The options of a write are `airflow_s3commit.spark.options.WRITE_OPTIONS`. Partition columns are among
    them, as ``partitionBy``: what ``.partitionBy()`` says Spark does not pass on. Save modes are ``append``
    and ``overwrite``: Spark passes no others on.

    Options of a read: ``path`` (or ``.load(path)``), ``job`` (the last that committed by default),
    ``endpointUrl``, ``region``, ``pathStyle``.
    """

    #: What a session's registration found in its conf.
    store_defaults: ClassVar[StoreSettings] = StoreSettings()

    #: What it found there for S3A, of how objects are kept.
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
    """What a task that succeeded tells the driver's side.

    Attributes:
        task: Its pendingset.
        target: The job it wrote for.

    """

    task: CommittedTask
    target: Target


class S3CommitWriter(DataSourceArrowWriter):
    """Writes in the tasks, and seals or commits on the driver's side; plain data, pickled to both.

    Args:
        plan: What every task is told of the table.
        options: The options of the write.
        write_id: A UUID for this write; the job that it sets up by itself, where the conf names none, has it
            as its id.
        s3a: What the session's registration found for S3A, of how objects are kept.

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

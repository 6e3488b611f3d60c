"""The work of a Spark task, for the data source and `write_pending`: writes rows as pending uploads."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_s3commit.exceptions import Refused
from airflow_s3commit.spark.options import WriteOptions
from airflow_s3commit.spark.session import DEFAULT_STAGE
from airflow_s3commit.tables.columns import UnsupportedColumn
from airflow_s3commit.tables.partitions import UnsupportedPartition
from airflow_s3commit.tables.write import TablePlan, file_stem, write_batches

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from airflow_s3commit.protocol.job import Job
    from airflow_s3commit.protocol.model.sealed_job import CommittedTask

#: Digits of a write's UUID that distinguish it from other writes of the same stage attempt.
_WRITE_DIGITS = 8

#: Spark's own variable, which its setting ``spark.sql.execution.pyspark.udf.hideTraceback.enabled`` sets.
_WITHOUT_TRACEBACK = "SPARK_HIDE_TRACEBACK"


@dataclass(frozen=True, slots=True)
class TaskIds:
    """The ids of a task attempt.

    Attributes:
        attempt: Id of the attempt at the task, unique across writes and Spark applications.
    """

    stage: str
    stage_attempt: str
    partition: int
    attempt: str

    @classmethod
    def of_spark(
        cls, stage: str, stage_attempt: str, write_id: str, partition: int, task_attempt_id: int
    ) -> TaskIds:
        """Return the ids of a Spark task attempt.

        The driver's UUID of the write is among them because Spark numbers the attempts of each application
        from 0, and a restarted application has the same conf.
        """
        return cls(stage, stage_attempt, partition, f"{task_attempt_id}w{write_id[:_WRITE_DIGITS]}")

    def stem(self, job_id: str) -> str:
        """Return the first part of the task's file names, unique within the job."""
        return file_stem(f"{self.partition:05d}", self.stage if self.stage != DEFAULT_STAGE else None, job_id)


@contextmanager
def refusals_first() -> Iterator[None]:
    """Make Spark's error for a refusal begin with the refusal's line, not with a traceback.

    It only acts in Spark's own Python processes. Such a process ends with the error that it reports, so no
    other error loses its traceback.
    """
    try:
        yield
    except (Refused, UnsupportedColumn, UnsupportedPartition):
        spec = getattr(sys.modules["__main__"], "__spec__", None)
        if spec is not None and spec.name.startswith("pyspark."):
            os.environ[_WITHOUT_TRACEBACK] = "1"
        raise


@refusals_first()
def write_task(
    job: Job,
    batches: Iterable[pa.RecordBatch],
    plan: TablePlan,
    ids: TaskIds,
    options: WriteOptions | None = None,
) -> CommittedTask:
    """Write a task's rows as pending uploads and commit them as one pendingset.

    Any exception here aborts the attempt's uploads. A failure of the operators that produce the rows raises
    no exception here: Spark ends the batches as if they were complete (seen with 4.3) and drops the task's
    message, and the pendingset lacks rows. So only task attempts with a message may be sealed, whatever
    pendingsets exist.

    Raises:
        UnsupportedPartition: A value cannot be part of a path.
        UnsupportedColumn: Parquet cannot hold a value.
        JobClosed: The job takes no more output.
        DidNotHappen: The store refused an upload.
    """
    options = options or WriteOptions()
    try:
        with job.task_attempt(
            ids.stage,
            ids.stage_attempt,
            f"{ids.partition:05d}",
            ids.attempt,
            part_bytes=options.part_bytes,
            buffered_bytes=options.in_flight_bytes,
            local_dir=_local_dir(ids.partition),
        ) as attempt:
            # As in Spark, the first task writes a file with the schema for an empty table.
            first = ids.partition == 0
            stem = ids.stem(job.reference.job_id)
            written = write_batches(attempt, batches, plan, stem, empty_file=first)
            attempt.describe(written.files, written.schema)
            return attempt.commit()
    finally:
        # A worker outlives its tasks, and is idle between them. The C library's memory is left to the next
        # task, which needs it at once, or returns it when its buffer is full.
        pa.default_memory_pool().release_unused()


def _local_dir(partition: int) -> str | None:
    """Return one of Spark's local directories, which are removed with the executor even if it is killed."""
    directories = [name for name in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if name]
    return directories[partition % len(directories)] if directories else None

"""A Spark task's work, for the data source and `write_pending`: rows to uploads and one pendingset."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_s3commit.spark.options import WriteOptions
from airflow_s3commit.spark.session import DEFAULT_STAGE
from airflow_s3commit.tables.write import TablePlan, file_stem, write_batches

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_s3commit.protocol.job import Job
    from airflow_s3commit.protocol.model.seal import CommittedTask

#: Digits of a write's UUID that distinguish it from others of the same stage attempt.
_WRITE_DIGITS = 8


@dataclass(frozen=True, slots=True)
class TaskIds:
    """Which task attempt this is.

    Attributes:
        stage: The job's name for this write.
        stage_attempt: Which attempt at it.
        partition: Spark's partition id.
        attempt: Which attempt at the task; see `of_spark`.

    """

    stage: str
    stage_attempt: str
    partition: int
    attempt: str

    @classmethod
    def of_spark(
        cls, stage: str, stage_attempt: str, write_id: str, partition: int, task_attempt_id: int
    ) -> TaskIds:
        """Return the ids of an attempt that Spark runs.

        Args:
            stage: The job's name for this write.
            stage_attempt: Which attempt at it.
            write_id: An id that the driver made for this very write, a UUID. Spark numbers the attempts of
                each application from 0, and a restarted application has the same conf as the one before.
            partition: Spark's partition id.
            task_attempt_id: Spark's number of the attempt.

        """
        return cls(stage, stage_attempt, partition, f"{task_attempt_id}w{write_id[:_WRITE_DIGITS]}")

    def stem(self, job_id: str) -> str:
        """Return the first part of file names: no other task of the job has it."""
        return file_stem(f"{self.partition:05d}", self.stage if self.stage != DEFAULT_STAGE else None, job_id)


def write_task(
    job: Job,
    batches: Iterable[pa.RecordBatch],
    plan: TablePlan,
    ids: TaskIds,
    options: WriteOptions | None = None,
) -> CommittedTask:
    """Write a task's rows as pending uploads and commit them as one pendingset.

    On any exception this attempt's uploads are aborted on the way out. A failure of what feeds the rows is
    no exception here: Spark then ends them as if they were whole (seen with 4.3), the pendingset lacks rows,
    and Spark drops the task's message. So a pendingset proves nothing; only the messages may be sealed.

    Args:
        job: The job.
        batches: The rows.
        plan: How they are written.
        ids: Which task attempt this is.
        options: The options of the write, which bound parts and bytes in flight.

    Raises:
        UnsupportedPartition: A value can be no part of a path.
        UnsupportedColumn: A value cannot be written to the format.
        JobClosed: The job no longer takes output.
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
            # As Spark does: an empty table is a file that has the schema, and the first task's.
            first = ids.partition == 0
            write_batches(attempt, batches, plan, ids.stem(job.reference.job_id), empty_file=first)
            return attempt.commit()
    finally:
        # A worker outlives its tasks, and idles between them. What the C library keeps the next one needs at
        # once, or gives back itself where it has too many rows.
        pa.default_memory_pool().release_unused()


def _local_dir(partition: int) -> str | None:
    """Return a directory of Spark's own: what a killed task leaves there goes with its executor."""
    directories = [name for name in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if name]
    return directories[partition % len(directories)] if directories else None

"""What a Spark task does with its rows, whichever door they came in by."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_s3commit.spark.files import Bounds, OpenFiles, RowBuffers
from airflow_s3commit.spark.partitions import PartitionSplitter
from airflow_s3commit.spark.session import DEFAULT_STAGE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from airflow_s3commit.protocol.job import Job
    from airflow_s3commit.protocol.records import CommittedTask
    from airflow_s3commit.spark.encoders import ParquetFormat
    from airflow_s3commit.spark.options import WriteOptions

__all__ = ["TablePlan", "TaskIds", "write_task"]

#: Rows that are not arranged by partition are gathered, up to this part of what a task may keep, and then
#: split at once: fewer and larger pieces.
_GATHERED_SHARE = 4

#: Parts of a task on their way at once.
_UPLOAD_THREADS = 4

#: So much of a write's UUID tells it from others of the same stage attempt.
_WRITE_DIGITS = 8

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_]")


@dataclass(frozen=True)
class TablePlan:
    """What every task of a write is told; plain data, because it is pickled to each of them.

    Attributes:
        schema: Schema of the rows, for a task that gets none.
        partition_by: Partition columns, by their names in the schema.
        form: How files are encoded.
        options: The options of the write.

    """

    schema: pa.Schema
    partition_by: tuple[str, ...]
    form: ParquetFormat
    options: WriteOptions

    @property
    def bounds(self) -> Bounds:
        """What a task may hold."""
        return Bounds(
            rows_per_file=self.options.max_records_per_file,
            open_files=self.options.open_files,
            row_bytes=self.options.row_bytes,
            row_group_bytes=self.options.row_group_bytes,
            encoded_bytes=max(self.options.upload_bytes - self.in_flight_bytes, self.options.part_bytes),
        )

    @property
    def in_flight_bytes(self) -> int:
        """Bytes of parts on their way before the writer waits."""
        return max(self.options.upload_bytes // 3, self.options.part_bytes)


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
        # Not after the job id: a sweep recognises the id by what follows it.
        stage = "" if self.stage == DEFAULT_STAGE else f"{_NOT_IN_NAMES.sub('_', self.stage)}-"
        return f"part-{self.partition:05d}-{stage}{job_id}"


def write_task(job: Job, batches: Iterable[pa.RecordBatch], plan: TablePlan, ids: TaskIds) -> CommittedTask:
    """Write a task's rows as pending uploads and commit them as one pendingset.

    On any exception this attempt's uploads are aborted on the way out. A failure of what feeds the rows is
    no exception here: Spark then ends them as if they were whole (seen with 4.3), the pendingset lacks rows,
    and Spark drops the task's message. So a pendingset proves nothing; only the messages may be sealed.

    Raises:
        UnsupportedPartition: A value can be no part of a path.
        JobClosed: The job no longer takes output.
        DidNotHappen: The store refused an upload.

    """
    with job.task_attempt(
        ids.stage,
        ids.stage_attempt,
        f"{ids.partition:05d}",
        ids.attempt,
        part_bytes=plan.options.part_bytes,
        buffered_bytes=plan.in_flight_bytes,
        threads=_UPLOAD_THREADS,
        local_dir=_local_dir(ids.partition),
    ) as attempt:
        remaining = iter(batches)
        first = next(remaining, None)
        splitter = PartitionSplitter(plan.schema if first is None else first.schema, plan.partition_by)
        stem = ids.stem(job.reference.job_id)
        with OpenFiles(attempt, splitter.file_schema, plan.form, plan.bounds, stem) as files:
            buffers = RowBuffers(splitter.file_schema, plan.bounds, files.write)
            rows = 0
            for batch in _gathered(first, remaining, splitter, plan.options.row_bytes // _GATHERED_SHARE):
                rows += batch.num_rows
                for directory, piece in splitter.split(batch):
                    buffers.add(directory, piece)
            buffers.flush()
            if rows == 0 and ids.partition == 0 and not plan.partition_by:
                # As Spark does: an empty table is a file that has the schema.
                files.write_empty("")
            files.close()
        return attempt.commit()


def _local_dir(partition: int) -> str | None:
    """Return a directory of Spark's own: what a killed task leaves there goes with its executor."""
    directories = [name for name in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if name]
    return directories[partition % len(directories)] if directories else None


def _gathered(
    first: pa.RecordBatch | None,
    remaining: Iterator[pa.RecordBatch],
    splitter: PartitionSplitter,
    most_bytes: int,
) -> Iterator[pa.RecordBatch]:
    """Pass arranged batches on as they are, and the others together, in their order."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    batch = first
    while batch is not None:
        if splitter.arranged(batch):
            yield from _together(waiting)
            waiting, size = [], 0
            yield batch
        else:
            waiting.append(batch)
            size += batch.nbytes
            if size >= most_bytes:
                yield from _together(waiting)
                waiting, size = [], 0
        batch = next(remaining, None)
    yield from _together(waiting)


def _together(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if batches:
        yield from pa.Table.from_batches(batches).combine_chunks().to_batches()

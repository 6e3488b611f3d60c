"""Writes rows to files: splits them by partition, buffers them, and encodes them."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_s3commit.tables.open_files import Bounds, OpenFiles, RowBuffers
from airflow_s3commit.tables.orc import OrcForm
from airflow_s3commit.tables.parquet import ParquetForm
from airflow_s3commit.tables.partitions import PartitionSplitter
from airflow_s3commit.tables.text_file import TextForm

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from airflow_s3commit.tables.formats import FileForm, FileOpener, SparkFooter
    from airflow_s3commit.tables.options import TableOptions

#: Rows that are not arranged by partition are gathered, up to this part of what a task may keep, and then
#: split at once: fewer and larger pieces.
_GATHERED_SHARE = 8

#: A batch is cut where it is larger than this part of it.
_CUT_SHARE = 8

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_]")

_DIGEST_DIGITS = 8


@dataclass(frozen=True)
class TablePlan:
    """How every task of a write writes; plain data, because it is pickled to each of them.

    Attributes:
        schema: Schema of the rows, for a task that gets none.
        partition_by: Partition columns, by their names in the schema.
        form: How files are encoded.
        options: The options of the table.

    """

    schema: pa.Schema
    partition_by: tuple[str, ...]
    form: FileForm
    options: TableOptions


@dataclass(frozen=True, slots=True)
class WrittenTable:
    """What was written.

    Attributes:
        files: How many files.
        rows: How many rows.

    """

    files: int
    rows: int


def file_stem(task: str, stage: str | None, job_id: str) -> str:
    """Return the first part of a task's file names, which no other task of the job has.

    Args:
        task: Name of the task in its stage.
        stage: Name of the stage; None for the one that is not named in files.
        job_id: The job.

    """
    # Not after the job id: a sweep recognises the id by what follows it.
    middle = "" if stage is None else f"{_plain(stage)}-"
    return f"part-{_plain(task)}-{middle}{job_id}"


def write_batches(
    opener: FileOpener,
    batches: Iterable[pa.RecordBatch],
    plan: TablePlan,
    stem: str,
    *,
    empty_file: bool,
    numbers: dict[str, int] | None = None,
) -> WrittenTable:
    """Write rows to files, split by their partition values; every file is closed afterwards.

    Args:
        opener: Opens files; what it has opened is its own to discard if this raises.
        batches: The rows.
        plan: How they are written.
        stem: First part of the file names.
        empty_file: Whether an unpartitioned table without rows is a file that has the schema.
        numbers: How many files of that stem each directory has; counted on.

    Raises:
        UnsupportedPartition: A value can be no part of a path.
        UnsupportedColumn: A value cannot be written to the format.
        S3CommitError: A file could not be written.

    """
    bounds = Bounds.of(plan.options)
    remaining = _cut(batches, min(bounds.row_group_bytes, bounds.row_bytes // _CUT_SHARE))
    first = next(remaining, None)
    splitter = PartitionSplitter(plan.schema if first is None else first.schema, plan.partition_by)
    rows = 0
    with OpenFiles(opener, splitter.file_schema, plan.form, bounds, stem=stem, numbers=numbers) as files:
        buffers = RowBuffers(splitter.file_schema, bounds, files.write)
        for batch in _gathered(first, remaining, splitter, bounds.row_bytes // _GATHERED_SHARE):
            rows += batch.num_rows
            for directory, piece in splitter.split(batch):
                buffers.add(directory, piece)
        buffers.flush(files.end)
        if rows == 0 and empty_file and not plan.partition_by:
            files.write_empty("")
        files.close()
    return WrittenTable(files.files, rows)


def _plain(name: str) -> str:
    """Return a name as it can stand in a file's name; two names never become one."""
    plain = _NOT_IN_NAMES.sub("_", name)
    return plain if plain == name else f"{plain}_{hashlib.sha256(name.encode()).hexdigest()[:_DIGEST_DIGITS]}"


def _cut(batches: Iterable[pa.RecordBatch], most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Pass batches on, large ones in pieces: what is bounded by bytes is so by whole batches."""
    for batch in batches:
        pieces = -(-batch.nbytes // max(most_bytes, 1))
        if pieces <= 1 or batch.num_rows <= 1:
            yield batch
            continue
        size = max(-(-batch.num_rows // pieces), 1)
        for start in range(0, batch.num_rows, size):
            yield batch.slice(start, size)


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
            size = 0
            yield batch
        else:
            waiting.append(batch)
            size += batch.nbytes
            if size >= most_bytes:
                yield from _together(waiting)
                size = 0
        batch = next(remaining, None)
    yield from _together(waiting)


def _together(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of batches as one, and let go of those."""
    if batches:
        together = pa.Table.from_batches(batches).combine_chunks().to_batches()
        batches.clear()
        yield from together


def form_of(options: TableOptions, spark: SparkFooter | None = None) -> FileForm:
    """Return how the files are encoded.

    Args:
        options: The options of the write.
        spark: What the files say of Spark, where it writes them.

    """
    if options.format == "parquet":
        return ParquetForm(options.codec, spark, options.int96)
    if options.format == "orc":
        return OrcForm(options.codec, spark, options.row_group_bytes)
    return TextForm(options.format, options.codec, options.text)

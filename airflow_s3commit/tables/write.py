"""Writes rows to files: splits rows by partition, buffers them, and encodes them."""

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
from airflow_s3commit.tables.schemas import to_text
from airflow_s3commit.tables.text_file import TextForm

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from airflow_s3commit.tables.formats import FileForm, FileOpener, SparkFooter
    from airflow_s3commit.tables.options import TableOptions

#: Batches that are not arranged by partition are combined before they are split, which makes fewer and larger
#: pieces: up to one part in this number of the bytes that a task may buffer.
_GATHERED_SHARE = 8

#: A batch larger than one part in this number of the same bytes is cut.
_CUT_SHARE = 8

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_]")

_DIGEST_DIGITS = 8


@dataclass(frozen=True)
class TablePlan:
    """The settings that all tasks of a write share; pickled to each task.

    Attributes:
        schema: Schema of the rows, for a task without batches.
        partition_by: Partition columns, outermost first, as the schema spells them.
        form: The files' encoding.
        options: The options of the write.
        ansi: Whether decimals in directories' names have no exponent, as in Spark's ANSI mode.
        partition_types: Types of the partition columns before they were rendered as text; None for those in
            ``schema``. An empty table has no directories that show them.

    """

    schema: pa.Schema
    partition_by: tuple[str, ...]
    form: FileForm
    options: TableOptions
    ansi: bool = True
    partition_types: tuple[pa.DataType, ...] | None = None


@dataclass(frozen=True, slots=True)
class WrittenTable:
    """The result of writing a table.

    Attributes:
        files: Number of files written.
        rows: Number of rows written.
        schema: The columns, as a record keeps them; None for text, and if there are too many.

    """

    files: int
    rows: int
    schema: str | None = None


def file_stem(task: str, stage: str | None, job_id: str) -> str:
    """Return the first part of a task's file names, unique within the job.

    Args:
        task: Name of the task in its stage.
        stage: Name of the stage; None for the stage whose files have no stage in their names.
        job_id: The job.

    """
    # The stage precedes the job id: a sweep recognises the id by the characters after it.
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
        opener: Opens files. If this raises, the caller discards the files that it has opened.
        batches: The rows.
        plan: The settings of the write.
        stem: First part of the file names.
        empty_file: Whether to write an empty file with the schema if there are no rows and no partition
            columns.
        numbers: Number of files with that stem, by directory; updated in place.

    Raises:
        UnsupportedPartition: A value cannot be part of a path.
        UnsupportedColumn: The format cannot hold a value.
        S3CommitError: A file could not be written.

    """
    bounds = Bounds.of(plan.options)
    remaining = _cut(batches, min(bounds.row_group_bytes, bounds.row_bytes // _CUT_SHARE))
    first = next(remaining, None)
    schema = plan.schema if first is None else first.schema
    # Named as in the options, as in Spark; not as the schema spells them.
    names = plan.options.partition_by or plan.partition_by
    splitter = PartitionSplitter(schema, plan.partition_by, names, ansi=plan.ansi)
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
    types = plan.partition_types or [schema.field(column).type for column in plan.partition_by]
    partitions = pa.schema(list(zip(names, types, strict=True)))
    return WrittenTable(files.files, rows, to_text(plan.form, splitter.file_schema, partitions))


def _plain(name: str) -> str:
    """Return a name in characters that are safe in a file's name; different names stay different."""
    plain = _NOT_IN_NAMES.sub("_", name)
    return plain if plain == name else f"{plain}_{hashlib.sha256(name.encode()).hexdigest()[:_DIGEST_DIGITS]}"


def _cut(batches: Iterable[pa.RecordBatch], most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield batches, and large ones in pieces, because limits in bytes are checked after whole batches."""
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
    """Yield batches arranged by partition as they are, and combine the batches between them."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    batch = first
    while batch is not None:
        if splitter.arranged(batch):
            yield from _combined(waiting)
            size = 0
            yield batch
        else:
            waiting.append(batch)
            size += batch.nbytes
            if size >= most_bytes:
                yield from _combined(waiting)
                size = 0
        batch = next(remaining, None)
    yield from _combined(waiting)


def _combined(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of batches as one batch, and clear the list to free the others."""
    if batches:
        combined = pa.Table.from_batches(batches).combine_chunks().to_batches()
        batches.clear()
        yield from combined


def form_of(options: TableOptions, spark: SparkFooter | None = None) -> FileForm:
    """Return the encoding of a write's files.

    Args:
        options: The options of the write.
        spark: Spark's footer metadata; None without Spark.

    """
    if options.format == "parquet":
        return ParquetForm(options.codec, spark, options.int96)
    if options.format == "orc":
        return OrcForm(options.codec, spark, options.row_group_bytes)
    return TextForm(options.format, options.codec, options.text)

"""Writes tables of any library to files: casts rows, splits them by partition, buffers and encodes them.

The rows that wait to be encoded, the number of open files, and the bytes that these buffer are bounded.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import sys
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.types as pt

from airflow_s3commit._causes import noting, run_all
from airflow_s3commit.tables.columns import (
    PartitionSplitter,
    UnsupportedColumn,
    in_types,
    resolve_columns,
    stored_schema,
    to_text,
)
from airflow_s3commit.tables.encoder import Encoder, check_columns, footer_schema
from airflow_s3commit.tables.options import parse_table_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from airflow_s3commit.protocol.model.sealed_job import Columns
    from airflow_s3commit.tables.options import TableOptions

#: Rows, and their bytes with each value of a dictionary once, that are cast at once, at most.
_ROWS, _BYTES = 8_192, 8 * 2**20


def _reader_of(data: Any) -> pa.RecordBatchReader:
    """Return a reader of a table of any library with Arrow's C interface, or of pandas, without its index."""
    bases = [(one.__module__.partition(".")[0], one.__name__) for one in type(data).__mro__]
    if ("pandas", "DataFrame") in bases:
        return pa.Table.from_pandas(data, preserve_index=False).to_reader()
    if ("polars", "DataFrame") in bases and "Object" in map(str, data.dtypes):
        raise UnsupportedColumn("a column of polars has Python objects, and Arrow only their addresses")
    with suppress(pa.ArrowInvalid):  # a single column has a stream too
        if hasattr(data, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(data)
        if hasattr(data, "__arrow_c_array__"):
            return pa.Table.from_batches([pa.record_batch(data)]).to_reader()
    raise TypeError(
        f"{type(data).__name__} is not a table: it has no __arrow_c_stream__ of rows; pass a table of"
        " pyarrow, pandas or polars, or a DuckDB relation such as con.sql(...)"
    )


def _stored_rows(reader: pa.RecordBatchReader, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the batches in a schema's types; refuse a value that does not fit, such as nanoseconds."""
    for whole in reader:
        rows = max(min(_ROWS, _BYTES * whole.num_rows // max(whole.nbytes, 1)), 1)
        columns = [_decodable(column) for column in whole.columns]
        for batch in pa.Table.from_arrays(columns, schema.names).to_batches(max_chunksize=rows):
            columns = [_stored(column, field) for column, field in zip(batch.columns, schema, strict=True)]
            yield from pa.Table.from_arrays(columns, schema=schema).to_batches()


def _stored(column: pa.Array, field: pa.Field) -> pa.ChunkedArray:
    if column.offset and column.type in (pa.large_string(), pa.large_binary()):
        # Arrow takes the offsets in the whole for the length of the slice, which has a limit.
        column = pa.concat_arrays([column, column[:0]])
    try:
        # The cast of a table checks more than that of an array.
        return in_types(pa.table([column], names=[field.name]), pa.schema([field])).column(0)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, IndexError) as error:
        raise UnsupportedColumn(
            f"column {field.name!r} cannot be written without loss ({error}): round or cast it first"
        ) from error


def _decodable(column: pa.Array) -> pa.Array:
    """Return a column whose dictionary Arrow can decode, which it cannot if that holds string views."""
    if pt.is_dictionary(column.type) and pt.is_string_view(column.type.value_type):
        return pa.DictionaryArray.from_arrays(column.indices, column.dictionary.cast(pa.string()))
    return column


def write_table(
    opener: FileOpener,
    data: Any,
    *,
    stem: str,
    numbers: dict[str, int],
    partition_by: Sequence[str] = (),
    format: str | None = None,  # noqa: A002 - as Spark calls it
    options: Mapping[str, str] | None = None,
) -> WrittenTable:
    """Write a table to files; every file is closed afterwards.

    Another call with the same ``numbers`` adds files. Arguments and errors are `TaskAttempt.write_table`'s.
    """
    table_options = parse_table_options(options or {}, format=format, partition_by=partition_by)
    reader = _reader_of(data)
    schema = stored_schema(reader.schema)
    columns = resolve_columns(schema, table_options.partition_by)
    check_columns(pa.schema([one for one in schema if one.name not in columns]), table_options.format)
    plan = TablePlan(schema, columns, table_options)
    return write_batches(opener, _stored_rows(reader, schema), plan, stem, empty_file=True, numbers=numbers)


#: Partitioned rows are written at one part in this number of a task's row bytes: a sorted copy needs room.
_BUFFERED_SHARE = 2

#: Then the largest partitions are written until one part in this number is left.
_KEPT_SHARE = 4

#: A batch larger than one part in this number of a full buffer is cut.
_CUT_SHARE = 8

#: Bytes that a small batch takes besides its values, as measured: objects, and padding of each column.
_BATCH_OVERHEAD = 512
_COLUMN_OVERHEAD = 384

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_]")


@dataclass(frozen=True)
class TablePlan:
    """The settings that all tasks of a write share; pickled to each task.

    Attributes:
        schema: Schema of the rows, for a task without batches.
        partition_by: Partition columns, outermost first, as the schema spells them.
        footer: Further entries of Parquet footers.
        partition_types: Types of the partition columns before they were rendered as text; None for those in
            ``schema``. An empty table has no directories that show them.
    """

    schema: pa.Schema
    partition_by: tuple[str, ...]
    options: TableOptions
    footer: Mapping[str, str] = field(default_factory=dict)
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
    """Return the first part of a task's file names, unique within the job; None leaves out the stage."""
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
        empty_file: Whether to write an empty file with the schema if there are no rows or partition columns.
        numbers: Number of files with that stem, by directory; updated in place.
    """
    options = plan.options
    most, kept = min(options.group_bytes, options.row_bytes), 0
    if plan.partition_by:
        most = options.row_bytes // _BUFFERED_SHARE
        kept = most // _KEPT_SHARE
    remaining = _cut(batches, most // _CUT_SHARE)
    first = next(remaining, None)
    schema = plan.schema if first is None else first[0].schema
    # Named as in the options, as in Spark; not as the schema spells them.
    names = options.partition_by or plan.partition_by
    splitter = PartitionSplitter(schema, plan.partition_by, names)
    rows = size = 0
    waiting: list[pa.RecordBatch] = []
    types = plan.partition_types or [schema.field(column).type for column in plan.partition_by]
    stored = footer_schema(splitter.file_schema, options, plan.footer)
    partitions = pa.schema(list(zip(names, types, strict=True)))
    columns = to_text(options.format, stored, partitions) if stored is not None else None
    opener.check_schema(columns)
    numbers = {} if numbers is None else numbers
    with OpenFiles(opener, splitter.file_schema, options, stem, plan.footer, numbers) as files:
        for batch, held in remaining if first is None else chain([first], remaining):
            if size >= most:
                waiting, size = _write_largest(waiting, schema, splitter, files, kept)
            waiting.append(batch)
            size += held
            rows += batch.num_rows
        for directory, piece in splitter.split(pa.Table.from_batches(waiting, schema)):
            files.write(directory, piece.select(splitter.file_schema.names))
            files.end(directory)
        if rows == 0 and empty_file and not plan.partition_by:
            files.write_empty()
        files.close()
    return WrittenTable(files.files, rows, columns)


def _write_largest(
    batches: list[pa.RecordBatch], schema: pa.Schema, splitter: PartitionSplitter, files: OpenFiles, kept: int
) -> tuple[list[pa.RecordBatch], int]:
    """Write the largest partitions, empty ``batches``, and return a copy of the other rows and its bytes.

    Small partitions wait for more rows, for fewer small files and row groups. At most ``kept`` bytes remain.
    """
    if kept:
        # A sorted copy needs room.
        give_memory_back()
    pieces = list(splitter.split(pa.Table.from_batches(batches, schema)))
    batches.clear()
    sizes = sorted((piece.nbytes, number) for number, (_, piece) in enumerate(pieces)) if kept else []
    totals = accumulate(size for size, _ in sizes)
    small = {number for (_, number), total in zip(sizes, totals, strict=True) if total <= kept}
    # In their order, so that the file of a partition whose rows continue is the last to be closed.
    for number, (directory, piece) in enumerate(pieces):
        if number not in small:
            files.write(directory, piece.select(splitter.file_schema.names))
    rest = pa.concat_tables([schema.empty_table(), *(pieces[number][1] for number in sorted(small))])
    copied: list[pa.RecordBatch] = rest.combine_chunks().to_batches()
    return copied, sum(batch.nbytes for batch in copied)


def _plain(name: str) -> str:
    """Return a name in characters that are safe in a file's name; different names stay different."""
    plain = _NOT_IN_NAMES.sub("_", name)
    return plain if plain == name else f"{plain}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _cut(batches: Iterable[pa.RecordBatch], most_bytes: int) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield batches, large ones in pieces, and the bytes that each takes."""
    for batch in batches:
        size = int(batch.nbytes)
        rows = max(batch.num_rows * most_bytes // size, 1) if size > most_bytes else batch.num_rows
        overhead = _BATCH_OVERHEAD + _COLUMN_OVERHEAD * batch.num_columns
        for start in range(0, batch.num_rows, max(rows, 1)):
            piece = batch.slice(start, rows)
            yield piece, size * piece.num_rows // batch.num_rows + overhead


class TableFile(Protocol):
    """A file that is being written."""

    def write(self, data: bytes) -> int:
        """Append bytes, and return how many."""

    @property
    def buffered(self) -> int:
        """Bytes held in memory, not yet sent."""

    def send_buffered(self) -> None:
        """Send the buffered bytes, if there are enough for a request."""

    def close(self, rows: int | None = None, statistics: Columns | None = None) -> None:
        """End the file, and record its number of rows and its column statistics."""


class FileOpener(Protocol):
    """Opens files by their paths below the destination, as a task attempt does."""

    def check_schema(self, schema: str | None) -> None:
        """Refuse a schema that the files must not have, before the first of them is opened."""

    def open(self, relative_path: str, *, content_type: str = ...) -> TableFile:
        """Open a new file for writing."""


class _Open(NamedTuple):
    file: TableFile
    encoder: Encoder


@dataclass
class OpenFiles:
    """The open files of a task, by directory; closes the least recently written when there are too many.

    Use it in a ``with`` block: an exception abandons the open encoders. The task attempt aborts the uploads.

    Attributes:
        stem: First part of the file names, unique to the task within its job.
        footer: Further entries of Parquet footers.
        numbers: Number of files with that stem, by directory; updated in place.
        files: Number of files opened so far.
    """

    opener: FileOpener
    schema: pa.Schema
    options: TableOptions
    stem: str
    footer: Mapping[str, str] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    files: int = field(default=0, init=False)
    _open: OrderedDict[str, _Open] = field(default_factory=OrderedDict, init=False)

    def __enter__(self) -> OpenFiles:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            return
        doing, left = "abandoning a partly encoded file", "its task attempt aborts its upload"
        with noting(error, doing, left):
            run_all([entry.encoder.abandon for entry in self._open.values()], doing, left)
        self._open.clear()

    def write(self, directory: str, rows: pa.Table) -> None:
        """Write rows to the directory's file in row groups, and to further files if one is full."""
        limit, target = self.options.max_records_per_file, self.options.target_file_bytes
        group = max(rows.num_rows * self.options.group_bytes // max(rows.nbytes, 1), 1)
        while rows.num_rows:
            entry = self._entry(directory)
            head = rows.slice(0, min(group, limit - entry.encoder.rows) if limit else group)
            entry.encoder.write(head)
            if (limit and entry.encoder.rows >= limit) or (target and entry.encoder.bytes >= target):
                self._close(directory)
            rows = rows.slice(head.num_rows)
        self._make_room()

    def write_empty(self) -> None:
        """Write a file with a schema and no rows, in no directory."""
        self._entry("")
        self._close("")

    def end(self, directory: str) -> None:
        """Close the directory's file, if one is open."""
        if directory in self._open:
            self._close(directory)

    def close(self) -> None:
        """Close every file."""
        while self._open:
            self._close(next(iter(self._open)))

    def _entry(self, directory: str) -> _Open:
        entry = self._open.get(directory)
        if entry is not None:
            self._open.move_to_end(directory)
            return entry
        while len(self._open) >= self.options.open_files:
            self._close(next(iter(self._open)))
        number = self.numbers.get(directory, 0)
        self.numbers[directory] = number + 1
        form = self.options.file_format
        name = f"{self.stem}.c{number:03d}{form.suffix(self.options.codec)}"
        path = f"{directory}/{name}" if directory else name
        file = self.opener.open(path, content_type=form.content_type)
        encoder = Encoder(file, self.schema, self.options, self.footer)
        entry = self._open[directory] = _Open(file, encoder)
        self.files += 1
        return entry

    def _close(self, directory: str) -> None:
        entry = self._open[directory]
        entry.encoder.close()
        entry.file.close(rows=entry.encoder.rows, statistics=entry.encoder.statistics)
        del self._open[directory]

    def _make_room(self) -> None:
        if self._held() <= self.options.encoded_bytes:
            return
        for entry in self._open.values():
            entry.file.send_buffered()
        while self._open and self._held() > self.options.encoded_bytes:
            self._close(next(iter(self._open)))

    def _held(self) -> int:
        return sum(entry.file.buffered for entry in self._open.values())


def give_memory_back() -> None:
    """Return unused memory of Arrow's allocator and the C library to the operating system.

    Mapping the pages again later costs about ten milliseconds of processor time for 50 MiB.
    """
    pa.default_memory_pool().release_unused()
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    """Return glibc's ``malloc_trim``; None with another C library."""
    # system_memory_pool().release_unused() does nothing in pyarrow's wheels (26.0).
    if sys.platform != "linux":
        return None
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
    return trim

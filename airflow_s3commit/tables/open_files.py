"""The open files of a task and the rows buffered for them, both bounded.

Rows are buffered by directory, outside of any file, until they fill a row group or the buffer is full. So a
directory with few rows has an open file only briefly, at the end.
"""

from __future__ import annotations

import ctypes
import sys
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from airflow_s3commit._causes import noting, run_all
from airflow_s3commit.tables.formats import FORMATS

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_s3commit.tables.formats import Encoder, FileForm, FileOpener, TableFile
    from airflow_s3commit.tables.options import TableOptions

#: Bytes that a small batch takes besides its values, as measured: objects, and padding of each column.
_BATCH_OVERHEAD = 512

_COLUMN_OVERHEAD = 384

#: This number of small batches of one directory are combined.
_MAX_SMALL_BATCHES = 16

#: A full buffer is written out until one part in this number of its limit is left.
_KEPT_SHARE = 4


@dataclass(slots=True)
class _Waiting:
    batches: list[pa.RecordBatch] = field(default_factory=list)
    bytes: int = 0


class RowBuffers:
    """Buffers rows by directory, and writes out the largest directories when the buffer is full.

    Buffered rows may be slices of a batch with rows of several directories. A batch stays in memory as long
    as any of its slices does. So the limit counts every row added since the last clean-up, and a clean-up
    copies the remaining rows out of their batches.

    Args:
        schema: Schema of the rows.
        options: The options of the write, with the limits.
        write: Writes rows to a directory.

    """

    def __init__(
        self, schema: pa.Schema, options: TableOptions, write: Callable[[str, pa.Table], None]
    ) -> None:
        self._schema = schema
        self._options = options
        self._write = write
        self._waiting: dict[str, _Waiting] = {}
        self._overhead = _BATCH_OVERHEAD + _COLUMN_OVERHEAD * len(schema)
        self._bytes = 0
        # Bytes that the batches of buffered rows may keep in memory, rows written out included.
        self._held = 0

    def add(self, directory: str, rows: pa.RecordBatch) -> None:
        """Buffer rows; write rows out if a row group or the buffer is full."""
        waiting = self._waiting.setdefault(directory, _Waiting())
        waiting.batches.append(rows)
        self._count(waiting, rows.nbytes + self._overhead)
        if (
            len(waiting.batches) >= _MAX_SMALL_BATCHES
            and waiting.bytes < self._overhead * _MAX_SMALL_BATCHES * 2
        ):
            waiting.batches = pa.Table.from_batches(waiting.batches).combine_chunks().to_batches()
            self._count(waiting, -self._overhead * (_MAX_SMALL_BATCHES - 1))
        if waiting.bytes >= self._options.group_bytes:
            self._write_out(directory)
        if self._held > self._options.row_bytes:
            self._make_room()

    def flush(self, then: Callable[[str], None] = lambda _: None) -> None:
        """Write all rows out, and call ``then`` with each directory after its rows."""
        for directory in list(self._waiting):
            self._write_out(directory)
            then(directory)

    def _count(self, waiting: _Waiting, size: int) -> None:
        waiting.bytes += size
        self._bytes += size
        self._held += size

    def _make_room(self) -> None:
        give_memory_back()
        # Many directories at a time: sort them once, and leave few rows to copy.
        for directory in sorted(self._waiting, key=lambda name: self._waiting[name].bytes, reverse=True):
            if self._bytes * _KEPT_SHARE <= self._options.row_bytes:
                break
            self._write_out(directory)
        for waiting in self._waiting.values():
            batches = len(waiting.batches)
            waiting.batches = [_copied(waiting.batches)]
            self._count(waiting, -self._overhead * (batches - 1))
        self._held = self._bytes

    def _write_out(self, directory: str) -> None:
        waiting = self._waiting.pop(directory)
        self._bytes -= waiting.bytes
        if not self._waiting:
            self._held = 0
        self._write(directory, pa.Table.from_batches(waiting.batches, schema=self._schema))


def _copied(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the rows as one batch that shares no memory with the given ones."""
    if len(batches) > 1:
        return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
    (batch,) = batches
    return batch.take(pa.array(np.arange(batch.num_rows, dtype=np.int32)))


@dataclass(slots=True)
class _Open:
    file: TableFile
    encoder: Encoder


class OpenFiles:
    """The open files of a task, by directory; closes the least recently written when there are too many.

    Use it in a ``with`` block: an exception abandons the open encoders. The task attempt aborts the uploads.

    Args:
        opener: Opens files.
        schema: Schema of the rows.
        form: The files' encoding.
        options: The options of the write, with the limits.
        stem: First part of the file names, unique to the task within its job.
        numbers: Number of files with that stem, by directory; updated in place.

    Attributes:
        files: Number of files opened so far.

    """

    def __init__(
        self,
        opener: FileOpener,
        schema: pa.Schema,
        form: FileForm,
        options: TableOptions,
        *,
        stem: str,
        numbers: dict[str, int] | None = None,
    ) -> None:
        self._opener = opener
        self._schema = schema
        self._form = form
        self._format = FORMATS[form.name]
        self._options = options
        self._stem = stem
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self._numbers = {} if numbers is None else numbers
        self.files = 0

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
        """Write rows to the directory's file as one row group, or to several files if one is full."""
        limit = self._options.max_records_per_file
        while rows.num_rows:
            entry = self._entry(directory)
            head = rows.slice(0, limit - entry.encoder.rows) if limit else rows
            entry.encoder.write(head)
            if self._is_full(entry.encoder):
                self._close(directory)
            rows = rows.slice(head.num_rows)
        self._make_room()

    def write_empty(self, directory: str) -> None:
        """Write a file with a schema and no rows to a directory."""
        self._entry(directory)
        self._close(directory)

    def end(self, directory: str) -> None:
        """Close the directory's file, if one is open."""
        if directory in self._open:
            self._close(directory)

    def close(self) -> None:
        """Close every file."""
        while self._open:
            self._close(next(iter(self._open)))

    def _is_full(self, encoder: Encoder) -> bool:
        limit, target = self._options.max_records_per_file, self._options.target_file_bytes
        return bool(limit and encoder.rows >= limit) or bool(target and encoder.bytes >= target)

    def _entry(self, directory: str) -> _Open:
        entry = self._open.get(directory)
        if entry is not None:
            self._open.move_to_end(directory)
            return entry
        while len(self._open) >= self._options.open_files:
            self._close(next(iter(self._open)))
        number = self._numbers.get(directory, 0)
        self._numbers[directory] = number + 1
        name = f"{self._stem}.c{number:03d}{self._format.suffix(self._form.compression)}"
        path = f"{directory}/{name}" if directory else name
        file = self._opener.open(path, content_type=self._format.content_type)
        entry = self._open[directory] = _Open(file, self._form.encoder(file, self._schema))
        self.files += 1
        return entry

    def _close(self, directory: str) -> None:
        entry = self._open[directory]
        entry.encoder.close()
        entry.file.close(rows=entry.encoder.rows, statistics=entry.encoder.statistics)
        del self._open[directory]

    def _make_room(self) -> None:
        if self._held() <= self._options.encoded_bytes:
            return
        for entry in self._open.values():
            entry.file.send_buffered()
        while self._open and self._held() > self._options.encoded_bytes:
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

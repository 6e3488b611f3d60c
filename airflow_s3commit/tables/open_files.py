"""The open files of a task and the rows buffered for them, both bounded.

Rows are kept as Arrow per directory, outside any file, until they make a row group or memory runs short;
so a directory with few rows needs no open file until the end, and then only for a moment.
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
from airflow_s3commit.tables.options import TableOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_s3commit.tables.formats import Encoder, FileForm, FileOpener, TableFile

_DEFAULTS = TableOptions()

#: What a batch of a few rows takes beyond its values, by measurement: objects and padding for each column.
_BATCH_OVERHEAD = 512

_COLUMN_OVERHEAD = 384

#: Small batches of one directory are combined when there are this many.
_MOST_LOTS = 16

#: When memory runs short, rows are passed on until this part of what may be kept is left.
_KEPT_SHARE = 4

#: So many row groups make a file of the size that is asked for, so that it is not missed by much.
_GROUPS_PER_FILE = 4


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits on the memory and files of a task.

    Attributes:
        rows_per_file: Rows after which a file is ended; 0 for no limit.
        file_bytes: Encoded bytes after which a file is ended; 0 for no limit.
        open_files: Files open at a time.
        row_bytes: Bytes of rows kept before they are encoded.
        row_group_bytes: Bytes of rows that make a row group.
        encoded_bytes: Encoded bytes kept by all open files together, until they make parts.

    """

    rows_per_file: int = 0
    file_bytes: int = 0
    open_files: int = _DEFAULTS.open_files
    row_bytes: int = _DEFAULTS.row_bytes
    row_group_bytes: int = _DEFAULTS.row_group_bytes
    encoded_bytes: int = _DEFAULTS.encoded_bytes

    @classmethod
    def of(cls, options: TableOptions) -> Bounds:
        """Return what the options of a write allow."""
        target = options.target_file_bytes
        groups = min(options.row_group_bytes, max(target // _GROUPS_PER_FILE, 1)) if target else 0
        return cls(
            rows_per_file=options.max_records_per_file,
            file_bytes=target,
            open_files=options.open_files,
            row_bytes=options.row_bytes,
            row_group_bytes=groups or options.row_group_bytes,
            encoded_bytes=options.encoded_bytes,
        )


@dataclass(slots=True)
class _Waiting:
    batches: list[pa.RecordBatch] = field(default_factory=list)
    bytes: int = 0


class RowBuffers:
    """Rows by directory; the largest lots are passed on when there are too many.

    Rows may be slices of a batch that holds those of other directories too, and stays in memory as long as
    one of them does. So what counts is all that came since; what is then left is copied out of its batches.

    Args:
        schema: Schema of the rows.
        bounds: How much to keep.
        write: Takes a directory and its rows.

    """

    def __init__(self, schema: pa.Schema, bounds: Bounds, write: Callable[[str, pa.Table], None]) -> None:
        self._schema = schema
        self._bounds = bounds
        self._write = write
        self._waiting: dict[str, _Waiting] = {}
        self._overhead = _BATCH_OVERHEAD + _COLUMN_OVERHEAD * len(schema)
        self._bytes = 0
        # What was added since nothing waited that shares its memory with rows passed on.
        self._held = 0

    def add(self, directory: str, rows: pa.RecordBatch) -> None:
        """Keep rows, and pass rows on where a row group is full or memory runs short."""
        waiting = self._waiting.setdefault(directory, _Waiting())
        waiting.batches.append(rows)
        self._count(waiting, rows.nbytes + self._overhead)
        if len(waiting.batches) >= _MOST_LOTS and waiting.bytes < self._overhead * _MOST_LOTS * 2:
            waiting.batches = pa.Table.from_batches(waiting.batches).combine_chunks().to_batches()
            self._count(waiting, -self._overhead * (_MOST_LOTS - 1))
        if waiting.bytes >= self._bounds.row_group_bytes:
            self._pass_on(directory)
        if self._held > self._bounds.row_bytes:
            self._make_room()

    def flush(self, then: Callable[[str], None] = lambda _: None) -> None:
        """Pass everything on, and call ``then`` with each directory after its rows."""
        for directory in list(self._waiting):
            self._pass_on(directory)
            then(directory)

    def _count(self, waiting: _Waiting, size: int) -> None:
        waiting.bytes += size
        self._bytes += size
        self._held += size

    def _make_room(self) -> None:
        give_memory_back()
        # Many at a time: the directories are put in order only once for them, and few are left to copy.
        for directory in sorted(self._waiting, key=lambda name: self._waiting[name].bytes, reverse=True):
            if self._bytes * _KEPT_SHARE <= self._bounds.row_bytes:
                break
            self._pass_on(directory)
        for waiting in self._waiting.values():
            lots = len(waiting.batches)
            waiting.batches = [_copied(waiting.batches)]
            self._count(waiting, -self._overhead * (lots - 1))
        self._held = self._bytes

    def _pass_on(self, directory: str) -> None:
        waiting = self._waiting.pop(directory)
        self._bytes -= waiting.bytes
        if not self._waiting:
            self._held = 0
        self._write(directory, pa.Table.from_batches(waiting.batches, schema=self._schema))


def _copied(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the rows as one batch that shares no memory with those."""
    if len(batches) > 1:
        return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
    (batch,) = batches
    return batch.take(pa.array(np.arange(batch.num_rows, dtype=np.int32)))


@dataclass(slots=True)
class _Open:
    file: TableFile
    encoder: Encoder


class OpenFiles:
    """The files that a task has open; those least recently written are closed when there are too many.

    Use it in a ``with`` block: leaving it by an exception lets go of what is open. The uploads themselves
    are their attempt's to abort.

    Args:
        opener: Opens files.
        schema: Schema of the rows.
        form: How to encode them.
        bounds: How much to hold.
        stem: First part of the file names, unique to the task within its job.
        numbers: How many files of that stem each directory has; counted on.

    Attributes:
        files: How many files were opened.

    """

    def __init__(
        self,
        opener: FileOpener,
        schema: pa.Schema,
        form: FileForm,
        bounds: Bounds,
        *,
        stem: str,
        numbers: dict[str, int] | None = None,
    ) -> None:
        self._opener = opener
        self._schema = schema
        self._form = form
        self._bounds = bounds
        self._stem = stem
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self._numbers = {} if numbers is None else numbers
        self.files = 0

    def __enter__(self) -> OpenFiles:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            return
        doing, left = "letting go of a file that was being encoded", "its attempt discards its upload"
        with noting(error, doing, left):
            run_all([entry.encoder.abandon for entry in self._open.values()], doing, left)
        self._open.clear()

    def write(self, directory: str, rows: pa.Table) -> None:
        """Write rows to the directory's file as one row group, or to several files if one has no room."""
        limit = self._bounds.rows_per_file
        while rows.num_rows:
            entry = self._entry(directory)
            head = rows.slice(0, limit - entry.encoder.rows) if limit else rows
            entry.encoder.write(head)
            if self._is_full(entry.encoder):
                self._close(directory)
            rows = rows.slice(head.num_rows)
        self._make_room()

    def write_empty(self, directory: str) -> None:
        """Write a file that has a schema and no rows."""
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
        limit, target = self._bounds.rows_per_file, self._bounds.file_bytes
        return bool(limit and encoder.rows >= limit) or bool(target and encoder.bytes >= target)

    def _entry(self, directory: str) -> _Open:
        entry = self._open.get(directory)
        if entry is not None:
            self._open.move_to_end(directory)
            return entry
        while len(self._open) >= self._bounds.open_files:
            self._close(next(iter(self._open)))
        number = self._numbers.get(directory, 0)
        self._numbers[directory] = number + 1
        name = f"{self._stem}.c{number:03d}{self._form.suffix}"
        path = f"{directory}/{name}" if directory else name
        file = self._opener.open(path, content_type=self._form.content_type)
        entry = self._open[directory] = _Open(file, self._form.encoder(file, self._schema))
        self.files += 1
        return entry

    def _close(self, directory: str) -> None:
        entry = self._open[directory]
        entry.encoder.close()
        entry.file.close(rows=entry.encoder.rows, statistics=entry.encoder.statistics)
        del self._open[directory]

    def _make_room(self) -> None:
        if self._held() <= self._bounds.encoded_bytes:
            return
        for entry in self._open.values():
            entry.file.send_buffered()
        while self._open and self._held() > self._bounds.encoded_bytes:
            self._close(next(iter(self._open)))

    def _held(self) -> int:
        return sum(entry.file.buffered for entry in self._open.values())


def give_memory_back() -> None:
    """Return to the system the memory that Arrow's allocator and the C library keep unused.

    It costs the pages' being mapped again, some ten milliseconds of processor time for 50 MiB.
    """
    pa.default_memory_pool().release_unused()
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    """Return glibc's ``malloc_trim``; None where the C library is another one."""
    # Not by system_memory_pool().release_unused(): in pyarrow's wheels (26.0) that does nothing.
    if sys.platform != "linux":
        return None
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
    return trim

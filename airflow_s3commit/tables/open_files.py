"""The open files of a task, and what their encoders hold, both bounded."""

from __future__ import annotations

import ctypes
import sys
from collections import OrderedDict
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_s3commit._causes import noting, run_all
from airflow_s3commit.tables.encoder import Encoder
from airflow_s3commit.tables.formats import FORMATS

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_s3commit.tables.encoder import FileForm
    from airflow_s3commit.tables.formats import FileOpener, TableFile
    from airflow_s3commit.tables.options import TableOptions


@dataclass(slots=True)
class _Open:
    file: TableFile
    encoder: Encoder


class OpenFiles:
    """The open files of a task, by directory; closes the least recently written when there are too many.

    Use it in a ``with`` block: an exception abandons the open encoders. The task attempt aborts the uploads.

    Args:
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
        """Write rows to the directory's file in row groups, and to further files if one is full."""
        limit = self._options.max_records_per_file
        group = max(rows.num_rows * self._options.group_bytes // max(rows.nbytes, 1), 1)
        while rows.num_rows:
            entry = self._entry(directory)
            head = rows.slice(0, min(group, limit - entry.encoder.rows) if limit else group)
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
        entry = self._open[directory] = _Open(file, Encoder(file, self._schema, self._form))
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

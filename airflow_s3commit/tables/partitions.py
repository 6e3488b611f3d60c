"""Splitting rows by their partition values, into directories named exactly as Spark names them.

The escaping is that of Spark's ``ExternalCatalogUtils.escapePathName``; values are rendered as Spark casts
them to string, times in the zone that their column has (in Spark's batches the session's). Types that only
Spark can render are refused: their column is to be cast first.
"""

from __future__ import annotations

import datetime as dt
import itertools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from airflow_s3commit.tables.text import decimal_text, java_double, java_float, moment_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

#: What Hive and Spark write for a null, and for an empty string.
NULL_DIRECTORY = "__HIVE_DEFAULT_PARTITION__"

# Control characters and what some file system, or Hive's own syntax, reads as more than a character.
_ESCAPED = re.compile("[\x01-\x1f\"#%'*/:=?\\\\\x7f{\\[\\]^]")

#: A slice smaller than its batch by this factor is copied, so that it doesn't keep the batch in memory.
_WASTE = 2

Codes = npt.NDArray[np.int32] | npt.NDArray[np.int64]
Rows = npt.NDArray[np.int64]

_ROW_ZERO: Rows = np.zeros(1, dtype=np.int64)


class UnsupportedPartition(ValueError):
    """A column cannot be a partition column as it is; the message names the way out."""


def escape(text: str) -> str:
    """Return a column name or value as it stands in a path (``:`` becomes ``%3A``)."""
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


def resolve_columns(schema: pa.Schema, names: Sequence[str]) -> tuple[str, ...]:
    """Return the partition columns by their names in the schema, checked.

    A name that is not there as it is written is looked for without regard to case, as Spark does.

    Raises:
        UnsupportedPartition: A column is missing or ambiguous, has a type that cannot be rendered as Spark
            renders it, or no other column would be left.

    """
    resolved = tuple(resolve_name(schema.names, name) for name in names)
    for name in resolved:
        if name.startswith("."):
            raise UnsupportedPartition(
                f"partition column {name!r} begins with a dot: readers skip such directories; rename it"
            )
        _renderer(name, schema.field(name).type)
    if resolved and len(resolved) == len(schema.names):
        raise UnsupportedPartition("all columns are partition columns: no column would be left for the files")
    return resolved


@dataclass(frozen=True, slots=True)
class _Runs:
    """Where which value of the partition columns stands in a batch.

    Attributes:
        codes: One small number for each row, the same for the same values.
        starts: The rows at which a run of one number begins.
        first_rows: A row of each number.

    """

    codes: Codes
    starts: Rows
    first_rows: Rows

    @property
    def arranged(self) -> bool:
        """Whether there is one run for each number."""
        return len(self.starts) == len(self.first_rows)


class PartitionSplitter:
    """Splits batches into directories and the rows that belong there.

    Args:
        schema: The batches' schema.
        columns: Partition columns as `resolve_columns` returned them, outermost first.

    Attributes:
        file_schema: The schema of the rows it yields: all columns but the partition columns.

    """

    def __init__(self, schema: pa.Schema, columns: Sequence[str]) -> None:
        self._columns = list(columns)
        self._names = [escape(name) for name in columns]
        self._renderers = [_renderer(name, schema.field(name).type) for name in columns]
        self._inexact = any(pt.is_floating(schema.field(name).type) for name in columns)
        self._kept = [name for name in schema.names if name not in set(columns)]
        self._known: dict[tuple[Any, ...], str] = {}
        # What `arranged` found out, `split` is asked for next.
        self._latest: tuple[pa.RecordBatch, _Runs] | None = None
        self.file_schema = pa.schema([schema.field(name) for name in self._kept])

    def arranged(self, batch: pa.RecordBatch) -> bool:
        """Tell whether each partition's rows stand together in the batch."""
        if not self._columns or batch.num_rows == 0:
            return True
        return self._runs(batch).arranged

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield each directory that the batch has rows for, once for each distinct value, with its rows.

        The rows of a partition keep their order. Where those of several alternate, all are put in order at
        once, and what is yielded are slices of that: each keeps all of it in memory.
        """
        if batch.num_rows == 0:
            return
        if not self._columns:
            yield "", batch
            return
        runs = self._runs(batch)
        rows = batch.select(self._kept)
        codes, starts = runs.codes, runs.starts
        if not runs.arranged:
            narrow = codes.astype(np.int16) if len(runs.first_rows) <= np.iinfo(np.int16).max else codes
            order = np.argsort(narrow, kind="stable")
            codes = codes[order]
            starts = _run_starts(codes)
            # At once: to pick each partition's rows by themselves takes several times as long.
            rows = pc.take(rows, pa.array(order.astype(np.int32)), boundscheck=False)
        bounds = [*starts.tolist(), len(codes)]
        for start, end in itertools.pairwise(bounds):
            directory = self._directory(batch, int(runs.first_rows[codes[start]]))
            piece = _piece(rows, start, end) if runs.arranged else rows.slice(start, end - start)
            yield directory, piece

    def _runs(self, batch: pa.RecordBatch) -> _Runs:
        if self._latest is not None and self._latest[0] is batch:
            return self._latest[1]
        found = self._runs_of_one(batch) if len(self._columns) == 1 else None
        if found is None:
            found = self._runs_of_all(batch)
        self._latest = (batch, found)
        return found

    def _runs_of_one(self, batch: pa.RecordBatch) -> _Runs | None:
        """Number the values of the only partition column by sorting nothing; None if it has nulls."""
        encoded = _comparable(batch.column(self._columns[0])).dictionary_encode()
        if encoded.indices.null_count:
            return None
        codes: Codes = encoded.indices.to_numpy()
        if len(encoded.dictionary) == 1:
            return _Runs(codes, _ROW_ZERO, _ROW_ZERO)
        starts = _run_starts(codes)
        # Values are numbered as they come: a new one is where the highest number so far is exceeded.
        highest = np.maximum.accumulate(codes[starts])
        return _Runs(codes, starts, starts[np.flatnonzero(np.diff(highest, prepend=-1))])

    def _runs_of_all(self, batch: pa.RecordBatch) -> _Runs:
        combined: Codes = np.zeros(batch.num_rows, dtype=np.int64)
        for name in self._columns:
            encoded = _comparable(batch.column(name)).dictionary_encode()
            size = len(encoded.dictionary)
            codes = encoded.indices.fill_null(size).to_numpy(zero_copy_only=False).astype(np.int64)
            combined = combined * (size + 1) + codes
            # Made dense again after each column, so that no number of columns can overflow.
            combined = np.unique(combined, return_inverse=True)[1].reshape(-1).astype(np.int64)
        _, first_rows = np.unique(combined, return_index=True)
        return _Runs(combined, _run_starts(combined), first_rows.astype(np.int64))

    def _directory(self, batch: pa.RecordBatch, row: int) -> str:
        values = tuple(_value(batch, name, row) for name in self._columns)
        # By their texts: -0.0 equals 0.0 and NaN not even itself.
        key = values if not self._inexact else tuple(map(repr, values))
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = "/".join(
                f"{name}={_directory_value(value, render)}"
                for name, value, render in zip(self._names, values, self._renderers, strict=True)
            )
        return known


def _comparable(column: pa.Array) -> pa.Array:
    """Return floats as their bits, in which -0.0 is another value than 0.0."""
    if pt.is_float64(column.type):
        return column.view(pa.int64())
    return column.view(pa.int32()) if pt.is_float32(column.type) else column


def _value(batch: pa.RecordBatch, name: str, row: int) -> Any:
    try:
        return batch.column(name)[row].as_py()
    except (ValueError, OverflowError) as error:
        raise UnsupportedPartition(
            f"partition column {name!r} holds a value that Python has no equal of ({error}); {_remedy(name)}"
        ) from error


def _remedy(name: str) -> str:
    return f"cast it to string first, in Spark: df.withColumn({name!r}, df[{name!r}].cast('string'))"


def _piece(rows: pa.RecordBatch, start: int, end: int) -> pa.RecordBatch:
    piece = rows.slice(start, end - start)
    if piece.nbytes * _WASTE < rows.nbytes:
        return rows.take(pa.array(np.arange(start, end)))
    return piece


def _run_starts(codes: Codes) -> Rows:
    changes = np.flatnonzero(codes[1:] != codes[:-1]) + 1
    return np.concatenate([_ROW_ZERO, changes])


def _directory_value(value: Any, render: Callable[[Any], str]) -> str:
    if value is None:
        return NULL_DIRECTORY
    return escape(render(value)) or NULL_DIRECTORY


def resolve_name(names: Sequence[str], name: str) -> str:
    """Return the column that is meant: the one of that name, or the only one that differs in case.

    Raises:
        UnsupportedPartition: There is none, or more than one.

    """
    if name in names:
        return name
    alike = [known for known in names if known.lower() == name.lower()]
    if len(alike) == 1:
        return alike[0]
    problem = f"is ambiguous: {', '.join(alike)}" if alike else f"is not among {', '.join(names)}"
    raise UnsupportedPartition(f"partition column {name!r} {problem}")


def _renderer(name: str, kind: pa.DataType) -> Callable[[Any], str]:
    if pt.is_string(kind) or pt.is_large_string(kind):
        return _text(name)
    for is_kind, render in _RENDERERS:
        if is_kind(kind):
            return render
    raise UnsupportedPartition(
        f"column {name!r} has the type {kind}, that partition directories have no text for; {_remedy(name)}"
    )


def _text(name: str) -> Callable[[str], str]:
    def render(value: str) -> str:
        if "\x00" in value:
            raise UnsupportedPartition(f"partition column {name!r} holds a NUL character, as no path may")
        return value

    return render


def _boolean(value: bool) -> str:
    return "true" if value else "false"


_RENDERERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any], str]], ...] = (
    (pt.is_integer, str),
    (pt.is_boolean, _boolean),
    (pt.is_date32, dt.date.isoformat),
    (pt.is_decimal, decimal_text),
    (pt.is_float64, java_double),
    (pt.is_float32, java_float),
    (pt.is_timestamp, moment_text),
)

"""Splits rows by their partition values into directories that are named exactly as Spark names them.

Names are escaped as by Spark's ``ExternalCatalogUtils.escapePathName``. Values are rendered as Spark casts
them to string; times in their column's zone, which in Spark's batches is the session's. Columns of types that
only Spark can render are refused, such as floating-point numbers.
"""

from __future__ import annotations

import datetime as dt
import itertools
import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

#: The value of Hive and Spark for a null, and for an empty string.
NULL_DIRECTORY = "__HIVE_DEFAULT_PARTITION__"

# Control characters, and characters with a meaning in some file system or in Hive's syntax.
_ESCAPED = re.compile("[\x01-\x1f\"#%'*/:=?\\\\\x7f{\\[\\]^]")

#: A slice smaller than its batch by this factor is copied, so that it does not keep the batch in memory.
_WASTE = 2

#: Decimals with more digits after the point have an exponent in Spark, unless its session has ANSI rules.
_MOST_SCALE = 6

Codes = npt.NDArray[np.int32] | npt.NDArray[np.int64]
Rows = npt.NDArray[np.int64]

_ROW_ZERO: Rows = np.zeros(1, dtype=np.int64)


class UnsupportedPartition(ValueError):
    """A column cannot be a partition column; the message says what to do."""


def escape(text: str) -> str:
    """Escape a column name or value for a path, as Spark does: ``:`` becomes ``%3A``."""
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


def resolve_columns(schema: pa.Schema, names: Sequence[str]) -> tuple[str, ...]:
    """Check partition columns, and return their names as the schema spells them.

    A name that the schema does not have is looked up regardless of case, as in Spark.

    Args:
        schema: Schema of the rows.
        names: The partition columns, outermost first.

    Raises:
        UnsupportedPartition: A column is missing or ambiguous, begins with a dot, or has a type that cannot
            be rendered as Spark does; or all columns are partition columns.

    """
    resolved = tuple(resolve_name(schema.names, name) for name in names)
    for name in resolved:
        if name.startswith("."):
            raise UnsupportedPartition(
                f"partition column {name!r} begins with a dot: readers skip such directories; rename it"
            )
        _renderer(name, schema.field(name).type)
    if resolved and len(resolved) == len(schema.names):
        raise UnsupportedPartition(
            "all columns are partition columns, so none is left for the files: leave one of them out"
        )
    return resolved


@dataclass(frozen=True, slots=True)
class _Runs:
    """The runs of equal partition values in a batch.

    Attributes:
        codes: A number for each row; rows of one partition have the same number.
        starts: The rows at which a run of one number begins.
        first_rows: For each number, a row that has it.

    """

    codes: Codes
    starts: Rows
    first_rows: Rows

    @property
    def arranged(self) -> bool:
        """Whether the rows of each partition are contiguous."""
        return len(self.starts) == len(self.first_rows)


class PartitionSplitter:
    """Splits batches by directory.

    Args:
        schema: Schema of the batches.
        columns: Partition columns as `resolve_columns` returns them, outermost first.
        names: Their names in directories; by default the same.

    Attributes:
        file_schema: Schema of the files: all columns but the partition columns.

    """

    def __init__(self, schema: pa.Schema, columns: Sequence[str], names: Sequence[str] = ()) -> None:
        self._columns = list(columns)
        self._names = [escape(name) for name in names or columns]
        self._renderers = [_renderer(name, schema.field(name).type) for name in columns]
        self._kept = [name for name in schema.names if name not in set(columns)]
        self._known: dict[tuple[Any, ...], str] = {}
        # The runs of the last batch: callers call `arranged`, then `split`.
        self._latest: tuple[pa.RecordBatch, _Runs] | None = None
        self.file_schema = pa.schema([schema.field(name) for name in self._kept])

    def arranged(self, batch: pa.RecordBatch) -> bool:
        """Return whether the rows of each partition are contiguous in the batch."""
        if not self._columns or batch.num_rows == 0:
            return True
        return self._runs(batch).arranged

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield each partition's directory and its rows, in their order.

        If the partitions' rows alternate, the batch is sorted first; the yielded rows are slices of the
        sorted batch, and each of them keeps all of it in memory.

        Raises:
            UnsupportedPartition: A value cannot be part of a path.

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
            # One take for all partitions: one take for each is several times slower.
            rows = pc.take(rows, pa.array(order.astype(np.int32)), boundscheck=False)
        bounds = [*starts.tolist(), len(codes)]
        for start, end in itertools.pairwise(bounds):
            directory = self._directory(batch, int(runs.first_rows[codes[start]]))
            piece = _piece(rows, start, end) if runs.arranged else rows.slice(start, end - start)
            yield directory, piece

    def _runs(self, batch: pa.RecordBatch) -> _Runs:
        if self._latest is not None and self._latest[0] is batch:
            return self._latest[1]
        found = self._runs_of_one_column(batch) if len(self._columns) == 1 else None
        if found is None:
            found = self._runs_of_columns(batch)
        self._latest = (batch, found)
        return found

    def _runs_of_one_column(self, batch: pa.RecordBatch) -> _Runs | None:
        """Number the values of the only partition column without sorting; None if the column has nulls."""
        encoded = batch.column(self._columns[0]).dictionary_encode()
        if encoded.indices.null_count:
            return None
        codes: Codes = encoded.indices.to_numpy()
        if len(encoded.dictionary) == 1:
            return _Runs(codes, _ROW_ZERO, _ROW_ZERO)
        starts = _run_starts(codes)
        # Values are numbered in order of appearance: a new value exceeds the highest number so far.
        highest = np.maximum.accumulate(codes[starts])
        return _Runs(codes, starts, starts[np.flatnonzero(np.diff(highest, prepend=-1))])

    def _runs_of_columns(self, batch: pa.RecordBatch) -> _Runs:
        combined: Codes = np.zeros(batch.num_rows, dtype=np.int64)
        for name in self._columns:
            encoded = batch.column(name).dictionary_encode()
            size = len(encoded.dictionary)
            codes = encoded.indices.fill_null(size).to_numpy(zero_copy_only=False).astype(np.int64)
            combined = combined * (size + 1) + codes
            # Renumbered from 0 after each column, so that many columns cannot overflow.
            combined = np.unique(combined, return_inverse=True)[1].reshape(-1).astype(np.int64)
        _, first_rows = np.unique(combined, return_index=True)
        return _Runs(combined, _run_starts(combined), first_rows.astype(np.int64))

    def _directory(self, batch: pa.RecordBatch, row: int) -> str:
        values = tuple(_value(batch, name, row) for name in self._columns)
        known = self._known.get(values)
        if known is None:
            known = self._known[values] = "/".join(
                f"{name}={_directory_value(value, render)}"
                for name, value, render in zip(self._names, values, self._renderers, strict=True)
            )
        return known


def _value(batch: pa.RecordBatch, name: str, row: int) -> Any:
    try:
        return batch.column(name)[row].as_py()
    except (ValueError, OverflowError) as error:
        raise UnsupportedPartition(
            f"partition column {name!r} has a value that Python cannot represent ({error}); {_remedy(name)}"
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
    """Return the column of a name: the exact match, or the only match regardless of case.

    Raises:
        UnsupportedPartition: No column matches, or several match regardless of case.

    """
    if name in names:
        return name
    alike = [known for known in names if known.lower() == name.lower()]
    if len(alike) == 1:
        return alike[0]
    if alike:
        raise UnsupportedPartition(
            f"partition column {name!r} is ambiguous: {', '.join(alike)}; rename one of them"
        )
    raise UnsupportedPartition(
        f"partition column {name!r} is not among {_some(names)}; {_meant(names, name)}"
    )


#: How many columns an error lists.
_SHOWN = 20


def _some(names: Sequence[str]) -> str:
    left = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {left} more" if left > 0 else "")


def _meant(names: Sequence[str], name: str) -> str:
    """Return what to do about a column that is missing."""
    if (plain := name.strip("`").replace("``", "`")) in names:
        return f"write it without backticks: {plain}"
    if name.partition(".")[0] in names:
        return f"make a field of a struct a column first: df.withColumn({name!r}, df[{name!r}])"
    if "(" in name:
        return "name a column, not an expression: add it with df.withColumn first"
    by_lower = {known.lower(): known for known in names}
    close = get_close_matches(name.lower(), by_lower, n=1)
    return f"did you mean {by_lower[close[0]]}?" if close else "name one of these, or add the column first"


def _renderer(name: str, kind: pa.DataType) -> Callable[[Any], str]:
    if pt.is_string(kind) or pt.is_large_string(kind):
        return _text(name)
    for is_kind, render in _RENDERERS:
        if is_kind(kind):
            return render
    raise UnsupportedPartition(
        f"column {name!r} has the type {kind}, which a partition column cannot have; {_remedy(name)}"
    )


def _text(name: str) -> Callable[[str], str]:
    def render(value: str) -> str:
        if "\x00" in value:
            raise UnsupportedPartition(
                f"partition column {name!r} has a value with a NUL character, which paths cannot have;"
                " remove it from the value"
            )
        return value

    return render


def _boolean(value: bool) -> str:
    return "true" if value else "false"


def _is_plain_decimal(kind: pa.DataType) -> bool:
    return bool(pt.is_decimal(kind) and 0 <= kind.scale <= _MOST_SCALE)


def _moment(value: dt.datetime) -> str:
    """Return a time as Spark casts it to string: without trailing zeros of the second's fraction."""
    text = value.replace(tzinfo=None).isoformat(sep=" ")
    return text.rstrip("0") if value.microsecond else text


_RENDERERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any], str]], ...] = (
    (pt.is_integer, str),
    (pt.is_boolean, _boolean),
    (pt.is_date32, dt.date.isoformat),
    (_is_plain_decimal, str),
    (pt.is_timestamp, _moment),
)

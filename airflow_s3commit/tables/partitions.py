"""Splits rows by their partition values into directories that are named exactly as Spark names them.

Names are escaped as by Spark's ``ExternalCatalogUtils.escapePathName``. Values are rendered as Spark casts
them to string; times in their column's zone, which in Spark's batches is the session's. Columns of types that
only Spark can render are refused, such as floating-point numbers.
"""

from __future__ import annotations

import datetime as dt
import itertools
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

#: The value of Hive and Spark for a null, and for an empty string.
NULL_DIRECTORY = "__HIVE_DEFAULT_PARTITION__"

# Control characters, and characters with a meaning in some file system or in Hive's syntax.
_ESCAPED = re.compile("[\x01-\x1f\"#%'*/:=?\\\\\x7f{\\[\\]^]")

#: Decimals with more digits after the point have an exponent in Spark, unless its session has ANSI rules.
_MOST_SCALE = 6


class UnsupportedPartition(ValueError):
    """A column cannot be a partition column; the message says what to do."""


def escape(text: str) -> str:
    """Escape a column name or value for a path, as Spark does: ``:`` becomes ``%3A``."""
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


def resolve_columns(schema: pa.Schema, names: Sequence[str]) -> tuple[str, ...]:
    """Check partition columns, and return their names as the schema spells them.

    A name that the schema does not have is looked up regardless of case, as in Spark.

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


class PartitionSplitter:
    """Splits rows by directory.

    Args:
        columns: Partition columns as `resolve_columns` returns them, outermost first.
        names: Their names in directories; by default the same.

    Attributes:
        file_schema: Schema of the files: all columns but the partition columns.
    """

    def __init__(self, schema: pa.Schema, columns: Sequence[str], names: Sequence[str] = ()) -> None:
        self._columns = list(columns)
        self._names = [escape(name) for name in names or columns]
        self._renderers = [_renderer(name, schema.field(name).type) for name in columns]
        self.file_schema = pa.schema([field for field in schema if field.name not in set(columns)])

    def split(self, rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        """Yield each partition's directory and its rows, all columns of them, in their order.

        What is yielded are slices of the rows, or of a sorted copy if the partitions' rows alternate.
        """
        if not self._columns or rows.num_rows == 0:
            yield from [("", rows)] if rows.num_rows else ()
            return
        codes = self._codes(rows)
        if (codes[1:] < codes[:-1]).any():
            # The sort of 16-bit integers is several times as fast.
            narrow = codes.astype(np.int16) if codes.max() <= np.iinfo(np.int16).max else codes
            order = np.argsort(narrow, kind="stable")
            codes, rows = codes[order], rows.take(pa.array(order))
        bounds = [0, *(np.flatnonzero(codes[1:] != codes[:-1]) + 1).tolist(), len(codes)]
        for start, end in itertools.pairwise(bounds):
            piece = rows.slice(start, end - start)
            yield self._directory(piece), piece

    def _codes(self, rows: pa.Table) -> npt.NDArray[np.int64]:
        """Return a number for each row; rows of one partition have the same number."""
        codes = np.zeros(rows.num_rows, dtype=np.int64)
        for number, name in enumerate(self._columns):
            encoded = rows.column(name).combine_chunks().dictionary_encode()
            size = len(encoded.dictionary)
            codes = codes * (size + 1) + encoded.indices.fill_null(size).to_numpy(zero_copy_only=False)
            if number:
                # Numbered from 0 after each column, so that many columns cannot overflow.
                codes = np.unique(codes, return_inverse=True)[1].reshape(-1).astype(np.int64)
        return codes

    def _directory(self, rows: pa.Table) -> str:
        parts = []
        for column, name, render in zip(self._columns, self._names, self._renderers, strict=True):
            value = _first_value(rows, column)
            text = "" if value is None else render(value)
            if "\x00" in text:
                raise UnsupportedPartition(
                    f"partition column {column!r} has a value with a NUL character, which paths cannot have;"
                    " remove it from the value"
                )
            parts.append(f"{name}={escape(text) or NULL_DIRECTORY}")
        return "/".join(parts)


def _first_value(rows: pa.Table, name: str) -> Any:
    try:
        return rows.column(name)[0].as_py()
    except (ValueError, OverflowError) as error:
        raise UnsupportedPartition(
            f"partition column {name!r} has a value that Python cannot represent ({error}); {_remedy(name)}"
        ) from error


def _remedy(name: str) -> str:
    return f"cast it to string first, in Spark: df.withColumn({name!r}, df[{name!r}].cast('string'))"


#: How many columns an error lists.
_SHOWN = 20


def resolve_name(names: Sequence[str], name: str) -> str:
    """Return the column of a name: the exact match, or the only match regardless of case."""
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
        f"partition column {name!r} is not among {', '.join(names[:_SHOWN])}; name one of the columns,"
        " without backticks, and make a field or an expression a column first"
    )


def _renderer(name: str, kind: pa.DataType) -> Callable[[Any], str]:
    for is_kind, render in _RENDERERS:
        if is_kind(kind):
            return render
    raise UnsupportedPartition(
        f"column {name!r} has the type {kind}, which a partition column cannot have; {_remedy(name)}"
    )


def _is_plain_decimal(kind: pa.DataType) -> bool:
    return bool(pt.is_decimal(kind) and 0 <= kind.scale <= _MOST_SCALE)


def _moment(value: dt.datetime) -> str:
    """Return a time as Spark casts it to string: without trailing zeros of the second's fraction."""
    text = value.replace(tzinfo=None).isoformat(sep=" ")
    return text.rstrip("0") if value.microsecond else text


_RENDERERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any], str]], ...] = (
    (pt.is_string, str),
    (pt.is_large_string, str),
    (pt.is_integer, str),
    (pt.is_boolean, lambda value: "true" if value else "false"),
    (pt.is_date32, dt.date.isoformat),
    (_is_plain_decimal, str),
    (pt.is_timestamp, _moment),
)

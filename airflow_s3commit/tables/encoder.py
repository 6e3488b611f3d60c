"""Encodes the rows of one file with pyarrow, in any format, and gathers the file's column statistics.

Parquet files have the footer entries of Spark's own writer. Spark reads its schema from two of them; without
them it reads intervals as integers. As in Spark's files, Arrow's own schema is not stored. Every column is
optional, at any depth: a field that Spark marks as never null is null wherever its struct is null, Arrow's
writer refuses any null in a required field, and Spark reads all columns as optional.

What would come back changed from ORC, CSV or JSON is refused, such as nested columns in ORC: Arrow's writer
(pyarrow 26) misplaces all after a null struct. CSV is pyarrow's own dialect: strings are quoted, null is an
empty field. JSON has an object per line: times in ISO 8601, bytes in base64, and null for non-finite floats.

Null counts come from the rows, least and greatest values from a Parquet footer. Those of floats come from the
rows, and footers have none: Arrow would leave out NaN, Spark's greatest number, and Spark would then skip row
groups that have rows for its filter. There are no bounds where readers may order values differently (binary
and nested values, intervals, floats with a NaN among them), and none of strings of more than 4 KiB, which
Arrow leaves out of footers. Bounds that are other long strings are cut.
"""

from __future__ import annotations

import io
import math
import sys
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt
from pyarrow import csv, orc

from airflow_s3commit.protocol.model.sealed_job import ColumnStatistics
from airflow_s3commit.tables.columns import UnsupportedColumn, in_types, rebuilt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from _typeshed import SupportsWrite

    from airflow_s3commit.protocol.model.sealed_job import Value
    from airflow_s3commit.tables.options import TableOptions

#: Arrow writes a file in very small pieces, and each would be a call of Python.
_BUFFER_BYTES = 64 * 1024

#: Number of rows in the sample that decides whether a column has a dictionary.
_SAMPLE_ROWS = 10_000

#: The smallest number of rows in a useful sample.
_LEAST_SAMPLE = 1_000


def dictionary_columns(table: pa.Table) -> list[str] | bool:
    """Return the leaf columns, by their paths in the file, that get a dictionary; True for all.

    With a dictionary, a column whose values are distinct takes twice the processor time, and more space.
    """
    if table.num_rows < _LEAST_SAMPLE:
        return True
    chosen: list[str] = []
    for column in table.schema:
        if pt.is_nested(column.type):
            chosen.extend(path for path, _ in leaves(column))
        elif _repeats(table.column(column.name)):
            chosen.append(column.name)
    return chosen


def _repeats(column: pa.ChunkedArray) -> bool:
    sample, kind = column.slice(0, _SAMPLE_ROWS), column.type
    with suppress(pa.ArrowNotImplementedError):  # as for extension types
        may_have = not (pt.is_boolean(kind) or pt.is_null(kind))
        return may_have and bool(pc.count_distinct(sample).as_py() * 2 <= len(sample))
    return False


@lru_cache(maxsize=4)
def _optional(schema: pa.Schema) -> pa.Schema:
    """Return a schema in which every field may be null; a task writes many files of one schema."""
    fields = [rebuilt(field, lambda inner: inner.with_nullable(True)) for field in schema]
    return pa.schema(fields, schema.metadata)


@lru_cache(maxsize=4)
def _leaves_with_bounds(schema: pa.Schema) -> list[str]:
    """Return the paths of the leaves that are not floats, nor named like one: a field, and a column "a.b"."""
    found = [leaf for column in schema for leaf in leaves(column)]
    floats = {path for path, kind in found if pt.is_floating(kind)}
    return [path for path, _ in found if path not in floats]


#: Rows of JSON that are rendered at once.
_ROWS = 16_384

_JSON = msgspec.json.Encoder(decimal_format="number")

#: The first day of the Gregorian calendar, in days since 1970.
_GREGORIAN_DAY = -141_427

#: Microseconds of a second, and of a day.
_SECOND = 1_000_000
_DAY = 86_400 * _SECOND

_FIRST, _LAST = datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999)

_NOT_IN_ORC = (pt.is_nested, pt.is_null, pt.is_time, pt.is_unsigned_integer)


def check_columns(schema: pa.Schema, format_: str) -> None:
    """Refuse columns that a format cannot hold."""
    for column in schema:
        kind = column.type
        refused = {
            "parquet": _has_within(kind, lambda one: pt.is_struct(one) and not one.num_fields),
            "orc": any(is_kind(kind) for is_kind in _NOT_IN_ORC),
            "csv": pt.is_nested(kind),
            # The keys of JSON's objects are strings.
            "json": _has_within(kind, lambda one: pt.is_map(one) and not pt.is_string(one.key_type)),
        }
        if refused[format_]:
            raise UnsupportedColumn(
                f"column {column.name!r} has the type {kind}, which pyarrow cannot write to"
                f" {format_.upper()}: cast it{'' if format_ == 'parquet' else ', or write parquet'}"
            )


def _has_within(kind: pa.DataType, is_such: Callable[[pa.DataType], bool]) -> bool:
    """Return whether ``is_such`` holds for a type, or for one at any depth within it."""
    inner = (kind.field(number).type for number in range(kind.num_fields))
    return is_such(kind) or any(_has_within(one, is_such) for one in inner)


def _json_lines(rows: pa.Table) -> Iterator[bytes]:
    for batch in rows.to_batches(max_chunksize=_ROWS):
        try:
            yield _JSON.encode_lines(batch.to_pylist(maps_as_pydicts="strict"))
        except (ValueError, KeyError, OverflowError, TypeError) as error:
            raise UnsupportedColumn(
                f"JSON cannot hold a value ({error}): cast it, or write parquet"
            ) from error


def _check_calendar(name: str, column: pa.ChunkedArray) -> None:
    """Refuse what Spark misreads in ORC: early dates, as Julian ones, and early fractions of a second."""
    if pt.is_date(column.type):
        _refuse_any(name, pc.less(column.cast(pa.int32()), _GREGORIAN_DAY), "dates before 1582-10-15", "ORC")
    elif pt.is_timestamp(column.type):
        ticks = column.cast(pa.int64())
        _refuse_any(name, pc.less(ticks, _GREGORIAN_DAY * _DAY), "times before 1582-10-15", "ORC")
        fractions = pc.subtract(ticks, pc.multiply(pc.divide(ticks, _SECOND), _SECOND))
        _refuse_any(name, pc.less(fractions, 0), "times before 1970 with fractions of a second", "ORC")


def _refuse_any(name: str, found: pa.ChunkedArray, what: str, form: str) -> None:
    if pc.any(found).as_py():
        raise UnsupportedColumn(
            f"column {name!r} has {what}, which cannot be written to {form}: write parquet"
        )


def _check_lines(name: str, column: pa.ChunkedArray, *, alone: bool) -> None:
    """Refuse what pyarrow cannot write to CSV: an odd year becomes a remark, a lone null an empty line."""
    kind = column.type
    if pt.is_date(kind) or pt.is_timestamp(kind):
        first, last = (pa.scalar(moment).cast(kind, safe=False) for moment in (_FIRST, _LAST))
        odd = pc.or_(pc.less(column, first), pc.greater(column, last))
        _refuse_any(name, odd, "times that are not between the years 1 and 9999", "CSV")
    if alone:
        what = "nulls and is the only column: rows that would be empty lines"
        _refuse_any(name, column.is_null(), what, "CSV")


#: The longest text that is a bound, in characters: a manifest is read whole. A longer one is cut.
_LONGEST_TEXT = 128

#: The largest number of columns with statistics: a wide table would make pendingsets and manifests long.
MAX_COLUMNS = 32


class ColumnCounts:
    """Counts the values of one file's columns while it is written."""

    def __init__(self, schema: pa.Schema) -> None:
        self._columns = _ordered_leaves(schema)
        self._rows = 0
        self._nulls = [0] * len(schema)
        #: Bounds of the floats of each column; None with a NaN among them.
        self._floats: dict[int, tuple[float, float] | None] = {}

    def add(self, rows: pa.Table) -> None:
        """Count the values of further rows."""
        self._rows += rows.num_rows
        for number, column in enumerate(rows.columns[:MAX_COLUMNS]):
            self._nulls[number] += column.null_count
            if pt.is_floating(column.type) and column.null_count < len(column):
                self._add_floats(number, column)

    def _add_floats(self, number: int, column: pa.ChunkedArray) -> None:
        if pc.any(pc.is_nan(column)).as_py():
            self._floats[number] = None
            return
        found = pc.min_max(column).as_py()
        # Filters treat zeros of both signs as equal, but Iceberg orders them.
        least, greatest = found["min"] or -0.0, found["max"] or 0.0
        if (before := self._floats.setdefault(number, (least, greatest))) is not None:
            self._floats[number] = min(before[0], least), max(before[1], greatest)

    def statistics(self, footer: pq.FileMetaData | None = None) -> dict[str, ColumnStatistics]:
        """Return the statistics of the first `MAX_COLUMNS` top-level columns, by column.

        Args:
            footer: The footer of the Parquet file; without it the statistics have no bounds.
        """
        known = {}
        for number, (name, leaf, is_decimal) in enumerate(self._columns):
            least, greatest = (None, None)
            if footer is not None and number in self._floats:
                least, greatest = self._floats[number] or (None, None)
            elif footer is not None and leaf is not None:
                least, greatest = _bounds(footer, leaf)
            known[name] = ColumnStatistics(
                values=self._rows - self._nulls[number],
                nulls=self._nulls[number],
                least=_value(least),
                greatest=_value(_above(greatest)),
                decimal=is_decimal,
            )
        return known


@lru_cache(maxsize=4)
def _ordered_leaves(schema: pa.Schema) -> list[tuple[str, int | None, bool]]:
    """Return each column's name, the number of its leaf if it has an order, and whether it is decimal."""
    found, leaf = [], 0
    for field in schema:
        ordered = any(is_kind(field.type) for is_kind in _ORDERED)
        found.append((field.name, leaf if ordered else None, bool(pt.is_decimal(field.type))))
        leaf += sum(1 for _ in leaves(field))
    return found[:MAX_COLUMNS]


_ORDERED = (
    pt.is_integer, pt.is_floating, pt.is_boolean, pt.is_string, pt.is_large_string,
    pt.is_date32, pt.is_timestamp, pt.is_decimal,
)  # fmt: skip


def _bounds(footer: pq.FileMetaData, leaf: int) -> tuple[Any, Any]:
    """Return the least and greatest value of all row groups; None if a row group has no bounds."""
    least, greatest = [], []
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        found = group.column(leaf).statistics
        if found is not None and found.has_null_count and found.null_count == group.num_rows:
            continue
        if found is None or not found.has_min_max:
            return None, None
        try:
            least.append(found.min)
            greatest.append(found.max)
        except (OverflowError, ValueError):
            # Spark has years that Python does not support.
            return None, None
    return min(least, default=None), max(greatest, default=None)


def _above(bound: Any) -> Any:
    """Return the bound; for a long text, a short one above all texts that begin with its first characters."""
    if not isinstance(bound, str) or len(bound) <= _LONGEST_TEXT:
        return bound
    kept = bound[:_LONGEST_TEXT].rstrip(chr(sys.maxunicode))
    # Between these two are the surrogates, which are not characters.
    return kept[:-1] + ("\ue000" if kept[-1] == "\ud7ff" else chr(ord(kept[-1]) + 1)) if kept else None


def _value(bound: Any) -> Value:
    """Return a bound as a JSON value; the texts of one type sort as their values do."""
    if isinstance(bound, datetime):
        moment = bound.astimezone(UTC) if bound.tzinfo is not None else bound
        return moment.isoformat(timespec="microseconds")
    if isinstance(bound, date):
        return bound.isoformat()
    if isinstance(bound, Decimal):
        return format(bound, "f")
    if isinstance(bound, float):
        # JSON has no infinity.
        return bound if math.isfinite(bound) else None
    if isinstance(bound, str):
        return bound[:_LONGEST_TEXT]
    known: Value = bound
    return known


class Encoder:
    """Writes the rows of one file; each call of `write` is a row group, if the format has them.

    Args:
        sink: Receives the bytes; the caller closes it.
        footer: Further entries of a Parquet footer.

    Attributes:
        rows: Rows written so far.
        statistics: Column statistics, by column; None until the encoder is closed.
    """

    def __init__(
        self,
        sink: SupportsWrite[bytes],
        schema: pa.Schema,
        options: TableOptions,
        footer: Mapping[str, str] | None = None,
    ) -> None:
        self._sink = _DetachableSink(sink)
        self._buffered = pa.BufferedOutputStream(pa.PythonFile(self._sink, mode="w"), _BUFFER_BYTES)
        gzipped = options.file_format.text and options.codec == "gzip"
        self._stream = pa.CompressedOutputStream(self._buffered, "gzip") if gzipped else self._buffered
        self._options = options
        self._footer = footer
        self._schema = _optional(schema) if options.format == "parquet" else schema
        self._counts = ColumnCounts(schema)
        self._footers: list[pq.FileMetaData] = []
        self._writer: Any = None
        self.rows = 0
        self.statistics: dict[str, ColumnStatistics] | None = None

    @property
    def bytes(self) -> int:
        """Bytes written so far."""
        return self._sink.bytes

    def write(self, table: pa.Table) -> None:
        """Write rows; raise `UnsupportedColumn` if the format cannot hold a value."""
        for name, column in zip(table.column_names, table.columns, strict=True):
            if self._options.format == "orc":
                _check_calendar(name, column)
            elif self._options.format == "csv":
                _check_lines(name, column, alone=table.num_columns == 1)
        try:
            self._encode(in_types(table, self._schema))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise UnsupportedColumn(
                f"{self._options.format.upper()} cannot hold a value ({error}): cast it"
            ) from error
        self._buffered.flush()
        self._counts.add(table)
        self.rows += table.num_rows

    def close(self) -> None:
        """Write the end of the file; a file without rows has its schema too. The sink stays open."""
        if self.rows == 0:
            self._encode(self._schema.empty_table())
        self._writer.close()
        self._stream.close()
        self.statistics = self._counts.statistics(self._footers[0] if self._footers else None)

    def abandon(self) -> None:
        """Release the encoder's memory, and write no further byte to the sink."""
        self._sink.detached = True
        # After a failed write, pyarrow cannot end the file, and its error would hide the cause.
        with suppress(pa.lib.ArrowException, RuntimeError, OSError):
            if self._writer is not None:
                self._writer.close()
            self._stream.close()

    def _encode(self, rows: pa.Table) -> None:
        if self._writer is None:
            self._writer = self._new_writer(rows)
        if self._options.format == "json":
            for lines in _json_lines(rows):
                self._stream.write(lines)
        elif self._options.format != "parquet":
            self._writer.write(rows)
        elif rows.num_rows:
            # One row group; pyarrow would divide more than a million rows.
            self._writer.write_table(rows, row_group_size=rows.num_rows)

    def _new_writer(self, first: pa.Table) -> Any:
        codec = self._options.file_format.codecs[self._options.codec]
        if self._options.format == "orc":
            return orc.ORCWriter(self._stream, compression=codec.engine)
        if self._options.format == "csv":
            header = csv.WriteOptions(include_header=self._options.header)
            return csv.CSVWriter(self._stream, self._schema, write_options=header)
        if self._options.format == "json":
            return self._stream
        writer = pq.ParquetWriter(
            self._stream,
            self._schema,
            version="2.6",
            compression=codec.engine,
            compression_level=codec.level,
            use_dictionary=dictionary_columns(first),
            write_statistics=_leaves_with_bounds(self._schema),
            store_decimal_as_integer=True,
            store_schema=False,
            write_page_index=True,
            write_page_checksum=True,
            metadata_collector=self._footers,
        )
        if self._footer:
            writer.add_key_value_metadata(dict(self._footer))
        return writer


def footer_schema(
    schema: pa.Schema, options: TableOptions, footer: Mapping[str, str] | None = None
) -> pa.Schema | None:
    """Return the schema in the footer of files with rows of a schema; None for text, which has no footer."""
    if options.file_format.text:
        return None
    sink = io.BytesIO()
    Encoder(sink, schema, options, footer).close()
    end = pa.BufferReader(sink.getvalue())
    return pq.read_schema(end) if options.format == "parquet" else orc.ORCFile(end).schema


class _DetachableSink:
    """A sink that counts bytes and can be detached, because an abandoned encoder still writes its footer."""

    closed = False

    def __init__(self, sink: SupportsWrite[bytes]) -> None:
        self._sink = sink
        self.bytes = 0
        self.detached = False

    def write(self, data: bytes) -> int:
        """Append bytes, or drop them if the sink is detached; return how many."""
        if not self.detached:
            self._sink.write(data)
            self.bytes += len(data)
        return len(data)

    def flush(self) -> None:
        """Do nothing: the sink sends its bytes when it has enough of them."""

    def close(self) -> None:
        """Do nothing: the caller closes the sink."""


def leaves(field: pa.Field, within: str = "") -> Iterator[tuple[str, pa.DataType]]:
    """Yield the path of each of a column's leaves in a Parquet file, and its type."""
    kind, path = field.type, f"{within}{field.name}"
    if pt.is_struct(kind):
        for number in range(kind.num_fields):
            yield from leaves(kind.field(number), f"{path}.")
    elif pt.is_map(kind):
        yield from leaves(kind.key_field.with_name("key"), f"{path}.key_value.")
        yield from leaves(kind.item_field.with_name("value"), f"{path}.key_value.")
    elif pt.is_list(kind) or pt.is_large_list(kind):
        yield from leaves(kind.value_field.with_name("element"), f"{path}.list.")
    else:
        yield path, kind

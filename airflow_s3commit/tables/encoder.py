"""Encodes the rows of one file with pyarrow, in any format, and gathers the file's column statistics.

Parquet files have the footer entries of Spark's own writer. Spark reads its schema from two of them; without
them it reads intervals as integers. Arrow's own schema is not stored, as in Spark's files. Every column is
optional, at any depth: Spark marks a field that is never null as such a null wherever its struct is null,
Arrow's writer refuses any null of a required field, and Spark reads all columns as optional.

In ORC, CSV and JSON, what would not come back as it was is refused. Nested columns in ORC: Arrow's writer
(pyarrow 26) misplaces what follows a null struct.
"""

from __future__ import annotations

import io
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt
from pyarrow import csv, orc

from airflow_s3commit.tables.columns import ColumnCounts, leaves
from airflow_s3commit.tables.formats import FORMATS, ROW_METADATA, UnsupportedColumn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from _typeshed import SupportsWrite

    from airflow_s3commit.protocol.model.columns import ColumnStatistics

#: Arrow writes a file in very small pieces, and each would be a call of Python.
_BUFFER_BYTES = 64 * 1024

#: Number of rows in the sample that decides whether a column has a dictionary.
_SAMPLE_ROWS = 10_000

#: The smallest number of rows in a useful sample.
_LEAST_SAMPLE = 1_000


@dataclass(frozen=True, slots=True)
class ParquetForm:
    """The encoding of one write's Parquet files.

    Attributes:
        footer: Entries of the files' footers; without Spark there are none.
    """

    name: ClassVar[str] = "parquet"

    compression: str = "snappy"
    footer: Mapping[str, str] = field(default_factory=dict)

    def stored(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of files: every column may be null."""
        return _stored(schema)

    def check_values(self, rows: pa.Table) -> None:
        """Do nothing: Parquet holds any value of its types."""

    def writer(
        self, stream: pa.NativeFile, schema: pa.Schema, first: pa.Table, footers: list[pq.FileMetaData]
    ) -> _Writer:
        """Return pyarrow's writer of a new file, with dictionaries for the columns that repeat values."""
        codec = FORMATS[self.name].codecs[self.compression]
        writer = _Writer(
            stream,
            schema,
            version="2.6",
            compression=codec.engine,
            compression_level=codec.level,
            use_dictionary=dictionary_columns(first),
            store_decimal_as_integer=True,
            store_schema=False,
            write_page_index=True,
            write_page_checksum=True,
            metadata_collector=footers,
        )
        if self.footer:
            writer.add_key_value_metadata(dict(self.footer))
        return writer


class _Writer(pq.ParquetWriter):  # type: ignore[misc] # pyarrow has no types
    def write(self, rows: pa.Table) -> None:
        """Write rows as one row group; pyarrow would divide more than a million."""
        if rows.num_rows:
            self.write_table(rows, row_group_size=rows.num_rows)


def spark_footer(version: str, row_metadata: str) -> dict[str, str]:
    """Return what Spark's own writer adds to a file's footer.

    Without a legacy calendar key, Spark reads dates and times of a file with its version in the proleptic
    Gregorian calendar, which is Arrow's calendar too.

    Args:
        row_metadata: The files' Spark schema, without partition columns, as JSON.
    """
    return {"org.apache.spark.version": version, ROW_METADATA: row_metadata}


def dictionary_columns(table: pa.Table) -> list[str] | bool:
    """Return the leaf columns, by their paths in the file, that repeat enough for a dictionary; True for all.

    Distinct values with a dictionary take twice the processor time, and more space.
    """
    if table.num_rows < _LEAST_SAMPLE:
        return True
    chosen: list[str] = []
    for column in table.schema:
        if pt.is_nested(column.type):
            chosen.extend(leaves(column))
        elif _repeats(table.column(column.name)):
            chosen.append(column.name)
    return chosen


def _repeats(column: pa.ChunkedArray) -> bool:
    if pt.is_boolean(column.type) or pt.is_null(column.type):
        return False
    sample = column.slice(0, _SAMPLE_ROWS)
    return bool(pc.count_distinct(sample).as_py() * 2 <= len(sample))


@lru_cache(maxsize=4)
def _stored(schema: pa.Schema) -> pa.Schema:
    """Return the schema of files; a task writes many files of one schema."""
    return pa.schema([optional(field) for field in schema], schema.metadata)


def optional(field: pa.Field) -> pa.Field:
    """Return a column that may be null, and so may all fields within it."""
    return field.with_type(_optional_type(field.type)).with_nullable(True)


def _optional_type(kind: pa.DataType) -> pa.DataType:
    if pt.is_struct(kind):
        return pa.struct([optional(kind.field(number)) for number in range(kind.num_fields)])
    if pt.is_map(kind):
        return pa.map_(_optional_type(kind.key_type), optional(kind.item_field))
    if pt.is_list(kind) or pt.is_large_list(kind):
        return pa.list_(optional(kind.value_field))
    return kind


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


@dataclass(frozen=True, slots=True)
class OtherForm:
    """The encoding of one write's ORC, CSV or JSON files.

    CSV is pyarrow's own dialect: strings are quoted, and null is an empty field. JSON has an object in each
    line: times in ISO 8601, bytes in base64, and null for floats that are not finite.

    Attributes:
        name: ``orc``, ``csv`` or ``json``.
        compression: A key of the format's codecs.
        header: Whether CSV files begin with the columns' names.
    """

    name: str
    compression: str
    header: bool = False

    def check(self, schema: pa.Schema) -> None:
        """Refuse columns that the format cannot hold.

        Raises:
            UnsupportedColumn: The format cannot hold a column's type.
        """
        for column in schema:
            kind = column.type
            if self.name == "orc":
                is_refused = any(is_kind(kind) for is_kind in _NOT_IN_ORC)
            elif self.name == "csv":
                is_refused = pt.is_nested(kind)
            else:
                is_refused = _has_odd_keys(kind)
            if is_refused:
                raise UnsupportedColumn(
                    f"column {column.name!r} has the type {kind}, which pyarrow cannot write to"
                    f" {self.name.upper()}: cast it, or write parquet"
                )

    def stored(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of files, which is that of the rows."""
        return schema

    def check_values(self, rows: pa.Table) -> None:
        """Refuse times that ORC or CSV cannot hold, or that readers would take for others.

        Raises:
            UnsupportedColumn: There is such a time.
        """
        for name, column in zip(rows.column_names, rows.columns, strict=True):
            if self.name == "orc":
                _check_calendar(name, column)
            elif self.name == "csv":
                _check_years(name, column)

    def writer(self, stream: pa.NativeFile, schema: pa.Schema, *_: object) -> Any:
        """Return pyarrow's writer of a new file, or one of lines of JSON."""
        if self.name == "orc":
            return orc.ORCWriter(stream, compression=FORMATS["orc"].codecs[self.compression].engine)
        if self.name == "csv":
            return csv.CSVWriter(stream, schema, write_options=csv.WriteOptions(include_header=self.header))
        return _JsonWriter(stream)


def _has_odd_keys(kind: pa.DataType) -> bool:
    """Return whether a map at any depth has keys that are not strings, as those of JSON's objects are."""
    if pt.is_map(kind) and not pt.is_string(kind.key_type):
        return True
    return any(_has_odd_keys(kind.field(number).type) for number in range(kind.num_fields))


class _JsonWriter:
    def __init__(self, stream: pa.NativeFile) -> None:
        self._stream = stream

    def write(self, table: pa.Table) -> None:
        for batch in table.to_batches(max_chunksize=_ROWS):
            try:
                lines = _JSON.encode_lines(batch.to_pylist(maps_as_pydicts="strict"))
            except (ValueError, KeyError, OverflowError, TypeError) as error:
                raise UnsupportedColumn(
                    f"JSON cannot hold a value ({error}): cast it, or write parquet"
                ) from error
            self._stream.write(lines)

    def close(self) -> None:
        pass


def _check_calendar(name: str, column: pa.ChunkedArray) -> None:
    """Refuse what Spark misreads in ORC: it takes early dates for Julian, and early fractions for others."""
    if pt.is_date(column.type):
        _refuse_any(name, pc.less(column.cast(pa.int32()), _GREGORIAN_DAY), "dates before 1582-10-15")
    elif pt.is_timestamp(column.type):
        ticks = column.cast(pa.int64())
        _refuse_any(name, pc.less(ticks, _GREGORIAN_DAY * _DAY), "times before 1582-10-15")
        fractions = pc.subtract(ticks, pc.multiply(pc.divide(ticks, _SECOND), _SECOND))
        _refuse_any(name, pc.less(fractions, 0), "times before 1970 with fractions of a second")


def _refuse_any(name: str, found: pa.ChunkedArray, what: str) -> None:
    if pc.any(found).as_py():
        raise UnsupportedColumn(f"column {name!r} has {what}, which cannot be written to ORC: write parquet")


def _check_years(name: str, column: pa.ChunkedArray) -> None:
    """Refuse times that pyarrow cannot write to CSV: it would write a remark instead."""
    kind = column.type
    # 64 bits of nanoseconds cannot leave these years.
    if not (pt.is_date(kind) or (pt.is_timestamp(kind) and kind.unit != "ns")):
        return
    first, last = (pa.scalar(moment).cast(kind, safe=False) for moment in (_FIRST, _LAST))
    found = pc.min_max(column)
    if found["min"].is_valid and (found["min"].value < first.value or found["max"].value > last.value):
        raise UnsupportedColumn(
            f"column {name!r} has a time that is not between the years 1 and 9999, which CSV cannot"
            " hold: cast it to string, or write parquet"
        )


#: The encoding of one write's files; can be pickled.
FileForm: TypeAlias = ParquetForm | OtherForm


class Encoder:
    """Writes the rows of one file; each call of `write` is a row group, if the format has them.

    Args:
        sink: Receives the bytes; the caller closes it.
        form: The encoding.

    Attributes:
        rows: Rows written so far.
        statistics: Column statistics, by column; None until the encoder is closed.
    """

    def __init__(self, sink: SupportsWrite[bytes], schema: pa.Schema, form: FileForm) -> None:
        self._sink = _DetachableSink(sink)
        self._buffered = pa.BufferedOutputStream(pa.PythonFile(self._sink, mode="w"), _BUFFER_BYTES)
        gzipped = FORMATS[form.name].text and form.compression == "gzip"
        self._stream = pa.CompressedOutputStream(self._buffered, "gzip") if gzipped else self._buffered
        self._form = form
        self._schema = form.stored(schema)
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
        """Write rows; does nothing without rows.

        Raises:
            UnsupportedColumn: The format cannot hold a value.
        """
        if table.num_rows == 0:
            return
        self._form.check_values(table)
        rows = table.cast(self._schema)
        self._start(rows).write(rows)
        self._buffered.flush()
        self._counts.add(table)
        self.rows += table.num_rows

    def close(self) -> None:
        """Write the end of the file; a file without rows has its schema too. The sink stays open."""
        if self.rows == 0:
            nothing = self._schema.empty_table()
            self._start(nothing).write(nothing)
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

    def _start(self, first: pa.Table) -> Any:
        if self._writer is None:
            self._writer = self._form.writer(self._stream, self._schema, first, self._footers)
        return self._writer


def footer_schema(form: FileForm, schema: pa.Schema) -> pa.Schema | None:
    """Return the schema in the footer of files with rows of a schema; None for text, which has none."""
    if FORMATS[form.name].text:
        return None
    sink = io.BytesIO()
    Encoder(sink, schema, form).close()
    footer = pa.BufferReader(sink.getvalue())
    return pq.read_schema(footer) if form.name == "parquet" else orc.ORCFile(footer).schema


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

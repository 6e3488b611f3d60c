"""ORC and CSV files as pyarrow writes them, and lines of JSON; without Spark.

What would not come back as it was is refused. Nested columns in ORC: Arrow's writer (pyarrow 26) misplaces
what follows a null struct.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from pyarrow import csv, orc

from airflow_s3commit.tables.formats import FORMATS, UnsupportedColumn, first_within
from airflow_s3commit.tables.options import TextOptions

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
        options: The options of CSV.
    """

    name: str
    compression: str
    options: TextOptions = field(default_factory=TextOptions)

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
                found = first_within(kind, pt.is_map)
                is_refused = found is not None and not pt.is_string(found.key_type)
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
            options = csv.WriteOptions(
                include_header=self.options.header,
                delimiter=self.options.separator,
                quoting_style="all_valid" if self.options.quote_all else "needed",
            )
            return csv.CSVWriter(stream, schema, write_options=options)
        return _JsonWriter(stream)


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

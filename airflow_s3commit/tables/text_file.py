"""Text files without Spark: CSV as pyarrow writes it, and lines of JSON."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from pyarrow import csv

from airflow_s3commit.tables.columns import ColumnCounts
from airflow_s3commit.tables.formats import UnsupportedColumn, first_within
from airflow_s3commit.tables.options import TextOptions

if TYPE_CHECKING:
    from airflow_s3commit.protocol.model.statistics import ColumnStatistics
    from airflow_s3commit.tables.formats import Sink

#: Rows that are rendered at once.
_ROWS = 16_384

#: zlib's window bits for a gzip file.
_GZIP = 31

_FIRST, _LAST = datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999)

_JSON = msgspec.json.Encoder(decimal_format="number")


@dataclass(frozen=True, slots=True)
class TextForm:
    """The encoding of one write's CSV or JSON files, without Spark.

    CSV is pyarrow's own dialect: strings are quoted, and null is an empty field. JSON has an object in each
    line: times in ISO 8601, bytes in base64, and null for floats that are not finite.

    Attributes:
        name: ``csv`` or ``json``.
        compression: A key of the format's codecs.
        options: The options of CSV.

    """

    name: str
    compression: str = "none"
    options: TextOptions = field(default_factory=TextOptions)

    def check(self, schema: pa.Schema) -> None:
        """Refuse columns that the format cannot hold.

        Raises:
            UnsupportedColumn: The format cannot hold a column's type.

        """
        for column in schema:
            refused = first_within(column.type, pt.is_map) if self.name == "json" else None
            if (self.name == "csv" and pt.is_nested(column.type)) or (
                refused is not None and not pt.is_string(refused.key_type)
            ):
                other = "json, parquet or orc" if self.name == "csv" else "parquet or orc"
                raise UnsupportedColumn(
                    f"column {column.name!r} has the type {column.type}, which {self.name.upper()} cannot"
                    f" hold: cast it to string, or write {other}"
                )

    def encoder(self, sink: Sink, schema: pa.Schema) -> TextEncoder:
        """Return the encoder of a new file with this schema."""
        if self.name == "json":
            return TextEncoder(sink, schema, _json_lines, self.compression)
        header = self._csv(schema.empty_table(), header=True) if self.options.header else b""
        return TextEncoder(sink, schema, self._csv, self.compression, header)

    def _csv(self, rows: pa.Table, *, header: bool = False) -> bytes:
        _check_years(rows)
        out = io.BytesIO()
        options = csv.WriteOptions(
            include_header=header,
            delimiter=self.options.separator,
            quoting_style="all_valid" if self.options.quote_all else "needed",
        )
        csv.write_csv(rows, out, options)
        return out.getvalue()


def _check_years(rows: pa.Table) -> None:
    """Refuse times that pyarrow cannot write: it would write a remark instead."""
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        kind = column.type
        # 64 bits of nanoseconds cannot leave these years.
        if not (pt.is_date(kind) or (pt.is_timestamp(kind) and kind.unit != "ns")):
            continue
        first, last = (pa.scalar(moment).cast(kind, safe=False) for moment in (_FIRST, _LAST))
        found = pc.min_max(column)
        if found["min"].is_valid and (found["min"].value < first.value or found["max"].value > last.value):
            raise UnsupportedColumn(
                f"column {name!r} has a time that is not between the years 1 and 9999, which CSV cannot"
                " hold: cast it to string, or write parquet"
            )


def _json_lines(rows: pa.Table) -> bytes:
    try:
        return _JSON.encode_lines(rows.to_pylist(maps_as_pydicts="strict"))
    except (ValueError, KeyError, OverflowError, TypeError) as error:
        raise UnsupportedColumn(f"JSON cannot hold a value ({error}): cast it, or write parquet") from error


class TextEncoder:
    """Writes one text file.

    Args:
        sink: Receives the bytes; the caller closes it.
        schema: Schema of the rows.
        render: Returns the bytes of some rows.
        compression: A key of the format's codecs.
        begin: The first bytes of the file.

    Attributes:
        rows: Rows written so far.
        bytes: Bytes written so far.
        statistics: Column statistics, by column; None until the encoder is closed.

    """

    def __init__(
        self,
        sink: Sink,
        schema: pa.Schema,
        render: Callable[[pa.Table], bytes],
        compression: str,
        begin: bytes = b"",
    ) -> None:
        self._sink = sink
        self._render = render
        self._compressor = zlib.compressobj(wbits=_GZIP) if compression == "gzip" else None
        self._counts = ColumnCounts(schema)
        self.rows = 0
        self.bytes = 0
        self.statistics: dict[str, ColumnStatistics] | None = None
        self._put(begin)

    def write(self, table: pa.Table) -> None:
        """Write a line for each row."""
        for batch in table.to_batches(max_chunksize=_ROWS):
            self._put(self._render(pa.Table.from_batches([batch])))
        self._counts.add(table)
        self.rows += table.num_rows

    def close(self) -> None:
        """Write the end of the compressed data."""
        if self._compressor is not None:
            self._send(self._compressor.flush())
        self.statistics = self._counts.statistics()

    def abandon(self) -> None:
        """Do nothing: only `write` and `close` write to the sink."""

    def _put(self, text: bytes) -> None:
        self._send(text if self._compressor is None else self._compressor.compress(text))

    def _send(self, data: bytes) -> None:
        if data:
            self._sink.write(data)
            self.bytes += len(data)

"""Text files: lines of rows, compressed as a whole."""

from __future__ import annotations

import bz2
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from airflow_s3commit.tables.csv import CsvRows
from airflow_s3commit.tables.formats import FORMATS
from airflow_s3commit.tables.json import JsonRows
from airflow_s3commit.tables.options import TextOptions
from airflow_s3commit.tables.statistics import ColumnCounts

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_s3commit.protocol.model.statistics import ColumnStatistics
    from airflow_s3commit.tables.formats import Sink

#: Rows that are rendered at once.
_ROWS = 16_384

#: zlib's window bits for a gzip file, and for a zlib stream.
_WINDOWS = {"gzip": 31, "deflate": 15}


class RowLines(Protocol):
    """Turns rows into lines of text."""

    def header(self) -> pa.Array:
        """Return the first lines of a file."""
        ...

    def lines(self, batch: pa.RecordBatch) -> pa.Array:
        """Return a line for each row, without line separator."""
        ...


_LINES: dict[str, Callable[[pa.Schema, TextOptions], RowLines]] = {"csv": CsvRows, "json": JsonRows}


@dataclass(frozen=True, slots=True)
class TextForm:
    """The encoding of one write's CSV or JSON files.

    Attributes:
        name: ``csv`` or ``json``.
        compression: A key of the format's codecs.
        options: The text options of the write.

    """

    name: str
    compression: str = "none"
    options: TextOptions = field(default_factory=TextOptions)

    def check(self, schema: pa.Schema) -> None:
        """Refuse columns that the format cannot hold.

        Raises:
            UnsupportedColumn: The format cannot hold a column's type.

        """
        _LINES[self.name](schema, self.options)

    def encoder(self, sink: Sink, schema: pa.Schema) -> TextEncoder:
        """Return the encoder of a new file with this schema."""
        lines = _LINES[self.name](schema, self.options)
        codec = FORMATS[self.name].codecs[self.compression].engine
        return TextEncoder(sink, schema, lines, codec, self.options.line_separator)


class _Compressor(Protocol):
    def compress(self, data: bytes, /) -> bytes: ...

    def flush(self) -> bytes: ...


class TextEncoder:
    """Writes one text file.

    Args:
        sink: Receives the bytes; the caller closes it.
        schema: Schema of the rows.
        lines: Turns rows into lines.
        codec: The compression: ``none``, ``gzip``, ``deflate`` or ``bzip2``.
        line_separator: The end of each line.

    Attributes:
        rows: Rows written so far.
        bytes: Bytes written so far.
        statistics: Column statistics, by column; None until the encoder is closed.

    """

    def __init__(
        self, sink: Sink, schema: pa.Schema, lines: RowLines, codec: str, line_separator: str
    ) -> None:
        self._sink = sink
        self._lines = lines
        self._end = line_separator
        self._compressor = _compressor(codec)
        self._counts = ColumnCounts(schema)
        self.rows = 0
        self.bytes = 0
        self.statistics: dict[str, ColumnStatistics] | None = None
        self._put(lines.header())

    def write(self, table: pa.Table) -> None:
        """Write a line for each row."""
        for batch in table.to_batches(max_chunksize=_ROWS):
            self._put(self._lines.lines(batch))
        self._counts.add(table)
        self.rows += table.num_rows

    def close(self) -> None:
        """Write the end of the compressed data."""
        if self._compressor is not None:
            self._send(self._compressor.flush())
        self.statistics = self._counts.statistics()

    def abandon(self) -> None:
        """Do nothing: only `write` and `close` write to the sink."""

    def _put(self, lines: pa.Array) -> None:
        if not len(lines):
            return
        one_list = pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines)
        text = pc.binary_join(one_list, self._end)[0].as_buffer().to_pybytes() + self._end.encode()
        self._send(text if self._compressor is None else self._compressor.compress(text))

    def _send(self, data: bytes) -> None:
        if data:
            self._sink.write(data)
            self.bytes += len(data)


def _compressor(codec: str) -> _Compressor | None:
    if codec == "none":
        return None
    if codec == "bzip2":
        return bz2.BZ2Compressor()
    return zlib.compressobj(wbits=_WINDOWS[codec])

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

#: Rows whose text is made at once.
_ROWS = 16_384

#: zlib's number for the window of a gzip file, and of a zlib stream.
_WINDOWS = {"gzip": 31, "deflate": 15}


class RowLines(Protocol):
    """Rows as lines."""

    def header(self) -> pa.Array:
        """Return the lines that a file begins with."""
        ...

    def lines(self, batch: pa.RecordBatch) -> pa.Array:
        """Return a line for each row."""
        ...


_LINES: dict[str, Callable[[pa.Schema, TextOptions], RowLines]] = {"csv": CsvRows, "json": JsonRows}


@dataclass(frozen=True, slots=True)
class TextForm:
    """How the files of one write are encoded.

    Attributes:
        name: ``csv`` or ``json``.
        compression: A key of the format's codecs.
        options: How values become text.

    """

    name: str
    compression: str = "none"
    options: TextOptions = field(default_factory=TextOptions)

    @property
    def content_type(self) -> str:
        """Media type of the files."""
        return FORMATS[self.name].content_type

    @property
    def suffix(self) -> str:
        """The end of a file's name, such as ``.csv.gz``."""
        return FORMATS[self.name].suffix(self.compression)

    def check(self, schema: pa.Schema) -> None:
        """Refuse columns that the format has no text for.

        Raises:
            UnsupportedColumn: There is one.

        """
        _LINES[self.name](schema, self.options)

    def encoder(self, sink: Sink, schema: pa.Schema) -> TextEncoder:
        """Start one file."""
        lines = _LINES[self.name](schema, self.options)
        codec = FORMATS[self.name].codecs[self.compression].engine
        return TextEncoder(sink, schema, lines, codec, self.options.line_separator)


class _Compressor(Protocol):
    def compress(self, data: bytes, /) -> bytes: ...

    def flush(self) -> bytes: ...


class TextEncoder:
    """Writes one text file.

    Args:
        sink: Takes the bytes; it is the caller's to close.
        schema: Schema of the rows.
        lines: Makes lines of rows.
        codec: How the file is compressed.
        line_separator: What ends a line.

    Attributes:
        rows: Rows written so far.
        bytes: Bytes written so far.
        statistics: What is known of each column, once closed.

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
        """Write rows."""
        for batch in table.to_batches(max_chunksize=_ROWS):
            self._put(self._lines.lines(batch))
        self._counts.add(table)
        self.rows += table.num_rows

    def close(self) -> None:
        """Write what the compression still holds."""
        if self._compressor is not None:
            self._send(self._compressor.flush())
        self.statistics = self._counts.statistics()

    def abandon(self) -> None:
        """Do nothing: no byte reaches the sink but by `write` and `close`."""

    def _put(self, lines: pa.Array) -> None:
        if not len(lines):
            return
        together = pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines)
        text = pc.binary_join(together, self._end)[0].as_buffer().to_pybytes() + self._end.encode()
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

"""Encodes the rows of one file with pyarrow, in any format, and gathers the file's column statistics."""

from __future__ import annotations

import io
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import orc

from airflow_s3commit.tables.columns import ColumnCounts
from airflow_s3commit.tables.formats import FORMATS

if TYPE_CHECKING:
    from airflow_s3commit.protocol.model.columns import ColumnStatistics
    from airflow_s3commit.tables.formats import Sink

#: Arrow writes a file in very small pieces, and each would be a call of Python.
_BUFFER_BYTES = 64 * 1024


class FileForm(Protocol):
    """The encoding of one write's files; can be pickled."""

    @property
    def name(self) -> str:
        """The format's name."""
        ...

    @property
    def compression(self) -> str:
        """A key of the format's codecs."""
        ...

    def stored(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of files with rows of a schema."""
        ...

    def check_values(self, rows: pa.Table) -> None:
        """Refuse values that the format cannot hold, or that readers would take for others.

        Raises:
            UnsupportedColumn: There is such a value.
        """
        ...

    def writer(
        self, stream: pa.NativeFile, schema: pa.Schema, first: pa.Table, footers: list[pq.FileMetaData]
    ) -> Any:
        """Return pyarrow's writer of a new file, with the methods ``write`` and ``close``.

        Args:
            stream: Receives the bytes.
            schema: The files' schema.
            first: The first rows of the file.
            footers: Receives the footer of a Parquet file when it is closed.
        """
        ...


class Encoder:
    """Writes the rows of one file; each call of `write` is a row group, if the format has them.

    Args:
        sink: Receives the bytes; the caller closes it.
        form: The encoding.

    Attributes:
        rows: Rows written so far.
        statistics: Column statistics, by column; None until the encoder is closed.
    """

    def __init__(self, sink: Sink, schema: pa.Schema, form: FileForm) -> None:
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

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.bytes = 0
        self.detached = False

    def write(self, data: bytes) -> int:
        """Append bytes, or drop them if the sink is detached; return how many."""
        if self.detached:
            return len(data)
        written = self._sink.write(data)
        self.bytes += written
        return written

    def flush(self) -> None:
        """Do nothing: the sink sends its bytes when it has enough of them."""

    def close(self) -> None:
        """Do nothing: the caller closes the sink."""

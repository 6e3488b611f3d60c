"""File formats: names, endings and codecs as Spark has them, and the interfaces of their encoders.

Imports no pyarrow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from airflow_s3commit.protocol.model.statistics import Columns, ColumnStatistics


class UnsupportedColumn(ValueError):
    """A column, or a value in it, cannot be written to this format as it is; the message says the way out."""


@dataclass(frozen=True, slots=True)
class Codec:
    """A compression.

    Attributes:
        engine: Its name in the library that does it.
        infix: What Spark puts into file names for it.

    """

    engine: str
    infix: str


@dataclass(frozen=True, slots=True)
class TableFormat:
    """A file format.

    Attributes:
        name: Its name, which is the end of its file names too.
        content_type: Media type of its files.
        codecs: Its compressions, by the names that Spark's option ``compression`` takes.
        default: The compression that Spark chooses.
        text: Whether it is text, which as a whole is compressed.

    """

    name: str
    content_type: str
    codecs: Mapping[str, Codec]
    default: str
    text: bool = False

    def suffix(self, compression: str) -> str:
        """Return the end of a file's name, such as ``.snappy.parquet`` or ``.csv.gz``."""
        infix = self.codecs[compression].infix
        return f".{self.name}{infix}" if self.text else f"{infix}.{self.name}"


_PARQUET_CODECS = {
    "snappy": Codec("snappy", ".snappy"),
    "gzip": Codec("gzip", ".gz"),
    "zstd": Codec("zstd", ".zstd"),
    "lz4_raw": Codec("lz4", ".lz4raw"),
    "brotli": Codec("brotli", ".br"),
    "none": Codec("none", ""),
    "uncompressed": Codec("none", ""),
}

_ORC_CODECS = {
    "zstd": Codec("zstd", ".zstd"),
    "snappy": Codec("snappy", ".snappy"),
    "zlib": Codec("zlib", ".zlib"),
    "lz4": Codec("lz4", ".lz4"),
    "none": Codec("uncompressed", ""),
    "uncompressed": Codec("uncompressed", ""),
}

# Spark's snappy and lz4 of text are in Hadoop's own framing, which nothing but Hadoop reads.
_TEXT_CODECS = {
    "none": Codec("none", ""),
    "uncompressed": Codec("none", ""),
    "gzip": Codec("gzip", ".gz"),
    "bzip2": Codec("bzip2", ".bz2"),
    "deflate": Codec("deflate", ".deflate"),
}

#: The formats by name.
FORMATS: Mapping[str, TableFormat] = {
    "parquet": TableFormat("parquet", "application/vnd.apache.parquet", _PARQUET_CODECS, "snappy"),
    "orc": TableFormat("orc", "application/octet-stream", _ORC_CODECS, "zstd"),
    "csv": TableFormat("csv", "text/csv", _TEXT_CODECS, "none", text=True),
    "json": TableFormat("json", "application/x-ndjson", _TEXT_CODECS, "none", text=True),
}


def first_within(kind: pa.DataType, *wanted: Callable[[pa.DataType], bool]) -> pa.DataType | None:
    """Return the type itself, or the first one nested in it, that is of one of the wanted kinds."""
    if any(is_kind(kind) for is_kind in wanted):
        return kind
    inner = (first_within(kind.field(number).type, *wanted) for number in range(kind.num_fields))
    return next((found for found in inner if found is not None), None)


class Sink(Protocol):
    """What an encoder writes into."""

    def write(self, data: bytes) -> int:
        """Append bytes."""
        ...


class TableFile(Sink, Protocol):
    """A file that is being written."""

    @property
    def buffered(self) -> int:
        """Bytes that it holds in memory."""
        ...

    def send_buffered(self) -> None:
        """Let go of what can be let go of."""
        ...

    def close(self, rows: int | None = None, statistics: Columns | None = None) -> None:
        """End the file, and say what is in it."""
        ...


class FileOpener(Protocol):
    """Opens files by their paths below the destination: a task attempt."""

    def open(self, relative_path: str, *, content_type: str = ...) -> TableFile:
        """Start a file."""
        ...


class Encoder(Protocol):
    """Writes the rows of one file."""

    @property
    def rows(self) -> int:
        """Rows written so far."""
        ...

    @property
    def bytes(self) -> int:
        """Bytes written so far."""
        ...

    @property
    def statistics(self) -> dict[str, ColumnStatistics] | None:
        """What is known of each column, once closed."""
        ...

    def write(self, table: pa.Table) -> None:
        """Write rows, where the format has them as one row group."""
        ...

    def close(self) -> None:
        """Write the end of the file; one without rows is whole too."""
        ...

    def abandon(self) -> None:
        """Let go of the file without another byte reaching the sink."""
        ...


class FileForm(Protocol):
    """How the files of one write are encoded; plain data."""

    @property
    def suffix(self) -> str:
        """The end of a file's name."""
        ...

    @property
    def content_type(self) -> str:
        """Media type of the files."""
        ...

    def check(self, schema: pa.Schema) -> None:
        """Refuse columns that the format cannot hold.

        Raises:
            UnsupportedColumn: There is one.

        """
        ...

    def encoder(self, sink: Sink, schema: pa.Schema) -> Encoder:
        """Start one file."""
        ...


class DetachableSink:
    """A sink that counts, and that can be let go of: an encoder thrown away still wants to write its footer.

    Args:
        sink: Takes the bytes.

    Attributes:
        bytes: Bytes that reached the sink.
        detached: Whether it was let go of.

    """

    closed = False

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.bytes = 0
        self.detached = False

    def write(self, data: bytes) -> int:
        """Append bytes, unless the sink was let go of."""
        if self.detached:
            return len(data)
        written = self._sink.write(data)
        self.bytes += written
        return written

    def flush(self) -> None:
        """Do nothing: the sink sends what it has when it is full."""


@dataclass(frozen=True, slots=True)
class SparkFooter:
    """What the files of a write say of Spark; files written without Spark say nothing.

    Readers of Spark take dates and times in a file of this version, without a key that says otherwise, for
    those of the proleptic Gregorian calendar, which Arrow's are too.

    Attributes:
        version: Version of the Spark that writes.
        row_metadata: The files' Spark schema (without partition columns) as JSON.
        types: Spark's names of the columns' types, by column.

    """

    version: str
    row_metadata: str
    types: Mapping[str, str] = field(default_factory=dict)

    @property
    def parquet(self) -> dict[str, str]:
        """What goes into the footer of a Parquet file."""
        return {
            "org.apache.spark.version": self.version,
            "org.apache.spark.sql.parquet.row.metadata": self.row_metadata,
        }

    @property
    def orc(self) -> dict[str, str]:
        """What goes into the footer of an ORC file."""
        return {"org.apache.spark.version": self.version}

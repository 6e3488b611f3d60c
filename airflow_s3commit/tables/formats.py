"""File formats: Spark's names, file name extensions and codecs, and the interfaces of encoders.

The module does not import pyarrow.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from airflow_s3commit.protocol.model.statistics import Columns, ColumnStatistics


#: The entry of a Parquet footer with the files' Spark schema, without partition columns, as JSON.
ROW_METADATA = "org.apache.spark.sql.parquet.row.metadata"


class UnsupportedColumn(ValueError):
    """The format cannot hold a column or one of its values; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Codec:
    """A compression.

    Attributes:
        engine: The name that the compressing library uses.
        infix: The part of file names that Spark adds, such as ``.snappy``; may be empty.
        level: The level of Spark's own writer, where pyarrow's default differs.

    """

    engine: str
    infix: str
    level: int | None = None


@dataclass(frozen=True, slots=True)
class TableFormat:
    """A file format.

    Attributes:
        name: The format's name, and the ending of its files' names.
        content_type: Media type of the files.
        codecs: Supported compressions, by the values of Spark's option ``compression``.
        default: The compression that Spark uses by default.
        text: Whether files are text, compressed as a whole.

    """

    name: str
    content_type: str
    codecs: Mapping[str, Codec]
    default: str
    text: bool = False

    def suffix(self, compression: str) -> str:
        """Return the ending of file names, such as ``.snappy.parquet`` or ``.csv.gz``.

        Args:
            compression: A key of ``codecs``.

        """
        infix = self.codecs[compression].infix
        return f".{self.name}{infix}" if self.text else f"{infix}.{self.name}"


_PARQUET_CODECS = {
    "snappy": Codec("snappy", ".snappy"),
    "gzip": Codec("gzip", ".gz", 6),
    "zstd": Codec("zstd", ".zstd", 3),
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

_TEXT_CODECS = {
    "none": Codec("none", ""),
    "uncompressed": Codec("none", ""),
    "gzip": Codec("gzip", ".gz"),
}

#: The formats by name.
FORMATS: Mapping[str, TableFormat] = {
    "parquet": TableFormat("parquet", "application/vnd.apache.parquet", _PARQUET_CODECS, "snappy"),
    "orc": TableFormat("orc", "application/octet-stream", _ORC_CODECS, "zstd"),
    "csv": TableFormat("csv", "text/csv", _TEXT_CODECS, "none", text=True),
    "json": TableFormat("json", "application/x-ndjson", _TEXT_CODECS, "none", text=True),
}


def first_within(kind: pa.DataType, *wanted: Callable[[pa.DataType], bool]) -> pa.DataType | None:
    """Return the type itself, or the first type nested in it, that any of the predicates accepts."""
    if any(is_kind(kind) for is_kind in wanted):
        return kind
    inner = (first_within(kind.field(number).type, *wanted) for number in range(kind.num_fields))
    return next((found for found in inner if found is not None), None)


class Sink(Protocol):
    """The destination of an encoder's bytes."""

    def write(self, data: bytes) -> int:
        """Append bytes, and return how many."""
        ...


class TableFile(Sink, Protocol):
    """A file that is being written."""

    @property
    def buffered(self) -> int:
        """Bytes held in memory, not yet sent."""
        ...

    def send_buffered(self) -> None:
        """Send the buffered bytes, if there are enough for a request."""
        ...

    def close(self, rows: int | None = None, statistics: Columns | None = None) -> None:
        """End the file, and record its number of rows and its column statistics."""
        ...


class FileOpener(Protocol):
    """Opens files by their paths below the destination, as a task attempt does."""

    def open(self, relative_path: str, *, content_type: str = ...) -> TableFile:
        """Open a new file for writing.

        Raises:
            S3CommitError: The file cannot be written.

        """
        ...


class TableOpener(FileOpener, Protocol):
    """Opens the files of a table whose columns are known before."""

    def expect(self, schema: str | None) -> None:
        """Refuse files with a schema, as records keep it, if their table could not have it.

        Raises:
            InvalidOption: It could not.

        """
        ...


class Encoder(ABC):
    """Writes the rows of one file.

    Args:
        sink: Receives the bytes; the caller closes it.

    Attributes:
        rows: Rows written so far.
        statistics: Column statistics, by column; None until the encoder is closed.

    """

    def __init__(self, sink: Sink) -> None:
        self._sink = DetachableSink(sink)
        self.rows = 0
        self.statistics: dict[str, ColumnStatistics] | None = None

    @property
    def bytes(self) -> int:
        """Bytes written so far."""
        return self._sink.bytes

    @abstractmethod
    def write(self, table: pa.Table) -> None:
        """Write rows; as one row group, if the format has row groups."""

    @abstractmethod
    def close(self) -> None:
        """Write the end of the file; a file without rows is valid too. The sink stays open."""

    @abstractmethod
    def abandon(self) -> None:
        """Release the encoder's memory, and write no further byte to the sink."""


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

    def encoder(self, sink: Sink, schema: pa.Schema) -> Encoder:
        """Return the encoder of a new file with this schema."""
        ...


class DetachableSink:
    """A sink that counts bytes and can be detached, because an abandoned encoder still writes its footer.

    Args:
        sink: The sink to write to.

    Attributes:
        bytes: Number of bytes written to the sink.
        detached: Whether further bytes are dropped.

    """

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


@dataclass(frozen=True, slots=True)
class SparkFooter:
    """What Spark's own writer adds to a Parquet file's footer; files written without Spark have none.

    Without a legacy calendar key, Spark reads dates and times of a file with its version in the proleptic
    Gregorian calendar, which is Arrow's calendar too.

    Attributes:
        version: Version of the writing Spark.
        row_metadata: The files' Spark schema, without partition columns, as JSON.

    """

    version: str
    row_metadata: str

    @property
    def entries(self) -> dict[str, str]:
        """The entries of a file's footer."""
        return {
            "org.apache.spark.version": self.version,
            ROW_METADATA: self.row_metadata,
        }

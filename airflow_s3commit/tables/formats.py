"""File formats: Spark's names, file name extensions and codecs; and the files that encoders write to.

The module does not import pyarrow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from airflow_s3commit.protocol.model.columns import Columns


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
    """A file format; its name is the ending of its files' names.

    Attributes:
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
        """Return the ending of file names, such as ``.snappy.parquet`` or ``.csv.gz``."""
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


class TableFile(Protocol):
    """A file that is being written."""

    def write(self, data: bytes) -> int:
        """Append bytes, and return how many."""
        ...

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

"""The file formats: their names, endings and compressions, as Spark has them. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["FORMATS", "Codec", "TableFormat", "UnsupportedColumn"]


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

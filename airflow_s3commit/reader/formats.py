"""The file format of a table's files, as pyarrow reads it.

The names of files tell Parquet and ORC. How text is to be read only its writer knows, so the caller passes
pyarrow's own format for CSV and JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.types as pt

from airflow_s3commit.tables.options import FORMATS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyarrow.fs import FileSystem

#: Endings of compressed text.
_COMPRESSED = frozenset({"gz", "bz2", "zst", "deflate", "snappy", "lz4", "zstd", "br", "xz", "zip", "Z"})

#: pyarrow's formats, by our names of them.
_KINDS: dict[str, type[ds.FileFormat]] = {
    "parquet": ds.ParquetFileFormat,
    "orc": ds.OrcFileFormat,
    "csv": ds.CsvFileFormat,
    "json": ds.JsonFileFormat,
}

#: The attribute that holds Spark's type of an ORC column where ORC has no such type; our writer sets it too.
_SPARK_TYPE = b"spark.sql.catalyst.type"

#: Prefixes of Spark's interval types that are stored as microseconds, not months.
_DURATIONS = (b"interval day", b"interval hour", b"interval minute", b"interval second")


class UnreadableFiles(ValueError):
    """A table's files have no common format, or one that has to be given as pyarrow's own."""


@dataclass(frozen=True, slots=True)
class FileReading:
    """How to read the files of one dataset.

    Attributes:
        format: The files' format.
        arrow: The same as pyarrow's.
    """

    format: str
    arrow: ds.FileFormat

    @classmethod
    def of(cls, paths: Iterable[str], given: str | ds.FileFormat | None) -> FileReading:
        """Return how to read files, whose names must not contradict the format that is given.

        Raises:
            UnreadableFiles: The format cannot be told, or is none of ours, as for `format_of`; or it is that
                of text, and not given as pyarrow's.
        """
        if isinstance(given, ds.FileFormat):
            name = next((name for name, kind in _KINDS.items() if isinstance(given, kind)), None)
            if name is None:
                raise UnreadableFiles(f"{type(given).__name__} is none of the formats {', '.join(FORMATS)}")
            return cls(format_of(paths, name), given)
        name = format_of(paths, given)
        if FORMATS[name].text:
            kind = f"pyarrow.dataset.{_KINDS[name].__name__}()"
            raise UnreadableFiles(
                f"how {name} is to be read only its writer knows: pass format={kind}, with its separator,"
                " quotes and names of columns, or read the table in Spark with read_table"
            )
        return cls(name, _KINDS[name]())

    @property
    def is_text(self) -> bool:
        """Whether the files are text, whose columns have no types."""
        return FORMATS[self.format].text

    def inspect(self, path: str, filesystem: FileSystem) -> pa.Schema:
        """Return the columns of a file; those of text come from its first rows."""
        return self.as_read(self.arrow.inspect(path, filesystem))

    def as_read(self, stored: pa.Schema) -> pa.Schema:
        """Return the columns as they are read from files with a stored schema."""
        return pa.schema([_with_spark_type(column) for column in stored], metadata=stored.metadata)


def format_of(paths: Iterable[str], given: str | None) -> str:
    """Return the format of files: the given one, or that with which their names end.

    Raises:
        UnreadableFiles: The names have several formats, a format other than the given one, or no format
            while none is given.
    """
    found: dict[str | None, str] = {}
    for path in paths:
        found.setdefault(_format_in(path), path)
    name = given or next(iter(found), None) or "parquet"
    for format_, path in found.items():
        if format_ is None and given is None:
            raise UnreadableFiles(
                f"the name of s3://{path} has no known format: set format to one of {', '.join(FORMATS)}"
            )
        if format_ not in (None, name):
            other = f"s3://{found[name]} is {name}" if name in found else f"format={name} was given"
            raise UnreadableFiles(
                f"s3://{path} is {format_}, and {other}: one dataset has files of one format"
            )
    return name


def _format_in(path: str) -> str | None:
    """Return the format that a file's name ends with; for text an ending of its compression may follow."""
    stem, _, last = path.rpartition("/")[2].rpartition(".")
    if stem and last in FORMATS:
        return last
    inner_stem, _, format_ = stem.rpartition(".")
    if inner_stem and last in _COMPRESSED and format_ in FORMATS and FORMATS[format_].text:
        return format_
    return None


def _with_spark_type(column: pa.Field) -> pa.Field:
    """Return a column with Spark's type, where ORC stores an integer."""
    note = (column.metadata or {}).get(_SPARK_TYPE, b"")
    if note == b"timestamp_ntz":
        return column.with_type(pa.timestamp("us"))
    if note.startswith(_DURATIONS) and pt.is_int64(column.type):
        return column.with_type(pa.duration("us"))
    if note == b"timestamp":
        return column.with_type(pa.timestamp("us", "UTC"))
    kind = column.type
    if pt.is_struct(kind):
        kind = pa.struct([_with_spark_type(kind.field(number)) for number in range(kind.num_fields)])
    elif pt.is_map(kind):
        kind = pa.map_(_with_spark_type(kind.key_field), _with_spark_type(kind.item_field))
    elif pt.is_list(kind):
        kind = pa.list_(_with_spark_type(kind.value_field))
    return column.with_type(kind)

"""Parquet files with the footer entries of Spark's own writer.

Spark reads its schema from two footer entries; without them it reads intervals as integers. Arrow's own
schema is not stored, as in Spark's files.

Every column is optional, at any depth. Spark marks a field that is never null as such a null wherever its
struct is null, and Arrow's writer refuses any null of a required field. Spark reads all columns as optional.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from airflow_s3commit.tables.formats import FORMATS, ROW_METADATA

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: Number of rows in the sample that decides whether a column has a dictionary.
_SAMPLE_ROWS = 10_000

#: The smallest number of rows in a useful sample.
_LEAST_SAMPLE = 1_000

#: Number of files of a task per sample: to sample costs more than to encode a small file.
_FILES_PER_SAMPLE = 16


class DictionaryChoice:
    """The choice of columns with a dictionary, by a sample of every sixteenth file that is large enough."""

    def __init__(self) -> None:
        self._schema: pa.Schema | None = None
        self._columns: list[str] = []
        self._files_left = 0

    def columns(self, first: pa.Table) -> list[str] | bool:
        """Return the leaf columns, by their paths in the file, that get a dictionary; True for all.

        Args:
            first: The first rows of the file.
        """
        if first.num_rows < _LEAST_SAMPLE:
            return True
        if self._files_left == 0 or first.schema != self._schema:
            self._schema, self._columns = first.schema, dictionary_columns(first)
            self._files_left = _FILES_PER_SAMPLE
        self._files_left -= 1
        return self._columns


@dataclass(frozen=True, slots=True)
class ParquetForm:
    """The encoding of one write's Parquet files.

    Attributes:
        name: The format's name.
        compression: A key of the format's codecs.
        footer: Entries of the files' footers; without Spark there are none.
        dictionaries: The choice of columns with a dictionary, shared by the files of a task.
    """

    name: ClassVar[str] = "parquet"

    compression: str = "snappy"
    footer: Mapping[str, str] = field(default_factory=dict)
    dictionaries: DictionaryChoice = field(default_factory=DictionaryChoice, repr=False, compare=False)

    def stored(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of files: every column may be null."""
        return _stored(schema)

    def check_values(self, rows: pa.Table) -> None:
        """Do nothing: Parquet holds any value of its types."""

    def writer(
        self, stream: pa.NativeFile, schema: pa.Schema, first: pa.Table, footers: list[pq.FileMetaData]
    ) -> _Writer:
        """Return pyarrow's writer of a new file, with dictionaries for the columns that repeat values."""
        codec = FORMATS[self.name].codecs[self.compression]
        writer = _Writer(
            stream,
            schema,
            version="2.6",
            compression=codec.engine,
            compression_level=codec.level,
            use_dictionary=self.dictionaries.columns(first),
            store_decimal_as_integer=True,
            store_schema=False,
            write_page_index=True,
            write_page_checksum=True,
            metadata_collector=footers,
        )
        if self.footer:
            writer.add_key_value_metadata(dict(self.footer))
        return writer


class _Writer(pq.ParquetWriter):  # type: ignore[misc] # pyarrow has no types
    def write(self, rows: pa.Table) -> None:
        """Write rows as one row group; pyarrow would divide more than a million."""
        if rows.num_rows:
            self.write_table(rows, row_group_size=rows.num_rows)


def spark_footer(version: str, row_metadata: str) -> dict[str, str]:
    """Return what Spark's own writer adds to a file's footer.

    Without a legacy calendar key, Spark reads dates and times of a file with its version in the proleptic
    Gregorian calendar, which is Arrow's calendar too.

    Args:
        version: Version of the writing Spark.
        row_metadata: The files' Spark schema, without partition columns, as JSON.
    """
    return {"org.apache.spark.version": version, ROW_METADATA: row_metadata}


def dictionary_columns(table: pa.Table) -> list[str]:
    """Return the leaf columns, by their paths in the file, with enough repeated values for a dictionary."""
    chosen: list[str] = []
    for column in table.schema:
        if pt.is_nested(column.type):
            chosen.extend(_leaves(column, column.name))
        elif _repeats(table.column(column.name)):
            chosen.append(column.name)
    return chosen


def _repeats(column: pa.ChunkedArray) -> bool:
    if pt.is_boolean(column.type) or pt.is_null(column.type):
        return False
    sample = column.slice(0, _SAMPLE_ROWS)
    return bool(pc.count_distinct(sample).as_py() * 2 <= len(sample))


def _leaves(field: pa.Field, path: str) -> Iterator[str]:
    kind = field.type
    if pt.is_struct(kind):
        for number in range(kind.num_fields):
            child = kind.field(number)
            yield from _leaves(child, f"{path}.{child.name}")
    elif pt.is_map(kind):
        yield from _leaves(kind.key_field, f"{path}.key_value.key")
        yield from _leaves(kind.item_field, f"{path}.key_value.value")
    elif pt.is_list(kind) or pt.is_large_list(kind):
        yield from _leaves(kind.value_field, f"{path}.list.element")
    else:
        yield path


@lru_cache(maxsize=4)
def _stored(schema: pa.Schema) -> pa.Schema:
    """Return the schema of files; a task writes many files of one schema."""
    return pa.schema([optional(field) for field in schema], schema.metadata)


def optional(field: pa.Field) -> pa.Field:
    """Return a column that may be null, and so may all fields within it."""
    return field.with_type(_optional_type(field.type)).with_nullable(True)


def _optional_type(kind: pa.DataType) -> pa.DataType:
    if pt.is_struct(kind):
        return pa.struct([optional(kind.field(number)) for number in range(kind.num_fields)])
    if pt.is_map(kind):
        return pa.map_(_optional_type(kind.key_type), optional(kind.item_field))
    if pt.is_list(kind) or pt.is_large_list(kind):
        return pa.list_(optional(kind.value_field))
    return kind

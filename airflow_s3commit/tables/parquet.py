"""Parquet files with the footer entries of Spark's own writer.

Spark reads its schema from two footer entries; without them it reads intervals as integers. Arrow's own
schema is not stored, as in Spark's files.

Every column is optional, at any depth. Spark marks a field that is never null as such a null wherever its
struct is null, and Arrow's writer refuses any null of a required field. Spark reads all columns as optional.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from airflow_s3commit.tables.columns import ColumnCounts
from airflow_s3commit.tables.formats import FORMATS, Encoder, SparkFooter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_s3commit.tables.formats import Sink

#: Number of rows in the sample that decides whether a column has a dictionary.
_SAMPLE_ROWS = 10_000

#: The smallest number of rows in a useful sample.
_LEAST_SAMPLE = 1_000

#: Number of files of a task per sample: to sample costs more than to encode a small file.
_FILES_PER_SAMPLE = 16


_BUFFER_BYTES = 64 * 1024


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
        spark: Spark's footer metadata; None without Spark.
        dictionaries: The choice of columns with a dictionary, shared by the files of a task.

    """

    name: ClassVar[str] = "parquet"

    compression: str = "snappy"
    spark: SparkFooter | None = None
    dictionaries: DictionaryChoice = field(default_factory=DictionaryChoice, repr=False, compare=False)

    def encoder(self, sink: Sink, schema: pa.Schema) -> ParquetEncoder:
        """Return the encoder of a new file with this schema."""
        return ParquetEncoder(sink, schema, self)


class ParquetEncoder(Encoder):
    """Writes one Parquet file, a row group for each call of `write`.

    Args:
        sink: Receives the bytes; the caller closes it.
        schema: Schema of the rows.
        form: The encoding.

    """

    def __init__(self, sink: Sink, schema: pa.Schema, form: ParquetForm) -> None:
        super().__init__(sink)
        self._schema = _stored(schema)
        self._form = form
        # Arrow writes in very small pieces, and each is a call of Python.
        self._stream = pa.BufferedOutputStream(pa.PythonFile(self._sink, mode="w"), _BUFFER_BYTES)
        self._writer: pq.ParquetWriter | None = None
        self._counts = ColumnCounts(schema)
        self._footers: list[pq.FileMetaData] = []

    def write(self, table: pa.Table) -> None:
        """Write rows as one row group; does nothing without rows."""
        if table.num_rows == 0:
            return
        writer = self._writer or self._start(table)
        writer.write_table(table.cast(self._schema), row_group_size=table.num_rows)
        self._stream.flush()
        self._counts.add(table)
        self.rows += table.num_rows

    def close(self) -> None:
        """Write the footer; a file without rows has its schema too."""
        writer = self._writer or self._start(self._schema.empty_table())
        if self._form.spark is not None:
            writer.add_key_value_metadata(self._form.spark.entries)
        writer.close()
        self._stream.close()
        self.statistics = self._counts.statistics(self._footers[0])

    def abandon(self) -> None:
        """Release the encoder's memory, and write no further byte to the sink."""
        self._sink.detached = True
        if self._writer is not None:
            # After a failed write, pyarrow cannot end the file, and its error would hide the cause.
            with suppress(pa.lib.ArrowException, RuntimeError, OSError):
                self._writer.close()
                self._stream.close()

    def _start(self, first: pa.Table) -> pq.ParquetWriter:
        codec = FORMATS[self._form.name].codecs[self._form.compression]
        self._writer = pq.ParquetWriter(
            self._stream,
            self._schema,
            version="2.6",
            compression=codec.engine,
            compression_level=codec.level,
            use_dictionary=self._form.dictionaries.columns(first),
            store_decimal_as_integer=True,
            store_schema=False,
            write_page_index=True,
            write_page_checksum=True,
            metadata_collector=self._footers,
        )
        return self._writer


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

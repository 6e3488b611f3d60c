"""Rows to Parquet, with what Spark's own writer puts into the footer.

Spark reads its schema back from two footer entries; without them intervals come back as integers and
variants as structs. They are added to the file itself because Arrow's schema is not stored, as Spark
doesn't.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from airflow_s3commit.tables.formats import (
    FORMATS,
    DetachableSink,
    SparkFooter,
    UnsupportedColumn,
    first_within,
)
from airflow_s3commit.tables.statistics import ColumnCounts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_s3commit.protocol.model.statistics import ColumnStatistics
    from airflow_s3commit.tables.formats import Sink

#: Rows by which it is judged whether a column is worth a dictionary.
_SAMPLE_ROWS = 10_000

#: Samples smaller than this say nothing.
_LEAST_SAMPLE = 1_000

#: So many files of a task go by one judgement: to judge costs more than a small file's encoding.
_FILES_PER_JUDGEMENT = 16


class DictionaryChoice:
    """Which columns get a dictionary, judged by a sample of every sixteenth file that is large enough."""

    def __init__(self) -> None:
        self._schema: pa.Schema | None = None
        self._columns: list[str] = []
        self._left = 0

    def columns(self, first: pa.Table) -> list[str]:
        """Return the columns for a file whose first rows these are; see `dictionary_columns`."""
        if first.num_rows < _LEAST_SAMPLE:
            return dictionary_columns(first)
        if self._left == 0 or first.schema != self._schema:
            self._schema, self._columns = first.schema, dictionary_columns(first)
            self._left = _FILES_PER_JUDGEMENT
        self._left -= 1
        return self._columns


@dataclass(frozen=True, slots=True)
class ParquetForm:
    """How the files of one write are encoded.

    Attributes:
        compression: A key of the format's codecs.
        spark: What the footer says of Spark.
        int96: Whether times with a zone are stored in 96 bits, as Spark does by default, and not in 64.
        dictionaries: Which columns get a dictionary; learnt from one file for the next ones.

    """

    compression: str = "snappy"
    spark: SparkFooter | None = None
    int96: bool = False
    dictionaries: DictionaryChoice = field(default_factory=DictionaryChoice, repr=False, compare=False)

    @property
    def content_type(self) -> str:
        """Media type of the files."""
        return FORMATS["parquet"].content_type

    @property
    def suffix(self) -> str:
        """The end of a file's name, such as ``.snappy.parquet``."""
        return FORMATS["parquet"].suffix(self.compression)

    def check(self, schema: pa.Schema) -> None:
        """Refuse what 96 bits cannot tell apart.

        Raises:
            UnsupportedColumn: There are times without a zone among those that are to have 96 bits.

        """
        for column in schema:
            if self.int96 and first_within(column.type, _is_local_time) is not None:
                raise UnsupportedColumn(
                    f"column {column.name!r} has times without zone, which INT96 cannot hold: leave"
                    " outputTimestampType at TIMESTAMP_MICROS"
                )

    def encoder(self, sink: Sink, schema: pa.Schema) -> ParquetEncoder:
        """Start one file."""
        return ParquetEncoder(sink, schema, self)


class ParquetEncoder:
    """Writes one Parquet file, a row group for each call of `write`.

    Args:
        sink: Takes the bytes; it is the caller's to close.
        schema: Schema of the rows.
        form: How to encode.

    Attributes:
        rows: Rows written so far.
        statistics: What is known of each column, once closed.

    """

    def __init__(self, sink: Sink, schema: pa.Schema, form: ParquetForm) -> None:
        self._sink = DetachableSink(sink)
        self._schema = schema
        self._form = form
        self._writer: pq.ParquetWriter | None = None
        self._counts = ColumnCounts(schema)
        self._footers: list[pq.FileMetaData] = []
        self.rows = 0
        self.statistics: dict[str, ColumnStatistics] | None = None

    @property
    def bytes(self) -> int:
        """Bytes written so far."""
        return self._sink.bytes

    def write(self, table: pa.Table) -> None:
        """Write rows as one row group."""
        if table.num_rows == 0:
            return
        writer = self._writer or self._start(table)
        writer.write_table(table, row_group_size=table.num_rows)
        self._counts.add(table)
        self.rows += table.num_rows

    def close(self) -> None:
        """Write the footer; a file without rows gets its schema too."""
        writer = self._writer or self._start(self._schema.empty_table())
        if self._form.spark is not None:
            writer.add_key_value_metadata(self._form.spark.parquet)
        writer.close()
        self.statistics = self._counts.statistics(self._footers[0])

    def abandon(self) -> None:
        """Let go of the file without another byte reaching the sink."""
        self._sink.detached = True
        if self._writer is not None:
            self._writer.close()

    def _start(self, first: pa.Table) -> pq.ParquetWriter:
        self._writer = pq.ParquetWriter(
            pa.PythonFile(self._sink, mode="w"),
            self._schema,
            version="2.6",
            compression=FORMATS["parquet"].codecs[self._form.compression].engine,
            use_dictionary=self._form.dictionaries.columns(first),
            store_decimal_as_integer=True,
            store_schema=False,
            use_deprecated_int96_timestamps=self._form.int96,
            metadata_collector=self._footers,
        )
        return self._writer


def dictionary_columns(table: pa.Table) -> list[str]:
    """Return the leaf columns, by their paths in the file, that a dictionary makes smaller or cheaper."""
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
    return len(sample) < _LEAST_SAMPLE or pc.count_distinct(sample).as_py() * 2 <= len(sample)


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


def _is_local_time(kind: pa.DataType) -> bool:
    return pt.is_timestamp(kind) and kind.tz is None

"""Rows to Parquet, with what Spark's own writer puts into the footer.

Spark reads its schema back from two footer entries; without them intervals come back as integers and
variants as structs. They are added to the file itself because Arrow's schema is not stored, as Spark
doesn't.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from airflow_s3commit.spark.column_statistics import ColumnCounts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_s3commit.protocol.statistics import ColumnStatistics

__all__ = ["CODECS", "Codec", "ParquetEncoder", "ParquetFormat", "Sink"]

#: Rows by which it is judged whether a column is worth a dictionary.
_SAMPLE_ROWS = 10_000

#: Samples smaller than this say nothing.
_LEAST_SAMPLE = 1_000


@dataclass(frozen=True, slots=True)
class Codec:
    """A Parquet compression.

    Attributes:
        arrow: Its name in pyarrow.
        suffix: What Spark puts before ``.parquet``.

    """

    arrow: str
    suffix: str


#: Compressions by the names that Spark's option ``compression`` takes.
CODECS = {
    "snappy": Codec("snappy", ".snappy"),
    "gzip": Codec("gzip", ".gz"),
    "zstd": Codec("zstd", ".zstd"),
    "lz4_raw": Codec("lz4", ".lz4raw"),
    "brotli": Codec("brotli", ".br"),
    "none": Codec("none", ""),
    "uncompressed": Codec("none", ""),
}


class Sink(Protocol):
    """What an encoder writes into."""

    def write(self, data: bytes) -> int:
        """Append bytes."""
        ...


@dataclass(frozen=True, slots=True)
class ParquetFormat:
    """How the files of one write are encoded.

    Attributes:
        compression: A key of `CODECS`.
        spark_version: Version of the Spark that writes.
        row_metadata: The files' Spark schema (without partition columns) as JSON.

    """

    compression: str
    spark_version: str
    row_metadata: str

    content_type = "application/vnd.apache.parquet"

    @property
    def suffix(self) -> str:
        """The end of a file's name, such as ``.snappy.parquet``."""
        return f"{CODECS[self.compression].suffix}.parquet"

    @property
    def footer(self) -> dict[str, str]:
        """What Spark expects in a footer."""
        return {
            "org.apache.spark.version": self.spark_version,
            "org.apache.spark.sql.parquet.row.metadata": self.row_metadata,
        }


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

    def __init__(self, sink: Sink, schema: pa.Schema, form: ParquetFormat) -> None:
        self._sink = _DetachableSink(sink)
        self._schema = schema
        self._form = form
        self._writer: pq.ParquetWriter | None = None
        self._counts = ColumnCounts(schema)
        self._footers: list[pq.FileMetaData] = []
        self.rows = 0
        self.statistics: dict[str, ColumnStatistics] | None = None

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
        writer.add_key_value_metadata(self._form.footer)
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
            compression=CODECS[self._form.compression].arrow,
            use_dictionary=dictionary_columns(first),
            store_decimal_as_integer=True,
            store_schema=False,
            metadata_collector=self._footers,
        )
        return self._writer


def dictionary_columns(table: pa.Table) -> list[str]:
    """Return the leaf columns, by their paths in the file, that a dictionary makes smaller or cheaper."""
    chosen: list[str] = []
    for field in table.schema:
        if pt.is_nested(field.type):
            chosen.extend(_leaves(field, field.name))
        elif _repeats(table.column(field.name)):
            chosen.append(field.name)
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


class _DetachableSink:
    """A sink that can be let go of: an encoder that is thrown away still wants to write its footer."""

    closed = False

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.detached = False

    def write(self, data: bytes) -> int:
        return len(data) if self.detached else self._sink.write(data)

    def flush(self) -> None:
        """Do nothing: the sink sends what it has when it is full."""

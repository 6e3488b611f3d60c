"""Rows to Parquet."""

from __future__ import annotations

import datetime as dt
import io
import json
from decimal import Decimal
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_s3commit.tables.columns import ROW_METADATA
from airflow_s3commit.tables.encoder import Encoder, dictionary_columns
from airflow_s3commit.tables.options import FORMATS, TableOptions

if TYPE_CHECKING:
    from pathlib import Path

SPARK = {"org.apache.spark.version": "4.3.0", ROW_METADATA: json.dumps({"type": "struct", "fields": []})}
SNAPPY = TableOptions()


def encode(table: pa.Table, options: TableOptions = SNAPPY, groups: int = 1) -> io.BytesIO:
    """Return a table as a file."""
    sink = io.BytesIO()
    encoder = Encoder(sink, table.schema, options, SPARK)
    size = -(-table.num_rows // groups)
    for group in range(groups):
        encoder.write(table.slice(group * size, size))
    encoder.close()
    assert encoder.rows == table.num_rows
    return sink


def test_the_footer_is_what_spark_reads_its_schema_from() -> None:
    """Spark's version and schema are in the footer, Arrow's schema is not."""
    metadata = pq.ParquetFile(encode(pa.table({"x": [1]}))).metadata
    assert metadata.metadata == {
        b"org.apache.spark.version": b"4.3.0",
        b"org.apache.spark.sql.parquet.row.metadata": SPARK[ROW_METADATA].encode(),
    }


def test_the_footer_has_page_indexes() -> None:
    """Readers can skip pages by the bounds in the footer."""
    column = pq.ParquetFile(encode(pa.table({"x": [1]}))).metadata.row_group(0).column(0)
    assert (column.has_offset_index, column.has_column_index) == (True, True)


def test_no_float_has_bounds_in_the_footer() -> None:
    """Arrow's bounds leave NaN out, which is Spark's greatest number: by them Spark would lose rows."""
    floats = [1.0, float("nan")]
    table = pa.table(
        {
            "f": floats,
            "n": [1, 2],
            "s": [{"f": f, "n": 1} for f in floats],
            "l": [[f] for f in floats],
            # Arrow knows this column by the same path as the field.
            "s.f": [1, 2],
        }
    )
    group = pq.ParquetFile(encode(table)).metadata.row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    bounded = {column.path_in_schema: column.has_column_index for column in columns if column.statistics}
    assert bounded == {"n": True, "s.n": True}
    assert {column.path_in_schema for column in columns if column.has_column_index} == set(bounded)


def test_types_are_stored_as_spark_stores_them() -> None:
    """Timestamps are INT64 microseconds, adjusted to UTC if they have a zone; small decimals are integers."""
    moment = dt.datetime(1890, 1, 2, 3, 4, 5, 6)
    table = pa.table(
        {
            "utc": pa.array([moment], pa.timestamp("us", "Asia/Tokyo")),
            "ntz": pa.array([moment], pa.timestamp("us")),
            "d9": pa.array([Decimal("1.25")], pa.decimal128(9, 2)),
            "d18": pa.array([Decimal("1.25")], pa.decimal128(18, 2)),
            "d38": pa.array([Decimal("1.25")], pa.decimal128(38, 2)),
        }
    )
    schema = pq.ParquetFile(encode(table)).schema
    types = {schema.column(n).name: schema.column(n).physical_type for n in range(len(schema))}
    wide = {"d38": "FIXED_LEN_BYTE_ARRAY"}
    assert types == {"utc": "INT64", "ntz": "INT64", "d9": "INT32", "d18": "INT64", **wide}
    zones = [json.loads(schema.column(n).logical_type.to_json()) for n in (0, 1)]
    assert [(zone["timeUnit"], zone["isAdjustedToUTC"]) for zone in zones] == [
        ("microseconds", True),
        ("microseconds", False),
    ]
    assert pq.read_table(encode(table)).column("ntz").to_pylist() == [moment]


@pytest.mark.parametrize("name", FORMATS["parquet"].codecs)
def test_every_codec_is_read_by_another_engine(name: str, tmp_path: Path) -> None:
    """DuckDB reads what each codec wrote, and the file's name says the codec as Spark's does."""
    options = TableOptions(compression=name)
    table = pa.table({"x": list(range(2000)), "s": ["abc"] * 2000})
    suffix = FORMATS["parquet"].suffix(name)
    path = tmp_path / f"file{suffix}"
    path.write_bytes(encode(table, options).getvalue())
    query = f"select sum(x), count(distinct s) from read_parquet('{path}')"
    assert duckdb.sql(query).fetchall() == [(1999000, 1)]
    written = {"uncompressed": "none", "lz4_raw": "lz4"}.get(name, name)
    found = pq.read_metadata(path).row_group(0).column(0).compression
    assert found.lower().replace("uncompressed", "none") == written
    assert suffix.endswith(".parquet")


@pytest.mark.parametrize(("codec", "level"), [("zstd", 3), ("gzip", 6)])
def test_files_are_as_tight_as_sparks(codec: str, level: int) -> None:
    """The size is that of the level of Spark's own writer, which is not pyarrow's default."""
    table = pa.table({"s": [f"{n * n % 977}-{n * 7919}" for n in range(20_000)]})

    def size(file: io.BytesIO) -> int:
        return int(pq.ParquetFile(file).metadata.row_group(0).column(0).total_compressed_size)

    def at(level: int | None) -> int:
        sink = io.BytesIO()
        pq.write_table(
            table, sink, compression=codec, compression_level=level, use_dictionary=False,
            write_page_checksum=True, write_page_index=True, store_schema=False,
        )  # fmt: skip
        return size(sink)

    assert at(level) != at(None)
    assert size(encode(table, TableOptions(compression=codec))) == at(level)


def test_each_write_is_a_row_group() -> None:
    """Row groups are as large as the caller makes them."""
    metadata = pq.ParquetFile(encode(pa.table({"x": list(range(10))}), groups=3)).metadata
    assert [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)] == [4, 4, 2]


def test_a_file_without_rows_has_its_schema() -> None:
    """Closing at once leaves a readable file with the columns."""
    schema = pa.schema([pa.field("x", pa.int64(), nullable=False), ("a.b", pa.string())])
    sink = io.BytesIO()
    Encoder(sink, schema, SNAPPY).close()
    assert pq.read_table(sink).schema == pa.schema([("x", pa.int64()), ("a.b", pa.string())])


def test_dictionaries_are_for_columns_that_repeat() -> None:
    """Columns of distinct values go without a dictionary; nested ones keep it, by the file's paths."""
    count = 4000
    table = pa.table(
        {
            "unique": pa.array(range(count)),
            "few.dotted": pa.array([n % 7 for n in range(count)]),
            "flag": pa.array([True] * count),
            "nothing": pa.nulls(count),
            "s": pa.array([{"a": n, "m": [(1, [n])]} for n in range(count)],
                          pa.struct([("a", pa.int32()), ("m", pa.map_(pa.int32(), pa.list_(pa.int32())))])),
        }
    )  # fmt: skip
    chosen = dictionary_columns(table)
    assert isinstance(chosen, list)
    assert dictionary_columns(table.slice(0, 10)) is True
    assert chosen == ["few.dotted", "s.a", "s.m.key_value.key", "s.m.key_value.value.list.element"]
    group = pq.ParquetFile(encode(table)).metadata.row_group(0)
    columns = [group.column(n) for n in range(group.num_columns)]
    # Arrow gives up a dictionary that grows too large, so only its absence is certain for the others.
    assert {c.path_in_schema for c in columns if c.has_dictionary_page} <= set(chosen)
    assert "few.dotted" in {c.path_in_schema for c in columns if c.has_dictionary_page}
    assert {c.path_in_schema for c in columns} >= set(chosen)


def test_an_abandoned_file_sends_nothing_more() -> None:
    """Letting go of a file writes no footer, now or when it is collected."""
    sink = io.BytesIO()
    table = pa.table({"x": list(range(1000))})
    encoder = Encoder(sink, table.schema, SNAPPY)
    encoder.write(table)
    before = sink.getvalue()
    encoder.abandon()
    assert sink.getvalue() == before

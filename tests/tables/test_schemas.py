"""Schemas as text, and how those of several commits add up."""

from __future__ import annotations

import base64
import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_s3commit.exceptions import InvalidRecord
from airflow_s3commit.tables.options import parse_table_options
from airflow_s3commit.tables.schemas import LONGEST, DifferentTypes, from_text, merge, to_text
from airflow_s3commit.tables.write import form_of
from tests.cases import each

COLUMNS = pa.schema(
    [
        pa.field("n", pa.int32(), nullable=False),
        ("t", pa.timestamp("us", "UTC")),
        ("s", pa.struct([("x", pa.list_(pa.int8()))])),
    ]
)
PARTITIONS = pa.schema([("dt", pa.date32()), ("kind", pa.string())])


def form(name: str) -> object:
    """Return the encoding of a format."""
    return form_of(parse_table_options({}, format=name, partition_by=()))


@each("format_", ["parquet", "orc"])
def test_a_schema_is_that_of_the_footer(format_: str) -> None:
    """What is recorded is what a reader finds in a file with these columns, and the partition columns."""
    text = to_text(form(format_), COLUMNS, PARTITIONS)
    assert text is not None
    found = from_text(text, "here")
    sink = io.BytesIO()
    encoder = form(format_).encoder(sink, COLUMNS)
    encoder.close()
    if format_ == "parquet":
        stored = pq.read_schema(pa.BufferReader(sink.getvalue()))
        assert [(column.name, column.type) for column in found.files] == [(c.name, c.type) for c in stored]
        assert found.files.metadata == stored.metadata
    assert found.files.names == COLUMNS.names
    assert all(column.nullable for column in found.files)
    assert found.partitions.equals(PARTITIONS)


def test_text_and_very_wide_tables_have_no_schema_in_records() -> None:
    """CSV stores no types; a schema beyond the limit of a record is left to the footers."""
    assert to_text(form("csv"), pa.schema([("n", pa.int32())]), PARTITIONS) is None
    wide = pa.schema([(f"column_{number}", pa.int64()) for number in range(LONGEST // 64)])
    assert to_text(form("parquet"), wide, PARTITIONS) is None


@each("text", ["", "%", base64.b64encode(b"no schema").decode(), base64.b64encode(bytes(64)).decode()])
def test_a_damaged_schema_is_refused(text: str) -> None:
    """The error names where it was found."""
    with pytest.raises(InvalidRecord, match="the manifest of j1 has columns that cannot be read"):
        from_text(text, "the manifest of j1")


@each(
    ("one", "other", "both"),
    [
        (pa.int8(), pa.int64(), pa.int64()),
        (pa.int64(), pa.int32(), pa.int64()),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.decimal128(6, 2), pa.decimal128(8, 1), pa.decimal128(9, 2)),
        (pa.null(), pa.string(), pa.string()),
        (pa.timestamp("ns", "UTC"), pa.timestamp("us", "UTC"), pa.timestamp("us", "UTC")),
        (pa.list_(pa.int32()), pa.list_(pa.int64()), pa.list_(pa.int64())),
        (
            pa.map_(pa.string(), pa.int32()),
            pa.map_(pa.string(), pa.int64()),
            pa.map_(pa.string(), pa.int64()),
        ),
        (
            pa.struct([("x", pa.int32())]),
            pa.struct([("x", pa.int64()), ("y", pa.string())]),
            pa.struct([("x", pa.int64()), ("y", pa.string())]),
        ),
    ],
)
def test_the_wider_type_holds_both(one: pa.DataType, other: pa.DataType, both: pa.DataType) -> None:
    """A column gets the narrowest type for the values of both commits, whichever was first."""
    for types in ((one, other), (other, one)):
        assert merge([pa.schema([("c", kind)]) for kind in types]).field("c").type == both


@each(
    ("one", "other"),
    [
        (pa.int64(), pa.string()),
        (pa.int64(), pa.float64()),
        (pa.uint32(), pa.int64()),
        (pa.decimal128(38, 0), pa.decimal128(38, 10)),
        (pa.date32(), pa.timestamp("us")),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.struct([("x", pa.int32())]), pa.struct([("x", pa.string())])),
    ],
)
def test_types_that_lose_values_are_refused(one: pa.DataType, other: pa.DataType) -> None:
    """The error has the column, and which two schemas have it."""
    schemas = [pa.schema([("a", pa.int8())]), pa.schema([("c", one)]), pa.schema([("c", other)])]
    with pytest.raises(DifferentTypes, match="column 'c' is") as caught:
        merge(schemas)
    assert caught.value.numbers == (1, 2)


def test_an_error_names_the_schema_that_has_the_type() -> None:
    """A column that was widened on the way is that of the wider schema."""
    with pytest.raises(DifferentTypes) as caught:
        merge([pa.schema([("c", kind)]) for kind in (pa.int32(), pa.int64(), pa.string())])
    assert (caught.value.numbers, caught.value.kinds) == ((1, 2), (pa.int64(), pa.string()))


def test_columns_keep_their_order_and_metadata_stays_true() -> None:
    """New columns come last; metadata is kept only of a schema that has all columns as they are."""
    first = pa.schema([("a", pa.int32()), ("b", pa.string())], metadata={"k": "1"})
    assert merge([first, first.remove(1)]) == first
    assert merge([first, first.remove(1)]).metadata == {b"k": b"1"}
    more = merge([first, pa.schema([("c", pa.int8()), ("a", pa.int64())])])
    assert (more.names, not more.metadata) == (["a", "b", "c"], True)
    assert merge([first]) is first

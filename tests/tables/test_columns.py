"""Schemas as text add up over several commits; statistics are what the files hold."""

from __future__ import annotations

import base64
import datetime as dt
import io
import json
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_s3commit.exceptions import InvalidOption, InvalidRecord
from airflow_s3commit.protocol.model.sealed_job import ColumnStatistics, SparkSchema, WrittenColumns
from airflow_s3commit.tables.columns import (
    ROW_METADATA,
    DifferentTypes,
    footer_text,
    from_text,
    merge,
    to_text,
)
from airflow_s3commit.tables.encoder import Encoder, footer_schema
from airflow_s3commit.tables.options import TableOptions
from tests.cases import each

COLUMNS = pa.schema(
    [
        pa.field("n", pa.int32(), nullable=False),
        ("t", pa.timestamp("us", "UTC")),
        ("s", pa.struct([("x", pa.list_(pa.int8()))])),
    ]
)
PARTITIONS = pa.schema([("dt", pa.date32()), ("kind", pa.string())])


@each("format_", ["parquet", "orc"])
def test_a_schema_is_that_of_the_footer(format_: str) -> None:
    """What is recorded is what a reader finds in a file with these columns, and the partition columns."""
    text = to_text(format_, footer_schema(COLUMNS, TableOptions(format=format_)), PARTITIONS)
    assert text is not None
    found = from_text(text, "here")
    sink = io.BytesIO()
    encoder = Encoder(sink, COLUMNS, TableOptions(format=format_))
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
    assert footer_schema(pa.schema([("n", pa.int32())]), TableOptions(format="csv")) is None
    wide = pa.schema([(f"column_{number}", pa.int64()) for number in range(2_000)])
    assert to_text("parquet", wide, PARTITIONS) is None


@each("arrow", ["", "%", base64.b64encode(b"no schema").decode(), base64.b64encode(bytes(64)).decode()])
def test_a_damaged_schema_is_refused(arrow: str) -> None:
    """The error names where it was found."""
    text = WrittenColumns(format="parquet", spark=SparkSchema(fields=[]), partitions=[], arrow=arrow).text()
    with pytest.raises(InvalidRecord, match="the manifest of j1 has columns that cannot be read"):
        from_text(text, "the manifest of j1")
    with pytest.raises(InvalidRecord, match="the manifest of j1"):
        from_text(text[:-1], "the manifest of j1")


def test_a_partition_column_that_the_schema_lacks_is_refused() -> None:
    """A record that names a column without its type is damaged."""
    text = to_text("parquet", COLUMNS, PARTITIONS)
    assert text is not None
    with pytest.raises(InvalidRecord, match="here has columns that cannot be read"):
        from_text(text.replace('"partitions":["dt"', '"partitions":["at"'), "here")


def test_a_file_may_have_a_column_of_the_name_of_a_partition_column() -> None:
    """Its path has the value: the column is read as one of the partitions alone."""
    stored = pa.schema([("dt", pa.int32()), ("id", pa.int64())])
    text = to_text("parquet", stored, PARTITIONS, typed=False)
    assert text is not None
    read = from_text(text, "here")
    assert (read.files.names, read.partitions) == (["id"], PARTITIONS)


def test_the_columns_of_another_programs_file_are_those_of_its_footer() -> None:
    """In Spark's types where it has them; a partition column's is unknown, and other bytes have none."""
    kinds = {"l": pa.large_list(pa.int8()), "at": pa.timestamp("ns"), "s": pa.large_string()}
    sink = io.BytesIO()
    pq.write_table(pa.schema(list(kinds.items())).empty_table(), sink)
    text = footer_text(sink.getvalue(), ["dt"])
    assert text is not None
    assert [(field.name, field.type) for field in WrittenColumns.of(text, "here").spark.fields] == [
        ("l", {"type": "array", "elementType": "byte", "containsNull": True}),
        ("at", "timestamp[ns]"),
        ("s", "string"),
        ("dt", "void"),
    ]
    for other in (b"", b"no Parquet at all", sink.getvalue()[-9:]):
        assert footer_text(other, []) is None


@pytest.mark.parametrize(
    "damaged", [b"", b"no JSON", b"[]", b"{}", b'{"type":"struct","fields":[{"type":1}]}']
)
def test_a_damaged_note_of_spark_in_a_footer_is_ignored(damaged: bytes) -> None:
    """As in Spark: the columns are those of the file."""
    sink, noted = io.BytesIO(), pa.schema([("n", pa.int32())], metadata={ROW_METADATA: damaged})
    pq.write_table(noted.empty_table(), sink)
    text = footer_text(sink.getvalue(), [])
    assert text is not None
    assert [(field.name, field.type) for field in WrittenColumns.of(text, "").spark.fields] == [
        ("n", "integer")
    ]


def test_a_schema_of_spark_s_own_writers_has_no_types_of_arrow() -> None:
    """Readers take them from files, and an error says why if one asks the record."""
    text = WrittenColumns(format="parquet", spark=SparkSchema(fields=[]), partitions=[]).text()
    with pytest.raises(InvalidOption, match="the manifest of j1 has columns without Arrow's encoding"):
        from_text(text, "the manifest of j1")


def test_a_schema_is_also_sparks_json() -> None:
    """Every type that Spark has is in the text by Spark's name, any other one by Arrow's."""
    files = pa.schema(
        [
            ("n", pa.int32()),
            ("moment", pa.timestamp("us", "America/New_York")),
            ("local", pa.timestamp("us")),
            ("price", pa.decimal128(9, 2)),
            ("nested", pa.struct([("x", pa.list_(pa.int8()))])),
            ("pairs", pa.map_(pa.string(), pa.float64())),
            ("unsigned", pa.uint16()),
        ]
    )
    text = to_text("parquet", footer_schema(files, TableOptions()), PARTITIONS)
    assert text is not None
    found = WrittenColumns.of(text, "here")
    assert {field.name: field.type for field in found.spark.fields} == {
        "n": "integer",
        "moment": "timestamp",
        "local": "timestamp_ntz",
        "price": "decimal(9,2)",
        "nested": {
            "type": "struct",
            "fields": [
                {
                    "name": "x",
                    "type": {"type": "array", "elementType": "byte", "containsNull": True},
                    "nullable": True,
                    "metadata": {},
                }
            ],
        },
        "pairs": {"type": "map", "keyType": "string", "valueType": "double", "valueContainsNull": True},
        "unsigned": "uint16",
        "dt": "date",
        "kind": "string",
    }
    assert (found.format, found.partitions) == ("parquet", ["dt", "kind"])


def test_sparks_own_types_come_from_sparks_footer() -> None:
    """An interval is an integer to Arrow; the text has Spark's type."""
    footer = {ROW_METADATA: json.dumps({"fields": [{"name": "age", "type": "interval year"}]})}
    text = to_text(
        "parquet",
        footer_schema(pa.schema([("age", pa.int32())]), TableOptions(), footer),
        pa.schema([]),
    )
    assert text is not None
    assert [field.type for field in WrittenColumns.of(text, "here").spark.fields] == ["interval year"]


@each(
    ("one", "other", "both"),
    [
        (pa.int8(), pa.int64(), pa.int64()),
        (pa.int64(), pa.int32(), pa.int64()),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.uint8(), pa.uint32(), pa.uint32()),
        (pa.decimal128(6, 2), pa.decimal128(8, 1), pa.decimal128(9, 2)),
        (pa.decimal128(37, 1), pa.decimal128(37, 2), pa.decimal128(38, 2)),
        (pa.null(), pa.string(), pa.string()),
        (pa.timestamp("ns", "UTC"), pa.timestamp("us", "UTC"), pa.timestamp("us", "UTC")),
        (pa.list_(pa.int32()), pa.list_(pa.int64()), pa.list_(pa.int64())),
        (pa.string(), pa.dictionary(pa.int8(), pa.string()), pa.string()),
        (pa.string_view(), pa.large_string(), pa.string()),
        (pa.list_(pa.int32()), pa.large_list(pa.int64()), pa.list_(pa.int64())),
        (
            pa.map_(pa.int8(), pa.int32()),
            pa.map_(pa.int16(), pa.int64()),
            pa.map_(pa.int16(), pa.int64()),
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
        (pa.timestamp("us", "Asia/Tokyo"), pa.timestamp("us", "UTC")),
        (pa.struct([("x", pa.int32())]), pa.struct([("x", pa.string())])),
        (pa.int64(), pa.month_day_nano_interval()),
    ],
)
def test_types_that_lose_values_are_refused(one: pa.DataType, other: pa.DataType) -> None:
    """The error has the column, and which two schemas have it."""
    schemas = [pa.schema([("a", pa.int8())]), pa.schema([("c", one)]), pa.schema([("c", other)])]
    with pytest.raises(DifferentTypes, match="column 'c' is") as caught:
        merge(schemas)
    assert caught.value.numbers == (1, 2)


def test_a_column_that_may_be_null_anywhere_may_be_null() -> None:
    """Whichever schema requires it, at any depth, the files of the other one may have nulls."""
    one, other = (
        pa.schema([pa.field("n", kind, is_free), pa.field("l", pa.list_(pa.field("element", kind, is_free)))])
        for kind, is_free in ((pa.int32(), False), (pa.int64(), True))
    )
    assert merge([one, other]) == merge([other, one]) == other


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


def test_names_of_one_column_are_those_that_a_rule_makes_one() -> None:
    """By default case counts; where it does not, the first spelling stays, at any depth."""
    one, other = (
        pa.schema([(name, kind), ("s", pa.list_(pa.struct([(f"{name}x", kind)])))])
        for name, kind in (("a", pa.int32()), ("A", pa.int64()))
    )
    assert merge([one, other]).names == ["a", "s", "A"]
    nested = pa.list_(pa.struct([("ax", pa.int64())]))
    assert merge([one, other], str.lower) == pa.schema([("a", pa.int64()), ("s", nested)])


MOMENT = dt.datetime(1890, 1, 2, 3, 4, 5, 6)
EAST = dt.timezone(dt.timedelta(hours=9))


def statistics(table: pa.Table, group: int = 2) -> dict[str, ColumnStatistics]:
    """Write a table with few rows per row group, and return the writer's statistics."""
    encoder = Encoder(io.BytesIO(), table.schema, TableOptions())
    for start in range(0, table.num_rows, group):
        encoder.write(table.slice(start, group))
    encoder.close()
    assert encoder.statistics is not None
    return encoder.statistics


def of(values: list[Any], kind: pa.DataType) -> ColumnStatistics:
    """Return the writer's statistics of one column, after two columns with several leaves each."""
    count = len(values)
    before = {"s.x": pa.array([{"x": 1, "y": [2]}] * count), "m": pa.array([[("k", 7)]] * count,
              pa.map_(pa.string(), pa.int64()))}  # fmt: skip
    return statistics(pa.table({**before, "column": pa.array(values, kind)}))["column"]


@pytest.mark.parametrize(
    ("kind", "values", "least", "greatest"),
    [
        (pa.int64(), [3, None, -1, 2], -1, 3),
        (pa.int8(), [None, None, 5, 4], 4, 5),
        (pa.float64(), [1.5, None, -2.0], -2.0, 1.5),
        (pa.bool_(), [True, None], True, True),
        (pa.string(), ["b", "é", None, "a"], "a", "é"),
        (pa.date32(), [dt.date(1500, 2, 3), dt.date(9999, 12, 31)], "1500-02-03", "9999-12-31"),
        (pa.timestamp("us"), [MOMENT], "1890-01-02T03:04:05.000006", "1890-01-02T03:04:05.000006"),
        (
            pa.timestamp("us", "UTC"),
            [MOMENT.replace(tzinfo=EAST), MOMENT.replace(tzinfo=dt.UTC, microsecond=0)],
            "1890-01-01T18:04:05.000006+00:00",
            "1890-01-02T03:04:05.000000+00:00",
        ),
        (pa.decimal128(9, 2), [Decimal("9.50"), Decimal("10.25"), Decimal("-1")], "-1.00", "10.25"),
        (pa.decimal128(38, 7), [Decimal("0.0000001"), None], "0.0000001", "0.0000001"),
    ],
)
def test_bounds_are_those_of_all_row_groups(
    kind: pa.DataType, values: list[Any], least: object, greatest: object
) -> None:
    """Least and greatest are compared as values and written as JSON; nulls and values are counted."""
    nulls = values.count(None)
    wanted = ColumnStatistics(
        values=len(values) - nulls,
        nulls=nulls,
        least=least,
        greatest=greatest,
        decimal=pa.types.is_decimal(kind),
    )
    found = of(values, kind)
    assert found == wanted
    assert msgspec.json.decode(msgspec.json.encode(found), type=ColumnStatistics) == wanted


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.binary(), [b"x", None]),
        (pa.duration("us"), [dt.timedelta(seconds=1), None]),
        (pa.list_(pa.int64()), [[1, 2], None]),
        (pa.struct([("a", pa.int64())]), [{"a": 1}, None]),
        (pa.null(), [None, None]),
        (pa.float64(), [1.0, float("nan"), None, 2.0]),
        (pa.float32(), [float("inf"), None, float("-inf")]),
        (pa.string(), ["x" * 5_000, None]),
        (pa.string(), ["x" * 5_000, None, "a"]),
        (pa.string(), ["a", None, "x" * 5_000]),
        (pa.float64(), [None, None]),
        (pa.int64(), [None, None, None]),
    ],
)
def test_what_has_no_sound_order_has_no_bounds(kind: pa.DataType, values: list[Any]) -> None:
    """Binary, nested and interval columns, NaN, infinity and texts of pages are counted and not bounded."""
    nulls = values.count(None)
    assert of(values, kind) == ColumnStatistics(values=len(values) - nulls, nulls=nulls)


@pytest.mark.parametrize("values", [[0.0, -0.0], [-0.0, 0.0], [-0.0], [0.0], [None, -0.0]])
@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_bounds_of_zero_have_zeros_of_either_sign_between_them(
    kind: pa.DataType, values: list[float | None]
) -> None:
    """Iceberg takes -0.0 for less than 0.0, which SQL takes for the same: a filter on 0 loses no file."""
    found = of(values, kind)
    assert (repr(found.least), repr(found.greatest)) == ("-0.0", "0.0")


LONG = st.builds(
    "".join,
    st.tuples(st.sampled_from(["", "a" * 127, "\U0010ffff" * 127, "\U0010ffff" * 128]), st.text(max_size=9)),
)


@settings(deadline=None, max_examples=100)
@given(st.lists(LONG, min_size=1), st.text(max_size=128) | LONG.map(lambda text: text[:128]))
def test_bounds_of_long_texts_compare_as_the_texts_do(values: list[str], other: str) -> None:
    """A cut bound lies outside of all values, and on the same side of every text of its length."""
    found = of(values, pa.string())
    assert isinstance(found.least, str)
    assert len(found.least) <= 128
    assert found.least <= min(values)
    assert (found.least >= other) == (min(values) >= other)
    if not max(values).startswith("\U0010ffff" * 128) or len(max(values)) == 128:
        assert isinstance(found.greatest, str)
        assert len(found.greatest) <= 128
        assert found.greatest >= max(values)
        assert (found.greatest <= other) == (max(values) <= other)


@pytest.mark.parametrize(("last", "after"), [("a", "b"), ("\ud7ff", "\ue000"), ("\U0010ffff", "b")])
def test_the_greatest_long_text_ends_in_the_next_character(last: str, after: str) -> None:
    """Surrogates are left out, and after the last character of all the one before it is raised."""
    found = of(["a" * 127 + last + "x"], pa.string())
    assert found.greatest == ("a" * 126 + after if last == "\U0010ffff" else "a" * 127 + after)


def test_years_that_python_has_not_are_no_bounds() -> None:
    """A date or time that Spark knows and Python doesn't leaves its column without bounds."""
    days = pa.array([-900_000, 4_000_000], pa.int32()).cast(pa.date32())
    times = pa.array([-(2**60), 2**60], pa.int64())
    for column in (days, times.cast(pa.timestamp("us")), times.cast(pa.timestamp("us", "UTC"))):
        assert statistics(pa.table({"d": column}))["d"] == ColumnStatistics(values=2, nulls=0)


def test_wide_tables_have_statistics_of_their_first_columns() -> None:
    """A record has those of 32 columns, of which each has its own."""
    found = statistics(pa.table({f"c{number}": [number, None] for number in range(40)}))
    one = {
        f"c{number}": ColumnStatistics(values=1, nulls=1, least=number, greatest=number)
        for number in range(32)
    }
    assert found == one


def test_a_file_without_rows_says_so() -> None:
    """Every column of an empty file has no values."""
    found = statistics(pa.table({"x": pa.array([], pa.int64()), "s": pa.array([], pa.string())}))
    assert set(found.values()) == {ColumnStatistics(values=0, nulls=0)}


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.none() | st.text(max_size=20)),
    st.integers(min_value=1, max_value=4),
)
def test_texts_are_bounded_as_python_orders_them(values: list[str | None], group: int) -> None:
    """For any texts and row groups the bounds are the least and greatest text."""
    found = statistics(pa.table({"s": pa.array(values, pa.string())}), group)["s"]
    present = [value for value in values if value is not None]
    assert (found.least, found.greatest) == (min(present, default=None), max(present, default=None))
    assert (found.values, found.nulls) == (len(present), len(values) - len(present))

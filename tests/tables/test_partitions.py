"""Splitting rows by partition values."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_s3commit.protocol.model.destination import NULL_DIRECTORY, escape
from airflow_s3commit.tables.columns import PartitionSplitter, UnsupportedPartition, resolve_columns
from tests.cases import each

# As Spark 4.3's ExternalCatalogUtils.escapePathName answered for every character below 300.
ESCAPED_BY_SPARK = {
    *range(1, 32), 34, 35, 37, 39, 42, 47, 58, 61, 63, 91, 92, 93, 94, 123, 127,
}  # fmt: skip


def split(batch: pa.RecordBatch, *columns: str) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each directory."""
    splitter = PartitionSplitter(batch.schema, resolve_columns(batch.schema, columns))
    found = defaultdict(list)
    for directory, rows in splitter.split(pa.Table.from_batches([batch])):
        in_files = rows.select(splitter.file_schema.names)
        assert in_files.schema == splitter.file_schema
        found[directory].extend(in_files.to_pylist())
    return dict(found)


def test_exactly_the_characters_that_spark_escapes_are_escaped() -> None:
    """Each character is written as Spark writes it, in upper-case hexadecimal."""
    assert {code for code in range(300) if escape(chr(code)) != chr(code)} == ESCAPED_BY_SPARK
    assert escape("a:b/\x7fé😀 }") == "a%3Ab%2F%7Fé😀 }"


@each(
    ("kind", "value", "rendered"),
    [
        (pa.string(), "a=b", "a%3Db"),
        (pa.string(), "", NULL_DIRECTORY),
        (pa.string(), None, NULL_DIRECTORY),
        (pa.large_string(), "x", "x"),
        (pa.int8(), -5, "-5"),
        (pa.int64(), 2**63 - 1, "9223372036854775807"),
        (pa.bool_(), True, "true"),
        (pa.bool_(), False, "false"),
        (pa.date32(), dt.date(1, 1, 1), "0001-01-01"),
        (pa.date32(), dt.date(9999, 12, 31), "9999-12-31"),
        (pa.decimal128(20, 6), Decimal("0.000001"), "0.000001"),
        (pa.decimal128(20, 6), Decimal(0), "0.000000"),
        (pa.decimal128(38, 0), Decimal(10) ** 20, "100000000000000000000"),
        (pa.timestamp("us", "Asia/Tokyo"), dt.datetime(2012, 12, 31, 15), "2013-01-01 00%3A00%3A00"),
        (pa.timestamp("us", "Asia/Tokyo"), dt.datetime(1850, 6, 1, 2, 41, 1), "1850-06-01 12%3A00%3A00"),
        (pa.timestamp("us"), dt.datetime(1, 1, 1, 0, 0, 0, 120_000), "0001-01-01 00%3A00%3A00.12"),
    ],
)
def test_values_are_rendered_as_spark_casts_them(kind: pa.DataType, value: Any, rendered: str) -> None:
    """A value's directory is what Spark's cast to string gives (seen with Spark 4.3)."""
    batch = pa.record_batch({"p": pa.array([value], kind), "x": pa.array([1])})
    assert split(batch, "p") == {f"p={rendered}": [{"x": 1}]}


@pytest.mark.parametrize(
    "kind",
    [
        *(pa.binary(), pa.list_(pa.int32()), pa.duration("us"), pa.null(), pa.float64()),
        *(pa.decimal128(20, 7), pa.decimal128(5, -2)),
    ],
    ids=str,
)
def test_types_that_only_spark_can_render_are_refused(kind: pa.DataType) -> None:
    """The message names the column, its type, and the cast that helps."""
    schema = pa.schema([("when", kind), ("x", pa.int64())])
    with pytest.raises(UnsupportedPartition, match=r"'when' has the type .*df\['when'\]\.cast\('string'\)"):
        resolve_columns(schema, ["when"])


@each(
    "values",
    [
        pa.array([3_000_000], pa.int32()).cast(pa.date32()),
        pa.array([2**60], pa.timestamp("us")),
        pa.array([2**60], pa.timestamp("us", "UTC")),
        pa.array([0], pa.timestamp("us", "GMT+8")),
        pa.array(["a\x00b"]),
    ],
)
def test_values_without_a_directory_are_refused_by_column(values: pa.Array) -> None:
    """A time after the year 9999 or in an unknown zone, and a NUL, are refused with the column's name."""
    with pytest.raises(UnsupportedPartition, match="partition column 'p' has a value"):
        split(pa.record_batch({"p": values, "x": pa.array([1])}), "p")


def test_columns_are_resolved_as_spark_resolves_them() -> None:
    """Case is ignored unless it matters; missing, ambiguous, hidden, repeated and all columns are refused."""
    schema = pa.schema([("Dt", pa.string()), ("x", pa.string()), ("X", pa.string())])
    assert resolve_columns(schema, ["dT", "X"]) == ("Dt", "X")
    for names, says in (
        (["y"], "not among"),
        (["Dt", "x", "X"], "none is left for the files"),
        (["Dt", "Dt"], "'Dt' is named twice"),
        (["Dt", "DT"], "'Dt' is named twice"),
    ):
        with pytest.raises(UnsupportedPartition, match=says):
            resolve_columns(schema, names)
    with pytest.raises(UnsupportedPartition, match="begins with a dot"):
        resolve_columns(pa.schema([(".dt", pa.string()), ("x", pa.string())]), [".dt"])
    with pytest.raises(UnsupportedPartition, match="ambiguous"):
        resolve_columns(pa.schema([("ab", pa.string()), ("AB", pa.string())]), ["aB"])


def test_directories_have_the_columns_names_as_asked() -> None:
    """A partition column asked for in another case gives the directory that Spark's own writer gives it."""
    batch = pa.record_batch({"DT": ["a"], "x": pa.array([1])})
    splitter = PartitionSplitter(batch.schema, resolve_columns(batch.schema, ["dt"]), ["dt"])
    ((directory, rows),) = splitter.split(pa.Table.from_batches([batch]))
    assert (directory, rows.to_pylist()) == ("dt=a", [{"DT": "a", "x": 1}])


def test_directories_nest_in_the_given_order_with_escaped_names() -> None:
    """The first partition column is the outermost directory, and names are escaped as values are."""
    batch = pa.record_batch({"a:b": ["1"], "c": pa.array([2]), "x": pa.array([3])})
    assert split(batch, "c", "a:b") == {"c=2/a%3Ab=1": [{"x": 3}]}


rows = st.lists(
    st.tuples(st.sampled_from([None, "", "a", "b", "/"]), st.none() | st.integers(0, 3)), max_size=60
)


@settings(max_examples=60, deadline=None)
@given(rows, st.booleans())
def test_splitting_keeps_every_row_in_its_order(
    values: list[tuple[str | None, int | None]], arrange: bool
) -> None:
    """In any order of rows, each row is in the directory of its values, and the order within it is kept."""
    if arrange:
        values = sorted(values, key=repr)
    batch = pa.record_batch(
        {
            "s": pa.array([value[0] for value in values], pa.string()),
            "n": pa.array([value[1] for value in values], pa.int64()),
            "row": pa.array(range(len(values)), pa.int64()),
        }
    )
    expected = defaultdict(list)
    for row, (text, number) in enumerate(values):
        left = escape(text or "") or NULL_DIRECTORY
        expected[f"s={left}/n={NULL_DIRECTORY if number is None else number}"].append(row)
    found = {name: sorted(row["row"] for row in rows) for name, rows in split(batch, "s", "n").items()}
    assert found == dict(expected)
    splitter = PartitionSplitter(batch.schema, ("s", "n"))
    for _, piece in splitter.split(pa.Table.from_batches([batch])):
        assert piece.column("row").to_pylist() == sorted(piece.column("row").to_pylist())


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=40), st.booleans())
def test_each_partition_is_one_piece(values: list[str], arrange: bool) -> None:
    """Whether the rows of a partition lie together or not, they are one piece, in their order."""
    values = sorted(values) if arrange else values
    rows = pa.table({"s": values, "row": range(len(values))})
    pieces = list(PartitionSplitter(rows.schema, ("s",)).split(rows))
    assert [name for name, _ in pieces] == [f"s={value}" for value in dict.fromkeys(values)]
    for name, piece in pieces:
        numbers = [row for row, value in enumerate(values) if f"s={value}" == name]
        assert piece.column("row").to_pylist() == numbers


def test_values_of_many_columns_are_told_apart() -> None:
    """Rows that differ in the outermost of columns with many values each are not taken for one partition."""
    count, inner = 1_023, [f"p{number}" for number in range(1, 8)]
    columns = {"p0": [*range(count), 5], **{name: [*range(count), 7] for name in inner}}
    rows = pa.table({**columns, "row": range(count + 1)})
    pieces = dict(PartitionSplitter(rows.schema, ("p0", *inner)).split(rows))
    assert len(pieces) == count + 1
    last = "/".join(["p0=5", *(f"{name}=7" for name in inner)])
    assert pieces[last].column("row").to_pylist() == [count]


def test_more_partitions_than_small_numbers_can_count_are_told_apart() -> None:
    """Beyond 32,767 partitions too, each row is in the directory of its value."""
    count = 33_000
    rows = pa.table({"n": [*range(count), *range(count)], "x": range(2 * count)})
    pieces = list(PartitionSplitter(rows.schema, ("n",)).split(rows))
    assert [name for name, _ in pieces] == [f"n={number}" for number in range(count)]
    assert pieces[-1][1].column("x").to_pylist() == [count - 1, 2 * count - 1]

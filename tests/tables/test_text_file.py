"""Rows as lines of text, as pyarrow and JSON's own rules have them."""

from __future__ import annotations

import datetime as dt
import io
import json
from decimal import Decimal

import pyarrow as pa
import pytest
from pyarrow import csv

from airflow_s3commit.tables.columns import UnsupportedColumn
from airflow_s3commit.tables.encoder import Encoder, check_columns
from airflow_s3commit.tables.options import parse_table_options

TEXTS = ["plain", "", None, "a,b", 'q"uote', "back\\slash", "new\nline", " lead", "x\x00y", "é😀"]


def written(table: pa.Table, **options: str) -> bytes:
    """Return the content of a table's file."""
    parsed = parse_table_options(options)
    check_columns(table.schema, parsed.format)
    sink = io.BytesIO()
    encoder = Encoder(sink, table.schema, parsed)
    encoder.write(table)
    encoder.close()
    assert encoder.rows == table.num_rows
    assert encoder.bytes == len(sink.getvalue())
    return sink.getvalue()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, '"a",1\n"",\n'),
        ({"header": "true"}, '"t","n"\n"a",1\n"",\n'),
    ],
)
def test_csv_is_pyarrows(options: dict[str, str], expected: str) -> None:
    """Strings are quoted, null is empty; the one option is the header."""
    table = pa.table({"t": ["a", ""], "n": [1, None]})
    assert written(table, format="csv", **options).decode() == expected


def test_csv_is_read_back_by_pyarrow() -> None:
    """Separators, quotes and line ends within values, nulls and empty texts come back as they were."""
    table = pa.table({"n": range(len(TEXTS)), "t": TEXTS})
    parse = csv.ParseOptions(newlines_in_values=True)
    convert = csv.ConvertOptions(strings_can_be_null=True, quoted_strings_can_be_null=False)
    body = io.BytesIO(written(table, format="csv", header="true"))
    assert csv.read_csv(body, parse_options=parse, convert_options=convert) == table


def test_a_row_that_csv_cannot_show_is_refused() -> None:
    """A null of a file's only column would be an empty line, which readers skip."""
    for kind in (pa.string(), pa.int64(), pa.null()):
        alone = pa.table({"t": pa.array([None, None], kind)})
        with pytest.raises(UnsupportedColumn, match=r"'t' has nulls and is the only column.*empty lines"):
            written(alone, format="csv")
        assert written(alone.append_column("u", alone["t"]), format="csv") == b",\n,\n"
    assert written(pa.table({"t": [""]}), format="csv") == b'""\n'


def test_json_has_an_object_in_each_line() -> None:
    """Nested values, null and what JSON has no type for are written so that others can read them."""
    table = pa.table(
        {
            "t": ['q"\n\x00', None],
            "a": pa.array([[1, None], None], pa.list_(pa.int64())),
            "m": pa.array([[("k", 1.5)], []], pa.map_(pa.string(), pa.float64())),
            "s": [{"x": [{"y": 1}]}, None],
            "d": pa.array([Decimal("1.50"), None], pa.decimal128(9, 2)),
            "f": [float("nan"), 1e300],
            "raw": [b"\x00\xff\x10", b""],
            "day": [dt.date(2013, 1, 1), None],
            "at": pa.array([dt.datetime(2013, 1, 1, 1, 2, 3), None], pa.timestamp("us", "UTC")),
        }
    )
    first, second = map(json.loads, written(table, format="json").splitlines())
    assert first == {
        "t": 'q"\n\x00', "a": [1, None], "m": {"k": 1.5}, "s": {"x": [{"y": 1}]}, "d": 1.5, "f": None,
        "raw": "AP8Q", "day": "2013-01-01", "at": "2013-01-01T01:02:03Z",
    }  # fmt: skip
    assert second == dict.fromkeys(table.column_names) | {"m": {}, "f": 1e300, "raw": ""}


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"t": pa.array([3_000_000], pa.int32()).cast(pa.date32())}),
        pa.table({"t": pa.array([1 << 60], pa.timestamp("us"))}),
        pa.table({"t": pa.array([[("k", 1), ("k", 2)]], pa.map_(pa.string(), pa.int64()))}),
        pa.table({"t": pa.array([1_001], pa.timestamp("ns"))}),
    ],
    ids=["day", "time", "two values of a key", "nanoseconds"],
)
def test_what_json_would_lose_is_refused(table: pa.Table) -> None:
    """A value that JSON or Python cannot hold is refused, with what to do."""
    with pytest.raises(UnsupportedColumn, match=r"JSON cannot hold a value .*cast it"):
        written(table, format="json")


@pytest.mark.parametrize("kind", [pa.timestamp("s"), pa.timestamp("us", "UTC"), pa.date64()])
def test_times_that_csv_cannot_hold_are_refused(kind: pa.DataType) -> None:
    """Only years from 1 to 9999 are written; pyarrow would put a remark in the place of others."""
    edges = [-62_135_596_800, 253_402_214_400]
    units = {"s": 1, "us": 1_000_000}.get(getattr(kind, "unit", ""), 1_000)
    column = pa.array([*(edge * units for edge in edges), None], pa.int64()).cast(kind)
    lines = written(pa.table({"t": column, "n": [7, 8, 9]}), format="csv").decode().splitlines()
    assert [line[:6] for line in lines] == ["0001-0", "9999-1", ",9"]
    for beyond in (edges[0] - 86_400, edges[1] + 86_400):
        column = pa.array([None, beyond * units], pa.int64()).cast(kind)
        with pytest.raises(UnsupportedColumn, match="column 't' has times that are not between"):
            written(pa.table({"t": column}), format="csv")


@pytest.mark.parametrize("format_", ["csv", "json"])
def test_no_rows_are_no_lines(format_: str) -> None:
    """A table without rows is an empty file."""
    assert written(pa.table({"x": pa.array([], pa.int64())}), format=format_) == b""

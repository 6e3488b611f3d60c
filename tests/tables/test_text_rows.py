"""Rows as lines of text, against what Spark 4.3 wrote of the same rows."""

from __future__ import annotations

import datetime as dt
import io
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from airflow_s3commit.tables.options import parse_table_options
from airflow_s3commit.tables.write import form_of
from tests.cases import each

TEXTS = [
    "plain", "", None, "a,b", 'q"uote', '"start', "back\\slash", '\\"', "new\nline", "cr\rx", " lead",
    "trail ", "#comment", "\x01\x1f\x7f", "'single'", "a\\,b", '""', "\\", " ", "x\x00y", "\x0bvt\x0b",
]  # fmt: skip


def lines(table: pa.Table, **options: str) -> str:
    """Return a table's file as text."""
    form = form_of(parse_table_options(options))
    form.check(table.schema)
    sink = io.BytesIO()
    encoder = form.encoder(sink, table.schema)
    encoder.write(table)
    encoder.close()
    assert encoder.rows == table.num_rows
    assert encoder.bytes == len(sink.getvalue())
    return sink.getvalue().decode()


def test_csv_is_quoted_and_trimmed_as_spark_does() -> None:
    """Quotes where a value would be misread, escapes only inside of them, white space taken away."""
    table = pa.table({"t": TEXTS, "n": [1] * len(TEXTS)})
    assert lines(table, format="csv") == (
        "plain,1\n" '"",1\n' ",1\n" '"a,b",1\n' '"q\\"uote",1\n' '"\\"start",1\n' "back\\slash,1\n"
        '"\\\\\\"",1\n' '"new\nline",1\n' '"cr\rx",1\n' "lead,1\n" "trail,1\n" '"#comment",1\n' "\x7f,1\n"
        "'single',1\n" '"a\\\\,b",1\n' '"\\"\\"",1\n' "\\,1\n" '"",1\n' "x\x00y,1\n" "vt,1\n"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"header": "true"}, "t,u\na,#b\n\"\",\n"),
        ({"quoteAll": "true", "nullValue": "NULL"}, '"a","#b"\n"","NULL"\n'),
        ({"sep": ";", "nullValue": "NULL", "emptyValue": "E"}, "a;#b\nE;NULL\n"),
        ({"lineSep": "\r\n", "quote": "'"}, 'a,#b\r\n"",\r\n'),
    ],
)  # fmt: skip
def test_csv_options_do_what_they_do_in_spark(options: dict[str, str], expected: str) -> None:
    """Header, separators, quotes, and the texts of null and of an empty string."""
    assert lines(pa.table({"t": ["a", ""], "u": ["#b", None]}), format="csv", **options) == expected


def test_a_line_that_would_be_empty_is_left_out() -> None:
    """As in Spark's files: a null of a lone column has no line, and a reader finds none."""
    assert lines(pa.table({"t": ["a", None, "b"]}), format="csv") == "a\nb\n"


def test_json_escapes_what_spark_escapes() -> None:
    """Short escapes, control characters in capitals, everything else as it is."""
    table = pa.table({"t": ['q"\\', "a\nb\tc\r\b\f", "\x00\x1f\x7f/é\u2028", None, ""]})
    assert lines(table, format="json") == (
        '{"t":"q\\"\\\\"}\n{"t":"a\\nb\\tc\\r\\b\\f"}\n{"t":"\\u0000\\u001F\x7f/é\u2028"}\n{}\n{"t":""}\n'
    )


def test_json_nests() -> None:
    """Arrays and maps keep nulls, objects drop them by default; slices are read in place."""
    struct = pa.struct([("x", pa.int32()), ("z.z", pa.list_(pa.struct([("q", pa.int32())])))])
    table = pa.table(
        {
            "a": pa.array([[9], [1, None], [], None], pa.list_(pa.int32())),
            "m": pa.array([[], [("k", 1.0), ('n"', None)], [], None], pa.map_(pa.string(), pa.float64())),
            "s s": pa.array([{}, {"x": 1, "z.z": [{}]}, {"z.z": []}, None], struct),
            "raw": [b"", b"\x00\xff\x10", None, b""],
        }
    ).slice(1)
    assert lines(table, format="json") == (
        '{"a":[1,null],"m":{"k":1.0,"n\\"":null},"s s":{"x":1,"z.z":[{}]},"raw":"AP8Q"}\n'
        '{"a":[],"m":{},"s s":{"z.z":[]}}\n'
        '{"raw":""}\n'
    )
    kept = lines(table.select(["a", "s s"]).slice(1), format="json", ignoreNullFields="false")
    assert kept == '{"a":[],"s s":{"x":null,"z.z":[]}}\n{"a":null,"s s":null}\n'


@each("format_", ["csv", "json"])
@each(
    ("value", "kind", "expected"),
    [
        (1.0, pa.float64(), "1.0"),
        (1e10, pa.float64(), "1.0E10"),
        (-0.0, pa.float64(), "-0.0"),
        (9.99e-4, pa.float64(), "9.99E-4"),
        (9999999.999, pa.float64(), "9999999.999"),
        (4.9e-324, pa.float64(), "4.9E-324"),
        (1.1e-5, pa.float32(), "1.1E-5"),
        (Decimal("1e-7"), pa.decimal128(20, 10), "1.000E-7"),
        (Decimal("1.5"), pa.decimal128(9, 2), "1.50"),
        (True, pa.bool_(), "true"),
        (2**63 - 1, pa.int64(), "9223372036854775807"),
    ],
)
def test_numbers_are_written_as_java_does(format_: str, value: Any, kind: pa.DataType, expected: str) -> None:
    """Exponents from 1e7 on and below 1e-3, and decimals with Java's own."""
    told = lines(pa.table({"x": pa.array([value], kind)}), format=format_)
    assert told == (f"{expected}\n" if format_ == "csv" else f'{{"x":{expected}}}\n')


def test_odd_numbers_are_texts_in_json() -> None:
    """JSON has no infinity."""
    table = pa.table({"x": [float("nan"), float("inf"), float("-inf")]})
    assert lines(table, format="json") == '{"x":"NaN"}\n{"x":"Infinity"}\n{"x":"-Infinity"}\n'


def test_times_follow_their_patterns_and_zones() -> None:
    """The default has milliseconds and the zone's offset, its seconds too before zones had whole minutes."""
    tokyo = pa.timestamp("us", "Asia/Tokyo")
    moments = [dt.datetime(2012, 12, 31, 15, 0, 0, 1_999), dt.datetime(1850, 6, 1, 2, 41, 1)]
    table = pa.table({"t": pa.array(moments, tokyo), "d": [dt.date(1, 1, 1), None]})
    assert lines(table, format="csv") == (
        "2013-01-01T00:00:00.001+09:00,0001-01-01\n1850-06-01T12:00:00.000+09:18:59,\n"
    )
    asked = {"timestampFormat": "dd/MM/yyyy 'at' HH:mm:ss.SSSSSS XXX", "dateFormat": "yyyyMMdd"}
    assert lines(table, format="csv", **asked) == (
        "01/01/2013 at 00:00:00.001999 +09:00,00010101\n01/06/1850 at 12:00:00.000000 +09:18,\n"
    )
    assert (
        lines(table.slice(0, 1).select(["t"]), format="csv", timeZone="UTC") == "2012-12-31T15:00:00.001Z\n"
    )


@pytest.mark.parametrize(
    "kind", [pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.timestamp("us", "Asia/Tokyo")]
)
def test_days_and_times_that_are_all_null_are_no_text(kind: pa.DataType) -> None:
    """A lot of rows of which none has a time is written as any other."""
    table = pa.table({"x": [1, 2], "t": pa.array([None, None], kind)})
    assert lines(table, format="csv") == "1,\n2,\n"
    assert lines(table, format="json") == '{"x":1}\n{"x":2}\n'

"""Manifests of ORC, CSV and JSON files as datasets, and the errors where that is impossible."""

from __future__ import annotations

import bz2
import codecs
import datetime as dt
import gzip
import io
import pickle
import zlib
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import orc

from airflow_s3commit.exceptions import DestinationChanged, InvalidOption
from airflow_s3commit.reader import UnreadableFiles
from airflow_s3commit.reader.formats import encoding_of
from tests.protocol.building import OURS, THEIRS

if TYPE_CHECKING:
    from tests.reader.conftest import Table

#: Texts at the edges of what CSV and JSON have a syntax for.
TEXTS = [
    "plain", "", None, 'a "q"', "C:\\dir\\", '"', "\\", '\\"', "a,b", "new\nline", "é😀", "\\n", "'", "x\\",
    '"\\,\n', "\t", "null",
]  # fmt: skip

TIME = dt.datetime(2013, 1, 1, 1, 2, 3, 4000, tzinfo=dt.UTC)


def table_of(**more: pa.Array) -> pa.Table:
    """Return a table of texts, numbered, with further columns that are null from the third row on."""
    count = len(TEXTS)
    columns = {name: pa.array([*column.to_pylist(), *[None] * (count - 2)], column.type)
               for name, column in more.items()}  # fmt: skip
    return pa.table(
        {"id": pa.array(range(count), pa.int64()), "s": TEXTS, **columns, "dt": ["2013-01-01"] * count}
    )


TYPED = {
    "i": pa.array([-(2**31), 2**31 - 1], pa.int32()),
    "f": pa.array([1e300, -0.0], pa.float64()),
    "flag": pa.array([True, False]),
    "cost": pa.array([Decimal("-9.10"), Decimal("0.00")], pa.decimal128(12, 2)),
    "at": pa.array([TIME, TIME.replace(year=1970)], pa.timestamp("us", "UTC")),
    "local": pa.array([TIME.replace(tzinfo=None)] * 2, pa.timestamp("us")),
}
DAY = {"day": pa.array([dt.date(1900, 1, 1), dt.date(9999, 12, 31)])}
NESTED = {
    "list": pa.array([[1, None], []], pa.list_(pa.int32())),
    "st": pa.array([{"x": 1, "y": "a"}, {"x": None, "y": None}]),
}
MAP = {"m": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int32())), "raw": pa.array([b"\0\xff", b""])}


@pytest.mark.parametrize(
    ("format_", "written", "read"),
    [
        ("orc", {"compression": "snappy"}, {}),
        ("orc", {"compression": "zlib"}, {}),
        ("csv", {}, {"escape": '"'}),
        ("csv", {"header": "true", "compression": "gzip"}, {"escape": '"', "header": "true"}),
        ("csv", {"compression": "gzip", "sep": "\t"}, {"escape": '"', "sep": "\t"}),
        ("json", {}, {}),
        ("json", {"compression": "gzip"}, {}),
    ],
)  # fmt: skip
def test_what_was_written_is_read_back(
    table: Table, format_: str, written: dict[str, str], read: dict[str, str]
) -> None:
    """Values, nulls and empty texts come back, by the names of the files alone and the options of CSV."""
    columns: dict[str, Any] = {**TYPED, **(DAY if format_ != "json" else {})}
    columns |= {"orc": {**NESTED, **MAP}, "json": NESTED, "csv": {}}[format_]
    data = table_of(**columns)
    if format_ == "orc":
        sink = io.BytesIO()
        orc.write_table(data.drop_columns("dt"), sink, **written)
        table.commit_raw({"dt=2013-01-01/a.orc": sink.getvalue()})
    else:
        table.commit_as(data, partition_by=["dt"], format=format_, options=written)
    schema = None if format_ == "orc" else data.drop_columns("dt").schema
    found = table.read(schema=schema, options=read).to_table().sort_by("id")
    assert found.drop_columns("dt").to_pylist() == data.drop_columns("dt").to_pylist()
    assert set(found["dt"].to_pylist()) == {dt.date(2013, 1, 1)}


def spark_csv(
    table: pa.Table, *, sep: str = ",", quote: str = '"', escape: str = "\\", null: str = ""
) -> bytes:
    """Return a table as Spark writes it in CSV with these options; compared with Spark's own elsewhere."""

    def text(value: Any) -> str:
        if value is None:
            return null
        if value == "":
            return quote * 2
        found = str(value)
        if not any(mark in found for mark in (sep, quote, "\n")):
            return found
        escapes = found if escape == quote else found.replace(escape, escape * 2)
        return quote + escapes.replace(quote, escape + quote) + quote

    return "".join(sep.join(map(text, row.values())) + "\n" for row in table.to_pylist()).encode()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"escape": '"', "sep": "\t"},
        {"quote": "'", "sep": ";", "nullValue": "null?"},
    ],
)
def test_csv_of_spark_is_read_by_sparks_options(table: Table, options: dict[str, str]) -> None:
    """Values, nulls and empty texts come back, with Spark's names of the options and its defaults."""
    data = table_of(i=TYPED["i"], f=TYPED["f"], cost=TYPED["cost"]).drop_columns("dt")
    given = {("null" if name == "nullValue" else name): value for name, value in options.items()}
    table.commit_raw({"part-0.csv": spark_csv(data, **given)})
    found = table.read(schema=data.schema, options=options).to_table().sort_by("id")
    assert found.to_pylist() == data.to_pylist()


def test_text_is_inferred_from_the_first_file(table: Table) -> None:
    """CSV without a header has Spark's names for its columns; what only looks like a time in JSON is text."""
    data = pa.table({"n": [1, 2], "x": [0.5, None], "t": ["2013-01-01T00:00:00", "x"], "none": [None, None]})
    table.commit_as(data, format="csv")
    found = table.read()
    names, types = ["_c0", "_c1", "_c2", "_c3"], [pa.int64(), pa.float64(), pa.string(), pa.string()]
    assert found.schema == pa.schema(zip(names, types, strict=True))
    assert found.to_table()["_c1"].to_pylist() == [0.5, None]
    text = table.read(options={"inferSchema": "false"})
    assert text.to_table()["_c0"].to_pylist() == ["1", "2"]
    table.commit_as(data, format="json", job_id=THEIRS)
    json = table.read()
    assert json.schema == pa.schema(zip(data.column_names, types, strict=True))
    assert json.to_table()["t"].to_pylist() == data["t"].to_pylist()


@pytest.mark.parametrize("format_", ["orc", "csv", "json"])
def test_increments_and_partitions_are_read_as_of_parquet(
    table: Table, opened: list[str], format_: str
) -> None:
    """All commits are read, or one job's, a filter on partitions opens no others, changed files are named."""
    for job_id, days in ((OURS, ["2013-01-01", "2013-01-02"]), (THEIRS, ["2013-01-03"])):
        data = pa.table({"n": list(range(len(days))), "day": days})
        table.commit_as(data, job_id=job_id, partition_by=["day"], format=format_, options={})
    schema = pa.schema([("n", pa.int64())])
    added = table.read(schema=schema, since=2).to_table().to_pylist()
    assert added == [{"n": 0, "day": dt.date(2013, 1, 3)}]
    assert table.read(schema=schema).count_rows() == 3
    found = table.read(schema=schema, job_id=OURS)
    opened.clear()
    assert found.to_table(filter=pc.field("day") == dt.date(2013, 1, 2))["n"].to_pylist() == [1]
    assert {path.split("/")[2] for path in opened} == {"day=2013-01-02"}
    (path,) = {path for path in opened if "2013-01-02" in path}
    local = table.local(path.removeprefix("lake/"))
    local.write_bytes(local.read_bytes() + b"\n")
    with pytest.raises(DestinationChanged, match=OURS):
        found.to_table()


@pytest.mark.parametrize("format_", ["orc", "csv", "json"])
def test_tables_without_rows_are_read(table: Table, format_: str) -> None:
    """Files that have no rows, and no bytes maybe, are no rows."""
    schema = pa.schema([("n", pa.int64()), ("s", pa.string())])
    table.commit_as(schema.empty_table(), format=format_)
    assert table.read(schema=schema).to_table() == schema.empty_table()
    assert table.read().to_table().num_rows == 0
    table.commit_as(schema.empty_table(), format="csv", options={"header": "true"}, job_id=THEIRS)
    assert table.read(options={"header": "true"}).schema.names == ["n", "s"]


def test_formats_are_told_by_names_or_said(table: Table) -> None:
    """A name without a format needs `format`; several formats, or another than the one said, are refused."""
    table.commit_raw(
        {"a": b"1,x\n", "b.csv.gz": gzip.compress(b"2,y\n"), "c.csv.bz2": bz2.compress(b"3,z\n")}
    )
    with pytest.raises(UnreadableFiles, match=r"s3://lake/flights/a-.* has no known format: set format to"):
        table.read()
    rows = table.read(format="csv").to_table().sort_by("_c0").to_pylist()
    assert rows == [{"_c0": 1, "_c1": "x"}, {"_c0": 2, "_c1": "y"}, {"_c0": 3, "_c1": "z"}]
    for said in ("orc", "json"):
        with pytest.raises(UnreadableFiles, match=rf"is csv, and format={said} was given"):
            table.read(format=said)
    table.commit_raw({"a.csv": b"1\n", "b.json": b"{}\n"}, THEIRS)
    for more in ({}, {"format": "csv"}):
        with pytest.raises(UnreadableFiles, match=r"b-.*json is json, and s3://lake/flights/a-.*csv is csv"):
            table.read(**more)


def test_what_pyarrow_cannot_unpack_is_refused(table: Table) -> None:
    """Compressions that pyarrow would take for text are errors, before anything is read."""
    table.commit_raw({"a.csv.deflate": zlib.compress(b"1\n")})
    with pytest.raises(UnreadableFiles, match=r"csv\.deflate: text may be compressed with .*, not deflate"):
        table.read()


@pytest.mark.parametrize(
    ("format_", "kind"),
    [("json", pa.date32()), ("json", pa.map_(pa.string(), pa.int32())), ("json", pa.list_(pa.binary())),
     ("csv", pa.list_(pa.int32())), ("csv", pa.binary())],
)  # fmt: skip
def test_types_that_text_is_not_read_as_are_refused(table: Table, format_: str, kind: pa.DataType) -> None:
    """The error names column, type and the way out; as text the column can be had."""
    table.commit_as(pa.table({"v": ["2013-01-01"]}), format=format_)
    with pytest.raises(UnreadableFiles, match=r"of column 'v' from .*: give it as string"):
        table.read(schema=pa.schema([("v", kind)]))
    as_text = table.read(schema=pa.schema([("v", pa.string())]))
    assert as_text.to_table()["v"].to_pylist() == ["2013-01-01"]


def test_json_is_read_where_arrow_has_one_thread(table: Table) -> None:
    """Arrow's own scan of JSON would wait for itself there."""
    table.commit_as(pa.table({"n": [1, 2]}), format="json")
    threads = pa.cpu_count()
    pa.set_cpu_count(1)
    try:
        assert table.read().to_table()["n"].to_pylist() == [1, 2]
    finally:
        pa.set_cpu_count(threads)


def test_options_of_reading_are_checked(table: Table) -> None:
    """What is unknown, malformed, contradictory, or another format's is named."""
    table.commit_as(pa.table({"n": [1]}), format="json")
    for options, complaint in (
        ({"dateFormat": "yyyy"}, "no option dateFormat for reading files; its options are format, header"),
        ({"header": "perhaps"}, "option header='perhaps' of s3commit: neither true nor false"),
        ({"sep": ";", "delimiter": ";"}, "given twice"),
        ({"sep": '"'}, "so is quote"),
        ({"HEADER": "true"}, "option header is only for csv; the files' format is json"),
    ):
        with pytest.raises(InvalidOption, match=complaint):
            table.read(options=options)


def test_pickled_datasets_read_the_same_or_not_at_all(table: Table) -> None:
    """A dataset that pickling would change is not pickled; others read the same, and count the same rows."""
    data = pa.table({"id": range(len(TEXTS)), "s": TEXTS})
    table.commit_raw({"part-0.csv": spark_csv(data)})
    found = table.read()
    assert found.count_rows() == found.to_table().num_rows == len(TEXTS)
    with pytest.raises(TypeError, match=r"escape differs from quote.*call it there"):
        pickle.dumps(found)
    for job_id, format_, options in ((THEIRS, "csv", {"escape": '"'}), (OURS[:-1] + "3", "json", {})):
        table.commit_as(data, format=format_, job_id=job_id)
        found = table.read(options=options, job_id=job_id)
        assert pickle.loads(pickle.dumps(found)).to_table() == found.to_table()
        assert found.count_rows() == len(TEXTS)


@given(
    st.lists(st.lists(st.text(st.sampled_from('a,\\"\n é')), min_size=2, max_size=3), max_size=6),
    st.integers(1, 7),
)
def test_escapes_are_changed_wherever_the_bytes_are_cut(rows: list[list[str]], size: int) -> None:
    """However the bytes come, what escapes in Spark's way means the same in Arrow's."""

    def spark(value: str) -> str:
        if not any(character in value for character in ',"\n'):
            return value
        return '"{}"'.format(value.replace("\\", "\\\\").replace('"', '\\"'))

    def arrow(value: str) -> str:
        written = spark(value)
        return written if written != value else value.replace("\\", "\\\\")

    data = "".join(",".join(map(spark, row)) + "\n" for row in rows).encode()
    decoder = codecs.getincrementaldecoder(encoding_of(",", '"', "\\"))()
    pieces = [decoder.decode(data[at : at + size]) for at in range(0, len(data), size)]
    decoded = "".join([*pieces, decoder.decode(b"", True)])
    assert decoded == "".join(",".join(map(arrow, row)) + "\n" for row in rows)

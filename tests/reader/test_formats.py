"""Tables of ORC, CSV and JSON files as datasets, and the errors where the format cannot be told."""

from __future__ import annotations

import datetime as dt
import gzip
import io
import pickle
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyarrow import csv, json, orc

from airflow_s3commit.exceptions import DestinationChanged
from airflow_s3commit.reader import UnreadableFiles
from airflow_s3commit.reader.table import format_of
from airflow_s3commit.tables.columns import footer_text
from tests.protocol.building import OURS, THEIRS, an_id
from tests.reader.conftest import write_and_seal

if TYPE_CHECKING:
    from airflow_s3commit.protocol.steps.task_attempt import TaskAttempt
    from tests.reader.conftest import Table

#: Texts at the edges of what CSV and JSON have a syntax for.
TEXTS = [
    "plain", "", None, 'a "q"', "C:\\dir\\", '"', "\\", '\\"', "a,b", "new\nline", "é😀", "\\n", "'", "x\\",
    '"\\,\n', "\t", "null",
]  # fmt: skip

TIME = dt.datetime(2013, 1, 1, 1, 2, 3, 4000, tzinfo=dt.UTC)

LINES = json.ReadOptions(block_size=1 << 20)
JSON = ds.JsonFileFormat(read_options=LINES)


def csv_format(names: list[str] | None = None, separator: str = ",") -> ds.CsvFileFormat:
    """Return pyarrow's format of what `write_table` writes: of files with a header, or with these columns."""
    return ds.CsvFileFormat(
        csv.ParseOptions(delimiter=separator, newlines_in_values=True),
        convert_options=csv.ConvertOptions(strings_can_be_null=True, quoted_strings_can_be_null=False),
        read_options=csv.ReadOptions(column_names=names),
    )


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


@pytest.mark.parametrize("compression", ["snappy", "zlib"])
def test_orc_is_read_back(table: Table, compression: str) -> None:
    """Values and nulls come back, by the names of the files alone."""
    data = table_of(**TYPED, **DAY, **NESTED, **MAP)
    sink = io.BytesIO()
    orc.write_table(data.drop_columns("dt"), sink, compression=compression)
    table.commit_raw({"dt=2013-01-01/a.orc": sink.getvalue()})
    assert table.read(since=2).schema == table.read().schema
    found = table.read().to_table().sort_by("id")
    assert found.drop_columns("dt").to_pylist() == data.drop_columns("dt").to_pylist()
    assert set(found["dt"].to_pylist()) == {dt.date(2013, 1, 1)}


@pytest.mark.parametrize("is_recorded", [False, True])
def test_int96_holds_any_year(table: Table, is_recorded: bool) -> None:
    """Times that Spark's own writer stores by default come back, those that nanoseconds cannot hold too."""
    moments = [dt.datetime(1582, 1, 1), TIME.replace(tzinfo=None), dt.datetime(9999, 12, 31)]
    sink = io.BytesIO()
    data = pa.table({"at": pa.array(moments, pa.timestamp("us"))})
    pq.write_table(data, sink, use_deprecated_int96_timestamps=True)

    def write(attempt: TaskAttempt) -> None:
        with attempt.open("a.parquet") as file:
            file.write(sink.getvalue())
        if is_recorded:
            attempt.describe(1, footer_text(sink.getvalue(), []))

    job = table.lake.set_up()
    write_and_seal(job, write)
    job.commit()
    assert table.read().to_table().to_pydict() == {"at": moments}


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("csv", {}),
        ("csv", {"header": "true", "compression": "gzip"}),
        ("json", {}),
        ("json", {"compression": "gzip"}),
    ],
)
def test_text_is_read_back_with_pyarrows_format(table: Table, name: str, written: dict[str, str]) -> None:
    """Values, nulls and empty texts come back with the columns that are given."""
    data = table_of(**TYPED, **(DAY if name == "csv" else NESTED))
    table.commit_as(data, partition_by=["dt"], format=name, options=written)
    schema = data.drop_columns("dt").schema
    names = None if written.get("header") else schema.names
    form = csv_format(names) if name == "csv" else JSON
    found = table.read(schema=schema, format=form).to_table().sort_by("id")
    assert found.drop_columns("dt").to_pylist() == data.drop_columns("dt").to_pylist()
    assert set(found["dt"].to_pylist()) == {dt.date(2013, 1, 1)}


@pytest.mark.parametrize(("name", "form"), [("csv", csv_format()), ("json", JSON)])
def test_text_is_inferred_from_the_first_file_with_rows(table: Table, name: str, form: ds.FileFormat) -> None:
    """Without a schema the columns are those that pyarrow infers, and a table without rows has none."""
    written: dict[str, Any] = {"format": name, "options": {"header": "true"} if name == "csv" else {}}
    data = pa.table({"n": [1, 2], "x": [0.5, None]})
    table.commit_as(data.slice(0, 0), **written)
    assert table.read(format=form).to_table().num_rows == 0
    table.commit_as(data, job_id=THEIRS, mode="append", **written)
    assert table.read(format=form).to_table().to_pylist() == data.to_pylist()


def test_text_has_no_columns_of_other_formats(table: Table) -> None:
    """An increment of text has those of its first file with rows, whatever older files of Parquet have."""
    table.commit_as(pa.table({"old": [1]}))
    for number, name in enumerate(("n", "m")):
        data = pa.table({name: [number]})
        table.commit_as(data, job_id=an_id(name), mode="append", format="csv", options={"header": "true"})
    assert table.read(since=2, format=csv_format()).schema.names == ["n"]


@pytest.mark.parametrize("name", ["orc", "csv", "json"])
def test_increments_and_partitions_are_read_as_of_parquet(table: Table, opened: list[str], name: str) -> None:
    """All commits are read, or some, a filter on partitions opens no others, changed files are named."""
    days = [dt.date(2013, 1, day) for day in (1, 2, 3)]
    for job_id, some in ((OURS, days[:2]), (THEIRS, days[2:])):
        data = pa.table({"n": list(range(len(some))), "day": some})
        table.commit_as(data, job_id=job_id, partition_by=["day"], format=name, options={})
    forms = {"orc": None, "csv": csv_format(["n"]), "json": JSON}
    how: dict[str, Any] = {"schema": pa.schema([("n", pa.int64())]), "format": forms[name]}
    assert table.read(since=2, **how).to_table().to_pylist() == [{"n": 0, "day": dt.date(2013, 1, 3)}]
    assert table.read(**how).count_rows() == 3
    found = table.read(generation=2, **how)
    opened.clear()
    assert found.to_table(filter=pc.field("day") == dt.date(2013, 1, 2))["n"].to_pylist() == [1]
    assert {path.split("/")[2] for path in opened} == {"day=2013-01-02"}
    (path,) = {path for path in opened if "2013-01-02" in path}
    local = table.local(path.removeprefix("lake/"))
    local.write_bytes(local.read_bytes() + b"\n")
    with pytest.raises(DestinationChanged, match=OURS):
        found.to_table()


def test_formats_are_told_by_names_or_said(table: Table) -> None:
    """A name without a format needs `format`; several formats, or another than the one said, are refused."""
    table.commit_raw({"a": b"x\n1\n", "b.csv.gz": gzip.compress(b"x\n2\n")})
    with pytest.raises(UnreadableFiles, match=r"s3://lake/flights/a-.* has no known format: set format to"):
        table.read()
    rows = table.read(format=csv_format()).to_table().sort_by("x").to_pylist()
    assert rows == [{"x": 1}, {"x": 2}]
    for said in ("orc", JSON):
        with pytest.raises(UnreadableFiles, match=r"is csv, and format=(orc|json) was given"):
            table.read(format=said)
    table.commit_raw({"a.csv": b"1\n", "b.json": b"{}\n"}, THEIRS)
    for more in ({}, {"format": csv_format()}):
        with pytest.raises(UnreadableFiles, match=r"b-.*json is json, and s3://lake/flights/a-.*csv is csv"):
            table.read(**more)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        *((f"a.csv.{ending}", "csv") for ending in ("gz", "bz2", "deflate", "snappy", "lz4", "zst", "xz")),
        ("a.snappy.parquet", "parquet"), ("a.parquet.gz", None), ("a.csv.old", None), ("a.b", None),
        ("p.csv/a", None),
    ],
)  # fmt: skip
def test_an_ending_is_a_format_or_a_compression_of_text(name: str, found: str | None) -> None:
    """Only text is compressed as a whole, and another ending is no format: its file may be anything."""
    if found:
        assert format_of([f"lake/t/{name}"], None) == found
    else:
        with pytest.raises(UnreadableFiles, match="has no known format"):
            format_of([f"lake/t/{name}"], None)


@pytest.mark.parametrize(("name", "kind"), [("csv", "CsvFileFormat"), ("json", "JsonFileFormat")])
def test_text_is_never_guessed(table: Table, name: str, kind: str) -> None:
    """Text is refused until the caller says how it is read; so is a format that is none of ours."""
    table.commit_as(pa.table({"n": [1]}), format=name)
    for more in ({}, {"format": name}):
        with pytest.raises(UnreadableFiles, match=rf"its writer knows: pass format=.*{kind}"):
            table.read(**more)
    with pytest.raises(UnreadableFiles, match="FeatherFileFormat is none of the formats parquet, orc"):
        table.read(format=ds.FeatherFileFormat())


@pytest.mark.parametrize(("name", "form"), [("csv", csv_format(["n"])), ("json", JSON), ("orc", None)])
def test_pickled_datasets_read_the_same(table: Table, name: str, form: ds.FileFormat | None) -> None:
    """Another process reads the same rows by a dataset that was sent to it."""
    table.commit_as(pa.table({"n": [1, 2]}), format=name)
    found = table.read(format=form)
    assert pickle.loads(pickle.dumps(found)).to_table() == found.to_table()

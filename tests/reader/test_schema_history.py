"""The columns of a table are those of all of its commits, whether or not there are files."""

from __future__ import annotations

import datetime as dt
import gzip
import io
import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from airflow_s3commit.protocol.model.sealed_job import SparkField, SparkSchema, WrittenColumns
from airflow_s3commit.protocol.steps.checkpoint import from_bytes, to_bytes
from airflow_s3commit.protocol.steps.fold import read_table
from airflow_s3commit.reader import UnreadableFiles
from tests.protocol.building import OURS, THEIRS, an_id
from tests.reader.conftest import write_and_seal
from tests.reader.test_table import numbers

if TYPE_CHECKING:
    from airflow_s3commit.protocol.steps.task_attempt import TaskAttempt
    from tests.reader.conftest import Table

NOTHING = pa.table({"n": pa.array([], pa.int32()), "dt": pa.array([], pa.date32())})


@pytest.mark.parametrize("format_", ["parquet", "orc"])
def test_an_empty_table_has_its_columns(table: Table, format_: str) -> None:
    """A job that wrote no rows recorded what they would have been, partition columns too."""
    manifest = table.commit_as(NOTHING, partition_by=["dt"], format=format_)
    assert manifest.counts.files == 0
    found = table.read()
    assert [(column.name, column.type) for column in found.schema] == [("n", pa.int32()), ("dt", pa.date32())]
    assert found.to_table().num_rows == 0


def test_a_table_that_became_empty_keeps_its_columns(table: Table) -> None:
    """A replace of everything by nothing leaves the columns of the newest job that knows some."""
    table.commit_as(pa.table({"n": [1]}))
    table.commit({}, THEIRS, committer="directory")
    found = table.read()
    assert (found.schema.names, found.to_table().num_rows) == (["n"], 0)


@pytest.mark.parametrize("format_", ["parquet", "orc"])
def test_a_column_that_was_added_or_widened_is_read(table: Table, opened: list[str], format_: str) -> None:
    """Older files give null, and their values in the wider type; no footer is opened for it."""
    table.commit_as(
        pa.table({"n": pa.array([1], pa.int32()), "f": pa.array([0.5], pa.float32())}), format=format_
    )
    later = pa.table({"f": [0.1], "n": [2**40], "added": ["x"]})
    table.commit_as(later, job_id=THEIRS, mode="append", format=format_)
    found = table.read()
    assert opened == []
    assert found.to_table().sort_by("n").to_pylist() == [
        {"n": 1, "f": 0.5, "added": None},
        {"n": 2**40, "f": 0.1, "added": "x"},
    ]
    assert table.read(generation=2).schema.names == ["n", "f"]
    assert table.read(since=2).schema == found.schema


def test_a_required_field_that_was_added_is_null_in_older_files(table: Table) -> None:
    """Spark's own writers require what has no nulls, within structs too, and older rows lack it."""

    def rows(number: int, *names: str) -> pa.Table:
        fields = [pa.field(name, pa.int64(), nullable=False) for name in names]
        kind = pa.struct(fields)
        values = dict.fromkeys(names, number)
        columns = [pa.field("s", kind, nullable=False), pa.field("l", pa.list_(kind), nullable=False)]
        return pa.table({"s": [values], "l": [[values]]}, schema=pa.schema(columns))

    table.commit({"a.parquet": rows(1, "x")})
    table.commit({"b.parquet": rows(2, "x", "y")}, THEIRS, conflict_mode="append")
    found = table.read().to_table().to_pylist()
    assert found == [{"s": one, "l": [one]} for one in ({"x": 1, "y": None}, {"x": 2, "y": 2})]


@pytest.mark.parametrize("kind", [pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_texts_of_other_libraries_are_texts(table: Table, kind: pa.DataType) -> None:
    """Files of pandas and polars say how these held their texts, which other files' texts do not."""
    table.commit({"a.parquet": pa.table({"s": ["x"]})})
    theirs = pa.table({"s": pa.array(["y", None]).cast(kind)})
    table.commit({"b.parquet": theirs}, THEIRS, conflict_mode="append")
    assert table.read().to_table().to_pydict() == {"s": ["x", "y", None]}
    wanted = table.read().to_table(filter=pc.field("s") == "y")
    assert wanted["s"].to_pylist() == ["y"]


def test_types_without_a_common_one_are_refused_by_name(table: Table) -> None:
    """The error has the column, both types and both jobs; a given schema, or a replace, ends it."""
    table.commit_as(pa.table({"n": [1], "dt": ["a"]}), partition_by=["dt"])
    text = pa.table({"n": ["x"], "dt": ["b"]})
    table.commit_as(text, job_id=THEIRS, partition_by=["dt"], mode="append")
    with pytest.raises(UnreadableFiles) as caught:
        table.read()
    assert (
        f"column 'n' of s3://lake/flights/ is int64 in files of {OURS}, and string in files of {THEIRS}"
        in str(caught.value)
    )
    assert table.read(schema=pa.schema([("n", pa.string())])).to_table()["n"].to_pylist() == ["1", "x"]
    table.commit_as(text.set_column(1, "dt", [["a"]]), job_id=an_id("3"), partition_by=["dt"])
    assert table.read().schema.field("n").type == pa.string()


def test_commits_without_a_record_are_asked_by_their_files(table: Table, opened: list[str]) -> None:
    """One file of each is opened: of other writers, and of what is older than the log."""
    table.commit({"a.parquet": numbers(1), "b.parquet": numbers(2)})
    table.commit({"c.parquet": numbers(3).append_column("x", [[True]])}, THEIRS, conflict_mode="append")
    table.commit_as(pa.table({"n": [4], "y": ["new"]}), job_id=an_id("3"), mode="append")
    found = table.read()
    assert len(opened) == 2
    assert found.schema.names == ["n", "s", "x", "y"]
    rows = found.to_table(columns=["n", "x", "y"]).sort_by("n").to_pylist()
    assert [(row["x"], row["y"]) for row in rows] == [(None, None), (None, None), (True, None), (None, "new")]


def written_by_spark(table: Table, *writes: pa.Table, job_id: str = OURS) -> None:
    """Commit a file of each write, with names as of Spark's own writers, and without Arrow's types."""

    def write(attempt: TaskAttempt) -> None:
        for number, rows in enumerate(writes):
            sink = io.BytesIO()
            pq.write_table(rows, sink)
            with attempt.open(f"part-00000-{an_id(f'{number}')}-{job_id}-c000.parquet") as file:
                file.write(sink.getvalue())
            fields = [SparkField(name=name, type="long") for name in rows.column_names]
            columns = WrittenColumns(format="parquet", spark=SparkSchema(fields=fields), partitions=[])
            attempt.describe(1, columns.text())

    job = table.lake.set_up(job_id, conflict_mode="append")
    write_and_seal(job, write)
    job.commit()


def test_columns_of_sparks_own_writers_are_asked_of_a_file(table: Table, opened: list[str]) -> None:
    """Their record has no types of Arrow's: a file of each such commit has, also for an increment of none."""
    written_by_spark(table, pa.table({"n": [1], "old": ["x"]}))
    table.commit_as(pa.table({"n": [2], "new": [True]}), job_id=THEIRS, mode="append")
    for since in (0, 3):
        opened.clear()
        assert table.read(since=since).schema.names == ["n", "old", "new"]
        assert len(opened) == 1


@pytest.mark.parametrize("most", [1, 32])
def test_a_column_of_one_write_of_spark_s_among_several_is_read(
    table: Table, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """A file of each write of a commit is asked, and however many there are, no recorded column is lost."""
    monkeypatch.setattr("airflow_s3commit.reader.listing._MOST_FOOTERS", most)
    one, other = pa.table({"n": [1]}), pa.table({"n": [2], "added": [7]})
    written_by_spark(table, one, other, one)
    written_by_spark(table, one, other, one, job_id=THEIRS)
    rows = table.read().to_table(columns=["n", "added"]).sort_by("n").to_pylist()
    assert rows == [{"n": 1, "added": None}] * 4 + [{"n": 2, "added": 7}] * 2


def test_of_many_commits_without_a_record_the_oldest_and_the_newest_are_asked(
    table: Table, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table of thousands of other programs' files opens in a bounded number of requests."""
    monkeypatch.setattr("airflow_s3commit.reader.listing._MOST_FOOTERS", 1)
    for number in range(4):
        rows = numbers(number).append_column(f"x{number}", [[True]])
        table.commit({f"{number}.parquet": rows}, an_id(f"{number}"), conflict_mode="append")
    assert table.read().schema.names == ["n", "s", "x0", "x3"]
    assert len(opened) == 2


def test_checkpoints_hold_each_schema_once(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of many commits has the same columns by its checkpoint as by its log."""
    monkeypatch.setattr("airflow_s3commit.protocol.steps.fold.CHECKPOINT_EVERY", 1)
    table.commit_as(pa.table({"n": [1]}))
    table.commit_as(pa.table({"n": [2]}), job_id=THEIRS, mode="append")
    table.commit_as(pa.table({"n": [3], "d": [dt.date(2013, 1, 1)]}), job_id=an_id("3"), mode="append")
    place = table.lake.context().layout.destination
    found = read_table(table.lake.store, place)
    body = to_bytes(found, place.uri)
    again = from_bytes(body, place.uri, "here")
    assert again.schemas() == found.schemas()
    assert len(found.schemas()) == 2
    assert gzip.decompress(body).count(json.dumps(found.schemas()[0]).encode()) == 1
    assert table.read().schema.names == ["n", "d"]

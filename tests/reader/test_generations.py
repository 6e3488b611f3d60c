"""A table is read as a whole: at its newest generation, at an older one, or what was added since one."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_s3commit.exceptions import HistoryRewound, InvalidRecord, NoSuchKey
from airflow_s3commit.protocol.table_rollback import roll_back
from airflow_s3commit.reader.table import GENERATION
from tests.cases import each
from tests.protocol.building import OURS, THEIRS, Crash, an_id
from tests.reader.test_table import numbers

if TYPE_CHECKING:
    import pyarrow.dataset as ds

    from tests.reader.conftest import Table


def values(found: ds.Dataset) -> list[int]:
    """Return the column of numbers, in order."""
    return sorted(found.to_table(columns=["n"])["n"].to_pylist())


def refreshed(table: Table) -> None:
    """Commit two days, then replace the second and add a third, then append to the first."""
    table.commit({"dt=1/a.parquet": numbers(1), "dt=2/a.parquet": numbers(2)})
    table.commit({"dt=2/a.parquet": numbers(20), "dt=3/a.parquet": numbers(3)}, THEIRS)
    table.commit({"dt=1/b.parquet": numbers(10)}, an_id("3"), conflict_mode="append")


def test_the_newest_generation_is_the_whole_table(table: Table) -> None:
    """What later commits added is there, what they replaced is not; the schema names the generation."""
    refreshed(table)
    found = table.read()
    assert values(found) == [1, 3, 10, 20]
    assert found.schema.metadata[GENERATION] == b"4"
    assert found.to_table().schema.metadata[GENERATION] == b"4"


def test_files_since_a_generation_come_once(table: Table) -> None:
    """A reader that goes on where it ended gets each commit's files once, and at the end no rows."""
    refreshed(table)
    seen = [values(table.read(since=since, generation=since + 1)) for since in range(2, 4)]
    assert seen == [[3, 20], [10]]
    assert values(table.read(since=2)) == [3, 10, 20]
    assert values(table.read(since=3, generation=3)) == []
    assert values(table.read(since=0)) == [1, 3, 10, 20]
    assert values(table.read(job_id=THEIRS)) == [3, 20]
    nothing = table.read(since=4)
    assert (nothing.schema, values(nothing)) == (table.read().schema, [])


def test_an_older_generation_is_the_table_of_then(table: Table) -> None:
    """Before a commit that replaces nothing the table had the other files; they are still there."""
    refreshed(table)
    assert values(table.read(generation=3)) == [1, 3, 20]


def test_a_generation_whose_files_are_replaced_is_refused_by_the_scan(table: Table) -> None:
    """The error names the job of the file that is gone, and what to read instead."""
    refreshed(table)
    with pytest.raises(NoSuchKey, match=f"committed by job {OURS}, is gone.*at the newest generation"):
        values(table.read(generation=2))


def test_a_removed_partition_is_not_part_of_the_table(table: Table) -> None:
    """A replace of the whole destination leaves no rows, columns or partitions of what was there."""
    refreshed(table)
    table.commit({"year=1/a.parquet": numbers(5)}, an_id("4"), committer="directory")
    found = table.read()
    assert (values(found), found.schema.names) == ([5], ["n", "s", "year"])


def test_an_aborted_job_makes_no_generation(table: Table) -> None:
    """Its number in the log is no generation, and the newest one is that of the commit before."""
    table.commit({"a.parquet": numbers(1)})
    table.lake.set_up(THEIRS).abort()
    for choice in ({}, {"generation": 2}):
        found = table.read(**choice)
        assert (values(found), found.schema.metadata[GENERATION]) == ([1], b"2")
    with pytest.raises(NoSuchKey, match="has no generation 3"):
        table.read(generation=3)


def test_a_table_is_empty_after_an_empty_replacement(table: Table) -> None:
    """A commit without files that replaces everything leaves a table without rows."""
    refreshed(table)
    table.commit({}, an_id("4"), committer="directory")
    assert table.read().count_rows() == 0


@each(
    ("choice", "message"),
    [
        ({"generation": 5}, "has no generation 5"),
        ({"since": 5}, "has no generation 5: the newest is 4"),
        ({"job_id": an_id("9")}, "has not committed to"),
    ],
)
def test_a_generation_that_is_not_there_yet(table: Table, choice: dict[str, Any], message: str) -> None:
    """The error names it, or the job that has none."""
    if not table.lake.keys(table.lake.prefix):
        refreshed(table)
    with pytest.raises(NoSuchKey, match=message):
        table.read(**choice)


@each(
    ("choice", "message"),
    [
        ({"generation": 0}, "generations count from 1"),
        ({"since": -1}, "since=-1 is not a generation before the newest one"),
        ({"since": 3, "generation": 2}, "since=3 is not a generation before generation 2"),
        ({"job_id": OURS, "generation": 1}, "without generation and since"),
        ({"job_id": OURS, "since": 0}, "without generation and since"),
    ],
)
def test_choices_that_contradict_each_other(table: Table, choice: dict[str, Any], message: str) -> None:
    """One job's files are not a generation's; generations count from 1, and a range is in their order."""
    with pytest.raises(ValueError, match=message):
        table.read(**choice)


def test_a_destination_without_a_log_has_no_generations(table: Table) -> None:
    """Where the log is gone, reading is an error."""
    table.commit({"a.parquet": numbers(1)})
    for key in table.lake.keys(f"{table.lake.prefix}_s3commit/log/"):
        table.lake.store.delete("lake", key)
    for choice in ({}, {"generation": 1}, {"since": 1}):
        with pytest.raises(NoSuchKey, match=r"has no (generation 1|commit in its log)"):
            table.read(**choice)


def test_increments_end_at_a_rollback(table: Table) -> None:
    """After a rollback no generation tells which files a reader has seen: it is told to read the table."""
    table.commit({"dt=1/a.parquet": numbers(1)})
    table.commit({"dt=1/b.parquet": numbers(2)}, THEIRS, retain="7d")
    roll_back(table.lake.context(an_id("back")), 2)
    with pytest.raises(HistoryRewound, match="was rolled back to 2 by generation 4"):
        table.read(since=2)
    assert values(table.read()) == values(table.read(since=0)) == [1]
    table.commit({"dt=1/c.parquet": numbers(3)}, an_id("3"), conflict_mode="append")
    assert values(table.read(since=4)) == [3]


def older(table: Table, path: str, *rows: int) -> None:
    """Put a file that no job has written."""
    sink = io.BytesIO()
    pq.write_table(numbers(*rows), sink)
    table.lake.put({path: sink.getvalue()})


def test_files_that_are_older_than_the_log_are_read(table: Table) -> None:
    """They are in the table until a commit removes their partition, and not in what came since a commit."""
    older(table, "dt=1/old.parquet", 1)
    older(table, "dt=2/old.parquet", 2)
    first = table.commit({"dt=1/a.parquet": numbers(10)}, conflict_mode="append").generation
    assert values(table.read()) == [1, 2, 10]
    second = table.commit({"dt=2/a.parquet": numbers(20)}, THEIRS).generation
    assert values(table.read()) == values(table.read(since=0)) == [1, 10, 20]
    assert values(table.read(since=first)) == [20]
    with pytest.raises(NoSuchKey, match="committed by another program, is gone"):
        values(table.read(generation=first))
    assert values(table.read(generation=second)) == [1, 10, 20]
    table.commit({"dt=3/a.parquet": numbers(30)}, an_id("3"), committer="directory")
    older(table, "dt=4/foreign.parquet", 4)
    assert values(table.read()) == [30]


def test_files_of_jobs_that_have_not_committed_are_not_older_than_the_log(table: Table) -> None:
    """A commit that died half-way, and one that has ended since the log was read, add nothing to it."""
    older(table, "dt=1/old.parquet", 1)
    table.commit({"dt=1/a.parquet": numbers(10)}, conflict_mode="append")
    dying = table.sealed({"dt=1/b.parquet": numbers(20)}, THEIRS, conflict_mode="append")
    table.lake.store.die("put", f"log/{3:020d}.json")
    with pytest.raises(Crash):
        dying.commit()
    table.lake.store.rest()
    assert values(table.read()) == [1, 10]
    table.lake.job(THEIRS).commit()
    assert values(table.read()) == [1, 10, 20]


def test_a_copied_table_is_refused(table: Table) -> None:
    """The original's log is not a history of the copy; without it the copy's first job lists the files."""
    table.commit({"dt=1/a.parquet": numbers(1)})
    lake = table.lake
    copy = {key.removeprefix(lake.prefix): lake.get(key) for key in lake.keys(lake.prefix)}
    lake.prefix = "copy/"
    lake.put(copy)
    with pytest.raises(InvalidRecord, match="copy"):
        table.read()
    for key in lake.keys("copy/_s3commit/"):
        lake.store.delete("lake", key)
    table.commit({"dt=1/b.parquet": numbers(2)}, THEIRS, conflict_mode="append")
    assert values(table.read()) == [1, 2]


def test_types_of_partition_columns_do_not_depend_on_the_increment(table: Table) -> None:
    """A reader of increments gets one schema: that of all partitions of the table."""
    table.commit({"code=a/x.parquet": numbers(1)})
    table.commit({"code=7/x.parquet": numbers(2)}, THEIRS)
    assert table.read(since=2).schema.field("code").type == pa.string()

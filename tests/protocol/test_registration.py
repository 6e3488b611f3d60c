"""The partitions of a catalog follow the log of the table, on moto's Glue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from airflow_s3commit import register_partitions
from airflow_s3commit.exceptions import DestinationChanged, InvalidOption
from airflow_s3commit.protocol.publication import RegistrationReport
from tests.moto_glue import flights, glue_client, registered
from tests.protocol.building import THEIRS, Crash, Lake, an_id, named

THIRD = an_id("third")


@pytest.fixture
def glue() -> Iterator[Any]:
    """Return a client of an account with a table at the lake's dataset."""
    with glue_client() as client:
        yield client


def register(lake: Lake, glue: Any) -> RegistrationReport:
    """Register the partitions from a process that has just started."""
    return register_partitions(lake.store, flights(glue))


def add(glue: Any, *values: str) -> None:
    """Add partitions behind the table's back."""
    flights(glue).add([(value,) for value in values], [f"dt={value}" for value in values])


def test_a_catalog_gets_what_commits_bring_and_loses_what_they_empty(glue: Any) -> None:
    """A second run changes nothing; a replace of the whole table removes the partitions it leaves out."""
    lake = Lake()
    lake.sealed({"dt=1/a": b"1", "dt=2/a": b"2"}).commit()
    report = register(lake, glue)
    assert (report.generation, report.partitions, report.added) == (2, 2, ["dt=1", "dt=2"])
    assert registered(glue) == {"1": "s3://lake/flights/dt=1", "2": "s3://lake/flights/dt=2"}
    assert register(lake, glue).added == []
    lake.sealed({"dt=3/a": b"3"}, job_id=THEIRS, committer="directory").commit()
    report = register(lake, glue)
    assert (report.generation, report.added, report.removed) == (3, ["dt=3"], ["dt=1", "dt=2"])
    assert registered(glue).keys() == {"3"}


def test_values_are_those_of_the_directories(glue: Any) -> None:
    """Escaped characters and nulls match what Spark and Athena have in their catalogs."""
    lake = Lake()
    lake.sealed({"dt=a%3Ab/a": b"1", "dt=__HIVE_DEFAULT_PARTITION__/a": b"2"}).commit()
    register(lake, glue)
    assert registered(glue) == {
        "a:b": "s3://lake/flights/dt=a%3Ab",
        "__HIVE_DEFAULT_PARTITION__": "s3://lake/flights/dt=__HIVE_DEFAULT_PARTITION__",
    }


@pytest.mark.parametrize("other", ["dt=a%20b", "DT=a b"])
def test_directories_that_a_catalog_cannot_tell_apart_are_refused(other: str, glue: Any) -> None:
    """It would have one of them, and readers would miss the rows of the other; nothing is registered."""
    lake = Lake()
    lake.sealed({"dt=a b/a": b"1", f"{other}/a": b"2"}).commit()
    with pytest.raises(InvalidOption, match=f"'{other}'.* one partition to a catalog"):
        register(lake, glue)
    assert not registered(glue)


def test_an_aborted_job_leaves_no_partition_and_takes_none(glue: Any) -> None:
    """Spark's changes before the commit are undone, whether the job is aborted yet or not."""
    lake = Lake()
    lake.sealed({"dt=1/a": b"1"}).commit()
    register(lake, glue)
    job = lake.sealed({"dt=2/a": b"2"}, job_id=THEIRS)
    for _ in range(2):
        add(glue, "2")
        flights(glue).remove([("1",)])
        report = register(lake, glue)
        assert (report.added, report.removed) == (["dt=1"], ["dt=2"])
        assert registered(glue).keys() == {"1"}
        job.abort()


def test_partitions_outside_the_log_stay(glue: Any) -> None:
    """A partition stays if it is elsewhere, has foreign files, or has files that are older than the log."""
    lake = Lake()
    lake.put({"dt=0/old": b"0", f"dt=8/{named('old', THIRD)}": b"8", "dt=7/_hidden": b"7"})
    lake.sealed({"dt=1/a": b"1"}, conflict_mode="append").commit()
    lake.put({"dt=2/foreign": b"2"})
    elsewhere = {"Values": ["9"], "StorageDescriptor": {"Location": "s3://lake/elsewhere/dt=9"}}
    glue.create_partition(DatabaseName="lake", TableName="flights", PartitionInput=elsewhere)
    add(glue, "0", "2", "7", "8")
    assert register(lake, glue).removed == ["dt=7"]
    assert registered(glue).keys() == {"0", "1", "2", "8", "9"}


def test_a_partition_whose_files_are_retained_is_removed_whoever_wrote_them(glue: Any) -> None:
    """Older than the log, or of other programs: readers would return rows that were replaced."""
    lake = Lake()
    lake.put({"dt=0/old": b"0"})
    lake.sealed({"dt=1/a": b"1"}, conflict_mode="append").commit()
    lake.put({"dt=2/foreign": b"2"})
    add(glue, "0", "2")
    lake.sealed({"dt=3/b": b"3"}, job_id=THEIRS, committer="directory", retain="7d").commit()
    assert register(lake, glue).removed == ["dt=0", "dt=2"]
    lake.put({"dt=0/newer": b"4"})
    add(glue, "0")
    assert register(lake, glue).removed == []


def test_without_a_commit_only_empty_partitions_go(glue: Any) -> None:
    """A table that has no log yet keeps the partitions with files."""
    lake = Lake()
    lake.put({f"dt=1/{named('a', THIRD)}": b"1"})
    add(glue, "1", "2")
    report = register(lake, glue)
    assert (report.generation, report.removed) == (0, ["dt=2"])


def test_a_commit_meanwhile_is_registered_too(glue: Any) -> None:
    """A registration that read the log before another's commit ends with that commit's partitions."""
    lake = Lake()
    lake.sealed({"dt=1/a": b"1"}).commit()
    table = flights(glue)
    found = table.partitions

    def overtaken() -> Any:
        table.partitions = found
        lake.sealed({"dt=2/a": b"2"}, job_id=THEIRS).commit()
        register(lake, glue)
        return found()

    table.partitions = overtaken  # type: ignore[method-assign]
    assert register_partitions(lake.store, table).generation == 3
    assert registered(glue).keys() == {"1", "2"}


@pytest.mark.slow
def test_a_registration_gives_up(glue: Any) -> None:
    """If a commit overtakes each look at the catalog, the error says to try again."""
    lake = Lake()
    table = flights(glue)
    found, numbers = table.partitions, iter(range(1000))

    def overtaken() -> Any:
        number = next(numbers)
        lake.sealed({f"dt={number}/a": b"1"}, job_id=an_id(f"job {number}")).commit()
        return found()

    table.partitions = overtaken  # type: ignore[method-assign]
    with pytest.raises(DestinationChanged, match="20 times"):
        register_partitions(lake.store, table)


def test_retained_files_that_a_reader_would_list_are_refused(glue: Any) -> None:
    """A partition that is gone is removed, with or without files; one with old and new files is refused."""
    lake = Lake()
    lake.sealed({"dt=1/a": b"1", "dt=2/a": b"2"}).commit()
    register(lake, glue)
    lake.sealed({"dt=3/b": b"3"}, job_id=THEIRS, committer="directory", retain="7d").commit()
    assert register(lake, glue).removed == ["dt=1", "dt=2"]
    lake.sealed({"dt=3/c": b"4"}, job_id=THIRD, retain="7d").commit()
    with pytest.raises(InvalidOption, match=r"partition 'dt=3' of .* retains"):
        register(lake, glue)
    assert registered(glue).keys() == {"3"}


def test_a_partition_is_registered_again_once_a_sweep_has_deleted_its_old_files(glue: Any) -> None:
    """What is released and still there, because a sweep died, is refused as what is retained."""
    lake = Lake()
    lake.sealed({"dt=3/a": b"1"}).commit()
    lake.sealed({"dt=3/b": b"2"}, job_id=THEIRS, retain="1h").commit()
    lake.store_clock.sleep(86_400)
    lake.store.die("delete")
    with pytest.raises(Crash):
        lake.sweep()
    lake.store.rest()
    with pytest.raises(InvalidOption, match="has replaced and retains"):
        register(lake, glue)
    lake.sweep()
    assert register(lake, glue).added == ["dt=3"]


def test_retained_objects_of_other_programs_are_refused_too(glue: Any) -> None:
    """A replace took them from a partition that had no files of the table; a reader would list them."""
    lake = Lake()
    lake.sealed({"dt=1/a": b"1"}).commit()
    lake.put({"dt=2/foreign": b"2"})
    lake.sealed({"dt=2/b": b"2"}, job_id=THEIRS, retain="1h").commit()
    with pytest.raises(InvalidOption, match=r"'dt=2' of .* retains"):
        register(lake, glue)


def test_a_directory_that_is_not_a_partition_is_refused(glue: Any) -> None:
    """Nothing changes if the catalog's columns are not those of the directories."""
    lake = Lake()
    lake.sealed({"day=1/a": b"1"}).commit()
    add(glue, "5")
    with pytest.raises(InvalidOption, match="'day=1' of s3://lake/flights/ is not a partition by dt"):
        register(lake, glue)
    assert registered(glue).keys() == {"5"}


def test_an_unpartitioned_table_has_nothing_to_register(glue: Any) -> None:
    """The error names the table."""
    storage = {"Columns": [], "Location": "s3://lake/flights/"}
    glue.update_table(DatabaseName="lake", TableInput={"Name": "flights", "StorageDescriptor": storage})
    with pytest.raises(InvalidOption, match=r"table lake\.flights has no partition columns"):
        register(Lake(), glue)

"""A closed baseline names every file that is older than the log, and changes no table."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_s3commit import BaselineReport, baseline, rollback, write_job
from airflow_s3commit.exceptions import DestinationChanged, InvalidDestination, InvalidRecord
from airflow_s3commit.protocol.inspect.verify_table import TableReport, verify
from airflow_s3commit.protocol.metadata.snapshot import read_snapshot, write_checkpoint
from airflow_s3commit.reader.listing import Choice, find_table
from airflow_s3commit.testing import StoreCall
from tests.cases import each
from tests.protocol.building import BUCKET, HOME, OURS, ROOT, THEIRS, Crash, Lake, an_id, apart, named, once
from tests.protocol.lifecycle.test_enter import crash
from tests.protocol.metadata.test_snapshot import FLIGHTS

OLD = {"dt=1/a": b"1", "dt=2/b": b"22", "root": b"r", "_hidden/x": b"h"}
DATA = {"dt=1/a", "dt=2/b", "root"}
THIRD = an_id("third")


def closed(lake: Lake, **asked: Any) -> BaselineReport:
    """Close the baseline."""
    return baseline(
        lake.store, FLIGHTS, clock=lake.clock, new_id=lake.new_id, threads=0, **{"dry_run": False, **asked}
    )


def paths(lake: Lake, **choice: Any) -> list[str]:
    """Return the paths that a reader finds, with repetitions."""
    found = find_table(lake.store, FLIGHTS, Choice(**choice)).files
    return sorted(file.path.removeprefix(f"{BUCKET}/{ROOT}") for file in found)


def table(lake: Lake, **choice: Any) -> set[str]:
    """Return the distinct paths that a reader finds."""
    return set(paths(lake, **choice))


def is_sound(lake: Lake) -> bool:
    """Return whether the table matches its log, with nothing beside it."""
    report = verify(lake.store, FLIGHTS, threads=0)
    assert isinstance(report, TableReport)
    return report.sound and not report.older


def test_the_history_of_older_data_begins_with_a_list() -> None:
    """Each file is in the list with size and ETag, and a reader finds it without listing the destination."""
    lake = Lake()
    lake.put(OLD)
    report = closed(lake)
    assert (report.generation, report.files, report.bytes, report.partitions) == (1, 3, 4, 3)
    assert lake.data().keys() >= DATA
    lake.store.calls.clear()
    assert table(lake) == DATA
    assert ("list_objects", ROOT) not in lake.store.calls
    assert is_sound(lake)
    lake.put({"dt=1/foreign": b"f"})
    found = verify(lake.store, FLIGHTS, threads=0)
    assert isinstance(found, TableReport)
    assert [one.key for one in found.foreign] == [f"{ROOT}dt=1/foreign"]
    assert table(lake) == DATA


def test_a_dry_run_changes_nothing() -> None:
    """A dry run only counts the files that it would list."""
    lake = Lake()
    lake.put(OLD)
    before = lake.everything()
    assert (closed(lake, dry_run=True).files, closed(lake, dry_run=True).generation) == (3, None)
    assert lake.everything() == before


@each("with_checkpoint", [False, True])
def test_an_open_baseline_is_closed(with_checkpoint: bool) -> None:
    """Files that later commits left are listed; theirs are not listed twice, nor are files added since."""
    lake = Lake()
    lake.put(OLD)
    lake.sealed({"dt=1/new": b"n"}, job_id=THEIRS).commit()
    lake.sealed({"dt=2/more": b"m"}, conflict_mode="append").commit()
    before = table(lake)
    report = closed(lake)
    assert (report.generation, report.files) == (4, 2)
    if with_checkpoint:
        write_checkpoint(lake.store, FLIGHTS, 4, always=True)
    assert table(lake) == before == {"dt=2/b", "root", named("dt=1/new", THEIRS), named("dt=2/more")}
    assert table(lake, since=2) == {named("dt=2/more")}
    assert table(lake, since=3) == set()
    assert table(lake, since=0) == before
    assert is_sound(lake)
    assert closed(lake).closed


def test_replace_and_rollback_know_every_file() -> None:
    """A replace removes listed files, and a rollback takes back later ones in their partitions."""
    lake = Lake()
    lake.put(OLD)
    closed(lake)
    lake.sealed({"dt=1/more": b"m"}, conflict_mode="append").commit()
    rollback(lake.store, FLIGHTS, to=1, clock=lake.clock, threads=0)
    assert table(lake) == DATA
    lake.sealed({"dt=1/new": b"n"}, job_id=THIRD).commit()
    assert table(lake) == {"dt=2/b", "root", named("dt=1/new", THIRD)}
    assert lake.data().keys() == {"dt=2/b", "root", "_hidden/x", named("dt=1/new", THIRD)}
    assert is_sound(lake)


def test_files_of_unfinished_and_aborted_jobs_are_left_out() -> None:
    """A job that has begun to publish is named, and its files arrive with its commit."""
    lake = Lake()
    lake.put({**OLD, named("dt=2/c", THIRD): b"of a job of whom nothing else is known"})
    job = lake.sealed({"dt=1/x": b"x", "dt=1/y": b"y"}, conflict_mode="append")
    crash(lake, job.commit, "complete_upload", "")
    lake.put({named("dt=1/x"): b"x"})
    report = closed(lake)
    assert (report.files, report.unfinished) == (4, [OURS])


def test_a_commit_meanwhile_is_taken_into_account() -> None:
    """Its entry comes first, and the files are listed again."""
    lake = Lake()
    lake.put(OLD)
    job = lake.sealed({"dt=1/new": b"n"})

    def commit() -> None:
        lake.store.rest()
        with apart():
            job.commit()

    lake.store.before = once("put", "log/00000000000000000001.json", commit)
    report = closed(lake)
    assert (report.generation, report.files) == (3, 2)
    assert table(lake) == {"dt=2/b", "root", named("dt=1/new")}
    assert is_sound(lake)
    assert len([key for key in lake.keys(f"{HOME}manifests/") if key.endswith(".jsonl")]) == 2


def test_it_gives_up_beside_many_commits() -> None:
    """After three outdated lists it changes nothing."""
    lake = Lake()
    lake.put(OLD)

    def commit(call: StoreCall) -> None:
        if call.verb == "put" and "/log/" in call.key:
            lake.store.rest()
            with apart():
                lake.sealed({"dt=9/x": b"x"}, job_id=an_id(lake.new_id()), conflict_mode="append").commit()
            lake.store.before = commit

    lake.store.before = commit
    with pytest.raises(DestinationChanged, match="each of 3 times"):
        closed(lake)
    assert len([key for key in lake.keys(f"{HOME}manifests/") if key.endswith(".jsonl")]) == 3


@each("dry_run", [True, False])
@each("above", ["s3://lake/", "s3://lake/flights/"])
def test_a_prefix_above_another_dataset_is_refused_by_name(above: str, dry_run: bool) -> None:
    """Files of a dataset with its own records would be in two tables."""
    lake = Lake()
    lake.put(OLD)
    below = "s3://lake/flights/" if above == "s3://lake/" else "s3://lake/flights/below/"
    with write_job(below, store=lake.store, conflict_mode="append") as job:
        job.open("dt=1/x").close()
    before = lake.keys("")
    with pytest.raises(InvalidDestination, match=f"such as {below},"):
        baseline(lake.store, above, dry_run=dry_run, threads=0)
    assert [key for key in lake.keys("") if "/log/" in key] == [key for key in before if "/log/" in key]


def test_a_process_that_dies_does_no_harm() -> None:
    """Before the entry readers see no change, and afterwards the next run finishes."""
    for verb, ending, generation in (
        ("put", "log/00000000000000000001.json", 1),
        ("put", "_SUCCESS", None),
    ):
        lake = Lake()
        lake.put(OLD)
        crash(lake, lambda lake=lake: closed(lake), verb, ending)  # type: ignore[misc]
        assert closed(lake).generation == generation
        assert table(lake) == DATA


@each("aborts", [False, True])
def test_a_copy_with_retained_files_is_refused(aborts: bool) -> None:
    """Its retained files would be taken for data; an abort at the copy begins no history."""
    lake = Lake()
    lake.sealed({"dt=1/a": b"1"}, job_id=THEIRS, conflict_mode="append").commit()
    lake.sealed({"dt=1/a": b"2"}, retain="7d").commit()
    copy = Lake(prefix="copy/")
    for key in lake.keys(ROOT):
        copy.store.put(BUCKET, key.replace(ROOT, "copy/", 1), lake.get(key))
    if aborts:
        copy.set_up(an_id("aborted at the copy")).abort()
    with pytest.raises(InvalidRecord, match="only the files of its newest generation"):
        baseline(copy.store, copy.destination, dry_run=False, clock=copy.clock, threads=0)


def test_listed_files_have_the_number_of_their_baseline() -> None:
    """They are older than every commit of the history."""
    lake = Lake()
    lake.put(OLD)
    lake.sealed({"dt=2/more": b"m"}, conflict_mode="append").commit()
    closed(lake)
    snapshot = read_snapshot(lake.store, FLIGHTS)
    assert snapshot is not None
    assert (snapshot.baseline, [commit.number for commit in snapshot.commits()]) == (0, [1, 2])
    assert snapshot.newest_in(["dt=2"]) == OURS


@each("marker", [b"", b"another program's"])
def test_the_list_replaces_another_program_s_marker(marker: bytes) -> None:
    """A table that another committer left, with its ``_SUCCESS``, is sound once its files are listed."""
    lake = Lake()
    lake.put({**OLD, "_SUCCESS": marker})
    closed(lake)
    assert is_sound(lake)


def test_a_list_whose_process_died_is_finished_by_another() -> None:
    """If the first lister died after its entry, a second one adds the marker and the checkpoint."""
    lake = Lake()
    lake.put({**OLD, "_SUCCESS": b""})
    lake.store.die("put", "log/00000000000000000001.json", after=True)
    with pytest.raises(Crash):
        closed(lake)
    lake.store.rest()
    assert not is_sound(lake)
    assert closed(lake).closed
    assert is_sound(lake)
    assert lake.keys(f"{HOME}checkpoints/") != []

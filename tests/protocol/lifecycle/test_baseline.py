"""A dataset's history begins with its existing data."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from airflow_s3commit import Job, JobOptions
from airflow_s3commit.exceptions import DestinationNotEmpty
from airflow_s3commit.protocol.metadata.log import read_entry
from airflow_s3commit.protocol.metadata.manifests import manifest_of
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.testing import StoreCall
from tests.cases import each
from tests.protocol.building import BUCKET, OURS, ROOT, THEIRS, Crash, Lake, an_id, named, once

SUCCESS = f"{ROOT}_SUCCESS"
OLD = {"dt=1/old": b"old"}
MODES = ["append", "fail", "replace"]


def log(lake: Lake) -> list[dict[str, Any]]:
    """Return the entries of the log."""
    return [json.loads(lake.get(key)) for key in lake.keys(f"{lake.prefix}_s3commit/log/")]


def kinds(lake: Lake) -> list[tuple[str, str]]:
    """Return the job and kind of each entry of the log."""
    return [(entry["job_id"], entry["kind"]) for entry in log(lake)]


def begun(mode: str = "append") -> Lake:
    """Return a lake whose history has begun with a commit; the store's clock has advanced since."""
    lake = Lake()
    lake.sealed({"dt=0/first": b"1"}, job_id=an_id("first"), conflict_mode=mode).commit()
    lake.store_clock.advance(10)
    return lake


# Baselines.


@each("mode", MODES)
def test_the_history_of_an_empty_destination_begins_with_its_first_commit(mode: str) -> None:
    """Nothing comes before it, and every entry names it as the beginning."""
    lake = Lake()
    lake.set_up(an_id("given up")).abort()
    lake.sealed({"dt=1/a": b"1"}, conflict_mode=mode).commit()
    lake.sealed({"dt=2/b": b"2"}, job_id=THEIRS, conflict_mode=mode).commit()
    assert [(entry["kind"], entry["epoch"]) for entry in log(lake)] == [
        ("abandon", 0),
        ("commit", 2),
        ("commit", 2),
    ]


@each("mode", ["append", "replace"])
def test_older_data_gets_one_baseline(mode: str) -> None:
    """The first commit to a dataset without a history records it before its own entry; the next does not."""
    lake = Lake()
    lake.put(OLD)
    lake.sealed({"dt=1/a": b"1"}, conflict_mode=mode).commit()
    lake.sealed({"dt=2/b": b"2"}, job_id=THEIRS, conflict_mode=mode).commit()
    assert kinds(lake) == [(OURS, "baseline"), (OURS, "commit"), (THEIRS, "commit")]
    assert [entry["epoch"] for entry in log(lake)] == [1, 1, 1]
    assert log(lake)[0]["baseline"]["reason"] == "data"
    new = {named("dt=1/a"): b"1", named("dt=2/b", THEIRS): b"2"}
    assert lake.data() == {**(OLD if mode == "append" else {}), **new}


def test_an_abort_begins_no_history() -> None:
    """An aborted job records nothing about the data, and blocks no other job."""
    lake = Lake()
    lake.put(OLD)
    lake.set_up().abort()
    assert kinds(lake) == [(OURS, "abandon")]
    lake.sealed({"dt=1/a": b"1"}, job_id=THEIRS, conflict_mode="append").commit()
    assert kinds(lake)[1:] == [(THEIRS, "baseline"), (THEIRS, "commit")]


def test_files_of_unfinished_jobs_are_not_data() -> None:
    """Jobs that begin a table together do not take each other's files for older data."""
    lake = Lake()
    jobs = [lake.sealed({f"dt={n}/a": b"1"}, job_id=an_id(f"{n}"), conflict_mode="append") for n in range(3)]
    for job in jobs:
        job.begin(2)
        job.complete(0)
    for job in jobs:
        job.complete(1)
        job.finish()
    assert [kind for _, kind in kinds(lake)] == ["commit"] * 3


@each("nth", range(1, 60))
def test_two_first_commits_make_one_baseline(nth: int) -> None:
    """Wherever one first commit is when another one runs, there is one baseline."""
    lake = Lake()
    lake.put(OLD)
    ours = lake.sealed({"dt=1/a": b"1"}, conflict_mode="append")
    theirs = lake.sealed({"dt=1/b": b"2"}, job_id=THEIRS, conflict_mode="append")
    first = len(lake.store.calls)

    def between(_call: StoreCall) -> None:
        if len(lake.store.calls) - first == nth:
            lake.store.rest()
            theirs.commit()

    lake.store.before = between
    ours.commit()
    lake.store.rest()
    theirs.commit()
    entries = log(lake)
    assert [entry["kind"] for entry in entries] == ["baseline", "commit", "commit"]
    assert {entry["epoch"] for entry in entries} == {1}
    assert lake.data() == {**OLD, named("dt=1/a"): b"1", named("dt=1/b", THEIRS): b"2"}


@each("nth", range(1, 60))
def test_a_first_commit_that_died_is_finished_with_one_baseline(nth: int) -> None:
    """Wherever the first commit to an older dataset dies, the next try ends with one baseline."""
    lake = Lake()
    lake.put(OLD)
    job = lake.sealed({"dt=1/a": b"1"}, conflict_mode="append")
    first = len(lake.store.calls)

    def die(_call: StoreCall) -> None:
        if len(lake.store.calls) - first == nth:
            lake.store.crash()

    lake.store.before = die
    try:
        job.commit()
    except Crash:
        lake.store.rest()
    lake.store.rest()
    lake.job().commit()
    assert kinds(lake) == [(OURS, "baseline"), (OURS, "commit")]
    assert lake.data() == {**OLD, named("dt=1/a"): b"1"}
    assert (lake.pending(), lake.staging()) == ([], [])


def test_an_append_does_not_list_an_older_table() -> None:
    """One page of a listing shows that there is data; no commit reads more of it."""
    made = []
    for files in (1, 2_500):
        lake = Lake()
        lake.put({f"dt=1/{number:05d}": b"" for number in range(files)})
        job = lake.sealed({"dt=2/a": b"1"}, conflict_mode="append")
        lake.store.calls.clear()
        job.commit()
        made.append(len(lake.store.calls))
    assert made[0] == made[1]


@each("mode", ["replace", "fail"])
def test_a_baseline_after_the_plan_is_a_conflict(mode: str) -> None:
    """It covers another program's file that the plan does not name, and that comes before it."""
    lake = Lake()
    ours = lake.sealed({"dt=1/a": b"1"}, conflict_mode=mode)
    theirs = lake.sealed({"dt=2/b": b"2"}, job_id=THEIRS, conflict_mode="append")

    def begin_history() -> None:
        lake.store.rest()
        lake.put({"dt=1/x": b"x"})
        theirs.commit()

    lake.store.before = once("complete_upload", "", begin_history)
    if mode == "fail":
        with pytest.raises(DestinationNotEmpty, match="rolled back"):
            ours.commit()
        assert lake.data().keys() == {"dt=1/x", named("dt=2/b", THEIRS)}
    else:
        ours.commit()
        assert lake.data().keys() == {named("dt=1/a"), named("dt=2/b", THEIRS)}


def test_a_baseline_is_no_conflict_where_it_has_nothing() -> None:
    """A job that fails on data continues if the data older than the log is in other partitions."""
    lake = Lake()
    ours = lake.sealed({"dt=1/a": b"1"}, conflict_mode="fail")
    theirs = lake.sealed({"dt=2/b": b"2"}, job_id=THEIRS, conflict_mode="append")

    def begin_history() -> None:
        lake.store.rest()
        lake.put({"dt=9/x": b"x"})
        theirs.commit()

    lake.store.before = once("complete_upload", "", begin_history)
    ours.commit()
    assert lake.data().keys() == {named("dt=1/a"), named("dt=2/b", THEIRS), "dt=9/x"}


# Copies.


def copied(lake: Lake, to: str, *, bucket: str = BUCKET, back: str = ROOT) -> None:
    """Copy every object of a dataset to another prefix, with its metadata."""
    there = lake.store.inner._buckets[bucket].objects
    for key, stored in list(lake.store.inner._buckets[BUCKET].objects.items()):
        if key.startswith(back):
            moved = to + key.removeprefix(back)
            there[moved] = replace(stored, info=replace(stored.info, key=moved))


@each("mode", MODES)
def test_a_copy_begins_a_history_of_its_own(mode: str) -> None:
    """Its first commit follows the copied entries, after a baseline, and leaves the original unchanged."""
    lake = begun()
    copied(lake, "copy/")
    original = {key: lake.get(key) for key in lake.keys(ROOT)}
    copy = Lake(prefix="copy/")
    copy.store, copy.clock, copy.store_clock = lake.store, lake.clock, lake.store_clock
    copy._ids = iter(range(500, 10_000))  # type: ignore[assignment]
    copy.sealed({"dt=1/a": b"1"}, conflict_mode=mode).commit()
    assert [(entry["kind"], entry["epoch"]) for entry in log(copy)] == [
        ("commit", 1),
        ("baseline", 2),
        ("commit", 2),
    ]
    assert log(copy)[1]["baseline"]["reason"] == "copy"
    assert copy.data() == {named("dt=0/first", an_id("first")): b"1", named("dt=1/a"): b"1"}
    assert {key: lake.get(key) for key in lake.keys(ROOT)} == original
    lake.sealed({"dt=1/o": b"o"}, job_id=THEIRS, conflict_mode=mode).commit()
    assert [entry["epoch"] for entry in log(lake)] == [1, 1]
    # And back: what was the original's own history lies before the copy's.
    copied(lake, ROOT, back="copy/")
    lake.sealed({"dt=2/b": b"b"}, job_id=an_id("back"), conflict_mode="append").commit()
    assert log(lake)[-2]["baseline"]["reason"] == "copy"
    assert {entry["epoch"] for entry in log(lake)[-2:]} == {len(log(lake)) - 1}
    home = Destination.parse(lake.destination)
    assert manifest_of(lake.store, home, None).job_id == an_id("back")


@each("mode", MODES)
def test_a_copy_in_another_bucket_begins_a_history_of_its_own(mode: str) -> None:
    """The copy's content is its baseline; the original stays the same, byte for byte."""
    lake = begun()
    copied(lake, "copy/", bucket="other")
    original = {key: lake.get(key) for key in lake.keys("")}
    options = JobOptions(committer="magic", conflict_mode=mode)  # type: ignore[arg-type]
    made = Job.setup(
        lake.store, "s3://other/copy/", options=options, job_id=OURS, clock=lake.clock, new_id=lake.new_id
    )
    job = Job.at(lake.store, made.reference, clock=lake.clock, new_id=lake.new_id)
    lake.run_stage(job, {"dt=1/a": b"1"})
    job.seal()
    assert job.commit().generation == 3
    second = read_entry(lake.store, Destination("other", "copy/"), 2)
    assert (second.kind, second.baseline and second.baseline.reason) == ("baseline", "copy")
    assert {key: lake.get(key) for key in lake.keys("")} == original

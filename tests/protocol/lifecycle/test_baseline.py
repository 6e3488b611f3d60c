"""A dataset's history begins with its existing data; versions without a log can run beside it unharmed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_s3commit import Job, JobOptions
from airflow_s3commit.exceptions import DestinationNotEmpty, InvalidRecord, LockHeld
from airflow_s3commit.protocol.metadata import records
from airflow_s3commit.protocol.metadata.log import newest_commit, read_entry
from airflow_s3commit.protocol.metadata.manifests import manifest_of
from airflow_s3commit.protocol.model.codec import encode
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.job import LockRecord
from airflow_s3commit.protocol.model.ownership import HmacSigner
from airflow_s3commit.protocol.sweep.apply import sweep
from airflow_s3commit.testing import StoreCall
from tests.cases import each
from tests.history import History
from tests.protocol.building import BUCKET, HOME, OURS, ROOT, THEIRS, Crash, Lake, an_id, apart, named, once

SUCCESS = f"{ROOT}_SUCCESS"
LOCK = f"{HOME}lock.json"
OLD = {"dt=1/old": b"old"}
DAY = 86_400.0
OLDER = an_id("of an older version")
MODES = ["append", "fail", "replace"]


def log(lake: Lake) -> list[dict[str, Any]]:
    """Return the entries of the log."""
    return [json.loads(lake.get(key)) for key in lake.keys(f"{lake.prefix}_s3commit/log/")]


def kinds(lake: Lake) -> list[tuple[str, str]]:
    """Return the job and kind of each entry of the log."""
    return [(entry["job_id"], entry["kind"]) for entry in log(lake)]


def older_append(lake: Lake, path: str = "dt=1/x", *, job_id: str = OLDER, marker: bool = True) -> None:
    """Commit one file as a version without a log does: manifest and marker without a generation."""
    other = Lake()
    other.store_clock.advance(lake.store_clock.time() - other.store_clock.time())
    with apart():
        other.sealed({path: b"x"}, job_id=job_id, conflict_mode="append").commit()
    theirs = other.store.inner._buckets[BUCKET].objects
    ours = lake.store.inner._buckets[BUCKET].objects
    for key in (ROOT + named(path, job_id), f"{HOME}manifests/{job_id}.jsonl"):
        ours[key] = theirs[key]
    manifest = json.loads(other.get(f"{HOME}manifests/{job_id}.json"))
    del manifest["generation"]
    lake.store.put(BUCKET, f"{HOME}manifests/{job_id}.json", json.dumps(manifest).encode())
    if marker:
        success = json.loads(other.get(SUCCESS))
        for name in ("s3commit.generation", "s3commit.nonce"):
            del success["diagnostics"][name]
        lake.store.put(BUCKET, SUCCESS, json.dumps(success).encode())


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
@each("reason", ["data", "manifests"])
def test_older_data_gets_one_baseline(reason: str, mode: str) -> None:
    """The first commit to a dataset without a history records it before its own entry; the next does not."""
    lake = Lake()
    lake.put(OLD)
    if reason == "manifests":
        older_append(lake, "Z=1/x")
    lake.sealed({"dt=1/a": b"1"}, conflict_mode=mode).commit()
    lake.sealed({"dt=2/b": b"2"}, job_id=THEIRS, conflict_mode=mode).commit()
    assert kinds(lake) == [(OURS, "baseline"), (OURS, "commit"), (THEIRS, "commit")]
    assert [entry["epoch"] for entry in log(lake)] == [1, 1, 1]
    assert log(lake)[0]["baseline"]["reason"] == reason
    kept = {named("Z=1/x", OLDER): b"x"} if reason == "manifests" else {}
    new = {named("dt=1/a"): b"1", named("dt=2/b", THEIRS): b"2"}
    assert lake.data() == {**(OLD if mode == "append" else {}), **kept, **new}


def test_an_abort_begins_no_history() -> None:
    """An aborted job records nothing about the data, and blocks no other job."""
    lake = Lake()
    lake.put(OLD)
    lake.set_up().abort()
    assert kinds(lake) == [(OURS, "abandon")]
    assert LOCK not in lake.keys("")
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


# Versions without a log beside this one.


def older_lock(lake: Lake, **changes: Any) -> LockRecord:
    """Put the lock of a job of an older version on the lake."""
    fields = {"job_id": THEIRS, "destination": lake.destination, "owner": "old", "lease": 60.0, "nonce": "n"}
    lock = LockRecord(**{**fields, "staging": f"{lake.destination}__magic_job-{THEIRS}/", **changes})
    lake.store.put(BUCKET, f"{lake.prefix}_s3commit/lock.json", encode(lock))
    return lock


def barrier(lake: Lake) -> LockRecord:
    """Return the lock that bars older versions."""
    key = f"{lake.prefix}_s3commit/lock.json"
    stored = records.find(lake.store, BUCKET, key, LockRecord)
    assert stored is not None
    return stored.record


@each("mode", MODES)
def test_a_living_job_of_an_older_version_is_waited_for(mode: str) -> None:
    """While it holds its lock it may delete what it finds, so nothing is published beside it."""
    lake = Lake()
    lock = older_lock(lake)
    lake.sealed({"dt=1/a": b"1"}, conflict_mode=mode)
    with pytest.raises(LockHeld, match=f"job {THEIRS}"):
        lake.job().commit()
    assert (lake.data(), barrier(lake), log(lake)) == ({}, lock, [])
    lake.store.delete(BUCKET, LOCK)
    lake.job().commit()
    assert lake.data() == {named("dt=1/a"): b"1"}


def test_a_dead_job_of_an_older_version_is_settled_first() -> None:
    """A half-published job with a lapsed lock is finished before the history's first own commit."""
    lake = Lake()
    theirs = lake.sealed({"dt=1/t": b"t", "dt=1/u": b"u"}, job_id=THEIRS)
    lake.store.die("complete_upload", named("dt=1/u", THEIRS))
    with pytest.raises(Crash):
        theirs.commit()
    lake.store.rest()
    older_lock(lake)
    lake.store_clock.advance(100)
    lake.sealed({"dt=1/a": b"1"}).commit()
    assert kinds(lake) == [(THEIRS, "commit"), (OURS, "commit")]
    assert lake.data() == {named("dt=1/a"): b"1"}


def test_a_job_of_an_older_version_that_has_not_begun_is_fenced() -> None:
    """Its process finds that its state has changed, and checks its plan again."""
    lake = Lake()
    lake.sealed({"dt=1/t": b"t"}, job_id=THEIRS)
    key = lake.context(THEIRS).layout.state
    before = lake.store.head(BUCKET, key).etag
    older_lock(lake)
    lake.store_clock.advance(DAY)
    lake.sealed({"dt=1/a": b"1"}).commit()
    state = lake.job(THEIRS).state()
    assert (state is not None and state.state, lake.store.head(BUCKET, key).etag != before) == (
        "sealed",
        True,
    )


def test_a_job_of_an_older_version_does_not_wait_for_its_own_lock() -> None:
    """A job that an older version began, and this one finishes, passes its own lock."""
    lake = Lake()
    older_lock(lake, job_id=OURS, staging=f"{lake.destination}__magic_job-{OURS}/")
    lake.sealed({"dt=1/a": b"1"}).commit()
    assert barrier(lake).job_id not in (OURS, THEIRS)


def test_a_lock_that_an_older_version_takes_meanwhile_is_respected() -> None:
    """A dead job's lock is taken over only if it is unchanged: a living holder keeps it."""
    lake = Lake()
    older_lock(lake)
    lake.store_clock.advance(DAY)
    job = lake.sealed({"dt=1/a": b"1"})
    alive = an_id("alive")

    def take() -> None:
        lake.store.rest()
        older_lock(lake, job_id=alive, staging=f"{lake.destination}__magic_job-{alive}/")

    lake.store.before = once("put", "/lock.json", take, nth=2)
    with pytest.raises(LockHeld, match=f"job {alive}"):
        job.commit()
    assert (barrier(lake).job_id, lake.data(), log(lake)) == (alive, {}, [])


def test_the_barrier_stays() -> None:
    """Neither another commit, nor an abort, nor a sweep removes or changes it."""
    lake = begun()
    lock = lake.get(LOCK)
    lake.sealed({"dt=1/a": b"1"}, unique_filenames=False).commit()
    lake.set_up(THEIRS).abort()
    lake.store_clock.advance(90 * DAY)
    report = sweep(lake.store, Destination.parse(lake.destination), older_than=DAY, dry_run=False, threads=0)
    assert (report.lock, report.plan.left) == (False, [])
    assert lake.get(LOCK) == lock


def test_a_damaged_lock_of_an_older_version_stops_the_first_commit() -> None:
    """A lock that cannot be read may be held, so nothing is published and the lock is not overwritten."""
    lake = Lake()
    lake.store.put(BUCKET, LOCK, b"{")
    job = lake.sealed({"dt=1/a": b"1"}, conflict_mode="append")
    with pytest.raises(InvalidRecord, match=r"lock\.json"):
        job.commit()
    assert (lake.data(), lake.get(LOCK)) == ({}, b"{")


@each("appends", [1, 3])
def test_an_older_versions_appends_are_entered(appends: int) -> None:
    """The next commit enters every append since the last one, oldest first, each only once."""
    lake = begun()
    older = [an_id(f"older {number}") for number in range(appends)]
    for job_id in older:
        lake.store_clock.advance(1)
        older_append(lake, job_id=job_id)
    for number in range(2):
        lake.sealed({"dt=2/a": b"1"}, job_id=an_id(f"ours {number}"), conflict_mode="append").commit()
        lake.store_clock.advance(10)
    expected = ["first", *(f"older {number}" for number in range(appends)), "ours 0", "ours 1"]
    assert [job_id for job_id, _ in kinds(lake)] == [an_id(name) for name in expected]
    for entry in log(lake)[1 : 1 + appends]:
        assert (entry["imported"], entry["removes"], entry["epoch"]) == (True, "nothing", 1)
        assert entry["manifest"]["generation"] == entry["number"]
        manifest = lake.job(entry["job_id"]).manifest()
        assert manifest is not None
        assert manifest.generation == entry["number"]


def test_an_import_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """The warning names the job, the number of files and the record that they come from."""
    lake = begun()
    older_append(lake)
    lake.sealed({"dt=2/a": b"1"}, conflict_mode="append").commit()
    (warned,) = [one for one in caplog.records if "of an older version" in one.getMessage()]
    imported = log(lake)[1]
    counts = imported["manifest"]["counts"]
    assert warned.levelname == "WARNING"
    assert (
        f"job {imported['job_id']} of an older version has appended {counts['files']} files"
        in warned.getMessage()
    )
    assert f"entry 2 takes them over, by s3://{BUCKET}/{HOME}manifests/" in warned.getMessage()


@each("nth", range(1, 60))
@each("act", ["die", "other"])
def test_an_older_versions_append_is_entered_once(act: str, nth: int) -> None:
    """Wherever the commit that enters it dies, or another one runs, the append has one entry."""
    lake = begun()
    older_append(lake)
    job = lake.sealed({"dt=2/a": b"1"}, conflict_mode="append")
    other = lake.sealed({"dt=2/b": b"1"}, job_id=THEIRS, conflict_mode="append")
    first = len(lake.store.calls)

    def strike(_call: StoreCall) -> None:
        if len(lake.store.calls) - first == nth:
            lake.store.rest()
            if act == "other":
                other.commit()
                return
            lake.store.crash()

    lake.store.before = strike
    try:
        job.commit()
    except Crash:
        lake.store.rest()
    lake.store.rest()
    other.commit()
    lake.job().commit()
    assert sorted(job_id for job_id, _ in kinds(lake)) == sorted([an_id("first"), OLDER, OURS, THEIRS])
    assert lake.data().keys() >= {named("dt=1/x", OLDER), named("dt=2/a"), named("dt=2/b", THEIRS)}


def test_an_append_that_was_replaced_before_its_entry_gets_none() -> None:
    """Its files are gone with the partition, and an entry would name missing files."""
    lake = begun()
    older_append(lake, marker=False)
    lake.store_clock.advance(1)
    lake.sealed({"dt=1/r": b"r"}, job_id=THEIRS).commit()
    lake.store_clock.advance(1)
    older_append(lake, "dt=9/unrelated", job_id=an_id("unrelated"), marker=False)
    marker = json.loads(lake.get(SUCCESS))
    marker["jobId"] = OLDER
    marker["diagnostics"] = {"s3commit.manifest": f"s3://{BUCKET}/{HOME}manifests/{OLDER}.json"}
    lake.store.put(BUCKET, SUCCESS, json.dumps(marker).encode())
    lake.sealed({"dt=2/a": b"1"}, conflict_mode="append").commit()
    assert [job for job, _ in kinds(lake)] == [an_id("first"), THEIRS, an_id("unrelated"), OURS]


@each("options", [{}, {"unique_filenames": False}])
def test_an_append_that_a_commit_is_about_to_delete_is_not_entered(options: dict[str, Any]) -> None:
    """A job whose plan names its files is settled first, because it decides whether they stay."""
    lake = begun()
    older_append(lake, marker=False)
    lake.store_clock.advance(1)
    replacing = lake.sealed({"dt=1/r": b"r"}, job_id=THEIRS, **options)
    lake.store.die("put", "log/00000000000000000002.json", after=True)
    with pytest.raises(Crash):
        replacing.commit()
    lake.store.rest()
    older_append(lake)
    lake.sealed({"dt=2/a": b"1"}, conflict_mode="append").commit()
    replacing.recover()
    history = History({}, lake.get).fold(lake.keys(f"{HOME}log/"))
    assert OLDER not in history.ended
    assert history.data.keys() == {ROOT + path for path in lake.data()}


@each("mode", ["replace", "fail"])
def test_a_baseline_after_the_plan_is_a_conflict(mode: str) -> None:
    """It covers an append of an older version that the plan does not name, and that comes before it."""
    lake = Lake()
    ours = lake.sealed({"dt=1/a": b"1"}, conflict_mode=mode)
    theirs = lake.sealed({"dt=2/b": b"2"}, job_id=THEIRS, conflict_mode="append")

    def begin_history() -> None:
        lake.store.rest()
        older_append(lake)
        theirs.commit()

    lake.store.before = once("complete_upload", "", begin_history)
    if mode == "fail":
        with pytest.raises(DestinationNotEmpty, match="rolled back"):
            ours.commit()
        assert lake.data().keys() == {named("dt=1/x", OLDER), named("dt=2/b", THEIRS)}
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
        older_append(lake, "dt=9/x")
        theirs.commit()

    lake.store.before = once("complete_upload", "", begin_history)
    ours.commit()
    assert lake.data().keys() == {named("dt=1/a"), named("dt=2/b", THEIRS), named("dt=9/x", OLDER)}


def test_an_append_beside_a_commit_keeps_its_marker_until_it_is_entered() -> None:
    """A commit that ends after the append does not overwrite the only trace of it."""
    lake = begun()
    job = lake.sealed({"dt=2/a": b"1"}, conflict_mode="append")
    lake.store.before = once("put", f"{OURS}.jsonl", lambda: (lake.store.rest(), older_append(lake))[0])
    with apart():
        job.commit()
    assert json.loads(lake.get(SUCCESS))["jobId"] == OLDER
    lake.store_clock.advance(1)
    lake.sealed({"dt=2/b": b"2"}, job_id=THEIRS, conflict_mode="append").commit()
    assert [job for job, _ in kinds(lake)] == [an_id("first"), OURS, OLDER, THEIRS]
    assert json.loads(lake.get(SUCCESS))["jobId"] == THEIRS


@each("commits", [1, 2])
def test_appends_whose_markers_were_overwritten_are_entered(commits: int) -> None:
    """Of several appends beside our commits ``_SUCCESS`` names the last; the next commit enters each."""
    lake = begun()
    names = [f"ours {number}" for number in range(commits)]
    older = [an_id(f"older {number}") for number in range(2)]
    slow, *others = [
        lake.sealed({f"dt=2/{name}": b"1"}, job_id=an_id(name), conflict_mode="append") for name in names
    ]

    def meanwhile() -> None:
        lake.store.rest()
        older_append(lake, job_id=older[0], marker=False)
        lake.store_clock.advance(1)
        for job in others:
            job.commit()
        lake.store_clock.advance(1)
        older_append(lake, job_id=older[1])
        lake.store_clock.advance(1)

    lake.store.before = once("put", f"{an_id(names[0])}.jsonl", meanwhile)
    with apart():
        slow.commit()
    lake.store_clock.advance(1)
    lake.sealed({"dt=2/b": b"2"}, job_id=THEIRS, conflict_mode="append").commit()
    ended = {job for job, _ in kinds(lake)}
    assert ended == {an_id("first"), *map(an_id, names), *older, THEIRS}
    history = History({}, lake.get).fold(lake.keys(f"{HOME}log/"))
    assert history.data.keys() == {ROOT + path for path in lake.data()}


def test_an_abort_restores_the_marker_of_an_entered_append() -> None:
    """An append of an older version is a commit like others once entered: its marker has a generation."""
    lake = begun()
    older_append(lake)
    job = lake.sealed({"dt=2/a": b"1"}, conflict_mode="append")
    lake.store.die("complete_upload", named("dt=2/a"))
    with pytest.raises(Crash):
        job.commit()
    lake.store.rest()
    lake.job().abort()
    marker = json.loads(lake.get(SUCCESS))
    assert (marker["jobId"], marker["diagnostics"]["s3commit.generation"]) == (OLDER, "2")
    newest = newest_commit(lake.store, Destination.parse(lake.destination))
    assert newest is not None
    assert newest.job_id == OLDER


def test_a_replace_takes_an_append_of_an_older_version() -> None:
    """The append comes before the replace in the log, and its files are replaced."""
    lake = begun()
    older_append(lake)
    lake.sealed({"dt=1/a": b"1"}).commit()
    assert [job for job, _ in kinds(lake)] == [an_id("first"), OLDER, OURS]
    assert named("dt=1/x", OLDER) not in lake.data()


@each("what", ["copied", "damaged", "list", "unsigned", "replace"])
def test_no_other_manifest_is_entered(what: str) -> None:
    """A manifest that is damaged, of another place, or without a key's signature is not entered."""
    lake = begun()
    older_append(lake)
    key = f"{HOME}manifests/{OLDER}.json"
    if what == "copied":
        lake.tamper(key, old=b"s3://lake/flights/", new=b"s3://lake/trains/")
    elif what == "damaged":
        lake.tamper(key, cut=10)
    elif what == "list":
        lake.tamper(f"{key}l", old=b"dt=1", new=b"dt=3")
    elif what == "replace":
        lake.tamper(key, old=b'"append"', new=b'"replace"')
    if what == "unsigned":
        key_holder = HmacSigner(b"k" * 32)
        made = Job.setup(
            lake.store, lake.destination, options=JobOptions(committer="magic", conflict_mode="append"),
            job_id=OURS, signer=key_holder, clock=lake.clock, new_id=lake.new_id,
        )  # fmt: skip
        lake.run_stage(lake.job(), {"dt=2/a": b"1"})
        job = Job.at(lake.store, made.reference, signer=key_holder, clock=lake.clock, new_id=lake.new_id)
        job.seal()
    else:
        job = lake.sealed({"dt=2/a": b"1"}, conflict_mode="append")
    job.commit()
    assert [job_id for job_id, _ in kinds(lake)] == [an_id("first"), OURS]


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
    assert barrier(copy).destination == copy.destination
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


# A released version.

RELEASED = "5a8cd8f"
REPOSITORY = Path(__file__).parents[3]

PROGRAM = """
import json, sys
from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.records import JobOptions
from airflow_s3commit.store.memory import MemoryStore

class Clock:
    now = float(sys.argv[4])
    def time(self): return self.now
    monotonic = time
    def sleep(self, seconds): self.now += seconds

clock = Clock()
store = MemoryStore(("lake",), now=clock.time, min_part_bytes=1)
for line in open(sys.argv[1]):
    key, body = json.loads(line)
    store.put("lake", key, bytes.fromhex(body))
clock.now += 10
options = JobOptions(committer="magic", conflict_mode=sys.argv[2])
made = Job.setup(store, "s3://lake/flights/", options=options, job_id=sys.argv[3], clock=clock)
job = Job.at(store, made.reference, clock=clock)
with job.task_attempt("spark", "1", "0", "1", part_bytes=1, threads=0, min_part_bytes=1) as writer:
    with writer.open("dt=1/x") as file:
        file.write(b"x")
    job.seal_stage("spark", "1", [writer.commit()])
job.seal()
try:
    job.commit()
except Exception as error:
    print(type(error).__name__, error, file=sys.stderr)
with open(sys.argv[1], "w") as out:
    for info in store.list_objects("lake", ""):
        out.write(json.dumps([info.key, store.get("lake", info.key).body.hex()]) + "\\n")
"""


def run_older(lake: Lake, mode: str, tmp_path: Path) -> str:
    """Commit one file with the released version on the lake's objects, and return its error."""
    archive = subprocess.run(
        ["git", "-C", str(REPOSITORY), "archive", RELEASED, "airflow_s3commit"],
        capture_output=True,
        check=False,
    )
    if archive.returncode:
        pytest.skip(f"the commit {RELEASED} of the released version is not in this clone")
    subprocess.run(["tar", "-x", "-C", str(tmp_path)], input=archive.stdout, check=True)
    objects = tmp_path / "objects"
    objects.write_text("".join(json.dumps([key, lake.get(key).hex()]) + "\n" for key in lake.keys("")))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(objects), mode, OLDER, str(lake.store_clock.time())],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    for line in objects.read_text().splitlines():
        key, body = json.loads(line)
        if key not in lake.keys("") or lake.get(key).hex() != body:
            lake.store.put(BUCKET, key, bytes.fromhex(body))
    return done.stderr


@pytest.mark.all
@pytest.mark.parametrize("mode", MODES)
def test_the_released_version_beside_this_one(mode: str, tmp_path: Path) -> None:
    """After this version's first commit the older one's replace and fail are refused, its append entered."""
    lake = begun()
    before = lake.data()
    said = run_older(lake, mode, tmp_path)
    if mode != "append":
        assert "InvalidRecord" in said
        assert "of-a-newer-version" in said
        assert lake.data() == before
        return
    assert said == ""
    lake.store_clock.advance(10)
    lake.sealed({"dt=2/a": b"1"}, conflict_mode="append").commit()
    assert [job for job, _ in kinds(lake)] == [an_id("first"), OLDER, OURS]
    assert lake.data() == {**before, named("dt=1/x", OLDER): b"x", named("dt=2/a"): b"1"}

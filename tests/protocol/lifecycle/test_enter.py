"""The log decides whether a job is committed, in which order, and which jobs must plan again."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

from airflow_s3commit import AbortReport
from airflow_s3commit.exceptions import (
    AlreadyCommitted,
    DestinationChanged,
    DestinationNotEmpty,
    JobClosed,
    NoSuchJob,
    PreconditionFailed,
)
from airflow_s3commit.testing import StoreCall
from tests.cases import each
from tests.protocol.building import BUCKET, HOME, OURS, ROOT, THEIRS, Crash, Lake, an_id, apart, named, once

SUCCESS = f"{ROOT}_SUCCESS"
ENTRY = "log/00000000000000000001.json"
SECOND = "log/00000000000000000002.json"


def entries(lake: Lake) -> list[tuple[str, str]]:
    """Return the job and kind of the end of each job, in the order of the log."""
    found = [json.loads(lake.get(key)) for key in lake.keys(f"{HOME}log/")]
    assert [entry["number"] for entry in found] == list(range(1, len(found) + 1))
    return [(entry["job_id"], entry["kind"]) for entry in found if entry["kind"] != "baseline"]


def marker(lake: Lake) -> tuple[str, str]:
    """Return the job and generation that ``_SUCCESS`` names."""
    body = json.loads(lake.get(SUCCESS))
    return body["jobId"], body["diagnostics"]["s3commit.generation"]


def interposed(lake: Lake, act: Callable[[], object]) -> Callable[[], None]:
    """Return a step of another process, which is taken once."""

    def run() -> None:
        lake.store.rest()
        act()

    return run


def crash(lake: Lake, step: Callable[[], object], verb: str, ending: str, *, after: bool = False) -> None:
    """Take a step in a process that dies at a call."""
    lake.store.die(verb, ending, after=after)
    with pytest.raises(Crash):
        step()
    lake.store.rest()


def test_a_commit_is_its_entry() -> None:
    """Entry, manifest and marker have one generation, and the next job has the next one."""
    lake = Lake()
    first = lake.sealed({"dt=1/a": b"a"}).commit()
    second = lake.sealed({"dt=1/b": b"b"}, job_id=THEIRS, conflict_mode="append").commit()
    assert (first.generation, second.generation) == (1, 2)
    assert entries(lake) == [(OURS, "commit"), (THEIRS, "commit")]
    assert marker(lake) == (THEIRS, "2")


@each(
    "options",
    [
        ("magic", "append", "nothing"),
        ("directory", "append", "nothing"),
        ("partitioned", "replace", "partitions"),
        ("magic", "fail", "partitions"),
        ("directory", "replace", "everything"),
        ("directory", "fail", "everything"),
    ],
)
def test_an_entry_says_what_its_commit_removes(options: tuple[str, str, str]) -> None:
    """An append removes nothing; any other commit what is in its scope, which is empty for ``fail``."""
    committer, conflict_mode, removes = options
    lake = Lake()
    lake.sealed({"dt=1/a": b"a"}, committer=committer, conflict_mode=conflict_mode).commit()
    assert json.loads(lake.get(HOME + ENTRY))["removes"] == removes


@each("moment", [("complete_upload", ""), ("put", ".jsonl"), ("put", ENTRY), ("put", SECOND)])
def test_an_append_beside_a_replace_loses_nothing(moment: tuple[str, str]) -> None:
    """A replace takes all files of an append that committed before it, and none of one that did not."""
    lake = Lake()
    lake.put({"dt=1/old": b"old"})
    replace = lake.sealed({"dt=1/r0": b"r", "dt=1/r1": b"r"})
    append = lake.sealed({"dt=1/a0": b"a", "dt=1/a1": b"a"}, job_id=THEIRS, conflict_mode="append")
    lake.store.before = once(*moment, interposed(lake, append.commit))
    with apart(moment[1] == ".jsonl"):
        replace.commit()
    assert entries(lake) == [(THEIRS, "commit"), (OURS, "commit")]
    assert lake.data() == {named("dt=1/r0"): b"r", named("dt=1/r1"): b"r"}
    assert marker(lake) == (OURS, "3")


@each("moment", [("complete_upload", ""), ("put", ".jsonl"), ("put", ENTRY), ("put", SECOND)])
def test_a_replace_leaves_the_files_of_a_running_append(moment: tuple[str, str]) -> None:
    """Files of a job that has not committed yet are not among those that a replace removes."""
    lake = Lake()
    lake.put({"dt=1/old": b"old"})
    append = lake.sealed({"dt=1/a0": b"a", "dt=1/a1": b"a"}, job_id=THEIRS, conflict_mode="append")
    replace = lake.sealed({"dt=1/r": b"r"})
    lake.store.before = once(*moment, interposed(lake, replace.commit))
    with apart(moment[1] == ".jsonl"):
        append.commit()
    assert entries(lake) == [(OURS, "commit"), (THEIRS, "commit")]
    expected = {named("dt=1/r"): b"r", **{named(f"dt=1/a{n}", THEIRS): b"a" for n in range(2)}}
    assert lake.data() == expected


def test_a_replace_of_everything_takes_an_append_to_another_partition() -> None:
    """It removes everything before it in the log, even where it has no files itself."""
    lake = Lake()
    replace = lake.sealed({"dt=1/r": b"r"}, committer="directory")
    append = lake.sealed({"dt=2/a": b"a"}, job_id=THEIRS, conflict_mode="append")
    lake.store.before = once("complete_upload", "", interposed(lake, append.commit))
    replace.commit()
    assert entries(lake) == [(THEIRS, "commit"), (OURS, "commit")]
    assert lake.data() == {named("dt=1/r"): b"r"}


def test_replaces_of_one_partition_follow_the_log() -> None:
    """Of two concurrent replaces the one with the later entry wins, whichever published first."""
    for first, last in ((OURS, THEIRS), (THEIRS, OURS)):
        lake = Lake()
        lake.put({"dt=1/old": b"old"})
        jobs = {job_id: lake.sealed({f"dt=1/{job_id}": b"x"}, job_id=job_id) for job_id in (OURS, THEIRS)}
        lake.store.before = once("put", SECOND, interposed(lake, jobs[first].commit))
        jobs[last].commit()
        assert entries(lake) == [(first, "commit"), (last, "commit")]
        assert list(lake.data()) == [named(f"dt=1/{last}", last)]


def test_fail_is_refused_when_another_job_was_first() -> None:
    """Of two jobs that need an empty partition one commits, and the other takes everything back."""
    lake = Lake()
    theirs = lake.sealed({"dt=1/t": b"t"}, job_id=THEIRS, conflict_mode="fail")
    ours = lake.sealed({"dt=1/o": b"o"}, conflict_mode="fail")
    lake.store.before = once("put", ENTRY, interposed(lake, theirs.commit))
    with pytest.raises(DestinationNotEmpty):
        ours.commit()
    assert entries(lake) == [(THEIRS, "commit"), (OURS, "abandon")]
    assert lake.data() == {named("dt=1/t", THEIRS): b"t"}
    assert marker(lake) == (THEIRS, "1")
    assert (lake.pending(), lake.staging()) == ([], [])


def test_a_named_plan_is_checked_when_the_commit_begins() -> None:
    """A job with a named plan is refused for what comes before its begin; later data is replaced too."""
    for verb, ending in (("get", "summary.json"), ("put", SECOND)):
        lake = Lake()
        lake.put({"dt=1/old": b"old"})
        theirs = lake.sealed({"dt=1/x": b"x"}, job_id=THEIRS, conflict_mode="append")
        ours = lake.sealed({"dt=1/o": b"o"})
        plan = ours.plan()
        lake.store.before = once(verb, ending, interposed(lake, theirs.commit))
        if ending == SECOND:
            manifest = ours.commit(plan_etag=plan.etag)
            assert manifest.replaced.files == 2
            assert lake.data() == {named("dt=1/o"): b"o"}
        else:
            with pytest.raises(DestinationChanged):
                ours.commit(plan_etag=plan.etag)
            assert lake.data() == {"dt=1/old": b"old", named("dt=1/x", THEIRS): b"x"}


def test_two_committers_of_an_unplanned_job_agree() -> None:
    """Two processes that plan and commit one job at once end with one entry, one manifest and all files."""
    for nth in range(1, 50):
        lake = Lake()
        lake.put({"dt=1/old": b"old"})
        job = lake.sealed({"dt=1/a": b"a", "dt=1/b": b"b"})
        manifests: list[Any] = []
        other = interposed(lake, lambda: manifests.append(lake.job(owner="second").commit()))  # noqa: B023
        calls = len(lake.store.calls)
        lake.store.before = lambda _: (
            other() if len(lake.store.calls) - calls == nth else None  # noqa: B023
        )
        manifests.append(job.commit())
        assert len({manifest.nonce for manifest in manifests}) == 1, nth
        assert entries(lake) == [(OURS, "commit")]
        assert lake.data() == {named("dt=1/a"): b"a", named("dt=1/b"): b"b"}
        assert marker(lake) == (OURS, "2")
        assert (lake.pending(), lake.staging()) == ([], [])


@each("ending", ["commit", "abort"])
def test_a_plan_made_again_for_a_job_that_has_ended_is_removed(ending: str) -> None:
    """A committer that plans again while another process ends its job leaves no plan in the staging."""
    lake = Lake()
    lake.put({"dt=1/old": b"old"})
    first, second = (
        lake.sealed({"dt=1/t": b"t"}, job_id=job_id, conflict_mode="append")
        for job_id in (THEIRS, an_id("another"))
    )
    lake.sealed({"dt=1/o": b"o"})

    def end() -> None:
        lake.store.rest()
        second.commit()
        getattr(lake.job(owner="second"), ending)()

    def in_the_way() -> None:
        lake.store.rest()
        first.commit()
        lake.store.before = once("put", "summary.json", end)

    lake.store.before = once("put", SECOND, in_the_way)
    with pytest.raises((JobClosed, NoSuchJob)) if ending == "abort" else nullcontext():
        lake.job(owner="first").commit()
    assert (lake.pending(), lake.staging()) == ([], [])


def test_a_commit_that_died_after_its_entry_is_committed() -> None:
    """After the entry the job only goes forward, even if the state does not say so yet."""
    lake = Lake()
    job = lake.sealed({"dt=1/a": b"a"})
    crash(lake, job.commit, "put", ENTRY, after=True)
    state = lake.job().state()
    assert state is not None
    assert state.state == "committing"
    with pytest.raises(AlreadyCommitted):
        lake.job().abort()
    manifest = lake.job().recover()
    assert entries(lake) == [(OURS, "commit")]
    assert lake.data() == {named("dt=1/a"): b"a"}
    assert lake.job().manifest() == manifest


def test_an_abort_that_died_after_its_entry_is_aborted() -> None:
    """After the abandon entry no process commits the job, even if the state is not aborted yet."""
    lake = Lake()
    job = lake.sealed({"dt=1/a": b"a"})
    crash(lake, job.abort, "put", ENTRY, after=True)
    with pytest.raises(JobClosed):
        lake.job().commit()
    lake.job().recover()
    assert entries(lake) == [(OURS, "abandon")]
    assert (lake.data(), lake.pending(), lake.staging()) == ({}, [], [])


def test_the_marker_never_goes_back() -> None:
    """A commit that is finished after a later one leaves the later marker, which names no deleted file."""
    lake = Lake()
    lake.put({"dt=1/old": b"old"})
    first = lake.sealed({"dt=1/a": b"a"})
    crash(lake, first.commit, "put", SUCCESS)
    lake.sealed({"dt=1/b": b"b"}, job_id=THEIRS).commit()
    assert marker(lake) == (THEIRS, "3")
    lake.job().recover()
    assert marker(lake) == (THEIRS, "3")
    assert lake.data() == {named("dt=1/b", THEIRS): b"b"}


def test_an_abort_restores_the_marker_of_the_newest_commit() -> None:
    """An aborted commit leaves the marker of the last commit, not of the last one that it saw."""
    lake = Lake()
    lake.sealed({"dt=1/a": b"a"}).commit()
    dead, other = "33333333-aaaa-4bbb-8ccc-000000000003", "44444444-aaaa-4bbb-8ccc-000000000004"
    job = lake.sealed({"dt=1/d": b"d"}, job_id=dead, conflict_mode="append")
    crash(lake, job.commit, "complete_upload", named("dt=1/d", dead))
    assert SUCCESS not in lake.keys("")
    lake.sealed({"dt=1/b": b"b"}, job_id=THEIRS, conflict_mode="append").commit()
    lake.job(dead).abort()
    assert marker(lake) == (THEIRS, "2")
    job = lake.sealed({"dt=1/o": b"o"}, job_id=other, conflict_mode="append")
    crash(lake, job.commit, "complete_upload", named("dt=1/o", other))
    lake.job(other).abort()
    assert marker(lake) == (THEIRS, "2")
    assert lake.data() == {named("dt=1/a"): b"a", named("dt=1/b", THEIRS): b"b"}


def test_another_programs_marker_comes_back_byte_for_byte() -> None:
    """If the log has no commit, an abort restores the marker that was there."""
    lake = Lake()
    lake.store.put(BUCKET, SUCCESS, b'{"of":"another program"}')
    job = lake.sealed({"dt=1/a": b"a"})
    crash(lake, job.commit, "complete_upload", named("dt=1/a"))
    lake.job().abort()
    assert lake.get(SUCCESS) == b'{"of":"another program"}'


def test_a_copied_log_is_not_a_history() -> None:
    """In a copy of a dataset the original's entries do not count, and a baseline follows them."""
    lake = Lake()
    lake.sealed({"dt=1/a": b"a"}).commit()
    copied = Lake(prefix="copy/")
    for key in lake.keys(ROOT):
        copied.store.put(BUCKET, key.replace(ROOT, "copy/", 1), lake.get(key))
    copied.sealed({"dt=1/b": b"b"}, job_id=THEIRS).commit()
    numbers = [json.loads(copied.get(key))["number"] for key in copied.keys("copy/_s3commit/log/")]
    assert numbers == [1, 2, 3]
    assert copied.data() == {named("dt=1/b", THEIRS): b"b"}
    assert json.loads(copied.get("copy/_SUCCESS"))["jobId"] == THEIRS


def test_a_stream_of_appends_delays_a_replace_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replace that other jobs keep adding to gives up after a bounded number of plans, and says why."""
    monkeypatch.setattr("airflow_s3commit.protocol.lifecycle.enter._PLANS", 3)
    lake = Lake()
    replace = lake.sealed({"dt=1/r": b"r"})
    appended = 0

    def append(call: StoreCall) -> None:
        nonlocal appended
        if call.verb == "put" and call.key.startswith(f"{HOME}log/"):
            watcher, lake.store.before = lake.store.before, lambda _: None
            appended += 1
            job_id = f"55555555-aaaa-4bbb-8ccc-{appended:012d}"
            lake.sealed({"dt=1/x": b"x"}, job_id=job_id, conflict_mode="append").commit()
            if appended < 3:
                lake.store.before = watcher

    lake.store.before = append
    with pytest.raises(DestinationChanged, match="3 times in a row"):
        replace.commit()
    assert len(lake.data()) == 3


@each("step", ["commit", "recover"])
def test_an_abandoned_job_is_undone_whatever_its_state_says(step: str) -> None:
    """A state that was reset to an older one does not commit a job that the log says is abandoned."""
    lake = Lake()
    job = lake.sealed({"dt=1/a": b"a"})
    crash(lake, job.commit, "complete_upload", named("dt=1/a"), after=True)
    key = lake.context().layout.state
    state = lake.get(key)
    crash(lake, lake.job().abort, "put", ENTRY, after=True)
    lake.store.put(BUCKET, key, state)
    if step == "commit":
        with pytest.raises(JobClosed):
            lake.job().commit()
    else:
        assert isinstance(lake.job().recover(), AbortReport)
    assert entries(lake) == [(OURS, "abandon")]
    assert (lake.data(), lake.pending(), lake.staging()) == ({}, [], [])


def test_a_marker_that_other_commits_followed_does_not_come_back() -> None:
    """An abort restores another program's marker only if no job has committed since."""
    lake = Lake()
    lake.store.put(BUCKET, SUCCESS, b'{"of":"another program"}')
    last = "33333333-aaaa-4bbb-8ccc-000000000003"
    first = lake.sealed({"dt=1/a": b"a"}, conflict_mode="append")
    crash(lake, first.commit, "complete_upload", named("dt=1/a"))
    lake.sealed({"dt=1/b": b"b"}, job_id=THEIRS, conflict_mode="append").commit()
    dead = lake.sealed({"dt=1/c": b"c"}, job_id=last, conflict_mode="append")
    crash(lake, dead.commit, "complete_upload", named("dt=1/c", last))
    assert SUCCESS not in lake.keys("")
    lake.job().abort()
    assert marker(lake) == (THEIRS, "1")


@each("moment", [("complete_upload", ""), ("put", ".jsonl"), ("put", ENTRY)])
def test_a_committer_that_slept_through_an_abort_leaves_nothing(moment: tuple[str, str]) -> None:
    """A committer undoes what it does after its job was aborted and cleaned up."""
    lake = Lake()
    job = lake.sealed({"dt=1/a": b"a"})
    lake.store.before = once(*moment, interposed(lake, lake.job().abort))
    with pytest.raises((JobClosed, NoSuchJob)), apart(moment[1] == ".jsonl"):
        job.commit()
    assert entries(lake) == [(OURS, "abandon")]
    assert (lake.left(), lake.pending()) == ([], [])


@each("slept", [False, True])
def test_an_abort_takes_back_the_list_of_a_commit_that_died(slept: bool) -> None:
    """A list of files that no entry names goes with the job."""
    lake = Lake()
    job = lake.sealed({"dt=1/a": b"a"}, conflict_mode="append")
    with apart():
        crash(lake, job.commit, "put", ".jsonl", after=True)
    if slept:
        # The list returns after the end of the job, as from a committer that slept.
        body = lake.get(lake.context().layout.manifest_files)
        lake.job().abort()
        lake.store.put(BUCKET, lake.context().layout.manifest_files, body)
    lake.job().abort()
    assert entries(lake) == [(OURS, "abandon")]
    assert (lake.left(), lake.pending()) == ([], [])


@each("act", ["abort", "commit"])
@apart()
def test_a_committer_goes_by_the_log_if_another_process_ended_its_job(
    act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ending a job aborts the upload of a long list that a slow committer of it is still writing."""
    monkeypatch.setattr("airflow_s3commit.protocol.lifecycle.manifest._PART_BYTES", 1)
    lake = Lake()
    job = lake.sealed({"dt=1/a": b"a", "dt=1/b": b"b"})
    lake.store.before = once("complete_upload", ".jsonl", interposed(lake, getattr(lake.job(), act)))
    if act == "commit":
        assert job.commit().counts.files == 2
    else:
        with pytest.raises((JobClosed, NoSuchJob)):
            job.commit()
        assert lake.left() == []
    assert entries(lake) == [(OURS, "commit" if act == "commit" else "abandon")]
    assert lake.pending() == []


def test_an_abort_gives_up_among_the_entries_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """It undoes nothing before its entry exists, says so, and the next try finishes it."""
    monkeypatch.setattr("airflow_s3commit.protocol.lifecycle.enter._ABANDONS", 3)
    lake = Lake()
    job = lake.sealed({"dt=1/a": b"a"})
    others = [an_id(f"{number}") for number in range(5)]
    for other in others:
        lake.set_up(other)

    def first(call: StoreCall) -> None:
        if call.verb == "put" and "/log/" in call.key:
            lake.store.rest()
            lake.job(others.pop()).abort()
            lake.store.before = first

    lake.store.before = first
    with pytest.raises(PreconditionFailed, match="entries of other jobs came first 3 times"):
        job.abort()
    lake.store.rest()
    assert len(others) == 2
    assert lake.pending() == [ROOT + named("dt=1/a")]
    lake.job().abort()
    assert (lake.pending(), lake.staging()) == ([], [])


def test_a_job_that_the_log_knows_is_replaced_without_its_manifest() -> None:
    """A committed job whose manifest was deleted does not pass for unfinished, if its entry was read."""
    lake = Lake()
    ours = lake.sealed({"dt=1/a": b"a"})
    lake.sealed({"dt=1/t": b"t"}, job_id=THEIRS, conflict_mode="append").commit()
    lake.sealed({"dt=2/n": b"n"}, job_id=an_id("newest"), conflict_mode="append").commit()
    lake.store.delete(BUCKET, f"{HOME}manifests/{THEIRS}.json")
    ours.commit()
    assert named("dt=1/t", THEIRS) not in lake.data()

"""``_SUCCESS`` goes forward: over the marker of an older generation, or an older one of another program."""

from __future__ import annotations

import json

import pytest

from airflow_s3commit.exceptions import OutcomeUnknown, PreconditionFailed
from airflow_s3commit.protocol.steps.fold import read_success
from airflow_s3commit.testing import StoreCall
from tests.cases import each
from tests.protocol.building import BUCKET, HOME, OURS, ROOT, THEIRS, Crash, Lake, an_id, named, once

MARKER = f"{ROOT}_SUCCESS"
THEIRS_MARKER = b'{"another": "program\'s"}'


def test_a_marker_says_what_was_committed() -> None:
    """It has the time, totals and files of its commit, as Hadoop's tools read them."""
    lake = Lake()
    lake.sealed({"dt=1/a": b"1", "dt=2/b": b"22"}).commit()
    marker = json.loads(lake.get(MARKER))
    assert (marker["timestamp"], marker["date"]) == (1_700_000_000_000, "Tue Nov 14 22:13:20 UTC 2023")
    assert marker["description"] == "2 files in 2 partitions, replace"
    assert marker["filenames"] == [f"/{ROOT}{named(path)}" for path in ("dt=1/a", "dt=2/b")]
    assert marker["metrics"]["complete_bytes"] == 3
    assert marker["iostatistics"]["counters"] == {
        "committer_commits_completed": 2,
        "committer_bytes_committed": 3,
        "committer_jobs_completed": 1,
        "committer_tasks_completed": 1,
    }


@each("first", ["the entry", "the marker"])
def test_another_program_s_marker_counts_by_its_time(first: str) -> None:
    """A marker that another program wrote before the entry is written over; one that came later stays."""
    lake = Lake()
    job = lake.sealed({"dt=1/a": b"1"})

    def write_marker() -> None:
        lake.store_clock.advance(1)
        lake.store.inner.put(BUCKET, MARKER, THEIRS_MARKER)
        lake.store_clock.advance(1)

    hook = "before" if first == "the marker" else "after"
    setattr(lake.store, hook, once("put", f"log/{2:020d}.json", write_marker))
    job.commit()
    assert (lake.get(MARKER) == THEIRS_MARKER) == (first == "the entry")


@each("body", [b"", b"{", b"[]", bytes(5 << 20)])
def test_a_marker_that_cannot_be_read_is_another_program_s(body: bytes) -> None:
    """Whatever lies there, a commit after it writes its own."""
    lake = Lake()
    lake.store.put(BUCKET, MARKER, body)
    lake.store_clock.advance(1)
    lake.sealed({"dt=1/a": b"1"}).commit()
    assert read_success(lake.store, lake.context().layout.destination).generation == 2


def test_a_commit_that_slept_leaves_the_marker_of_a_later_one() -> None:
    """An older generation is never written over a newer one, however late its process goes on."""
    lake = Lake()
    slow, fast = lake.sealed({"dt=1/a": b"1"}), lake.sealed({"dt=1/b": b"2"}, job_id=THEIRS)

    def overtake() -> None:
        lake.store.rest()
        fast.commit()

    lake.store.before = once("put", "_SUCCESS", overtake)
    slow.commit()
    assert read_success(lake.store, lake.context().layout.destination).generation == 3


@each("commits", [1, 3])
def test_a_marker_of_another_log_is_written_over(commits: int) -> None:
    """In a copy without its records the marker of the original is older, whatever its generation is."""
    lake = Lake()
    for number in range(commits):
        lake.sealed({f"dt=1/{number}": b"1"}, job_id=an_id(str(number)), conflict_mode="append").commit()
    for key in lake.keys(HOME):
        lake.store.delete(BUCKET, key)
    lake.sealed({"dt=1/a": b"1"}).commit()
    assert read_success(lake.store, lake.context().layout.destination).jobId == OURS


def test_a_marker_that_is_exchanged_while_it_is_judged_is_judged_again() -> None:
    """The time of an older generation's marker is not taken for that of the other program's before it."""
    lake = Lake()
    lake.store.put(BUCKET, MARKER, THEIRS_MARKER)
    lake.store_clock.advance(1)
    slow, fast = lake.sealed({"dt=1/a": b"1"}), lake.sealed({"dt=1/b": b"2"}, job_id=THEIRS)
    lake.store.die("put", MARKER)
    with pytest.raises(Crash):
        slow.commit()
    lake.store.rest()

    def finish_the_first() -> None:
        lake.store.rest()
        lake.store_clock.advance(1)
        lake.job().commit()

    lake.store.before = once("head", MARKER, finish_the_first)
    fast.commit()
    assert read_success(lake.store, lake.context().layout.destination).generation == 3


def test_a_store_that_refuses_what_it_shows_ends_the_commit() -> None:
    """A marker that cannot be written on the condition that was read is no endless loop, but an error."""
    lake = Lake()
    job = lake.sealed({"dt=1/a": b"1"})

    def refuse(call: StoreCall) -> None:
        if call.verb == "put" and call.key == MARKER:
            raise PreconditionFailed("412")

    lake.store.before = refuse
    with pytest.raises(OutcomeUnknown, match="refused, 3 times"):
        job.commit()
    lake.store.rest()
    job.commit()
    assert read_success(lake.store, lake.context().layout.destination).generation == 2


def test_the_marker_comes_after_what_it_says() -> None:
    """While replaced files are there, the marker is that of the generation before."""
    lake = Lake()
    lake.sealed({"dt=1/a": b"1"}).commit()
    job = lake.sealed({"dt=1/b": b"2"}, job_id=THEIRS)
    lake.store.die("delete", named("a"))
    with pytest.raises(Crash):
        job.commit()
    assert read_success(lake.store.inner, lake.context().layout.destination).generation == 2

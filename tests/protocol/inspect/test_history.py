"""The history of a table is its commits, newest first."""

from __future__ import annotations

import pytest

from airflow_s3commit import Destination, history
from airflow_s3commit.exceptions import InvalidRecord, NoSuchKey, Unavailable
from airflow_s3commit.protocol.model.layout import entry_key
from airflow_s3commit.protocol.watch import follow
from tests.protocol.building import BUCKET, OURS, ROOT, THEIRS, Lake, an_id, once

HERE = Destination(BUCKET, ROOT)


def commit(lake: Lake, *names: str) -> None:
    """Commit a job of each name."""
    for name in names:
        lake.sealed({"dt=1/a": b"a"}, job_id=an_id(name), conflict_mode="append").commit()


def test_commits_are_listed_newest_first() -> None:
    """Each has its manifest; numbers of aborted jobs, and of a first entry without data, are missing."""
    lake = Lake()
    first = lake.sealed({"dt=1/a": b"a"}).commit()
    lake.set_up(an_id("gone")).abort()
    second = lake.sealed({"dt=2/a": b"a"}, job_id=THEIRS).commit()
    assert list(history(lake.store, lake.destination)) == [second, first]
    assert [record.generation for record in (second, first)] == [4, 2]
    assert [record.job_id for record in history(lake.store, HERE, limit=1)] == [THEIRS]


def test_data_older_than_the_log_is_the_first_commit() -> None:
    """One can go back to it, so it is part of the history."""
    lake = Lake()
    lake.put({"dt=1/older": b"older"})
    lake.sealed({"dt=2/a": b"a"}).commit()
    found = list(history(lake.store, HERE))
    assert [(record.job_id, record.generation) for record in found] == [(OURS, 2), ("older-data", 1)]
    assert found[1].counts.files == 1


def test_a_place_without_commits_has_no_history() -> None:
    """A place without commits has an empty history, not an error."""
    assert list(history(Lake().store, HERE)) == []


def test_only_what_is_requested_is_read() -> None:
    """The last commits of a long log take a few requests; a caller that wants more gets all of them."""
    lake = Lake()
    commit(lake, *map(str, range(100)))
    lake.store.calls.clear()
    last = [record.generation for record in history(lake.store, HERE, limit=3)]
    # A listing, the newest entry, one after it that is not there, and three before.
    assert (last, len(lake.store.calls)) == ([101, 100, 99], 6)
    assert [record.generation for record in history(lake.store, HERE)] == list(range(101, 1, -1))


def test_a_missing_entry_is_an_error() -> None:
    """A history with a gap is not presented as whole."""
    lake = Lake()
    commit(lake, *"abc")
    lake.store.delete(BUCKET, entry_key(HERE, 3))
    with pytest.raises(InvalidRecord, match=r"00003\.json is missing"):
        list(history(lake.store, HERE))
    assert [record.job_id for record in history(lake.store, HERE, limit=1)] == [an_id("c")]


def test_an_entry_of_another_log_is_an_error() -> None:
    """An entry that was written over does not have the digest that the next one names."""
    lake = Lake()
    commit(lake, *"abc")
    lake.tamper(entry_key(HERE, 3), old=b'"tasks":1', new=b'"tasks":2')
    with pytest.raises(InvalidRecord, match="not the entry that the next one follows"):
        list(history(lake.store, HERE))


def test_a_store_that_is_unavailable_is_asked_again() -> None:
    """After an outage the next look yields each commit once."""
    lake = Lake()
    commit(lake, *"ab")
    lake.store.before = once("get", "log/00000000000000000003.json", Unavailable("throttled"))
    found = follow(lake.store, HERE, 2, lake.clock)
    assert next(found).generation == 3
    assert lake.clock.slept == [5]
    with pytest.raises(NoSuchKey):
        next(follow(lake.store, HERE, 9, lake.clock))

"""The history of a table is its commits, newest first."""

from __future__ import annotations

import pytest

from airflow_s3commit import history
from airflow_s3commit.exceptions import InvalidRecord, Unavailable
from airflow_s3commit.protocol.inspect.history import follow
from airflow_s3commit.protocol.model.layout import entry_key
from tests.protocol.building import BUCKET, OURS, THEIRS, Lake, an_id, once
from tests.protocol.metadata.test_log import HERE, entry, write


def test_commits_are_listed_newest_first() -> None:
    """Each has its manifest, down to the baseline; numbers of aborted jobs are missing."""
    lake = Lake()
    write(lake, entry(1, an_id("copied"), "dt=1", uri="s3://lake/trains/"))
    first = lake.sealed({"dt=1/a": b"a"}).commit()
    lake.set_up(an_id("gone")).abort()
    second = lake.sealed({"dt=2/a": b"a"}, job_id=THEIRS).commit()
    assert list(history(lake.store, lake.destination)) == [second, first]
    assert [record.generation for record in (second, first)] == [5, 3]
    assert [record.job_id for record in history(lake.store, HERE, limit=1)] == [THEIRS]


def test_a_place_without_commits_has_no_history() -> None:
    """A place without commits has an empty history, not an error."""
    assert list(history(Lake().store, HERE)) == []


def test_only_what_is_requested_is_read() -> None:
    """The last commits of a long log take a few requests; a caller that wants more gets all of them."""
    lake = Lake()
    for number in range(1, 201):
        write(lake, entry(number, an_id(str(number)), "dt=1"))
    lake.store.calls.clear()
    last = [record.generation for record in history(lake.store, HERE, limit=3)]
    assert (last, len(lake.store.calls)) == ([200, 199, 198], 4)
    assert [record.generation for record in history(lake.store, HERE)] == list(range(200, 0, -1))


def test_a_missing_entry_is_an_error() -> None:
    """A history with a gap is not presented as whole."""
    lake = Lake()
    for number in range(1, 4):
        write(lake, entry(number, an_id(str(number)), "dt=1"))
    lake.store.delete(BUCKET, entry_key(HERE, 2))
    with pytest.raises(InvalidRecord, match=r"00002\.json is missing"):
        list(history(lake.store, HERE))
    assert OURS not in {record.job_id for record in history(lake.store, HERE, limit=1)}


def test_a_store_that_is_unavailable_is_asked_again() -> None:
    """After an outage the next look yields each commit once."""
    lake = Lake()
    for number in (1, 2):
        lake.sealed({"dt=1/a": b"a"}, job_id=an_id(str(number))).commit()
    ending = "log/00000000000000000002.json"
    lake.store.before = once("get", ending, Unavailable("throttled"))
    found = follow(lake.store, HERE, 1, interval=10, clock=lake.clock, draw=lambda low, high: low + high)
    assert next(found).generation == 2
    assert lake.clock.slept == [20]

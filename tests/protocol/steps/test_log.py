"""The log is one chain: whoever reads or extends it notices what is not of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from airflow_s3commit import Job
from airflow_s3commit.exceptions import ForeignRecord, InvalidRecord, S3CommitError
from airflow_s3commit.protocol.inspect.jobs import latest_endings
from airflow_s3commit.protocol.metadata.context import Alone
from airflow_s3commit.protocol.model.layout import checkpoint_key, entry_key
from airflow_s3commit.protocol.steps.fold import newest_entry, read_table
from airflow_s3commit.protocol.steps.log import find_head, find_receipt
from airflow_s3commit.store.base import ObjectInfo
from airflow_s3commit.store.memory import MemoryStore
from airflow_s3commit.testing import FaultyStore
from tests.cases import each
from tests.protocol.building import BUCKET, HOME, OURS, THEIRS, Crash, Lake, an_id, named


@each("count", [0, 1, 999, 1000, 1001, 1013, 2300, 13_500])
@each("checkpoints", [True, False])
def test_the_head_is_found_with_few_listings(count: int, checkpoints: bool) -> None:
    """However long a log is, its newest entry is found; with checkpoints the middle of it is not listed."""
    store, home = MemoryStore((BUCKET,)), Lake().context().layout.destination
    for number in range(1, count + 1):
        store.put(BUCKET, entry_key(home, number), b"")
        if checkpoints and number % 13 == 0:
            store.put(BUCKET, checkpoint_key(home, number), b"")
    for place in ("log", "checkpoints"):
        store.put(BUCKET, f"{HOME}{place}/readme.txt", b"")
    counted = FaultyStore(store)
    assert find_head(counted, home) == count
    assert len(counted.calls) <= (1 if count < 1000 else 3)


def test_a_checkpoint_beyond_the_end_says_nothing() -> None:
    """A log that was cut has the entries that are there, whatever checkpoints are left of the others."""
    store, home = MemoryStore((BUCKET,)), Lake().context().layout.destination
    for number in range(1, 1501):
        store.put(BUCKET, entry_key(home, number), b"")
    store.put(BUCKET, checkpoint_key(home, 1989), b"")
    assert find_head(store, home) == 1500


class _LaggingStore(MemoryStore):
    """A store whose listings of the log show nothing yet."""

    def list_objects(self, bucket: str, prefix: str, **arguments: Any) -> Iterator[ObjectInfo]:
        """List, but not the log."""
        listed = super().list_objects(bucket, prefix, **arguments)
        return (info for info in listed if "/log/" not in info.key)


def test_a_listing_that_lags_does_not_hide_a_log() -> None:
    """Entries are read by their keys, also where a listing shows none: for lists of jobs and readers too."""
    store, lake = _LaggingStore((BUCKET,)), Lake()
    home = lake.context().layout.destination
    for _ in range(3):
        Job.setup(store, home).abort()
    newest = newest_entry(store, home)
    assert newest is not None
    assert newest.entry.number == 4
    assert [job.state for job in latest_endings(store, home, 9)] == ["aborted"] * 3
    assert read_table(store, home).head == newest.position


def _grown(name: str, count: int) -> Lake:
    """Return a lake with a number of commits."""
    lake = Lake()
    for number in range(count):
        job_id = an_id(f"{name} {number}")
        lake.sealed({f"dt=1/{number}": b"1"}, job_id=job_id, conflict_mode="append").commit()
    return lake


def _put_log(lake: Lake, other: Lake, numbers: range) -> None:
    for number in numbers:
        key = f"{HOME}log/{number:020d}.json"
        lake.store.put(BUCKET, key, other.get(key))


@each("harm", ["another whole log", "its end", "its base", "a copy's", "cut"])
@each("mode", ["append", "replace"])
def test_a_job_ends_in_the_log_that_it_began_in(harm: str, mode: str) -> None:
    """If that was written over meanwhile, wholly, in part or by a copy's, it neither commits nor aborts."""
    lake, other = _grown("ours", 3), _grown("another", 5)
    job = lake.sealed({"dt=1/a": b"1"}, conflict_mode=mode)
    base = job.record().base.number
    lake.store_clock.advance(60)
    if harm == "another whole log":
        _put_log(lake, other, range(1, 7))
    elif harm == "its end":
        _put_log(lake, other, range(base + 1, 7))
    elif harm == "its base":
        _put_log(lake, other, range(base, base + 1))
    elif harm == "cut":
        for number in range(3, base + 1):
            lake.store.delete(BUCKET, f"{HOME}log/{number:020d}.json")
    else:
        lake.tamper(f"{HOME}log/{base:020d}.json", old=b"s3://lake/flights/", new=b"s3://lake/flight/")
    before, entries = lake.data(), lake.keys(f"{HOME}log/")
    for step in (job.commit, lake.job().commit, lake.job().abort):
        with pytest.raises(S3CommitError):
            step()
        assert lake.keys(f"{HOME}log/") == entries
    assert lake.data().keys() - before.keys() <= {named("dt=1/a")}
    assert before.items() <= lake.data().items()


@each("count", [1, 3])
@each("by", ["abort", "sweep"])
def test_a_job_whose_log_was_deleted_is_aborted_in_the_one_that_was_begun_anew(count: int, by: str) -> None:
    """Shorter or longer than the job's own was, it takes the job's end, and keeps what it lists as older."""
    lake = _grown("ours", 1)
    job = lake.sealed({"dt=1/a": b"1"}, {"dt=1/b": b"2"}, conflict_mode="append")
    lake.store.die("complete_upload", nth=2)
    with pytest.raises(Crash):
        job.commit()
    lake.store.rest()
    for key in lake.keys(f"{HOME}log/"):
        lake.store.delete(BUCKET, key)
    for clock in (lake.clock, lake.store_clock):
        clock.advance(60)
    for number in range(count):
        lake.set_up(an_id(f"newer {number}")).abort()
    before = lake.data()
    assert before == {named("dt=1/0", an_id("ours 0")): b"1", named("dt=1/a"): b"1"}
    with pytest.raises(InvalidRecord):
        lake.job().commit()
    if by == "abort":
        lake.job().abort()
    else:
        assert [one.job_id for one in lake.sweep(older_than=0).jobs] == [OURS]
    assert (lake.data(), lake.pending(), lake.keys(f"{HOME}open/")) == (before, [], [])


@each("alone", ["driver", "writer"])
def test_a_process_that_remembers_a_deleted_log_begins_another_at_its_start(alone: Alone) -> None:
    """The abort of a job whose destination was deleted leaves no log that lacks its first entry."""
    lake = Lake()
    job = Job.setup(lake.store, lake.destination, alone=alone)
    for key in lake.keys(f"{HOME}log/"):
        lake.store.delete(BUCKET, key)
    job.abort()
    assert [entry["number"] for entry in lake.entries()] == [1, 2]


def test_a_base_that_is_missing_is_named_with_what_to_do() -> None:
    """Its job neither commits nor aborts, and the error has the job, the key and the next action."""
    lake = _grown("ours", 3)
    job = lake.sealed({"dt=1/a": b"1"})
    base = f"{HOME}log/{job.record().base.number:020d}.json"
    lake.store.delete(BUCKET, base)
    before = lake.everything()
    for step in (job.commit, lake.job().commit, job.abort):
        with pytest.raises(InvalidRecord, match=rf"{base} is missing.*job {OURS} on .*restore it"):
            step()
        assert lake.everything() == before


def test_a_replace_notices_a_change_right_before_its_base() -> None:
    """That entry follows the one before it, and the base no longer follows it: it is not trusted."""
    lake = _grown("ours", 3)
    job = lake.sealed({"dt=1/a": b"1"}, conflict_mode="replace")
    older = f"{HOME}log/{job.record().base.number - 1:020d}.json"
    lake.tamper(older, old=b'"nonce":"', new=b'"nonce":"x')
    before = lake.data()
    with pytest.raises(InvalidRecord, match="does not follow the entry before it"):
        job.commit()
    assert before.items() <= lake.data().items()


def test_an_older_entry_that_is_missing_is_no_missing_generation() -> None:
    """A commit that has to read it is refused for a damaged log, and its job left; restored, it commits."""
    lake = _grown("ours", 3)
    job = lake.sealed({"dt=1/a": b"1"}, conflict_mode="replace")
    older = f"{HOME}log/{2:020d}.json"
    body = lake.get(older)
    lake.store.delete(BUCKET, older)
    with pytest.raises(InvalidRecord, match=rf"{older} is missing, and entry 4 is there"):
        job.commit()
    lake.store.put(BUCKET, older, body)
    assert lake.job().commit().generation == 5


def test_an_entry_of_a_copy_is_named_as_such() -> None:
    """Whoever adds to a copied log is told what to remove."""
    lake, copy = _grown("ours", 1), Lake(prefix="copy/")
    copy.store = lake.store
    for key in lake.keys(f"{HOME}log/"):
        lake.store.put(BUCKET, key.replace(HOME, "copy/_s3commit/"), lake.get(key))
    with pytest.raises(ForeignRecord, match="this dataset is a copy"):
        copy.set_up()
    with pytest.raises(ForeignRecord, match="this dataset is a copy"):
        copy.job().abort()


def test_a_receipt_in_another_s_place_is_refused() -> None:
    """A receipt that was copied says nothing of the job whose place it has."""
    lake = _grown("ours", 1)
    lake.store.put(BUCKET, lake.receipt_key(THEIRS), lake.get(lake.receipt_key(an_id("ours 0"))))
    home = lake.context().layout.destination
    with pytest.raises(InvalidRecord, match="it was copied here"):
        find_receipt(lake.store, home, THEIRS)
    with pytest.raises(InvalidRecord, match="it was copied here"):
        lake.set_up(THEIRS)
    copy = Lake(prefix="copy/")
    copy.store = lake.store
    lake.store.put(BUCKET, copy.receipt_key(an_id("ours 0")), lake.get(lake.receipt_key(an_id("ours 0"))))
    with pytest.raises(InvalidRecord, match="it was copied here"):
        copy.job(an_id("ours 0")).abort()

"""A sweep releases retained files by an entry of the log, and only then deletes them."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_s3commit import HmacSigner
from airflow_s3commit.protocol.metadata.log import read_entry
from airflow_s3commit.protocol.metadata.snapshot import read_snapshot
from airflow_s3commit.protocol.sweep.apply import SweepReport, apply_sweep
from airflow_s3commit.protocol.sweep.planner import plan_sweep
from tests.cases import each
from tests.protocol.building import Crash, Lake, an_id, named, once
from tests.protocol.metadata.test_retained import (
    FIRST,
    FLIGHTS,
    NEW,
    OLD,
    OLD2,
    THIRD,
    table,
    two_generations,
)

DAY = 86_400.0


def swept(lake: Lake, **asked: Any) -> SweepReport:
    """Sweep with a patience that no job of these tests exhausts."""
    return lake.sweep(**{"older_than": 1000 * DAY, **asked})


def retained(lake: Lake) -> list[tuple[int, int]]:
    """Return which commit has removed retained files, and which entry has released them."""
    snapshot = read_snapshot(lake.store, FLIGHTS)
    assert snapshot is not None
    return [(commit.removed, commit.released) for commit in snapshot.retained()]


def test_files_are_kept_for_as_long_as_their_commit_says() -> None:
    """Before the retention has passed a sweep leaves the files and says why, however short its patience."""
    lake = two_generations()
    lake.store_clock.advance(7 * DAY)
    before = lake.everything()
    report = swept(lake, older_than=0.0)
    assert [(left.what, left.reason) for left in report.plan.left] == [
        ("1 file (1 B) that generation 2 replaced", "retained for 7 d, and replaced 7 d ago")
    ]
    assert (report.replaced, report.plan.replaced) == (0, [])
    assert lake.everything() == before


def test_files_are_released_then_deleted() -> None:
    """After the retention an entry releases what the commit replaced, and it is deleted; once."""
    lake = two_generations()
    lake.store_clock.advance(8 * DAY)
    plan = swept(lake, dry_run=True).plan
    assert [(one.generation, one.files, one.bytes, one.retain) for one in plan.replaced] == [
        (2, 1, 1, 7 * 86_400)
    ]
    assert OLD in lake.data()
    assert swept(lake).replaced == 1
    assert lake.data().keys() == {OLD2, NEW}
    entry = read_entry(lake.store, FLIGHTS, 3)
    assert entry.release is not None
    assert (entry.kind, entry.release.commits, entry.epoch, entry.retaining) == ("release", [2], 1, True)
    before = lake.everything()
    again = swept(lake)
    assert (again.plan.is_empty, again.replaced, again.failures) == (True, 0, [])
    assert lake.everything() == before


def test_the_table_and_later_jobs_are_as_before() -> None:
    """After a release the newest generation is read as before, and jobs commit."""
    lake = two_generations()
    lake.store_clock.advance(8 * DAY)
    swept(lake)
    assert table(lake) == {OLD2, NEW}
    lake.sealed({"dt=1/a": b"newest"}, job_id=THIRD, retain="1d").commit()
    assert lake.data().keys() == {OLD2, NEW, named("dt=1/a", THIRD)}
    lake.store_clock.advance(2 * DAY)
    assert swept(lake).replaced == 1
    entry = read_entry(lake.store, FLIGHTS, 5)
    assert entry.release is not None
    assert (entry.release.commits, entry.release.finished) == ([4], 3)
    assert retained(lake) == [(4, 5)]


def test_a_sweep_that_dies_after_its_entry_is_finished_by_the_next() -> None:
    """Released files that are in place are deleted by the next sweep, without another entry."""
    lake = two_generations()
    lake.store_clock.advance(8 * DAY)
    lake.store.after = once("put", "3.json", Crash())
    with pytest.raises(Crash):
        swept(lake)
    lake.store.rest()
    assert OLD in lake.data()
    plan = swept(lake, dry_run=True).plan
    assert [one.released for one in plan.replaced] == [3]
    assert swept(lake).replaced == 1
    assert lake.data().keys() == {OLD2, NEW}
    assert lake.keys("flights/_s3commit/log/")[-1].endswith("3.json")


@each("nth", [1, 2])
def test_a_release_that_loses_its_number_is_decided_again(nth: int) -> None:
    """A commit, or another sweep, that creates its entry first leaves what is in place right."""
    lake = two_generations()
    lake.store_clock.advance(8 * DAY)
    plan = plan_sweep(lake.store, FLIGHTS, older_than=1000 * DAY, threads=0)

    def intrude() -> None:
        lake.store.rest()
        if nth == 1:
            lake.sealed({"dt=2/a": b"3"}, job_id=THIRD, retain="9d").commit()
        else:
            swept(lake)

    lake.store.before = once("put", "00003.json", intrude)
    report = apply_sweep(lake.store, plan, clock=lake.clock, new_id=lake.new_id, threads=0)
    assert report.failures == []
    kept = {OLD2, NEW, named("dt=2/a", THIRD)} if nth == 1 else {OLD2, NEW}
    assert lake.data().keys() == kept
    assert table(lake) == ({NEW, named("dt=2/a", THIRD)} if nth == 1 else kept)


def test_only_the_files_of_the_replaced_commit_are_deleted() -> None:
    """A foreign file in the partition, and one of a job that has the name of another partition, stay."""
    lake = two_generations()
    foreign = {"dt=1/foreign": b"f", named("dt=1/b", an_id("unknown")): b"u", named("dt=3/a", FIRST): b"x"}
    lake.put(foreign)
    lake.store_clock.advance(8 * DAY)
    assert swept(lake).replaced == 1
    assert lake.data().keys() == {OLD2, NEW, *foreign}


def test_a_damaged_log_keeps_retained_files() -> None:
    """A sweep that cannot read the log deletes no retained file, says so, and does the rest."""
    lake = two_generations()
    lake.store_clock.advance(8 * DAY)
    lake.tamper(lake.keys("flights/_s3commit/log/")[-1], cut=9)
    report = swept(lake)
    assert "the log cannot be read" in report.plan.left[-1].reason
    assert OLD in lake.data()


def test_a_release_is_signed_where_jobs_are() -> None:
    """The entry of a release carries a signature of the sweep's key."""
    lake = two_generations()
    lake.store_clock.advance(8 * DAY)
    swept(lake, signer=HmacSigner(b"k" * 32))
    assert read_entry(lake.store, FLIGHTS, 3).signature is not None

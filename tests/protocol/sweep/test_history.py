"""A sweep deletes retained files once an entry releases them, and never before."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.steps.files import files_in
from airflow_s3commit.protocol.steps.fold import read_table
from airflow_s3commit.protocol.steps.log import read_entry
from airflow_s3commit.protocol.sweep import SweepReport, apply_sweep
from airflow_s3commit.protocol.sweep_plan import plan_sweep
from airflow_s3commit.protocol.table_rollback import rollback
from tests.cases import each
from tests.protocol.building import BUCKET, ROOT, Crash, Lake, an_id, named, once

FLIGHTS = Destination(BUCKET, ROOT)
DAY = 86_400.0
WEEK = "7d"
FIRST, THIRD = an_id("first"), an_id("third")
OLD, OLD2, NEW = named("dt=1/a", FIRST), named("dt=2/a", FIRST), named("dt=1/a")

#: The entry after the two commits of `two_generations`.
NEXT = f"log/{4:020d}.json"


def two_generations(retain: str = WEEK) -> Lake:
    """Return a lake in which generation 3 has replaced one of the two partitions of generation 2."""
    lake = Lake()
    lake.sealed({"dt=1/a": b"1", "dt=2/a": b"2"}, job_id=FIRST, conflict_mode="append").commit()
    lake.sealed({"dt=1/a": b"new"}, retain=retain).commit()
    return lake


def table(lake: Lake, generation: int | None = None) -> set[str]:
    """Return the paths of the files of the table."""
    found = read_table(lake.store, FLIGHTS, generation)
    files = files_in(lake.store, FLIGHTS, found.sources, found.live)
    return {file.key.removeprefix(ROOT) for file in files}


def swept(lake: Lake, **asked: Any) -> SweepReport:
    """Sweep with an age that no job of these tests reaches."""
    return lake.sweep(**{"older_than": 1000 * DAY, **asked})


def test_files_are_kept_for_as_long_as_their_commit_says() -> None:
    """Until the retention has passed a sweep keeps the files and says why, however short its own age is."""
    lake = two_generations()
    # The store's times are whole seconds, of several machines.
    lake.store_clock.advance(7 * DAY + 1)
    before = lake.everything()
    report = swept(lake, older_than=0.0)
    assert [(left.what, left.reason) for left in report.plan.left] == [
        ("1 file (1 B) that generation 3 replaced", "retained for 7 d, and replaced 7 d ago")
    ]
    assert (report.replaced, report.plan.replaced) == (0, [])
    assert lake.everything() == before


def test_files_are_released_then_deleted() -> None:
    """After the retention an entry releases what the commit replaced, and it is deleted once."""
    lake = two_generations()
    lake.store_clock.advance(8 * DAY)
    plan = swept(lake, dry_run=True).plan
    assert [(one.generation, one.files, one.bytes, one.age) for one in plan.replaced] == [(3, 1, 1, 8 * DAY)]
    assert OLD in lake.data()
    assert swept(lake).replaced == 1
    assert lake.data().keys() == {OLD2, NEW}
    entry = read_entry(lake.store, FLIGHTS, 4).entry
    assert (entry.kind, entry.frees) == ("release", [3])
    before = lake.everything()
    again = swept(lake)
    assert (again.plan.is_empty, again.replaced, again.failures) == (True, 0, [])
    assert lake.everything() == before


def test_the_table_and_later_jobs_are_as_before() -> None:
    """After a release the newest generation reads as before, and jobs commit and release."""
    lake = two_generations()
    lake.store_clock.advance(8 * DAY)
    swept(lake)
    assert table(lake) == {OLD2, NEW}
    lake.sealed({"dt=1/a": b"newest"}, job_id=THIRD, retain="1d").commit()
    assert lake.data().keys() == {OLD2, NEW, named("dt=1/a", THIRD)}
    lake.store_clock.advance(2 * DAY)
    assert swept(lake).replaced == 1
    assert read_entry(lake.store, FLIGHTS, 6).entry.frees == [5]


def test_a_sweep_that_dies_after_its_entry_is_finished_by_the_next() -> None:
    """Released files that still exist are deleted by the next sweep, without another entry."""
    lake = two_generations()
    lake.store_clock.advance(8 * DAY)
    lake.store.after = once("put", NEXT, Crash())
    with pytest.raises(Crash):
        swept(lake)
    lake.store.rest()
    assert OLD in lake.data()
    plan = swept(lake, dry_run=True).plan
    assert [(one.files, one.bytes) for one in plan.replaced] == [(1, 1)]
    assert swept(lake).replaced == 1
    assert lake.data().keys() == {OLD2, NEW}
    assert len(lake.entries()) == 4


@each("nth", [1, 2])
def test_a_release_that_loses_its_number_is_decided_again(nth: int) -> None:
    """A commit, or another sweep, that creates its entry first leaves the right files."""
    lake = two_generations()
    lake.store_clock.advance(8 * DAY)
    plan = plan_sweep(lake.store, FLIGHTS, older_than=1000 * DAY, threads=0)

    def intrude() -> None:
        lake.store.rest()
        if nth == 1:
            lake.sealed({"dt=2/a": b"3"}, job_id=THIRD, retain="9d").commit()
        else:
            swept(lake)

    lake.store.before = once("put", NEXT, intrude)
    report = apply_sweep(lake.store, plan, clock=lake.clock, new_id=lake.new_id, threads=0)
    assert report.failures == []
    kept = {OLD2, NEW, named("dt=2/a", THIRD)} if nth == 1 else {OLD2, NEW}
    assert lake.data().keys() == kept
    assert table(lake) == ({NEW, named("dt=2/a", THIRD)} if nth == 1 else kept)


def test_only_the_files_of_the_replaced_commit_are_deleted() -> None:
    """A foreign file in the partition, and one of a job named after another partition, stay."""
    lake = two_generations()
    foreign = {"dt=1/foreign": b"f", named("dt=1/b", an_id("unknown")): b"u", named("dt=3/a", FIRST): b"x"}
    lake.put(foreign)
    lake.store_clock.advance(8 * DAY)
    assert swept(lake).replaced == 1
    assert lake.data().keys() == {OLD2, NEW, *foreign}


def test_an_object_of_another_program_is_released_as_it_was_taken() -> None:
    """What a commit took that was in no table goes too, unless it was written again since."""
    lake = Lake()
    lake.sealed({"dt=1/a": b"1"}, job_id=FIRST, conflict_mode="append").commit()
    lake.put({"dt=1/foreign": b"f", "dt=1/rewritten": b"r"})
    lake.sealed({"dt=1/a": b"new"}, retain=WEEK).commit()
    lake.put({"dt=1/rewritten": b"again"})
    lake.store_clock.advance(8 * DAY)
    assert [one.files for one in swept(lake, dry_run=True).plan.replaced] == [3]
    assert swept(lake).replaced == 2
    assert lake.data().keys() == {NEW, "dt=1/rewritten"}


def test_an_object_of_another_program_is_retained_once() -> None:
    """A commit that deletes at once what it replaces leaves what an earlier one has taken and retains."""
    lake = Lake()
    lake.put({"dt=1/older": b"1"})
    lake.sealed({"dt=2/a": b"2"}, job_id=FIRST).commit()
    lake.put({"dt=1/foreign": b"f"})
    lake.sealed({"dt=1/a": b"new"}, retain=WEEK).commit()
    lake.sealed({"dt=1/a": b"newer"}, job_id=THIRD).commit()
    kept = {"dt=1/older", "dt=1/foreign", named("dt=2/a", FIRST), named("dt=1/a", THIRD)}
    assert lake.data().keys() == kept


def test_an_object_of_another_program_goes_though_the_files_beside_it_came_back() -> None:
    """A rollback brings back the files that a commit took, and not what was in no table."""
    lake = Lake()
    lake.sealed({"dt=1/a": b"1"}, job_id=FIRST, conflict_mode="append").commit()
    lake.put({"dt=1/foreign": b"f"})
    lake.sealed({"dt=1/a": b"new"}, retain=WEEK).commit()
    rollback(lake.store, FLIGHTS, to=2, threads=0)
    assert lake.data().keys() == {OLD, "dt=1/foreign"}
    lake.store_clock.advance(8 * DAY)
    assert swept(lake).replaced == 1
    assert lake.data().keys() == {OLD}


def test_a_damaged_log_keeps_everything() -> None:
    """A sweep that cannot read the log removes nothing, and says so."""
    lake = two_generations()
    lake.run_task(lake.set_up(THIRD), {"dt=1/a": b"3"})
    lake.stray()
    lake.store_clock.advance(8 * DAY)
    lake.tamper(lake.keys(f"{ROOT}_s3commit/log/")[-1], cut=9)
    before = lake.everything()
    report = swept(lake, older_than=0.0)
    assert "its log cannot be read" in report.plan.left[-1].reason
    assert lake.everything() == before


@each("older", [True, False])
def test_an_object_that_is_put_again_after_a_release_stays(older: bool) -> None:
    """A release frees what was there at the commit that took it: the same bytes put there later are new."""
    lake = Lake()
    if older:
        lake.put({"dt=1/x": b"same"})
    lake.set_up(THIRD)
    if not older:
        lake.put({"dt=1/x": b"same"})
    lake.sealed({"dt=1/a": b"1"}, retain="1h").commit()
    lake.store_clock.advance(DAY)
    assert (swept(lake).replaced, lake.data()) == (1, {named("dt=1/a"): b"1"})
    lake.store_clock.advance(30 * DAY)
    lake.put({"dt=1/x": b"same"})
    assert (swept(lake).replaced, lake.data()) == (0, {named("dt=1/a"): b"1", "dt=1/x": b"same"})

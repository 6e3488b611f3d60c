"""A sweep deletes retained files once an entry releases them, and lists that no entry may name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_s3commit import baseline, rollback
from airflow_s3commit.exceptions import DestinationChanged
from airflow_s3commit.protocol.inspect.verify_table import TableReport, verify
from airflow_s3commit.protocol.metadata.log import read_entry
from airflow_s3commit.protocol.metadata.snapshot import read_snapshot
from airflow_s3commit.protocol.sweep.apply import SweepReport, apply_sweep
from airflow_s3commit.protocol.sweep.planner import plan_sweep
from tests.cases import each
from tests.protocol.building import BUCKET, HOME, OURS, THEIRS, Crash, Lake, an_id, apart, named, once
from tests.protocol.lifecycle.test_enter import crash
from tests.protocol.metadata.test_snapshot import (
    FIRST,
    FLIGHTS,
    NEW,
    OLD,
    OLD2,
    THIRD,
    table,
    two_generations,
)
from tests.protocol.test_copies import copied

DAY = 86_400.0
MANIFESTS = f"{HOME}manifests/"
NEXT = "log/00000000000000000003.json"


def swept(lake: Lake, **asked: Any) -> SweepReport:
    """Sweep with an age that no job of these tests reaches."""
    return lake.sweep(**{"older_than": 1000 * DAY, **asked})


def retained(lake: Lake) -> list[tuple[int, int]]:
    """Return which commit removed retained files, and which entry released them."""
    snapshot = read_snapshot(lake.store, FLIGHTS)
    assert snapshot is not None
    return [(commit.removed, commit.released) for commit in snapshot.retained()]


def test_files_are_kept_for_as_long_as_their_commit_says() -> None:
    """Until the retention has passed a sweep keeps the files and says why, however short its own age is."""
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
    """After the retention an entry releases what the commit replaced, and it is deleted once."""
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
    """After a release the newest generation reads as before, and jobs commit."""
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
    """Released files that still exist are deleted by the next sweep, without another entry."""
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

    lake.store.before = once("put", "00003.json", intrude)
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


def test_a_damaged_log_keeps_retained_files() -> None:
    """A sweep that cannot read the log deletes no retained file, says so, and does the rest."""
    lake = two_generations()
    lake.store_clock.advance(8 * DAY)
    lake.tamper(lake.keys("flights/_s3commit/log/")[-1], cut=9)
    report = swept(lake)
    assert "the log cannot be read" in report.plan.left[-1].reason
    assert OLD in lake.data()


def roll_back(lake: Lake) -> None:
    """Roll the table back to its first generation."""
    rollback(lake.store, lake.destination, to=1, clock=lake.clock, threads=0)


def close(lake: Lake) -> None:
    """Close the baseline."""
    baseline(lake.store, lake.destination, dry_run=False, clock=lake.clock, threads=0)


def older() -> Lake:
    """Return a table with two entries in its log, and files that are older."""
    lake = Lake()
    lake.put({"dt=9/older": b"1"})
    lake.sealed({"dt=1/a": b"1"}, conflict_mode="append").commit()
    return lake


def lists(lake: Lake, prefix: str = MANIFESTS) -> set[str]:
    """Return the names of the lists of files."""
    return {key.removeprefix(prefix) for key in lake.keys(prefix) if key.endswith(".jsonl")}


def is_sound(lake: Lake) -> bool:
    """Return whether the table is what its log says."""
    report = verify(lake.store, lake.destination, threads=0)
    assert isinstance(report, TableReport)
    return report.sound


@each(("start", "step"), [(two_generations, roll_back), (older, close)])
def test_the_list_of_a_process_that_died_before_its_entry_goes(
    start: Callable[[], Lake], step: Callable[[Lake], None]
) -> None:
    """The list stays as long as a process may work, then it goes, and the process can be run again."""
    lake = start()
    before = lists(lake)
    crash(lake, lambda: step(lake), "put", NEXT)
    [orphan] = lists(lake) - before
    lake.store_clock.advance(DAY - 1)
    assert lake.sweep().plan.lists == []
    lake.store_clock.advance(2)
    assert [one.uri for one in lake.sweep(dry_run=True).plan.lists] == [f"s3://{BUCKET}/{MANIFESTS}{orphan}"]
    assert orphan in lists(lake)
    report = lake.sweep()
    assert (report.lists, report.failures, report.skipped) == (1, [], [])
    assert lists(lake) == before
    assert (lake.sweep().plan.is_empty, is_sound(lake)) == (True, True)
    step(lake)
    assert is_sound(lake)


@each(("start", "step"), [(two_generations, roll_back), (older, close)])
def test_a_process_that_slept_cannot_create_its_entry_without_a_list(
    start: Callable[[], Lake], step: Callable[[Lake], None]
) -> None:
    """A process whose list a sweep has removed is refused, and has changed nothing."""
    lake = start()
    before = lists(lake)

    def sleep() -> None:
        lake.store.rest()
        lake.store_clock.advance(2 * DAY)
        assert lake.sweep().lists == 1

    lake.store.before = once("put", NEXT, sleep)
    with pytest.raises(DestinationChanged, match="entry 3 of its log, by a sweep, ends this process"):
        step(lake)
    assert (lists(lake), is_sound(lake)) == (before, True)
    step(lake)
    assert is_sound(lake)


def test_a_list_that_a_committer_wrote_after_the_end_of_its_job_goes() -> None:
    """The list of an aborted job goes without a further entry."""
    lake = two_generations()
    lake.set_up(THEIRS).abort()
    lake.store.put(BUCKET, f"{MANIFESTS}{THEIRS}.jsonl", b"late")
    lake.store_clock.advance(2 * DAY)
    entries = lake.keys(f"{HOME}log/")
    assert lake.sweep().lists == 1
    assert f"{THEIRS}.jsonl" not in lists(lake)
    assert lake.keys(f"{HOME}log/") == entries


def test_a_named_list_stays() -> None:
    """No sweep removes the list of a commit, with or without its manifest."""
    lake = Lake()
    with apart():
        lake.sealed({"dt=1/a": b"1"}).commit()
        lake.sealed({"dt=4/a": b"4"}, job_id=an_id("last"), conflict_mode="append").commit()
    lake.store.delete(BUCKET, f"{MANIFESTS}{an_id('last')}.json")
    lake.store_clock.advance(2 * DAY)
    before = lists(lake)
    assert len(before) == 2
    report = lake.sweep(older_than=0.0)
    assert (report.plan.lists, report.lists, lists(lake)) == ([], 0, before)


def test_a_running_job_keeps_its_list() -> None:
    """The list of a job with staging belongs to its commit, its recovery or its abort."""
    lake = two_generations()
    job = lake.sealed({"dt=4/a": b"4"}, job_id=THEIRS)
    with apart():
        crash(lake, job.commit, "put", NEXT)
    lake.store_clock.advance(2 * DAY)
    report = lake.sweep()
    assert report.lists == 0
    assert f"{THEIRS}.jsonl" in lists(lake)
    (left,) = [one for one in report.plan.left if THEIRS in one.what]
    assert left.reason.endswith(f"end it: s3commit recover {lake.destination} {THEIRS}")
    lake.job(THEIRS).recover()
    assert is_sound(lake)


def test_a_list_beside_an_entry_that_has_it_within_goes() -> None:
    """If an entry has the list itself, it names no object, and a sweep removes one that lies beside it."""
    lake = two_generations()
    assert lists(lake) == set()
    lake.store.put(BUCKET, f"{MANIFESTS}{OURS}.jsonl", b"of a commit that died")
    lake.store.delete(BUCKET, f"{MANIFESTS}{OURS}.json")
    lake.store_clock.advance(2 * DAY)
    assert (lake.sweep().lists, lists(lake)) == (1, set())
    assert table(lake) == {NEW, OLD2}


def test_the_list_of_a_job_whose_staging_is_elsewhere_stays() -> None:
    """A list does not end a job that has published files and whose staging the sweep does not see."""
    lake = two_generations()
    lake.put({named("dt=4/a", THEIRS): b"4"})
    lake.store.put(BUCKET, f"{MANIFESTS}{THEIRS}.jsonl", b"of its commit")
    lake.store_clock.advance(2 * DAY)
    report = lake.sweep()
    assert report.lists == 0
    [left] = [one for one in report.plan.left if one.what.startswith("list of files")]
    assert f"files of job {THEIRS} are here, and its staging is elsewhere" in left.reason
    assert f"{THEIRS}.jsonl" in lists(lake)


def test_lists_stay_while_the_log_of_a_copy_has_no_history() -> None:
    """No sweep abandons a job in a copied log; once the copy has a history, its lists go as any others do."""
    lake = Lake()
    lake.sealed({"dt=1/a": b"1"}).commit()
    copy = copied(lake)
    home, orphan = "copy/_s3commit/manifests/", f"{an_id('dead at the original')}.jsonl"
    copy.store.put(BUCKET, home + orphan, b"of a commit that died")
    copy.store_clock.advance(2 * DAY)
    report = copy.sweep()
    assert (report.lists, report.plan.lists) == (0, [])
    assert "the log was copied here" in next(one for one in report.plan.left if orphan in one.what).reason
    baseline(copy.store, copy.destination, dry_run=False, clock=copy.clock, threads=0)
    copy.store_clock.advance(2 * DAY)
    assert (copy.sweep().lists, orphan in lists(copy, home)) == (1, False)
    assert is_sound(copy)


def test_a_list_that_is_named_after_the_plan_stays() -> None:
    """Right before its removal a list is looked up in the log again."""
    lake = two_generations()
    plans = []

    def plan() -> None:
        lake.store.rest()
        lake.store_clock.advance(2 * DAY)
        plans.append(plan_sweep(lake.store, FLIGHTS, older_than=DAY, threads=0))

    lake.store.before = once("put", NEXT, plan)
    roll_back(lake)
    assert len(plans[0].lists) == 1
    report = apply_sweep(lake.store, plans[0], clock=lake.clock, new_id=lake.new_id, threads=0)
    assert (report.lists, [one.reason for one in report.skipped]) == (
        0,
        ["it is gone, changed, or in use now"],
    )
    assert is_sound(lake)


def test_a_damaged_log_keeps_every_list() -> None:
    """An unreadable entry may name any list."""
    lake = two_generations()
    lake.store.put(BUCKET, f"{MANIFESTS}{an_id('orphan')}.jsonl", b"x")
    lake.tamper(f"{HOME}log/{1:020d}.json", cut=5)
    lake.store_clock.advance(2 * DAY)
    report = lake.sweep()
    assert report.lists == 0
    assert "lists of files" in {one.what for one in report.plan.left}
    assert f"{an_id('orphan')}.jsonl" in lists(lake)


def test_other_objects_beside_the_lists_stay() -> None:
    """Only names that a list can have are removed."""
    lake = two_generations()
    names = {f"foo-{OURS}.jsonl", "notes.jsonl", f"{an_id('x')}.csv"}
    for name in names:
        lake.store.put(BUCKET, f"{MANIFESTS}{name}", b"x")
    lake.store_clock.advance(2 * DAY)
    assert lake.sweep().plan.lists == []
    assert names <= {key.removeprefix(MANIFESTS) for key in lake.keys(MANIFESTS)}

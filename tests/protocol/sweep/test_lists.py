"""A sweep removes lists of files that no entry of the log names, and none that an entry may name yet."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_s3commit import baseline, rollback
from airflow_s3commit.exceptions import DestinationChanged, S3CommitError
from airflow_s3commit.protocol.inspect.verify_table import TableReport, verify
from airflow_s3commit.protocol.sweep.apply import apply_sweep
from airflow_s3commit.protocol.sweep.planner import plan_sweep
from tests.cases import each
from tests.protocol.building import BUCKET, HOME, OURS, THEIRS, Lake, an_id, named, once
from tests.protocol.lifecycle.test_begun import half_published, lose_uploads
from tests.protocol.lifecycle.test_enter import crash
from tests.protocol.metadata.test_retained import FLIGHTS, two_generations
from tests.protocol.test_rebase import copied, rebased

DAY = 86_400.0
MANIFESTS = f"{HOME}manifests/"
NEXT = "log/00000000000000000003.json"


def roll_back(lake: Lake) -> None:
    """Roll the table back to its first generation."""
    rollback(lake.store, lake.destination, to=1, clock=lake.clock, threads=0)


def close(lake: Lake) -> None:
    """List the files that are older than the log."""
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
    """It stays for as long as a process may work, then it goes; the same process can be run again."""
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
def test_a_process_that_slept_before_its_entry_cannot_create_it(
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
    """The list of an aborted job goes without another entry."""
    lake = two_generations()
    lake.set_up(THEIRS).abort()
    lake.store.put(BUCKET, f"{MANIFESTS}{THEIRS}.jsonl", b"late")
    lake.store_clock.advance(2 * DAY)
    entries = lake.keys(f"{HOME}log/")
    assert lake.sweep().lists == 1
    assert f"{THEIRS}.jsonl" not in lists(lake)
    assert lake.keys(f"{HOME}log/") == entries


def test_what_an_entry_names_stays() -> None:
    """No sweep removes the list of a commit, a lost job or a rollback, its manifest there or not."""
    lake = half_published()
    lose_uploads(lake)
    with pytest.raises(S3CommitError, match="is lost"):
        lake.job().commit()
    lake.sealed({"dt=4/a": b"4"}, job_id=an_id("last"), conflict_mode="append").commit()
    lake.store.delete(BUCKET, f"{MANIFESTS}{an_id('last')}.json")
    lake.store_clock.advance(2 * DAY)
    before = lists(lake)
    assert any(name.startswith("lost-") for name in before)
    report = lake.sweep(older_than=0.0)
    assert (report.plan.lists, report.lists, lists(lake)) == ([], 0, before)


def test_a_job_at_work_keeps_its_list() -> None:
    """The list of a job with staging belongs to its commit, its recovery or its abort."""
    lake = two_generations()
    job = lake.sealed({"dt=4/a": b"4"}, job_id=THEIRS)
    crash(lake, job.commit, "put", NEXT)
    lake.store_clock.advance(2 * DAY)
    report = lake.sweep()
    assert report.lists == 0
    assert f"{THEIRS}.jsonl" in lists(lake)
    (left,) = [one for one in report.plan.left if THEIRS in one.what]
    assert left.reason.endswith(f"end it: s3commit recover {lake.destination} {THEIRS}")
    lake.job(THEIRS).recover()
    assert is_sound(lake)


def test_the_list_of_a_job_whose_staging_is_elsewhere_stays() -> None:
    """A job that has published files, and whose staging the sweep does not see, is not ended by its list."""
    lake = two_generations()
    lake.put({named("dt=4/a", THEIRS): b"4"})
    lake.store.put(BUCKET, f"{MANIFESTS}{THEIRS}.jsonl", b"of its commit")
    lake.store_clock.advance(2 * DAY)
    report = lake.sweep()
    assert report.lists == 0
    [left] = [one for one in report.plan.left if one.what.startswith("list of files")]
    assert f"files of job {THEIRS} are here, and its staging is elsewhere" in left.reason
    assert f"{THEIRS}.jsonl" in lists(lake)


def test_the_lists_of_a_rebase_stay_until_it_cannot_come() -> None:
    """In a copy nothing goes before its history is its own; then lists that the rebase did not take go."""
    copy = copied(two_generations())
    home = "copy/_s3commit/manifests/"
    crash(copy, lambda: rebased(copy), "put", NEXT)
    copy.store.put(BUCKET, f"{home}rebased-{OURS}.0123456789abcdef.jsonl", b"of an earlier try")
    copy.store_clock.advance(2 * DAY)
    report = copy.sweep()
    assert (report.lists, report.plan.lists) == (0, [])
    assert {one.reason for one in report.plan.left if "rebase" in one.reason}
    assert rebased(copy).generation == 3
    named = lists(copy, home) - {f"rebased-{OURS}.0123456789abcdef.jsonl"}
    copy.store_clock.advance(2 * DAY)
    assert copy.sweep().lists >= 1
    assert f"rebased-{OURS}.0123456789abcdef.jsonl" not in lists(copy, home)
    assert {name for name in named if name.startswith("rebased-")} <= lists(copy, home)
    assert is_sound(copy)


def test_a_list_that_is_named_since_the_plan_stays() -> None:
    """Right before its removal a list is looked for in the log again."""
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
    """Where an entry cannot be read, it may name any list."""
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

"""A rollback is a commit that refers to existing files: nothing is copied, nothing is lost."""

from __future__ import annotations

from typing import Any

import pytest
from airflow_s3commit.protocol.metadata.manifests import manifest_files, read_manifest, read_success
from airflow_s3commit.protocol.metadata.snapshot import read_snapshot

from airflow_s3commit import RollbackReport, baseline, rollback
from airflow_s3commit.exceptions import (
    DestinationChanged,
    InvalidOption,
    NoSuchKey,
    NotReversible,
)
from airflow_s3commit.protocol.inspect.history import history
from airflow_s3commit.protocol.inspect.verify_table import TableReport, verify
from tests.cases import each
from tests.protocol.building import BUCKET, ROOT, THEIRS, Crash, Lake, an_id, apart, named, once
from tests.protocol.metadata.test_snapshot import (
    FIRST,
    FLIGHTS,
    NEW,
    OLD,
    OLD2,
    THIRD,
    WEEK,
    table,
    two_generations,
)
from tests.protocol.sweep.test_history import DAY, swept


def rolled_back(lake: Lake, to: int = 1, **asked: Any) -> RollbackReport:
    """Roll the table back."""
    return rollback(lake.store, FLIGHTS, to=to, clock=lake.clock, new_id=_ids(lake), threads=0, **asked)


def _ids(lake: Lake) -> Any:
    return lambda: an_id(lake.new_id())


@each("retain", ["0s", "1d"])
@each("is_apart", [True, False])
def test_a_rollback_restores_the_table(retain: str, is_apart: bool) -> None:
    """Files that left come back, and later ones leave, by a commit of its own."""
    with apart(is_apart):
        lake = two_generations()
    lake.sealed({"dt=3/a": b"3"}, job_id=THIRD, conflict_mode="append").commit()
    untouched = lake.store.head(BUCKET, ROOT + OLD).etag
    report = rolled_back(lake, retain=retain)
    assert (report.generation, report.newest, report.partitions) == (4, 3, ["dt=1", "dt=3"])
    assert (report.files, report.restored, report.removed) == (1, 1, 2)
    assert table(lake) == table(lake, 1) == {OLD, OLD2}
    assert lake.store.head(BUCKET, ROOT + OLD).etag == untouched
    kept = {NEW, named("dt=3/a", THIRD)} if retain == "1d" else set()
    assert lake.data().keys() == {OLD, OLD2} | kept
    manifest = next(history(lake.store, FLIGHTS))
    assert (manifest.generation, manifest.rolled_back_to, manifest.counts.files) == (4, 1, 1)
    assert {name: counts.files for name, counts in manifest.partitions.items()} == {"dt=1": 1, "dt=3": 0}
    assert [entry.key for entry in manifest_files(lake.store, manifest)] == [ROOT + OLD]
    success = read_success(lake.store, FLIGHTS)
    assert (success.generation, success.filenames) == (4, [f"/{ROOT}{OLD}"])
    assert read_manifest(lake.store, FLIGHTS, manifest.job_id) == manifest
    whole = verify(lake.store, FLIGHTS, threads=0)
    assert isinstance(whole, TableReport)
    assert (whole.sound, whole.log, whole.files) == (True, [], 2)
    assert verify(lake.store, FLIGHTS, job_id=manifest.job_id, threads=0).complete


def test_a_rollback_can_be_rolled_back() -> None:
    """What a rollback retains comes back by another one, and the table is the same as before."""
    lake = two_generations()
    rolled_back(lake, retain=WEEK)
    report = rolled_back(lake, to=2)
    assert (report.generation, report.restored, report.removed) == (4, 1, 1)
    assert table(lake) == {NEW, OLD2}
    assert table(lake, 3) == {OLD, OLD2}


def test_a_dry_run_changes_nothing() -> None:
    """A dry run reports what would change, after the same checks."""
    lake = two_generations()
    before = lake.everything()
    report = rolled_back(lake, dry_run=True)
    assert (report.generation, report.dry_run, report.restored, report.removed) == (None, True, 1, 1)
    assert lake.everything() == before


def test_a_table_without_changes_is_left_alone() -> None:
    """A rollback to the newest generation, or a second one to the same, makes no entry."""
    lake = two_generations()
    assert rolled_back(lake, to=2).generation is None
    rolled_back(lake)
    before = lake.keys(f"{ROOT}_s3commit/")
    assert rolled_back(lake).partitions == []
    assert lake.keys(f"{ROOT}_s3commit/") == before


def test_later_jobs_continue_from_the_rollback() -> None:
    """A replace after it takes the files that came back, and what it retains can come back again."""
    lake = two_generations()
    rolled_back(lake)
    lake.sealed({"dt=1/a": b"newest"}, job_id=THIRD, retain=WEEK).commit()
    assert table(lake) == {named("dt=1/a", THIRD), OLD2}
    assert lake.data().keys() == {OLD, OLD2, named("dt=1/a", THIRD)}
    assert rolled_back(lake).restored == 1
    assert table(lake) == {OLD, OLD2}


def test_a_job_that_planned_before_plans_again() -> None:
    """A rollback between a job's plan and its entry is a conflict, like a replace."""
    lake = two_generations()
    job = lake.sealed({"dt=1/a": b"newest"}, job_id=THIRD, retain=WEEK)
    job.plan()
    lake.store.before = once("complete_upload", "", lambda: (lake.store.rest(), rolled_back(lake))[0])
    job.commit()
    assert table(lake) == {named("dt=1/a", THIRD), OLD2}
    snapshot = read_snapshot(lake.store, FLIGHTS)
    assert snapshot is not None
    assert [(one.number, one.removed) for one in snapshot.retained() if not one.released] == [(1, 5)]


def test_restored_files_are_not_released() -> None:
    """After a rollback a sweep deletes the files that left the table, and not those that came back."""
    lake = two_generations()
    rolled_back(lake, retain="1d")
    lake.store_clock.advance(9 * DAY)
    assert [one.generation for one in swept(lake).plan.replaced] == [3]
    assert lake.data().keys() == {OLD, OLD2}
    assert table(lake) == {OLD, OLD2}


def test_a_release_that_came_first_refuses() -> None:
    """Files that a sweep has released do not come back, even if they still exist."""
    lake = two_generations()
    lake.store_clock.advance(8 * DAY)
    lake.store.after = once("put", "3.json", Crash())
    with pytest.raises(Crash):
        swept(lake)
    lake.store.rest()
    assert OLD in lake.data()
    with pytest.raises(NotReversible, match="generation 1 in dt=1 have been replaced since, and are deleted"):
        rolled_back(lake)
    swept(lake)
    with pytest.raises(NotReversible):
        rolled_back(lake)


@each("retain", ["0s", WEEK])
def test_a_release_that_comes_between_refuses(retain: str) -> None:
    """A rollback that loses its number to a release is decided again."""
    with apart():
        lake = two_generations()
    lake.store_clock.advance(8 * DAY)
    lake.store.before = once("put", "00003.json", lambda: (lake.store.rest(), swept(lake))[0])
    with pytest.raises(NotReversible, match="deleted or released"):
        rolled_back(lake, retain=retain)
    assert table(lake) == {NEW, OLD2}
    assert [key for key in lake.keys(f"{ROOT}_s3commit/manifests/") if key.endswith(".jsonl")] == [
        f"{ROOT}_s3commit/manifests/{job}.jsonl" for job in sorted([FIRST, lake.job().reference.job_id])
    ]


def test_without_retention_there_is_no_way_back() -> None:
    """Files that were deleted at once do not come back, and the error says so without changing anything."""
    lake = two_generations(retain="0s")
    before = lake.everything()
    with pytest.raises(NotReversible, match="cannot be rolled back to generation 1"):
        rolled_back(lake, dry_run=True)
    assert lake.everything() == before


@each("fault", ["gone", "changed"])
def test_a_missing_or_changed_file_is_named(fault: str) -> None:
    """If a retained file was deleted or overwritten, the rollback is refused and names its key."""
    lake = two_generations()
    if fault == "gone":
        lake.store.delete(BUCKET, ROOT + OLD)
    else:
        lake.store.put(BUCKET, ROOT + OLD, b"x")
    with pytest.raises(NotReversible, match=f"{ROOT}{OLD} is {fault}; nothing was changed"):
        rolled_back(lake)


def test_a_commit_meanwhile_refuses() -> None:
    """A commit after the caller's look, or before the entry, refuses the rollback."""
    lake = two_generations()
    with pytest.raises(DestinationChanged, match="generation 2 by now"):
        rolled_back(lake, newest=1)

    def intrude() -> None:
        lake.store.rest()
        lake.sealed({"dt=1/z": b"z"}, job_id=THEIRS, conflict_mode="append").commit()

    lake.store.before = once("put", "00003.json", intrude)
    with pytest.raises(DestinationChanged, match="generation 3 by now"):
        rolled_back(lake)
    assert named("dt=1/z", THEIRS) in table(lake)


def test_an_abort_meanwhile_does_not_matter() -> None:
    """A rollback that loses its number to an abort takes the next one."""
    lake = two_generations()
    lake.set_up(THEIRS)
    lake.store.before = once("put", "00003.json", lambda: (lake.store.rest(), lake.job(THEIRS).abort())[0])
    assert rolled_back(lake).generation == 4
    assert table(lake) == {OLD, OLD2}


@each("verb", ["put", "delete"])
@each("nth", [1, 2, 3, 4])
def test_a_rollback_that_dies_is_finished_by_others(verb: str, nth: int) -> None:
    """Wherever it dies, the next rollback and a sweep set the table, the objects and the marker right."""
    lake = two_generations()
    lake.store.die(verb, nth=nth, after=True)
    try:
        rolled_back(lake)
    except Crash:
        lake.store.rest()
        rolled_back(lake)
    lake.store.rest()
    lake.store_clock.advance(9 * DAY)
    swept(lake)
    assert table(lake) == {OLD, OLD2}
    assert lake.data().keys() == {OLD, OLD2}


def test_files_older_than_the_log_do_not_come_back() -> None:
    """If a replace removed files that no list names, the generation before cannot come back."""
    lake = Lake()
    lake.put({"dt=1/old": b"old"})
    lake.sealed({"dt=2/a": b"2"}, job_id=FIRST, conflict_mode="append").commit()
    lake.sealed({"dt=1/a": b"new"}, retain=WEEK).commit()
    with pytest.raises(NotReversible, match="older than its log"):
        rolled_back(lake, to=2)
    lake.sealed({"dt=2/b": b"b"}, job_id=THIRD, conflict_mode="append").commit()
    rolled_back(lake, to=3)
    assert table(lake) == {named("dt=2/a", FIRST), NEW}


def test_invalid_arguments_are_refused() -> None:
    """An unknown generation and a text that is not a duration are refused."""
    lake = two_generations()
    with pytest.raises(NoSuchKey, match="no generation 9: the newest is 2"):
        rolled_back(lake, to=9)
    with pytest.raises(InvalidOption, match="retain"):
        rolled_back(lake, retain="a week")


def test_a_rollback_that_changes_nothing_leaves_the_markers_of_partitions() -> None:
    """Only markers of an earlier rollback are written again, not those of a commit with its own or none."""
    lake = Lake()
    lake.put({"dt=1/old": b"old"})
    lake.sealed({"dt=1/a": b"1"}, conflict_mode="append", partition_success=True).commit()
    baseline(lake.store, FLIGHTS, dry_run=False, clock=lake.clock, new_id=_ids(lake), threads=0)
    before = lake.get(f"{ROOT}dt=1/_SUCCESS")
    assert rolled_back(lake, to=3).generation is None
    assert lake.get(f"{ROOT}dt=1/_SUCCESS") == before

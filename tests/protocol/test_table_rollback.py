"""A rollback is a commit that refers to existing files: nothing is copied, nothing is lost."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from hashlib import sha256
from typing import Any

import pytest

from airflow_s3commit import RollbackReport, rollback, verify
from airflow_s3commit.exceptions import (
    AccessDenied,
    DestinationChanged,
    InvalidOption,
    NoSuchKey,
    NotReversible,
)
from airflow_s3commit.protocol.steps.fold import latest_manifest, read_manifest, read_success, read_table
from airflow_s3commit.testing.faulty_store import StoreCall
from tests.cases import each
from tests.protocol.building import BUCKET, ROOT, THEIRS, Crash, Lake, apart, named, once
from tests.protocol.sweep.test_history import (
    DAY,
    FIRST,
    FLIGHTS,
    NEW,
    NEXT,
    OLD,
    OLD2,
    THIRD,
    WEEK,
    swept,
    table,
    two_generations,
)


def rolled_back(lake: Lake, to: int = 2, **asked: Any) -> RollbackReport:
    """Roll the table back."""
    return rollback(lake.store, FLIGHTS, to=to, clock=lake.clock, new_id=lake.new_id, threads=0, **asked)


@each("retain", ["0s", "1d"])
@each("is_apart", [True, False])
def test_a_rollback_restores_the_table(retain: str, is_apart: bool) -> None:
    """Files that left come back, and later ones leave, by a commit of its own."""
    with apart(is_apart):
        lake = two_generations()
    lake.sealed({"dt=3/a": b"3"}, job_id=THIRD, conflict_mode="append").commit()
    untouched = lake.store.head(BUCKET, ROOT + OLD).etag
    report = rolled_back(lake, retain=retain)
    assert (report.generation, report.newest, report.partitions) == (5, 4, ["dt=1", "dt=3"])
    assert (report.files, report.restored, report.removed) == (1, 1, 2)
    assert table(lake) == table(lake, 2) == {OLD, OLD2}
    assert lake.store.head(BUCKET, ROOT + OLD).etag == untouched
    kept = {NEW, named("dt=3/a", THIRD)} if retain == "1d" else set()
    assert lake.data().keys() == {OLD, OLD2} | kept
    manifest = latest_manifest(lake.store, FLIGHTS)
    assert (manifest.generation, manifest.rolled_back_to, manifest.replaced.files) == (5, 2, 2)
    assert (manifest.replaced.bytes, manifest.committed) == (len(b"new" + b"3"), lake.clock.time() * 1000)
    assert read_success(lake.store, FLIGHTS).generation == 5
    assert read_manifest(lake.store, FLIGHTS, manifest.job_id) == manifest
    assert lake.keys(f"{ROOT}_s3commit/open/") == []


@each("retain", ["0s", "1d"])
def test_a_rollback_of_an_append_leaves_what_was_in_its_partition(retain: str) -> None:
    """Files that are in both generations of a partition stay, whatever leaves it."""
    lake = two_generations()
    lake.sealed({"dt=1/b": b"2"}, job_id=THIRD, conflict_mode="append").commit()
    report = rolled_back(lake, to=3, retain=retain)
    assert (report.partitions, report.files, report.restored, report.removed) == (["dt=1"], 1, 0, 1)
    kept = {named("dt=1/b", THIRD)} if retain == "1d" else set()
    assert (table(lake), lake.data().keys()) == ({NEW, OLD2}, {NEW, OLD, OLD2} | kept)
    assert verify(lake.store, FLIGHTS).sound


def replaced_twice(lake: Lake) -> None:
    """Make a partition of two commits, replace it by one with a retention, and empty the table by another."""
    for job_id in (FIRST, THIRD):
        lake.sealed({"dt=1/a": b"1"}, job_id=job_id, conflict_mode="append").commit()
    lake.sealed({"dt=1/a": b"new"}, retain=WEEK).commit()
    lake.sealed({}, job_id=THEIRS, committer="directory").commit()


def test_a_partition_that_is_gone_comes_back_with_all_its_commits() -> None:
    """A partition that the table no longer has is restored, and each of its files is looked at first."""
    lake = Lake()
    replaced_twice(lake)
    assert table(lake) == set()
    report = rolled_back(lake, to=3, dry_run=True)
    assert (report.partitions, report.files, report.restored) == (["dt=1"], 2, 2)
    second = named("dt=1/a", THIRD)
    lake.store.delete(BUCKET, ROOT + second)
    with pytest.raises(NotReversible, match=f"{second} is gone or changed"):
        rolled_back(lake, to=3)
    with pytest.raises(NotReversible, match="generation 4 in dt=1"):
        rolled_back(lake, to=4)


def test_every_commit_of_a_partition_has_to_be_in_place_by_the_log() -> None:
    """One that was not retained refuses the rollback, whatever others of its partition were."""
    lake = Lake()
    for job_id in (FIRST, THIRD):
        lake.sealed({"dt=1/a": b"1"}, job_id=job_id, conflict_mode="append").commit()
    rolled_back(lake)
    lake.sealed({"dt=1/a": b"new"}, retain=WEEK).commit()
    with pytest.raises(NotReversible, match="generation 3 in dt=1 were replaced since"):
        rolled_back(lake, to=3)
    assert rolled_back(lake, to=2).restored == 1


def test_other_programs_objects_go_although_all_files_beside_them_came_back() -> None:
    """What a generation took of other programs is retained as long, whatever a rollback restores of it."""
    lake = Lake()
    lake.put({"dt=1/old": b"old"})
    lake.sealed({"dt=2/a": b"1"}, job_id=THIRD, conflict_mode="append").commit()
    lake.put({"dt=1/foreign": b"theirs"})
    lake.sealed({"dt=1/b": b"2"}, retain="1d").commit()
    rolled_back(lake)
    assert "dt=1/foreign" in lake.data()
    lake.store_clock.advance(2 * DAY)
    lake.sweep()
    assert lake.data().keys() == {"dt=1/old", named("dt=2/a", THIRD)}


def test_the_number_of_an_abort_is_no_generation() -> None:
    """Only commits are generations: nothing rolls back to an entry of another kind."""
    lake = two_generations()
    lake.sealed({"dt=1/b": b"2"}, job_id=THIRD, conflict_mode="append").abort()
    with pytest.raises(NoSuchKey, match="has no generation 4; the newest is 3"):
        rolled_back(lake, to=4)
    assert rolled_back(lake, newest=3).generation == 5


def test_a_rollback_can_be_rolled_back() -> None:
    """What a rollback retains comes back by another one, and the table is the same as before."""
    lake = two_generations()
    rolled_back(lake, retain=WEEK)
    report = rolled_back(lake, to=3)
    assert (report.generation, report.restored, report.removed) == (5, 1, 1)
    assert table(lake) == {NEW, OLD2}
    assert table(lake, 4) == {OLD, OLD2}


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
    assert rolled_back(lake, to=3).generation is None
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


def test_a_job_that_publishes_meanwhile_decides_anew() -> None:
    """A rollback before a job's entry is like a replace: the job takes the files that came back."""
    lake = two_generations()
    job = lake.sealed({"dt=1/a": b"newest"}, job_id=THIRD, retain=WEEK)
    lake.store.before = once("complete_upload", "", lambda: (lake.store.rest(), rolled_back(lake))[0])
    job.commit()
    assert table(lake) == {named("dt=1/a", THIRD), OLD2}
    retained = read_table(lake.store, FLIGHTS).retained
    assert {generation: one.pieces for generation, one in retained.items()} == {5: {"dt=1": [2]}}


def test_restored_files_are_not_released() -> None:
    """After a rollback a sweep deletes the files that left the table, and not those that came back."""
    lake = two_generations()
    rolled_back(lake, retain="1d")
    lake.store_clock.advance(9 * DAY)
    assert [one.generation for one in swept(lake).plan.replaced] == [4]
    assert lake.data().keys() == {OLD, OLD2}
    assert table(lake) == {OLD, OLD2}


def test_a_release_that_came_first_refuses() -> None:
    """Files that a sweep has released do not come back, even if they still exist."""
    lake = two_generations()
    lake.store_clock.advance(8 * DAY)
    lake.store.after = once("put", NEXT, Crash())
    with pytest.raises(Crash):
        swept(lake)
    lake.store.rest()
    assert OLD in lake.data()
    with pytest.raises(
        NotReversible, match="generation 2 in dt=1 were replaced since, and are deleted or released"
    ):
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
    lake.store.before = once("put", NEXT, lambda: (lake.store.rest(), swept(lake))[0])
    with pytest.raises(NotReversible, match="deleted or released"):
        rolled_back(lake, retain=retain)
    assert table(lake) == {NEW, OLD2}
    assert lake.keys(f"{ROOT}_s3commit/open/") == []


def test_without_retention_there_is_no_way_back() -> None:
    """Files that were deleted at once do not come back, and the error says so without changing anything."""
    lake = two_generations(retain="0s")
    before = lake.everything()
    with pytest.raises(NotReversible, match="cannot be rolled back to generation 2"):
        rolled_back(lake, dry_run=True)
    assert lake.everything() == before


@pytest.mark.parametrize("fault", ["gone", "changed", "changed where ETags are no digests"])
def test_a_missing_or_changed_file_is_named(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a retained file was deleted or overwritten, the rollback is refused and names its key."""
    if "digests" in fault:
        monkeypatch.setattr("airflow_s3commit.store.memory._md5", sha256)
    lake = two_generations()
    if fault == "gone":
        lake.store.delete(BUCKET, ROOT + OLD)
    else:
        lake.store.put(BUCKET, ROOT + OLD, b"x")
    with pytest.raises(NotReversible, match=f"{ROOT}{OLD} is gone or changed; nothing was changed"):
        rolled_back(lake)


def test_a_commit_meanwhile_refuses() -> None:
    """A commit after the caller's look, or before the entry, refuses the rollback."""
    lake = two_generations()
    for seen in (2, 4):
        with pytest.raises(DestinationChanged, match=f"is at generation 3, and not at {seen}"):
            rolled_back(lake, newest=seen)

    def intrude() -> None:
        lake.store.rest()
        lake.sealed({"dt=1/z": b"z"}, job_id=THEIRS, conflict_mode="append").commit()

    lake.store.before = once("put", NEXT, intrude)
    with pytest.raises(DestinationChanged, match="generation 4 came in between"):
        rolled_back(lake)
    assert named("dt=1/z", THEIRS) in table(lake)
    assert lake.keys(f"{ROOT}_s3commit/open/") == []


@each("dies", [False, True])
def test_a_rollback_that_is_itself_aborted_changes_nothing(dies: bool) -> None:
    """Another process, such as a sweep that takes its job for dead, may end it before its entry, and die."""
    lake = two_generations()
    before = lake.data()

    def sweep() -> None:
        lake.store.rest()
        if dies:
            lake.store.after = once("put", NEXT, Crash())
        with pytest.raises(Crash) if dies else nullcontext():
            assert len(lake.sweep(older_than=0.0).jobs) == 1
        lake.store.rest()

    lake.store.before = once("put", NEXT, sweep)
    with pytest.raises(DestinationChanged, match="was aborted by another process; nothing was changed"):
        rolled_back(lake)
    assert (lake.data(), lake.keys(f"{ROOT}_s3commit/open/")) == (before, [])


@each("times", [1, 2])
def test_a_rollback_that_the_store_refuses_is_aborted(times: int) -> None:
    """Nothing was changed, and it can be run again; if the store refuses the abort too, a note says so."""
    lake = two_generations()
    left = [AccessDenied(f"no {number}") for number in range(times)]

    def refuse(call: StoreCall) -> None:
        if left and call.verb == "put" and call.key.endswith(NEXT):
            raise left.pop()

    lake.store.before = refuse
    with pytest.raises(AccessDenied) as caught:
        rolled_back(lake)
    lake.store.rest()
    assert any("a sweep ends it" in note for note in caught.value.__notes__) == (times == 2)
    assert len(lake.keys(f"{ROOT}_s3commit/open/")) == times - 1
    assert table(lake) == {NEW, OLD2}
    rolled_back(lake)
    assert table(lake) == {OLD, OLD2}


def test_an_abort_meanwhile_does_not_matter() -> None:
    """A rollback that loses its number to an abort takes the next one."""
    lake = two_generations()
    lake.set_up(THEIRS)
    lake.store.before = once("put", NEXT, lambda: (lake.store.rest(), lake.job(THEIRS).abort())[0])
    assert rolled_back(lake).generation == 5
    assert table(lake) == {OLD, OLD2}


@each("verb", ["put", "delete"])
@each("nth", range(1, 9))
def test_a_rollback_that_dies_is_ended_by_a_sweep(verb: str, nth: int) -> None:
    """Wherever it dies, a sweep finishes it or takes it back, and then it can be run again."""
    lake = two_generations()
    lake.store.die(verb, nth=nth, after=True)
    try:
        rolled_back(lake)
    except Crash:
        lake.store.rest()
        lake.store_clock.advance(DAY)
        assert lake.sweep().failures == []
        assert lake.keys(f"{ROOT}_s3commit/open/") == []
        rolled_back(lake)
    lake.store.rest()
    lake.store_clock.advance(9 * DAY)
    swept(lake)
    assert table(lake) == {OLD, OLD2}
    assert lake.data().keys() == {OLD, OLD2}
    assert read_success(lake.store, FLIGHTS).generation == latest_manifest(lake.store, FLIGHTS).generation


def test_files_older_than_the_log_come_back() -> None:
    """The first entry lists them, so a replace that retained them can be undone."""
    lake = Lake()
    lake.put({"dt=1/old": b"old"})
    lake.sealed({"dt=1/a": b"new"}, retain=WEEK).commit()
    rolled_back(lake, to=1)
    assert (table(lake), lake.data().keys()) == ({"dt=1/old"}, {"dt=1/old"})


def test_invalid_arguments_are_refused() -> None:
    """An unknown generation and a text that is not a duration are refused."""
    lake = two_generations()
    for to in (9, 0, -1):
        with pytest.raises(NoSuchKey, match=f"no generation {to}; the newest is 3"):
            rolled_back(lake, to=to)
    with pytest.raises(InvalidOption, match="retain"):
        rolled_back(lake, retain="a week")


def test_the_markers_of_partitions_follow_a_rollback() -> None:
    """A partition that has files again gets the rollback's marker, one without files loses its own."""
    lake = Lake()
    lake.sealed({"dt=1/a": b"1"}, job_id=FIRST, conflict_mode="append", partition_success=True).commit()
    lake.sealed({"dt=2/a": b"2"}, conflict_mode="append").commit()
    with pytest.raises(InvalidOption, match="partition_success=True"):
        rolled_back(lake, retain=WEEK)
    assert lake.keys(f"{ROOT}_s3commit/open/") == []
    rolled_back(lake)
    markers = [key for key in lake.keys(f"{ROOT}dt=") if key.endswith("_SUCCESS")]
    assert markers == [f"{ROOT}dt=1/_SUCCESS"]


@each("verb", ["put", "delete"])
@each("nth", range(1, 9))
def test_a_rollback_that_dies_leaves_its_markers_to_a_sweep(verb: str, nth: int) -> None:
    """Wherever it dies, after a sweep the partitions with files have markers, and the others have none."""
    lake = Lake()
    lake.sealed({"dt=1/a": b"1"}, job_id=FIRST, conflict_mode="append", partition_success=True).commit()
    lake.sealed({"dt=2/a": b"2"}, conflict_mode="append").commit()
    lake.store.die(verb, nth=nth, after=True)
    with suppress(Crash):
        rolled_back(lake)
    lake.store.rest()
    lake.store_clock.advance(DAY)
    assert lake.sweep().failures == []
    markers = [key for key in lake.keys(f"{ROOT}dt=") if key.endswith("_SUCCESS")]
    partitions = {path.partition("/")[0] for path in table(lake)}
    assert markers == [f"{ROOT}{name}/_SUCCESS" for name in sorted(partitions)]
    assert verify(lake.store, FLIGHTS).sound


def test_a_retention_is_refused_if_markers_come_in_between() -> None:
    """A job that asks for markers before the rollback's entry makes it lack what its readers rely on."""
    lake = two_generations(retain="1d")
    lake.sealed({"dt=3/a": b"3"}, job_id=THIRD, conflict_mode="append").commit()
    lake.store_clock.advance(DAY * 3)
    swept(lake)

    def intrude() -> None:
        lake.store.rest()
        lake.set_up(THEIRS, conflict_mode="append", partition_success=True)
        lake.job(THEIRS).seal([])
        lake.job(THEIRS).commit()

    lake.store.before = once("put", f"log/{6:020d}.json", intrude)
    with pytest.raises(InvalidOption, match="partition_success=True"):
        rolled_back(lake, to=3, retain=WEEK)
    assert lake.keys(f"{ROOT}_s3commit/open/") == []

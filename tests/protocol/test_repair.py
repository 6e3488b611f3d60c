"""A repair derives again what follows from the log, byte for byte, and names the rest."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_s3commit import RepairReport, repair
from airflow_s3commit.exceptions import Unavailable
from airflow_s3commit.protocol.inspect.verify_table import TableReport, verify
from airflow_s3commit.protocol.steps.fold import CHECKPOINT_EVERY, read_success
from tests.cases import each
from tests.protocol.building import BUCKET, HOME, OURS, ROOT, THEIRS, Crash, Lake, an_id, apart, named, once
from tests.protocol.sweep.test_history import FLIGHTS, NEW, OLD2, table, two_generations

LAST = an_id("last")
COMMITTED, ABORTED = f"{HOME}jobs/{OURS}.json", f"{HOME}jobs/{THEIRS}.json"
SUCCESS = f"{ROOT}_SUCCESS"


def repaired(lake: Lake, *, dry_run: bool = False) -> RepairReport:
    """Repair the lake."""
    return repair(lake.store, FLIGHTS, dry_run=dry_run, clock=lake.clock, new_id=lake.new_id, threads=0)


def wheres(report: RepairReport) -> list[str]:
    """Return the keys of what was repaired."""
    assert report.is_sound
    return [one.where.removeprefix(f"s3://{BUCKET}/") for one in report.repaired]


def delete(lake: Lake, key: str) -> None:
    """Delete a record."""
    lake.store.delete(BUCKET, key)


def damage(lake: Lake, key: str) -> None:
    """Truncate a record."""
    lake.tamper(key, cut=5)


def filled() -> Lake:
    """Return a lake with two commits, an abort, and a commit after them."""
    lake = two_generations()
    lake.set_up(THEIRS).abort()
    lake.sealed({"dt=4/a": b"4"}, job_id=LAST, conflict_mode="append").commit()
    return lake


@each("key", [COMMITTED, ABORTED])
@each("harm", [delete, damage])
def test_receipts_are_derived_from_the_log(key: str, harm: Callable[[Lake, str], None]) -> None:
    """A missing or damaged receipt has again the bytes of its entry."""
    lake = filled()
    before = lake.get(key)
    harm(lake, key)
    assert wheres(repaired(lake)) == [key]
    assert lake.get(key) == before
    assert repaired(lake).repaired == []


def test_a_truncated_receipt_of_the_newest_entry_is_derived() -> None:
    """It is no entry, so it does not say that the entry was changed."""
    lake, key = filled(), f"{HOME}jobs/{LAST}.json"
    before = lake.get(key)
    damage(lake, key)
    assert wheres(repaired(lake)) == [key]
    assert lake.get(key) == before


def test_a_receipt_has_what_another_release_wrote() -> None:
    """One that lacks a field which this release does not know has it again after a repair."""
    lake = Lake()
    job, entry = lake.sealed({"dt=1/a": b"1"}), f"{HOME}log/{2:020d}.json"
    lake.store.die("put", entry, after=True)
    with pytest.raises(Crash):
        job.commit()
    lake.store.rest()
    lake.store.put(BUCKET, entry, lake.get(entry)[:-1] + b',"of_a_later_release":1}')
    lake.job().commit()
    lake.sealed({"dt=1/b": b"2"}, job_id=LAST, conflict_mode="append").commit()
    assert wheres(repaired(lake)) == [lake.receipt_key()]
    assert lake.get(lake.receipt_key()) == lake.get(entry)
    assert verify(lake.store, FLIGHTS).sound


@each("harm", [delete, damage, lambda lake, key: lake.store.put(BUCKET, key, b"")])
def test_the_marker_is_derived(harm: Callable[[Lake, str], None]) -> None:
    """A missing or damaged marker, or another program's, names the newest generation again."""
    lake = filled()
    lake.store_clock.advance(60)
    harm(lake, SUCCESS)
    assert wheres(repaired(lake)) == [SUCCESS]
    success = read_success(lake.store, FLIGHTS)
    assert (success.generation, success.jobId) == (5, LAST)
    assert success.filenames == [f"/{ROOT}{named('dt=4/a', LAST)}"]
    assert repaired(lake).repaired == []


@each("harm", [delete, damage])
def test_the_markers_of_partitions_are_derived(harm: Callable[[Lake, str], None]) -> None:
    """A partition with files has its marker again, and an emptied one has none."""
    lake = Lake()
    job = lake.sealed({"dt=1/a": b"1", "dt=2/a": b"2"}, partition_success=True)
    job.commit()
    marker = lake.get(f"{ROOT}dt=2/_SUCCESS")
    empty = lake.set_up(THEIRS, committer="directory")
    lake.run_stage(empty, {"dt=1/b": b"b"})
    empty.seal()
    empty.commit()
    lake.store_clock.advance(60)
    harm(lake, f"{ROOT}dt=1/_SUCCESS")
    lake.store.put(BUCKET, f"{ROOT}dt=2/_SUCCESS", marker)
    assert sorted(wheres(repaired(lake))) == [f"{ROOT}dt=1/_SUCCESS", f"{ROOT}dt=2/_SUCCESS"]
    assert lake.keys(f"{ROOT}dt=2/") == []
    assert repaired(lake).repaired == []


@each("harm", ["cut", "forged"])
def test_a_checkpoint_is_derived(harm: str) -> None:
    """One that is damaged, or not what the log adds up to, has again the bytes that follow from the log."""
    lake = two_generations()
    for number in range(4, CHECKPOINT_EVERY):
        lake.set_up(an_id(f"aborted {number}")).abort()
    lake.sealed({"dt=4/a": b"4"}, job_id=LAST, conflict_mode="append").commit()
    [key] = lake.keys(f"{HOME}checkpoints/")
    before = lake.get(key)
    if harm == "cut":
        damage(lake, key)
    else:
        lake.store.put(BUCKET, key, _other_checkpoint(before))
    lake.sealed({"dt=5/a": b"5"}, job_id=an_id("later"), conflict_mode="append").commit()
    assert wheres(repaired(lake)) == [key]
    assert lake.get(key) == before


def _other_checkpoint(body: bytes) -> bytes:
    import gzip  # noqa: PLC0415 - only here

    return gzip.compress(gzip.decompress(body).replace(b'"dt=2"', b'"dt=7"'), mtime=0)


@each("act", ["commit", "abort"])
@each(("verb", "ending"), [("put", f"log/{3:020d}.json"), ("delete", "sealed.json")])
def test_a_job_that_died_after_its_entry_is_finished(act: str, verb: str, ending: str) -> None:
    """Its commit or abort is done to its end, with all that follows, by the log alone."""
    lake = Lake()
    lake.put({"dt=1/old": b"old"})
    lake.sealed({"dt=9/z": b"z"}, job_id=THEIRS, conflict_mode="append").commit()
    job = lake.sealed({"dt=1/a": b"1"})
    lake.store.die(verb, ending, after=True)
    with pytest.raises(Crash):
        getattr(job, act)()
    lake.store.rest()
    dry = repaired(lake, dry_run=True)
    assert wheres(dry)[0] == lake.open_key()
    report = repaired(lake)
    assert wheres(report)[0] == lake.open_key()
    assert (lake.keys(f"{HOME}open/"), lake.staging(), lake.pending()) == ([], [], [])
    assert lake.data().keys() - {named("dt=9/z", THEIRS)} == {
        named("dt=1/a") if act == "commit" else "dt=1/old"
    }
    assert read_success(lake.store, FLIGHTS).generation == (3 if act == "commit" else 2)
    assert repaired(lake).repaired == []


def test_a_job_at_work_is_left() -> None:
    """Open and sealed jobs are nothing to repair."""
    lake = filled()
    lake.sealed({"dt=5/a": b"5"}, job_id=an_id("sealed"))
    lake.run_task(lake.set_up(an_id("open")), {"dt=6/a": b"6"})
    before = lake.everything()
    assert wheres(repaired(lake)) == []
    assert lake.everything() == before


def test_a_record_that_another_process_writes_meanwhile_is_left() -> None:
    """A repair only replaces the damaged record that it has seen."""
    lake = filled()
    before = lake.get(COMMITTED)
    damage(lake, COMMITTED)

    def meanwhile() -> None:
        lake.store.rest()
        lake.store.put(BUCKET, COMMITTED, before)

    lake.store.before = once("put", COMMITTED, meanwhile)
    assert [one.where for one in repaired(lake).failures] == [f"s3://{BUCKET}/{COMMITTED}"]
    assert lake.get(COMMITTED) == before


def test_what_is_wrong_again_at_the_end_is_not_called_repaired() -> None:
    """Another program may have damaged it meanwhile."""
    lake = filled()
    damage(lake, COMMITTED)

    def meanwhile() -> None:
        lake.store.rest()
        damage(lake, COMMITTED)

    lake.store.after = once("put", COMMITTED, meanwhile)
    report = repaired(lake)
    assert (report.repaired, [one.where for one in report.failures]) == ([], [f"s3://{BUCKET}/{COMMITTED}"])


def test_one_failure_does_not_stop_the_rest() -> None:
    """What cannot be written is named with its error, and the others are repaired."""
    lake = filled()
    damage(lake, COMMITTED)
    damage(lake, SUCCESS)
    lake.store.before = once("put", COMMITTED, Unavailable("slow"))
    report = repaired(lake)
    assert [(one.where, one.problem) for one in report.failures] == [
        (f"s3://{BUCKET}/{COMMITTED}", "Unavailable: slow")
    ]
    assert not report.is_sound
    assert [one.where for one in report.repaired] == [f"s3://{BUCKET}/{SUCCESS}"]


def test_a_dry_run_changes_nothing() -> None:
    """A dry run only names what it would derive again."""
    lake = filled()
    for key in (COMMITTED, SUCCESS):
        damage(lake, key)
    before = lake.everything()
    report = repaired(lake, dry_run=True)
    assert (report.dry_run, report.entries, sorted(wheres(report))) == (True, 5, sorted([COMMITTED, SUCCESS]))
    assert lake.everything() == before


def test_what_follows_from_nothing_is_named() -> None:
    """A damaged entry is left, and so is a damaged list of files; nothing is written."""
    for harmed in (f"{HOME}log/{3:020d}.json", "list"):
        with apart():
            lake = filled()
        lists = [key for key in lake.keys(f"{HOME}lists/") if LAST in key]
        key = lists[0] if harmed == "list" else harmed
        damage(lake, key)
        before = lake.everything()
        report = repaired(lake)
        assert f"s3://{BUCKET}/{key}" in [one.where for one in report.left]
        assert (report.is_sound, report.repaired) == (False, [])
        assert lake.everything() == before


def test_a_changed_list_within_an_entry_is_named() -> None:
    """The good copy in the receipt is not replaced by a changed entry, nor anything else."""
    for number in (3, 5):
        lake = filled()
        lake.tamper(f"{HOME}log/{number:020d}.json", old=b'"size":', new=b'"size":1')
        delete(lake, SUCCESS)
        before = lake.everything()
        report = repaired(lake)
        assert not report.is_sound
        assert report.repaired == []
        assert lake.everything() == before


def test_a_newest_entry_that_its_receipt_contradicts_is_named() -> None:
    """No later entry says which of the two was changed, so neither is written over."""
    lake = filled()
    lake.tamper(f"{HOME}log/{5:020d}.json", old=b'"tasks":1', new=b'"tasks":2')
    before = lake.everything()
    [left] = repaired(lake).left
    assert (left.where, left.problem) == (f"s3://{BUCKET}/{HOME}jobs/{LAST}.json", "differs from entry 5")
    assert lake.everything() == before


def test_a_place_without_a_log_has_nothing_to_repair() -> None:
    """The report says that there are no entries."""
    report = repaired(Lake())
    assert (report.entries, report.is_sound, report.repaired) == (0, True, [])


def test_what_is_sound_is_left_alone() -> None:
    """Where nothing is damaged nothing is written."""
    lake = filled()
    before = lake.everything()
    report = repaired(lake)
    assert (report.repaired, report.left, report.failures) == ([], [], [])
    assert lake.everything() == before
    assert table(lake) == {NEW, OLD2, named("dt=4/a", LAST)}


def test_a_table_whose_columns_changed_once_stays_sound() -> None:
    """Night after night nothing is wrong with it, before and after checkpoints, and nothing to repair."""
    lake = Lake()
    for night in range(2 * CHECKPOINT_EVERY):
        job = lake.set_up(an_id(f"night {night}"))
        with job.task_attempt("spark", "1", "00000", "1", threads=0, min_part_bytes=1) as attempt:
            attempt.open("dt=1/a").close()
            attempt.describe(1, "before" if night < CHECKPOINT_EVERY // 2 else "after")
            task = attempt.commit()
        job.seal_stage("spark", "1", [task])
        job.seal()
        job.commit()
    assert len(lake.keys(f"{HOME}checkpoints/")) == 2
    report = verify(lake.store, FLIGHTS)
    assert (report.sound, report.log) == (True, [])
    assert repaired(lake).repaired == []


def test_a_repaired_table_verifies() -> None:
    """After a repair the check of the whole table finds nothing wrong."""
    lake = filled()
    damage(lake, COMMITTED)
    damage(lake, SUCCESS)
    repaired(lake)
    report = verify(lake.store, FLIGHTS)
    assert isinstance(report, TableReport)
    assert (report.sound, report.log) == (True, [])

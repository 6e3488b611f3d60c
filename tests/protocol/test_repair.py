"""A repair rebuilds what follows from other records, byte for byte, and names the rest."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from airflow_s3commit.protocol.metadata.manifests import read_success
from airflow_s3commit.protocol.metadata.snapshot import CHECKPOINT_EVERY

from airflow_s3commit import RepairReport, repair
from airflow_s3commit.exceptions import InvalidRecord
from airflow_s3commit.protocol.inspect.verify_table import TableReport, verify
from tests.cases import each
from tests.protocol.building import BUCKET, HOME, OURS, ROOT, THEIRS, Lake, an_id, apart, named, once
from tests.protocol.metadata.test_snapshot import FLIGHTS, NEW, OLD2, table, two_generations

MANIFEST, ABORTED = f"{HOME}manifests/{OURS}.json", f"{HOME}aborted/{THEIRS}.json"
SUCCESS = f"{ROOT}_SUCCESS"


def repaired(lake: Lake, *, dry_run: bool = False) -> RepairReport:
    """Repair the lake."""
    return repair(lake.store, FLIGHTS, dry_run=dry_run, clock=lake.clock, new_id=lake.new_id, threads=0)


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
    lake.sealed({"dt=4/a": b"4"}, job_id=an_id("last"), conflict_mode="append").commit()
    return lake


@each(("key", "harm"), [(MANIFEST, delete), (MANIFEST, damage), (ABORTED, damage)])
def test_endings_are_rebuilt_from_the_log(key: str, harm: Callable[[Lake, str], None]) -> None:
    """A manifest or record of an abort is again the one in its entry."""
    lake = filled()
    before = lake.get(key)
    harm(lake, key)
    report = repaired(lake)
    assert (report.is_sound, [one.where for one in report.repaired]) == (True, [f"s3://{BUCKET}/{key}"])
    assert lake.get(key) == before
    assert repaired(lake).repaired == []


def test_a_swept_record_of_an_abort_is_not_missed() -> None:
    """A sweep removes old ones, so a missing one is not damage."""
    lake = filled()
    delete(lake, ABORTED)
    assert repaired(lake).repaired == []


@each("harm", [delete, damage])
def test_the_marker_is_rebuilt(harm: Callable[[Lake, str], None]) -> None:
    """A missing or damaged marker names the newest generation again."""
    lake = filled()
    harm(lake, SUCCESS)
    assert [one.where for one in repaired(lake).repaired] == [f"s3://{BUCKET}/{SUCCESS}"]
    success = read_success(lake.store, FLIGHTS)
    assert (success.generation, success.jobId) == (4, an_id("last"))


def test_a_checkpoint_is_rebuilt() -> None:
    """A damaged checkpoint has again the bytes that the log adds up to."""
    lake = two_generations()
    for number in range(3, CHECKPOINT_EVERY):
        lake.set_up(an_id(f"aborted {number}")).abort()
    lake.sealed({"dt=4/a": b"4"}, job_id=an_id("last"), conflict_mode="append").commit()
    [key] = lake.keys(f"{HOME}checkpoints/")
    before = lake.get(key)
    damage(lake, key)
    lake.sealed({"dt=5/a": b"5"}, job_id=an_id("later"), conflict_mode="append").commit()
    assert [one.where for one in repaired(lake).repaired] == [f"s3://{BUCKET}/{key}"]
    assert lake.get(key) == before


def test_a_record_that_another_process_writes_meanwhile_is_left() -> None:
    """A repair only replaces the damaged record that it has seen."""
    lake = filled()
    before = lake.get(MANIFEST)
    damage(lake, MANIFEST)

    def meanwhile() -> None:
        lake.store.rest()
        lake.store.put(BUCKET, MANIFEST, before)

    lake.store.before = once("put", MANIFEST, meanwhile)
    assert [one.where for one in repaired(lake).failures] == [f"s3://{BUCKET}/{MANIFEST}"]
    assert lake.get(MANIFEST) == before


def test_a_state_is_rebuilt_from_the_job_s_records() -> None:
    """A job whose state is damaged continues where its other records say."""
    lake = filled()
    job = lake.sealed({"dt=5/a": b"5"}, job_id=an_id("sealed"))
    damage(lake, f"{ROOT}__magic_job-{an_id('sealed')}/state.json")
    with pytest.raises(InvalidRecord):
        job.state()
    assert repaired(lake).is_sound
    state = job.state()
    assert state is not None
    assert state.state == "sealed"
    job.commit()


def test_a_dry_run_changes_nothing() -> None:
    """A dry run only names what it would rebuild."""
    lake = filled()
    for key in (MANIFEST, SUCCESS):
        damage(lake, key)
    before = lake.everything()
    report = repaired(lake, dry_run=True)
    named = {one.where for one in report.repaired}
    assert (report.dry_run, named) == (True, {f"s3://{BUCKET}/{MANIFEST}", f"s3://{BUCKET}/{SUCCESS}"})
    assert lake.everything() == before


def test_an_entry_is_named_and_not_rebuilt() -> None:
    """A damaged entry is left, with the job that its manifest names, as is a damaged list."""
    with apart():
        lake = filled()
    entry, listed = f"{HOME}log/{2:020d}.json", f"{HOME}manifests/{an_id('last')}.jsonl"
    damage(lake, entry)
    before = lake.everything()
    report = repaired(lake)
    [left] = report.left
    assert left.where == f"s3://{BUCKET}/{entry}"
    assert f"it is the commit of job {OURS} (replace)" in left.problem
    assert (report.is_sound, lake.everything()) == (False, before)
    with apart():
        lake = filled()
    damage(lake, listed)
    assert [one.where for one in repaired(lake).left] == [f"s3://{BUCKET}/{listed}"]


def test_a_list_within_an_entry_is_named_and_not_rebuilt() -> None:
    """The good list in the manifest is not replaced by that of a changed entry."""
    lake = filled()
    entry = f"{HOME}log/{2:020d}.json"
    lake.tamper(entry, old=b'"size":', new=b'"size":1')
    before = lake.everything()
    report = repaired(lake)
    assert [one.where for one in report.left] == [f"s3://{BUCKET}/{entry}"]
    assert (report.repaired, lake.everything()) == ([], before)
    assert table(lake) == {NEW, OLD2, named("dt=4/a", an_id("last"))}


def test_what_is_sound_is_left_alone() -> None:
    """Where nothing is damaged nothing is written."""
    lake = filled()
    before = lake.everything()
    report = repaired(lake)
    assert (report.repaired, report.left, report.failures) == ([], [], [])
    assert lake.everything() == before


def test_a_repaired_table_verifies() -> None:
    """After a repair the check of the whole table finds nothing wrong."""
    lake = filled()
    damage(lake, MANIFEST)
    damage(lake, SUCCESS)
    repaired(lake)
    report = verify(lake.store, FLIGHTS, threads=0)
    assert isinstance(report, TableReport)
    assert (report.sound, report.log) == (True, [])

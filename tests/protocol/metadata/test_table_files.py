"""Files that are retained, or older than the log, stay in place, and nobody takes them for other files."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_s3commit.exceptions import DestinationNotEmpty, InvalidOption, InvalidRecord
from airflow_s3commit.protocol.inspect.details import preview_commit
from airflow_s3commit.protocol.inspect.verify_table import TableReport, verify
from airflow_s3commit.protocol.metadata.manifests import FileSummary
from airflow_s3commit.protocol.metadata.snapshot import live_files, read_snapshot
from airflow_s3commit.protocol.metadata.table_files import unlisted_objects
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.job import JobOptions
from tests.cases import each
from tests.protocol.building import BUCKET, HOME, OURS, ROOT, THEIRS, Lake, an_id, named, once
from tests.protocol.lifecycle.test_enter import crash

FLIGHTS = Destination(BUCKET, ROOT)
WEEK = "7d"
FIRST, THIRD = an_id("first"), an_id("third")


def two_generations(retain: str = WEEK) -> Lake:
    """Return a lake whose second commit has replaced one of two partitions."""
    lake = Lake()
    lake.sealed({"dt=1/a": b"1", "dt=2/a": b"2"}, job_id=FIRST, conflict_mode="append").commit()
    lake.sealed({"dt=1/a": b"new"}, retain=retain).commit()
    return lake


def table(lake: Lake, generation: int | None = None) -> set[str]:
    """Return the paths of the files of the table, without its baseline."""
    snapshot = read_snapshot(lake.store, FLIGHTS, generation)
    assert snapshot is not None
    files = live_files(lake.store, FLIGHTS, snapshot.commits(), FileSummary)
    return {file.key.removeprefix(ROOT) for _, some in files for file in some}


OLD, OLD2, NEW = named("dt=1/a", FIRST), named("dt=2/a", FIRST), named("dt=1/a")


def test_a_retaining_commit_leaves_what_it_replaces() -> None:
    """The replaced files are in place, and not in the table; the generation before has them."""
    lake = two_generations()
    assert lake.data().keys() == {OLD, OLD2, NEW}
    assert table(lake) == {OLD2, NEW}
    assert table(lake, 1) == {OLD, OLD2}
    manifest = lake.job().manifest()
    assert manifest is not None
    assert manifest.replaced.files == 1


def test_what_cannot_be_retained_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """Before files without a job's id are deleted, a warning says how many, and names one."""
    lake = two_generations()
    lake.put({"dt=1/another": b"program's"})
    job = lake.sealed({"dt=1/a": b"newest"}, job_id=THIRD, retain=WEEK)
    job.plan()
    (warned,) = [one.getMessage() for one in caplog.records if "retain=" in one.getMessage()]
    named_one = f"s3://{BUCKET}/{ROOT}dt=1/another"
    assert f"does not hold for 1 of the 2 objects that it replaces, such as {named_one}:" in warned
    job.commit()
    assert lake.data().keys() == {OLD, OLD2, NEW, named("dt=1/a", THIRD)}


def test_nothing_is_retained_by_default() -> None:
    """Without retain the replaced files are deleted at once."""
    lake = two_generations(retain="0s")
    assert lake.data().keys() == {OLD2, NEW}
    snapshot = read_snapshot(lake.store, FLIGHTS)
    assert snapshot is not None
    assert snapshot.retained() == []


@each("retain", ["0s", WEEK])
@each("committer", ["magic", "directory"])
def test_a_later_replace_leaves_retained_files(committer: str, retain: str) -> None:
    """A plan has the files of the table, and none that an earlier commit retains."""
    lake = two_generations()
    job = lake.sealed({"dt=1/a": b"newest"}, job_id=THIRD, committer=committer, retain=retain)
    replaced = {"magic": {NEW}, "directory": {NEW, OLD2}}[committer]
    assert preview_commit(lake.context(THIRD)).replaced == len(replaced)
    assert job.plan().objects == len(replaced)
    job.commit()
    gone = set() if retain == WEEK else replaced
    assert lake.data().keys() == {OLD, OLD2, NEW, named("dt=1/a", THIRD)} - gone
    assert table(lake) == {named("dt=1/a", THIRD)} | ({OLD2} if committer == "magic" else set())


def test_foreign_files_are_not_retained() -> None:
    """Files that no generation has are deleted at once, also by a commit that retains."""
    lake = two_generations()
    lake.put({"dt=1/foreign": b"f"})
    lake.sealed({"dt=1/a": b"newest"}, job_id=THIRD, retain=WEEK).commit()
    assert lake.data().keys() == {OLD, OLD2, NEW, named("dt=1/a", THIRD)}


@each("committer", ["magic", "directory"])
def test_retained_files_are_no_data_for_a_job_that_fails_on_data(committer: str) -> None:
    """Conflict mode fail is refused for data of the table, and not for files that the table had."""
    lake = Lake()
    lake.sealed({"dt=1/a": b"1"}, job_id=FIRST, conflict_mode="append").commit()
    lake.sealed({"dt=2/a": b"2"}, committer="directory", retain=WEEK).commit()
    assert lake.data().keys() == {OLD, named("dt=2/a")}
    if committer == "directory":
        lake.set_up(THEIRS, conflict_mode="append")
        with pytest.raises(DestinationNotEmpty, match=named("dt=2/a")):
            lake.set_up(THIRD, committer=committer, conflict_mode="fail")
        return
    lake.sealed({"dt=1/a": b"3"}, job_id=THIRD, conflict_mode="fail").commit()
    assert table(lake) == {named("dt=2/a"), named("dt=1/a", THIRD)}
    again = lake.sealed({"dt=1/b": b"4"}, job_id=THEIRS, conflict_mode="fail")
    with pytest.raises(DestinationNotEmpty, match=named("dt=1/a", THIRD)):
        again.commit()


def test_a_job_that_was_set_up_earlier_knows_of_retained_files() -> None:
    """A job learns from the log that files are retained since its setup."""
    lake = Lake()
    lake.sealed({"dt=1/a": b"1"}, job_id=FIRST, conflict_mode="append").commit()
    late = lake.sealed({"dt=1/a": b"late"}, job_id=THIRD)
    lake.sealed({"dt=1/a": b"new"}, retain=WEEK).commit()
    late.commit()
    assert lake.data().keys() == {OLD, named("dt=1/a", THIRD)}


def test_aborts_between_pass_on_that_files_are_retained() -> None:
    """An abandoned job between the retaining commit and a plan hides nothing."""
    lake = two_generations()
    lake.set_up(THEIRS).abort()
    lake.sealed({"dt=1/a": b"newest"}, job_id=THIRD).commit()
    assert lake.data().keys() == {OLD, OLD2, named("dt=1/a", THIRD)}


def test_verify_takes_retained_files_for_no_foreign_ones() -> None:
    """A retained file beside those of the last job is no finding; a foreign one is."""
    lake = two_generations()
    report = verify(lake.store, FLIGHTS, job_id=OURS, threads=0)
    assert report.exclusive
    whole = verify(lake.store, FLIGHTS, threads=0)
    assert isinstance(whole, TableReport)
    assert (whole.sound, whole.retained) == (True, 1)
    lake.put({"dt=1/foreign": b"f"})
    assert verify(lake.store, FLIGHTS, job_id=OURS, threads=0).unlisted == [f"{ROOT}dt=1/foreign"]


@each(
    ("options", "message"),
    [
        ({"retain": WEEK, "unique_filenames": False}, "needs unique file names"),
        ({"retain": WEEK, "replace_order": "delete-then-publish"}, "needs unique file names"),
        ({"retain": WEEK, "fencing": "best-effort"}, "needs fencing"),
        ({"retain": "7"}, "retain: '7' is not a duration"),
        ({"retain": "1000000w"}, "more than a hundred years"),
        ({"retain": 7}, "retain=7 is not text"),
    ],
)
def test_retain_is_refused_where_old_files_cannot_stay(options: dict[str, Any], message: str) -> None:
    """Jobs that overwrite or delete before their entry cannot retain; nor is every text a duration."""
    with pytest.raises(InvalidOption, match=message):
        JobOptions(conflict_mode="replace", **options)


def test_a_copy_of_a_table_with_retained_files_is_refused() -> None:
    """A baseline by listing would take the retained files of the original for data."""
    lake = two_generations()
    for key in lake.keys(ROOT):
        lake.store.put(BUCKET, key.replace(ROOT, "copy/"), lake.get(key))
    copied = Lake(prefix="copy/")
    copied.store = lake.store
    job = copied.sealed({"dt=1/a": b"c"}, job_id=THEIRS)
    with pytest.raises(InvalidRecord, match="retains files that it has replaced"):
        job.commit()
    assert [key for key in lake.keys(f"{HOME}log/") if key.endswith("3.json")] == []


def test_ours_is_what_the_table_has() -> None:
    """The table's own files are told from retained ones of the same partition."""
    lake = two_generations()
    snapshot = read_snapshot(lake.store, FLIGHTS)
    assert snapshot is not None
    assert (snapshot.live_jobs("dt=1"), snapshot.retained_jobs("dt=1")) == ({OURS}, {FIRST})


def test_a_job_that_has_ended_is_looked_up_once() -> None:
    """Its manifest answers, so nothing else is asked about it."""
    lake = Lake()
    lake.put({"dt=1/old": b"old"})
    for job_id in (THEIRS, an_id("3"), an_id("4")):
        lake.sealed({"dt=1/a": b"1"}, job_id=job_id, conflict_mode="append").commit()
    snapshot = read_snapshot(lake.store, FLIGHTS)
    assert snapshot is not None
    lake.store.calls.clear()
    assert [info.key for info in unlisted_objects(lake.store, FLIGHTS, snapshot, ())] == [f"{ROOT}dt=1/old"]
    asked = [call.key for call in lake.store.calls if THEIRS in call.key or an_id("3") in call.key]
    assert sorted(asked) == sorted(f"{ROOT}_s3commit/manifests/{job}.json" for job in (THEIRS, an_id("3")))


def test_a_job_that_ends_between_two_looks_is_no_older_one() -> None:
    """It had no manifest at the first look, and is not unfinished at the second: its entry names its file."""
    lake = Lake()
    lake.put({"dt=1/old": b"old"})
    lake.sealed({"dt=1/a": b"1"}, job_id=THEIRS, conflict_mode="append").commit()
    job = lake.sealed({"dt=1/b": b"2"}, conflict_mode="append")
    crash(lake, job.commit, "put", f"{OURS}.jsonl")
    snapshot = read_snapshot(lake.store, FLIGHTS)
    assert snapshot is not None

    def commit() -> None:
        lake.store.rest()
        job.commit()

    lake.store.before = once("head", f"manifests/{OURS}.json", commit)
    assert [info.key for info in unlisted_objects(lake.store, FLIGHTS, snapshot, ())] == [f"{ROOT}dt=1/old"]
    assert job.manifest() is not None


def test_a_partition_that_a_commit_has_removed_has_none() -> None:
    """What another program writes there afterwards is in no generation."""
    lake = Lake()
    lake.put({"dt=1/old": b"old", "dt=2/old": b"old"})
    lake.sealed({"dt=1/a": b"1"}, job_id=THEIRS).commit()
    lake.put({"dt=1/foreign": b"f"})
    snapshot = read_snapshot(lake.store, FLIGHTS)
    assert snapshot is not None
    assert [info.key for info in unlisted_objects(lake.store, FLIGHTS, snapshot, ())] == [f"{ROOT}dt=2/old"]

"""Objects that are older than a table's log are told from those of its jobs with few look-ups."""

from __future__ import annotations

from airflow_s3commit.protocol.metadata.snapshot import read_snapshot
from airflow_s3commit.protocol.metadata.unlisted import unlisted_objects
from airflow_s3commit.protocol.model.destination import Destination
from tests.protocol.building import BUCKET, OURS, ROOT, THEIRS, Lake, an_id, once
from tests.protocol.lifecycle.test_enter import crash

HERE = Destination.parse(f"s3://{BUCKET}/{ROOT}")


def test_a_job_that_has_ended_is_looked_up_once() -> None:
    """Its manifest answers, so nothing else is asked about it."""
    lake = Lake()
    lake.put({"dt=1/old": b"old"})
    for job_id in (THEIRS, an_id("3"), an_id("4")):
        lake.sealed({"dt=1/a": b"1"}, job_id=job_id, conflict_mode="append").commit()
    snapshot = read_snapshot(lake.store, HERE)
    assert snapshot is not None
    lake.store.calls.clear()
    assert [info.key for info in unlisted_objects(lake.store, HERE, snapshot, ())] == [f"{ROOT}dt=1/old"]
    asked = [call.key for call in lake.store.calls if THEIRS in call.key or an_id("3") in call.key]
    assert sorted(asked) == sorted(f"{ROOT}_s3commit/manifests/{job}.json" for job in (THEIRS, an_id("3")))


def test_a_job_that_ends_between_two_looks_is_no_older_one() -> None:
    """It had no manifest at the first look, and is not unfinished at the second: its entry names its file."""
    lake = Lake()
    lake.put({"dt=1/old": b"old"})
    lake.sealed({"dt=1/a": b"1"}, job_id=THEIRS, conflict_mode="append").commit()
    job = lake.sealed({"dt=1/b": b"2"}, conflict_mode="append")
    crash(lake, job.commit, "put", f"{OURS}.jsonl")
    snapshot = read_snapshot(lake.store, HERE)
    assert snapshot is not None

    def commit() -> None:
        lake.store.rest()
        job.commit()

    lake.store.before = once("head", f"manifests/{OURS}.json", commit)
    assert [info.key for info in unlisted_objects(lake.store, HERE, snapshot, ())] == [f"{ROOT}dt=1/old"]
    assert job.manifest() is not None


def test_a_partition_that_a_commit_has_removed_has_none() -> None:
    """What another program writes there afterwards is in no generation."""
    lake = Lake()
    lake.put({"dt=1/old": b"old", "dt=2/old": b"old"})
    lake.sealed({"dt=1/a": b"1"}, job_id=THEIRS).commit()
    lake.put({"dt=1/foreign": b"f"})
    snapshot = read_snapshot(lake.store, HERE)
    assert snapshot is not None
    assert [info.key for info in unlisted_objects(lake.store, HERE, snapshot, ())] == [f"{ROOT}dt=2/old"]

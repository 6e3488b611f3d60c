"""The lock of versions before ``begin`` entries: its holder's job is settled, and then the lock goes."""

from __future__ import annotations

import json

import pytest

from airflow_s3commit.exceptions import InvalidRecord
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.lock import remove_former_lock
from airflow_s3commit.protocol.model.codec import encode
from airflow_s3commit.protocol.model.job import LockRecord
from tests.cases import each
from tests.protocol.building import BUCKET, HOME, OURS, THEIRS, Crash, Lake

KEY = f"{HOME}commit-lock.json"


def never(context: JobContext) -> None:
    """Fail: no job may be settled here."""
    raise AssertionError(f"{context.name} was settled")


def lock(lake: Lake, job_id: str = OURS) -> None:
    """Put the lock of a job on the lake."""
    place = {"destination": lake.destination, "staging": f"{lake.destination}__magic_job-{job_id}/"}
    record = LockRecord(job_id=job_id, owner="old", lease=60.0, nonce="n", **place)
    lake.store.put(BUCKET, KEY, encode(record))


def as_before_begin(lake: Lake) -> None:
    """Change the job's state to that of a version without ``begin`` entries, and remove its entry."""
    key = lake.context().layout.state
    state = json.loads(lake.get(key))
    lake.store.put(BUCKET, key, json.dumps({**state, "begun": True, "reversible": False}).encode())
    for entry in lake.keys(f"{HOME}log/"):
        if json.loads(lake.get(entry))["kind"] == "begin":
            lake.store.delete(BUCKET, entry)


def test_without_a_lock_no_job_is_settled() -> None:
    """The check takes one request if no earlier version left a lock."""
    lake = Lake()
    assert not remove_former_lock(lake.context(), never)
    assert len(lake.store.calls) == 1


def test_a_job_that_died_halfway_is_finished_first() -> None:
    """A job that published with the lock, and without a begin, is finished before another one commits."""
    lake = Lake()
    lake.put({"dt=1/old": b"old"})
    job = lake.sealed({"dt=1/a": b"1", "dt=1/b": b"2"}, unique_filenames=False)
    lake.store.die("complete_upload", nth=2)
    with pytest.raises(Crash):
        job.commit()
    lake.store.rest()
    as_before_begin(lake)
    lock(lake)
    lake.sealed({"dt=2/t": b"t"}, job_id=THEIRS, unique_filenames=False).commit()
    manifest = lake.job().manifest()
    assert manifest is not None
    assert manifest.counts.files == 2
    assert (len(lake.data()), lake.staging(), lake.pending()) == (3, [], [])
    assert KEY not in lake.keys("")


def test_a_replace_of_files_without_an_id_waits_for_such_a_job() -> None:
    """A job with unique names removes files that such a job was publishing only after its entry."""
    lake = Lake()
    lake.put({"dt=1/old": b"old"})
    job = lake.sealed({"dt=1/a": b"1", "dt=1/b": b"2"}, unique_filenames=False)
    lake.store.die("complete_upload", nth=2)
    with pytest.raises(Crash):
        job.commit()
    lake.store.rest()
    as_before_begin(lake)
    lock(lake)
    lake.sealed({"dt=1/t": b"t"}, job_id=THEIRS).commit()
    assert lake.job().manifest() is not None
    assert list(lake.data().values()) == [b"t"]
    assert KEY not in lake.keys("")


@each("state", ["sealed", "gone", "its own"])
def test_a_lock_of_a_job_that_has_not_begun_goes(state: str) -> None:
    """A holder that published nothing is left unchanged, and the lock goes."""
    lake = Lake()
    if state == "sealed":
        lake.sealed({"dt=1/a": b"1"}, job_id=THEIRS, unique_filenames=False)
    lock(lake, OURS if state == "its own" else THEIRS)
    lake.sealed({"dt=1/b": b"2"}, unique_filenames=False).commit()
    assert KEY not in lake.keys("")
    if state == "sealed":
        lake.job(THEIRS).commit()
        assert lake.data() == {"dt=1/a": b"1"}


def test_a_lock_that_cannot_be_read_stops_the_commit() -> None:
    """Something unreadable in the lock's place is neither ignored nor removed."""
    lake = Lake()
    lake.store.put(BUCKET, KEY, b"{")
    with pytest.raises(InvalidRecord, match=r"commit-lock\.json"):
        remove_former_lock(lake.context(), never)
    assert lake.get(KEY) == b"{"

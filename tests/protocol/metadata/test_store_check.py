"""Before a job starts, its process looks at what the job relies on, without disturbing other looks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from airflow_s3commit.exceptions import AccessDenied, PreconditionFailed, StoreRejected, StoreUnsuitable
from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.metadata.removal import delete_objects
from airflow_s3commit.protocol.metadata.store_check import look_at_uploads
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.job import JobOptions
from airflow_s3commit.store.base import DeleteFailure, ObjectToDelete, Upload
from airflow_s3commit.store.memory import MemoryStore
from airflow_s3commit.testing import FaultyStore
from tests.protocol.building import BUCKET, OURS, ROOT, Lake, once

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class HalfBlind(MemoryStore):
    """A store that ignores one of the two conditions, or refuses it.

    Args:
        blind: The condition.
        how: ``ignores`` it, ``rejects`` the header, or finds it ``never`` fulfilled.
    """

    def __init__(self, blind: str, how: str) -> None:
        super().__init__((BUCKET, "other"))
        self._blind = blind
        self._how = how

    def put(self, bucket: str, key: str, body: bytes, **arguments: Any) -> Any:
        """Write without that condition, or not at all."""
        if arguments.pop(self._blind, None):
            if self._how == "rejects":
                raise StoreRejected("no such header here", code="NotImplemented")
            if self._how == "never":
                raise PreconditionFailed("never")
        return super().put(bucket, key, body, **arguments)


class Careless(MemoryStore):
    """A store whose bulk deletes ignore ETags, and that deletes one by one if it is told so."""

    def delete_many(self, bucket: str, objects: Sequence[ObjectToDelete]) -> list[DeleteFailure]:
        """Delete, whatever the ETags are, unless the profile says that they are ignored."""
        if self.profiles[bucket].bulk_etags:
            objects = [ObjectToDelete(one.key) for one in objects]
        return super().delete_many(bucket, objects)


class ByExactKey(MemoryStore):
    """A store that lists uploads by their exact keys only."""

    def list_uploads(self, bucket: str, prefix: str, *, page: int | None = None) -> Iterator[Upload]:
        """List the uploads of a key."""
        return (one for one in super().list_uploads(bucket, prefix, page=page) if one.key == prefix)


#: What a set-up that is refused after its first write has left: the first entry of the log.
LOG = ["t/_s3commit/log/00000000000000000001.json"]


def left(store: MemoryStore) -> list[str]:
    """Return the keys of all objects and uploads."""
    found: list[str] = []
    for bucket in (BUCKET, "other"):
        found += [info.key for info in store.list_objects(bucket, "")]
        found += [upload.key for upload in store.list_uploads(bucket, "")]
    return found


@pytest.mark.parametrize(
    ("blind", "how", "says"),
    [
        ("if_none_match", "ignores", r"If-None-Match: \* replaces an object that is there"),
        ("if_none_match", "rejects", r"If-None-Match: \* is rejected"),
        ("if_match", "ignores", "If-Match replaces an object that has another ETag"),
        ("if_match", "rejects", "conditional writes are rejected"),
        ("if_match", "never", "If-Match is refused although the object has that ETag"),
    ],
)
def test_each_condition_is_seen(blind: str, how: str, says: str) -> None:
    """A store that ignores or refuses one of the two conditions is refused by name, and keeps nothing."""
    store = HalfBlind(blind, how)
    with pytest.raises(StoreUnsuitable, match=rf"store memory: is unsuitable: in bucket {BUCKET}.*{says}"):
        Job.setup(store, f"s3://{BUCKET}/t/")
    assert left(store) == ([] if (blind, how) == ("if_none_match", "rejects") else LOG)


@pytest.mark.parametrize("blind", ["if_none_match", "if_match"])
def test_the_destination_s_bucket_counts(blind: str) -> None:
    """Wherever tasks leave their records, the log and the jobs' records are in the destination's bucket."""

    class Mixed(HalfBlind):
        def put(self, bucket: str, key: str, body: bytes, **arguments: Any) -> Any:
            write = super().put if bucket == BUCKET else super(HalfBlind, self).put
            return write(bucket, key, body, **arguments)

    store = Mixed(blind, "ignores")
    with pytest.raises(StoreUnsuitable, match=f"in bucket {BUCKET} a write with If"):
        Job.setup(store, f"s3://{BUCKET}/t/", options=JobOptions(staging="s3://other/records/"))
    assert left(store) == LOG


def test_a_record_that_goes_meanwhile_is_not_taken_for_a_lack() -> None:
    """An abort or a sweep may delete the record at which conditions are tried."""

    class Racing(MemoryStore):
        def put(self, bucket: str, key: str, body: bytes, **arguments: Any) -> Any:
            if arguments.get("if_match"):
                self.delete(bucket, key)
            return super().put(bucket, key, body, **arguments)

    Job.setup(store := Racing((BUCKET, "other")), f"s3://{BUCKET}/t/")
    assert left(store) == LOG


def test_a_process_looks_once() -> None:
    """The second job of a process writes its record, and tries nothing."""
    lake = Lake()
    lake.set_up()
    lake.store.calls.clear()
    Job.setup(lake.store, lake.destination)
    assert [call.verb for call in lake.store.calls if call.verb == "put"] == ["put"]
    assert not any("upload" in call.verb for call in lake.store.calls)


@pytest.mark.parametrize("verb", ["create_upload", "list_uploads", "abort_upload", "put"])
def test_a_missing_right_shows_at_once(verb: str) -> None:
    """A role that may not start, list or abort uploads, or write, is refused before any work."""
    lake = Lake()
    lake.store.before = once(verb, "", AccessDenied("no"))
    with pytest.raises(AccessDenied):
        lake.set_up()
    assert lake.left() == []


def test_a_store_that_hides_uploads_needs_records_of_them() -> None:
    """Where an abort could not list a dead task's uploads, a job must record each of them when it starts."""
    store = ByExactKey((BUCKET, "other"))
    with pytest.raises(StoreUnsuitable, match='set track_pending="s3"'):
        Job.setup(store, f"s3://{BUCKET}/t/")
    assert left(store) == []
    Job.setup(store, f"s3://{BUCKET}/t/", options=JobOptions(track_pending="s3"))


def test_another_look_at_any_moment_does_not_disturb_one() -> None:
    """Whichever call of a set-up another process's set-up of the same job happens before, both succeed."""
    sent = Lake()
    sent.set_up()
    for number in range(len(sent.store.calls)):
        lake, other = Lake(), MemoryStore()
        other._buckets = lake.store.inner._buckets  # type: ignore[attr-defined]
        calls = iter(range(number + 1))

        def meanwhile(_call: Any, number: int = number, calls: Any = calls, other: Any = other) -> None:
            if next(calls, None) == number:
                options = JobOptions(committer="magic", conflict_mode="replace")
                Job.setup(other, f"s3://{BUCKET}/{ROOT}", options=options, job_id=OURS)

        lake.store.before = meanwhile
        job = lake.set_up()
        lake.store.rest()
        assert job.record() == lake.job().record()
        assert lake.left() == [lake.open_key()]
        assert lake.pending() == []


def test_a_record_that_another_release_wrote_stays_as_it_is() -> None:
    """A look does not write it with this one's fields alone: references of the job name its bytes."""
    lake = Lake()
    lake.set_up()
    body = lake.get(lake.open_key())[:-1] + b',"of_a_later_release":1}'
    lake.store.put(BUCKET, lake.open_key(), body)
    other = MemoryStore()
    other._buckets = lake.store.inner._buckets  # type: ignore[attr-defined]
    options = JobOptions(committer="magic", conflict_mode="replace")
    Job.setup(other, f"s3://{BUCKET}/{ROOT}", options=options, job_id=OURS)
    assert lake.get(lake.open_key()) == body


def test_bulk_deletes_that_ignore_etags_are_found_out_in_time() -> None:
    """Before the first bulk delete with ETags a probe shows whether they count; a changed object stays."""
    lake = Lake()
    store = Careless((BUCKET,))
    old = store.put(BUCKET, f"{ROOT}dt=1/old", b"old").etag
    store.put(BUCKET, f"{ROOT}dt=1/changed", b"new")
    doomed = [ObjectToDelete(f"{ROOT}dt=1/old", old), ObjectToDelete(f"{ROOT}dt=1/changed", old)]
    assert delete_objects(replace(lake.context(), store=store), doomed, "entry") == 1
    assert [info.key for info in store.list_objects(BUCKET, "")] == [f"{ROOT}dt=1/changed"]


def test_an_abort_of_the_probe_s_upload_is_not_taken_for_a_lack() -> None:
    """If another process aborts the upload before it is listed, the look begins again."""
    lake = Lake()
    context = lake.context()

    def aborted() -> None:
        lake.store.rest()
        (upload,) = lake.store.list_uploads(BUCKET, "")
        lake.store.abort_upload(BUCKET, upload.key, upload.upload_id)

    lake.store.before = once("list_uploads", "", aborted)
    look_at_uploads(context, JobOptions())
    assert lake.pending() == []


def test_elsewhere_is_looked_at_too() -> None:
    """A bucket that a process has not seen is looked at, even if it knows another one of the store."""
    store = FaultyStore(MemoryStore((BUCKET, "other")))
    for bucket in (BUCKET, "other"):
        Job.setup(store, Destination(bucket, "t/"))
    assert {call.bucket for call in store.calls if call.verb == "create_upload"} == {BUCKET, "other"}

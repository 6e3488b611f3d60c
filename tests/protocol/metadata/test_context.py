"""Records are created once, and lost answers are resolved by a read."""

from __future__ import annotations

import msgspec
import pytest

from airflow_s3commit.exceptions import (
    InvalidRecord,
    NoSuchKey,
    OutcomeUnknown,
    StoreRejected,
    StoreUnsuitable,
    Unavailable,
)
from airflow_s3commit.protocol.metadata.context import (
    create_record,
    find_record,
    in_small_batches,
    load_record,
)
from airflow_s3commit.protocol.model.codec import encode
from airflow_s3commit.protocol.model.job import JobOptions, JobRecord
from tests.protocol.building import BUCKET, WatchedStore, once

KEY = "there/job.json"


@pytest.fixture
def store() -> WatchedStore:
    """Return a store whose calls a test can interrupt."""
    return WatchedStore((BUCKET,))


def record(nonce: str) -> JobRecord:
    """Return a record of some writer."""
    return JobRecord(
        job_id="j", destination="s3://b/", staging="s3://b/s/", options=JobOptions(), created=1, nonce=nonce
    )


def put(store: WatchedStore, nonce: str) -> str:
    """Write another writer's record and return its ETag."""
    return store.put(BUCKET, KEY, encode(record(nonce))).etag


def standing(store: WatchedStore) -> str:
    """Return the nonce of the stored record."""
    return load_record(store, BUCKET, KEY, JobRecord).record.nonce


def lost() -> OutcomeUnknown:
    """Return what a lost answer is."""
    return OutcomeUnknown("the answer was lost")


def test_a_record_is_found_or_not(store: WatchedStore) -> None:
    """A missing record is None to `find` and an error to `load`."""
    assert find_record(store, BUCKET, KEY, JobRecord) is None
    with pytest.raises(NoSuchKey):
        load_record(store, BUCKET, KEY, JobRecord)
    etag = put(store, "n")
    found = find_record(store, BUCKET, KEY, JobRecord)
    assert found is not None
    assert (found.record.nonce, found.etag) == ("n", etag)


@pytest.mark.parametrize("body", [b"", b"{", b"{}", b"null"])
def test_a_damaged_record_is_never_taken_for_none(store: WatchedStore, body: bytes) -> None:
    """An unreadable record is never overwritten."""
    etag = store.put(BUCKET, KEY, body).etag
    with pytest.raises(InvalidRecord, match=f"s3://{BUCKET}/{KEY}"):
        find_record(store, BUCKET, KEY, JobRecord)
    with pytest.raises(InvalidRecord):
        create_record(store, BUCKET, KEY, record("n"))
    assert store.get(BUCKET, KEY).info.etag == etag


def test_of_two_creators_the_first_wins(store: WatchedStore) -> None:
    """The second one gets the first one's record."""
    first = create_record(store, BUCKET, KEY, record("1"))
    second = create_record(store, BUCKET, KEY, record("2"))
    assert first.record.nonce == second.record.nonce == standing(store) == "1"
    assert first.etag == second.etag


def test_a_lost_answer_to_a_create_is_resolved_by_a_read(store: WatchedStore) -> None:
    """After a lost response a read decides: the writer's own record is returned, or the error is raised."""
    store.after = once("put", KEY, lost())
    created = create_record(store, BUCKET, KEY, record("1"))
    assert created.record.nonce == standing(store) == "1"


def test_a_create_that_did_not_happen_is_still_unknown(store: WatchedStore) -> None:
    """If the request is lost before the write, nothing is written and the outcome is unknown."""
    store.before = once("put", KEY, lost())
    with pytest.raises(OutcomeUnknown):
        create_record(store, BUCKET, KEY, record("1"))
    assert find_record(store, BUCKET, KEY, JobRecord) is None


def test_a_lost_answer_may_hide_another_writer() -> None:
    """If another writer's record is stored after a lost response, that one is returned."""
    store = WatchedStore((BUCKET,))

    def overtake() -> None:
        put(store, "another")
        raise lost()

    store.before = lambda call: (store.rest(), overtake())[0] if call.verb == "put" else None
    assert create_record(store, BUCKET, KEY, record("1")).record.nonce == "another"


def test_a_repeated_create_finds_its_own_record(store: WatchedStore) -> None:
    """A create that is sent again after a lost answer gets 412, and its nonce shows that it succeeded."""
    own = record("1")
    create_record(store, BUCKET, KEY, own)
    assert create_record(store, BUCKET, KEY, own).record == own


def test_other_errors_go_through() -> None:
    """A write that the store rejects is not sent again, and nothing changes."""
    store = WatchedStore((BUCKET,))
    put(store, "0")
    store.before = once("put", KEY, Unavailable("slow down"))
    with pytest.raises(Unavailable):
        create_record(store, BUCKET, KEY, record("1"))
    assert standing(store) == "0"


def test_a_store_without_conditional_writes_is_unsuitable() -> None:
    """A store that knows no such header is named, and so is the bucket; other rejections go through."""
    store = WatchedStore((BUCKET,))
    for code, error in (("NotImplemented", StoreUnsuitable), ("InvalidStorageClass", StoreRejected)):
        store.before = once("put", KEY, StoreRejected("no", code=code))
        with pytest.raises(error):
            create_record(store, BUCKET, KEY, record("1"))
        assert find_record(store, BUCKET, KEY, JobRecord) is None


def test_an_unreadable_record_is_not_written(store: WatchedStore) -> None:
    """An invalid record never reaches the store."""
    bad = msgspec.structs.replace(record("n"), job_id="", created=-1)
    with pytest.raises(InvalidRecord):
        create_record(store, BUCKET, KEY, bad)
    assert find_record(store, BUCKET, KEY, JobRecord) is None


def test_batches_are_bounded_by_count_and_by_size() -> None:
    """Memory stays bounded: only an item that is larger than the room comes alone."""
    sizes = [9, 1, 1, 1, 5, 1, 9, 1]
    assert list(in_small_batches(sizes, 2, int, 6)) == [[9], [1, 1], [1, 5], [1], [9], [1]]

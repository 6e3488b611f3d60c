"""Conditional writes, and how lost answers are resolved."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from airflow_s3commit.exceptions import InvalidRecord, NoSuchKey, OutcomeUnknown, Unavailable
from airflow_s3commit.protocol.metadata import records
from airflow_s3commit.protocol.model.codec import encode
from airflow_s3commit.protocol.model.job import StateRecord
from airflow_s3commit.testing import StoreCall
from tests.protocol.building import BUCKET, WatchedStore, once

KEY = "there/state.json"


@pytest.fixture
def store() -> WatchedStore:
    """Return a store whose calls a test can interrupt."""
    return WatchedStore((BUCKET,))


def record(nonce: str, owner: str = "me") -> StateRecord:
    """Return a record of some writer."""
    return StateRecord(
        job_id="j",
        destination="s3://b/",
        staging="s3://b/s/",
        state="open",
        owner=owner,
        attempt=0,
        since=1,
        nonce=nonce,
    )


def put(store: WatchedStore, nonce: str) -> str:
    """Write another writer's record and return its ETag."""
    return store.put(BUCKET, KEY, encode(record(nonce, "another"))).etag


def standing(store: WatchedStore) -> str:
    """Return the nonce of the stored record."""
    return records.load(store, BUCKET, KEY, StateRecord).record.nonce


def lost() -> OutcomeUnknown:
    """Return what a lost answer is."""
    return OutcomeUnknown("the answer was lost")


def test_a_record_is_found_or_not(store: WatchedStore) -> None:
    """A missing record is None to `find` and an error to `load`."""
    assert records.find(store, BUCKET, KEY, StateRecord) is None
    with pytest.raises(NoSuchKey):
        records.load(store, BUCKET, KEY, StateRecord)
    etag = put(store, "n")
    found = records.find(store, BUCKET, KEY, StateRecord)
    assert found is not None
    assert (found.record.nonce, found.etag) == ("n", etag)
    assert found.date >= found.modified


@pytest.mark.parametrize("body", [b"", b"{", b"{}", b"null"])
def test_a_damaged_record_is_never_taken_for_none(store: WatchedStore, body: bytes) -> None:
    """An unreadable record is never overwritten: not by a read, a create or a swap."""
    etag = store.put(BUCKET, KEY, body).etag
    with pytest.raises(InvalidRecord, match=f"s3://{BUCKET}/{KEY}"):
        records.find(store, BUCKET, KEY, StateRecord)
    with pytest.raises(InvalidRecord):
        records.create(store, BUCKET, KEY, record("n"))
    assert store.get(BUCKET, KEY).info.etag == etag


def test_of_two_creators_the_first_wins(store: WatchedStore) -> None:
    """The second one gets the first one's record."""
    first = records.create(store, BUCKET, KEY, record("1"))
    second = records.create(store, BUCKET, KEY, record("2"))
    assert first.record.nonce == second.record.nonce == standing(store) == "1"
    assert first.etag == second.etag


def test_a_lost_answer_to_a_create_is_resolved_by_a_read(store: WatchedStore) -> None:
    """After a lost response a read decides: the writer's own record is returned, or the error is raised."""
    store.after = once("put", KEY, lost())
    created = records.create(store, BUCKET, KEY, record("1"))
    assert created.record.nonce == standing(store) == "1"


def test_a_create_that_did_not_happen_is_still_unknown(store: WatchedStore) -> None:
    """If the request is lost before the write, nothing is written and the outcome is unknown."""
    store.before = once("put", KEY, lost())
    with pytest.raises(OutcomeUnknown):
        records.create(store, BUCKET, KEY, record("1"))
    assert records.find(store, BUCKET, KEY, StateRecord) is None


def test_a_lost_answer_may_hide_another_writer() -> None:
    """If another writer's record is stored after a lost response, that one is returned."""
    store = WatchedStore((BUCKET,))

    def overtake() -> None:
        put(store, "another")
        raise lost()

    store.before = lambda call: (store.rest(), overtake())[0] if call.verb == "put" else None
    assert records.create(store, BUCKET, KEY, record("1")).record.nonce == "another"


def test_a_repeated_create_finds_its_own_record(store: WatchedStore) -> None:
    """A create that is sent again after a lost answer gets 412, and its nonce shows that it succeeded."""
    own = record("1")
    records.create(store, BUCKET, KEY, own)
    assert records.create(store, BUCKET, KEY, own).record == own


def test_a_swap_follows_the_record_it_read(store: WatchedStore) -> None:
    """Of two that read the same record, the first one swaps and the second one gets None."""
    etag = put(store, "0")
    first = records.swap(store, BUCKET, KEY, record("1"), etag)
    assert first is not None
    assert records.swap(store, BUCKET, KEY, record("2"), etag) is None
    assert standing(store) == "1"
    assert records.swap(store, BUCKET, KEY, record("2"), first.etag) is not None


def test_a_swap_of_a_record_that_is_gone_fails(store: WatchedStore) -> None:
    """If the record is gone, nothing is written."""
    etag = put(store, "0")
    store.delete(BUCKET, KEY)
    assert records.swap(store, BUCKET, KEY, record("1"), etag) is None
    assert records.find(store, BUCKET, KEY, StateRecord) is None


def test_a_lost_answer_to_a_swap_is_resolved_by_a_read(store: WatchedStore) -> None:
    """The writer finds its own nonce and has succeeded."""
    etag = put(store, "0")
    store.after = once("put", KEY, lost())
    swapped = records.swap(store, BUCKET, KEY, record("1"), etag)
    assert swapped is not None
    assert swapped.record.nonce == standing(store) == "1"
    assert swapped.etag == store.head(BUCKET, KEY).etag


def test_a_swap_that_may_still_happen_is_unknown(store: WatchedStore) -> None:
    """If the old record is still stored, the request may be in flight: the outcome is unknown."""
    etag = put(store, "0")
    store.before = once("put", KEY, lost())
    with pytest.raises(OutcomeUnknown):
        records.swap(store, BUCKET, KEY, record("1"), etag)
    assert standing(store) == "0"


def test_a_swap_overtaken_while_its_answer_was_lost_failed() -> None:
    """If another writer's record is stored, the swap can no longer happen."""
    store = WatchedStore((BUCKET,))
    etag = put(store, "0")

    def overtake(call: StoreCall) -> None:
        if call.verb == "put":
            store.rest()
            put(store, "another")
            raise lost()

    store.before = overtake
    assert records.swap(store, BUCKET, KEY, record("1"), etag) is None
    assert standing(store) == "another"


@pytest.mark.parametrize("act", ["create", "swap"])
def test_other_errors_go_through(act: str) -> None:
    """A write that the store rejects is not sent again, and nothing changes."""
    store = WatchedStore((BUCKET,))
    etag = put(store, "0")
    store.before = once("put", KEY, Unavailable("slow down"))
    extra: Any = (etag,) if act == "swap" else ()
    with pytest.raises(Unavailable):
        getattr(records, act)(store, BUCKET, KEY, record("1"), *extra)
    assert standing(store) == "0"


def test_an_unreadable_record_is_not_written(store: WatchedStore) -> None:
    """An invalid record never reaches the store."""
    bad = msgspec.structs.replace(record("n"), job_id="", attempt=-1)
    with pytest.raises(InvalidRecord):
        records.create(store, BUCKET, KEY, bad)
    etag = put(store, "0")
    with pytest.raises(InvalidRecord):
        records.swap(store, BUCKET, KEY, bad, etag)
    assert standing(store) == "0"

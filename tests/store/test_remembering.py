"""A store that remembers what its process has created once and for all."""

from __future__ import annotations

from contextlib import suppress

import pytest

from airflow_s3commit import MemoryStore
from airflow_s3commit.exceptions import NoSuchKey, PreconditionFailed
from airflow_s3commit.store.base import DeleteMany, Get, Head, ObjectInfo, ObjectToDelete
from airflow_s3commit.store.forwarding import CountingStore, ForwardingStore
from airflow_s3commit.store.remembering import RememberingStore


@pytest.fixture
def counted() -> CountingStore:
    """Return a counted store in memory, whose time stands still."""
    return CountingStore(MemoryStore(("lake", "other"), now=lambda: 1_000.0))


def test_what_was_created_is_not_read_again(counted: CountingStore) -> None:
    """An object that the process created is returned without a request, alone and beside others."""
    store = RememberingStore(counted)
    written = store.put("lake", "a", b"1", if_none_match=True)
    counted.put("lake", "b", b"2")
    before = counted.counters["object_put_requests"]
    found = store.get("lake", "a")
    assert (found.body, found.info.etag) == (b"1", written.etag)
    outcomes = list(store.perform([(key, Get("lake", key, 10)) for key in ("b", "c", "a")]))
    several = dict(outcomes)
    assert len(outcomes) == len(several) == 3
    assert several["a"].body == b"1"  # type: ignore[union-attr]
    assert several["b"].body == b"2"  # type: ignore[union-attr]
    assert isinstance(several["c"], NoSuchKey)
    assert counted.counters == {"object_put_requests": before, "action_http_get_request": 2}
    assert found == several["a"] == counted.get("lake", "a")


def test_what_is_there_is_not_created_again(counted: CountingStore) -> None:
    """A second creation of the same key fails without a request."""
    RememberingStore(counted).put("lake", "a", b"1", if_none_match=True)
    with pytest.raises(PreconditionFailed, match="s3://lake/a"):
        RememberingStore(counted).put("lake", "a", b"2", if_none_match=True)
    assert counted.counters == {"object_put_requests": 1}


def test_only_creations_are_remembered(counted: CountingStore) -> None:
    """What may change, what others wrote and what is missing is always asked for."""
    store = RememberingStore(counted)
    store.put("lake", "a", b"1")
    counted.put("lake", "a", b"2")
    assert store.get("lake", "a").body == b"2"
    with pytest.raises(NoSuchKey):
        store.get("lake", "b")
    counted.put("lake", "b", b"3")
    assert store.get("lake", "b").body == b"3"
    assert [outcome.size for _, outcome in store.perform([(0, Head("lake", "a"))])] == [1]  # type: ignore[union-attr]


@pytest.mark.parametrize("way", ["delete", "delete_many", "perform", "put"])
def test_what_was_deleted_or_overwritten_is_forgotten(counted: CountingStore, way: str) -> None:
    """After the process has deleted or overwritten an object, the store decides."""
    store = RememberingStore(counted)
    store.put("lake", "a", b"1", if_none_match=True)
    if way == "delete":
        store.delete("lake", "a")
    elif way == "delete_many":
        store.delete_many("lake", [ObjectToDelete("a")])
    elif way == "perform":
        assert list(store.perform([(0, DeleteMany("lake", [ObjectToDelete("a")]))])) == [(0, [])]
    else:
        store.put("lake", "a", b"22")
    if way == "put":
        assert store.get("lake", "a").body == b"22"
    else:
        with pytest.raises(NoSuchKey):
            store.get("lake", "a")


def test_little_is_remembered(counted: CountingStore) -> None:
    """The oldest of many objects, and a large one, are asked for."""
    store = RememberingStore(counted)
    for number in range(65):
        store.put("lake", str(number), b"1", if_none_match=True)
    store.put("lake", "large", bytes(300_000), if_none_match=True)
    asked = {}
    for key in ("0", "1", "64", "large"):
        before = counted.counters.get("action_http_get_request", 0)
        store.get("lake", key)
        asked[key] = counted.counters.get("action_http_get_request", 0) - before
    assert asked == {"0": 1, "1": 0, "64": 0, "large": 1}


def test_what_others_change_is_not_remembered(counted: CountingStore) -> None:
    """An object that is replaced by compare-and-swap is always asked for."""
    store = RememberingStore(counted, but=("_SUCCESS",))
    store.put("lake", "t/_SUCCESS", b"1", if_none_match=True)
    counted.put("lake", "t/_SUCCESS", b"2")
    assert store.get("lake", "t/_SUCCESS").body == b"2"


@pytest.mark.parametrize("now", ["gone", "another", "the same"])
@pytest.mark.parametrize("recursive", [True, False])
def test_a_listing_is_believed(counted: CountingStore, now: str, recursive: bool) -> None:
    """What a listing lacks, or shows as another object, is forgotten, and nothing that it does not cover."""
    store = RememberingStore(counted)
    store.put("other", "log/2", b"1", if_none_match=True)
    for key in ("log/1", "log/2", "log/2/deeper", "other"):
        store.put("lake", key, b"1", if_none_match=True)
    for key in ("log/1", "log/2", "log/2/deeper", "other"):
        if now == "gone":
            counted.delete("lake", key)
        elif now == "another":
            counted.put("lake", key, b"2")
    list(store.list_objects("lake", "log/", recursive=recursive, start_after="log/1"))
    remembered = [key for key in ("log/1", "log/2", "log/2/deeper", "other") if _is_remembered(store, key)]
    below = ["log/2"] if not recursive else ["log/2", "log/2/deeper"]
    every = ["log/1", "log/2", "log/2/deeper", "other"]
    assert remembered == (every if now == "the same" else [key for key in every if key not in below])
    assert counted.counters.get("action_http_get_request", 0) == (0 if now == "the same" else len(below))
    counted.delete("other", "log/2")
    assert store.get("other", "log/2").body == b"1"


@pytest.mark.parametrize("now", ["gone", "another", "the same"])
def test_a_head_is_believed(counted: CountingStore, now: str) -> None:
    """After a HEAD an object is remembered only if it is the one that the process has written."""
    store = RememberingStore(counted)
    store.put("lake", "a", b"1", if_none_match=True)
    if now == "gone":
        counted.delete("lake", "a")
    elif now == "another":
        counted.put("lake", "a", b"2")
    with suppress(NoSuchKey):
        store.head("lake", "a")
    assert _is_remembered(store, "a") == (now == "the same")
    assert counted.counters.get("action_http_get_request", 0) == (now != "the same")


def _is_remembered(store: RememberingStore, key: str) -> bool:
    try:
        return store.get("lake", key).body == b"1"
    except NoSuchKey:
        return False


def test_what_was_swapped_is_believed_until_a_swap_is_refused(counted: CountingStore) -> None:
    """What the process swapped is not read again, and is after another process has swapped it."""
    store = RememberingStore(counted)
    first = store.put("lake", "t/_SUCCESS", b"1", if_none_match=True)
    second = store.put("lake", "t/_SUCCESS", b"2", if_match=first.etag)
    assert store.get("lake", "t/_SUCCESS").info.etag == second.etag
    counted.put("lake", "t/_SUCCESS", b"3")
    assert store.get("lake", "t/_SUCCESS").body == b"2"
    with pytest.raises(PreconditionFailed):
        store.put("lake", "t/_SUCCESS", b"4", if_match=second.etag)
    assert store.get("lake", "t/_SUCCESS").body == b"3"


def test_a_head_does_not_bring_back_what_was_swapped_meanwhile() -> None:
    """Another thread's write between a HEAD and its answer is what a read returns."""

    class Swapping(ForwardingStore):
        def head(self, bucket: str, key: str) -> ObjectInfo:
            info = self.inner.head(bucket, key)
            store.put(bucket, key, b"2", if_match=info.etag)
            return info

    store = RememberingStore(Swapping(MemoryStore()))
    store.put("lake", "a", b"1", if_none_match=True)
    store.head("lake", "a")
    assert store.get("lake", "a").body == b"2"

"""The watch sees a dataset as its readers do, and every state that it passes through."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from airflow_s3commit import Destination
from airflow_s3commit.exceptions import AccessDenied, NoSuchBucket
from airflow_s3commit.testing import Fault, FaultyStore, MemoryStore
from dev.demo.watch import DatasetWatch, Sight

if TYPE_CHECKING:
    from collections.abc import Callable

FLIGHTS = Destination.parse("s3://lake/flights")


def begin(store: MemoryStore, key: str) -> Callable[[], object]:
    """Upload one part for a key, and return what completes the upload."""
    upload = store.create_upload("lake", key, metadata={}, content_type="text/plain")
    etag = store.upload_part("lake", key, upload, 1, b"rows")
    return lambda: store.complete_upload("lake", key, upload, [etag])


def test_look_is_a_readers() -> None:
    """Hidden files and other datasets are not seen; pending uploads of the dataset are."""
    store = MemoryStore()
    for key in ("flights/dt=1/a", "flights/_SUCCESS", "flights/_s3commit/jobs/1", "flights2/b"):
        store.put("lake", key, b"x")
    begin(store, "flights/dt=1/c")
    begin(store, "flights2/d")
    assert DatasetWatch(store, FLIGHTS).look() == Sight(("flights/dt=1/c",), frozenset({"flights/dt=1/a"}))


def test_every_state_is_noted_once() -> None:
    """Each change is reported once and kept, and so is the state before it."""
    store = MemoryStore()
    changed = threading.Semaphore(0)
    told: list[Sight] = []

    def tell(sight: Sight) -> None:
        told.append(sight)
        changed.release()

    with DatasetWatch(store, FLIGHTS, tell) as watch:
        complete = begin(store, "flights/a")
        assert changed.acquire(timeout=30)
        complete()
        assert changed.acquire(timeout=30)
        while watch.sights[-1].pending:  # seen between the two listings of one look
            assert changed.acquire(timeout=30)
    assert watch.sights[0] == Sight((), frozenset())
    assert watch.last_before_change() == watch.most_pending() == Sight(("flights/a",), frozenset())
    assert watch.sights[-1] == Sight((), frozenset({"flights/a"}))
    assert told == watch.sights[1:]


def test_last_look_is_taken_at_the_end() -> None:
    """What changed just before the block ended is noted, however soon it ended."""
    store = MemoryStore()
    with DatasetWatch(store, FLIGHTS) as watch:
        store.put("lake", "flights/late", b"x")
    assert watch.sights[-1].visible == {"flights/late"}


def test_missing_bucket_is_an_error() -> None:
    """A watch that cannot list the store reports that, and not an empty listing."""
    with pytest.raises(NoSuchBucket), DatasetWatch(MemoryStore(), Destination.parse("s3://nowhere/x")):
        pass


def test_a_look_that_fails_later_is_raised_at_the_end() -> None:
    """An error in the watching thread is not lost with it."""
    store = FaultyStore(MemoryStore(), Fault("deny", "list_uploads", nth=2))
    with pytest.raises(AccessDenied), DatasetWatch(store, FLIGHTS) as watch:
        watch._thread.join(30)

"""Calls as values: every one is made once, none is drawn too early, errors are outcomes."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from airflow_s3commit.exceptions import NoSuchBucket, NoSuchKey, NoSuchUpload
from airflow_s3commit.store.base import Abort, Call, Complete, Get, Head, ObjectInfo
from airflow_s3commit.store.execute import in_threads, make_call, one_by_one, with_threads
from airflow_s3commit.store.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Iterator


class SlowStore(MemoryStore):
    """A store whose HEAD waits until the expected number of calls is in flight."""

    def __init__(self, together: int) -> None:
        super().__init__()
        self.barrier = threading.Barrier(together, timeout=30)

    def head(self, bucket: str, key: str) -> ObjectInfo:
        """See `MemoryStore.head`."""
        self.barrier.wait()
        return super().head(bucket, key)


class BrokenStore(MemoryStore):
    """A store with a bug of its own."""

    def head(self, bucket: str, key: str) -> ObjectInfo:
        """Fail as no store may."""
        raise ZeroDivisionError


def heads(count: int, key: str = "k") -> list[tuple[int, Call]]:
    """Return a number of calls, tagged by number."""
    return [(number, Head("lake", key)) for number in range(count)]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (Head("lake", "k"), NoSuchKey),
        (Get("nowhere", "k"), NoSuchBucket),
        (Complete("lake", "k", "u", ["e"]), NoSuchUpload),
    ],
)
def test_errors_are_outcomes(call: Call, error: type[Exception]) -> None:
    """A store's error is what became of a call; it is returned, not raised."""
    assert isinstance(make_call(MemoryStore(), call), error)


def test_each_call_reaches_its_verb() -> None:
    """Complete, abort, head and get do what the verb of that name does."""
    store = MemoryStore()
    first, second = (store.create_upload("lake", key, metadata={}, content_type="a/b") for key in ("a", "b"))
    etag = store.upload_part("lake", "a", first, 1, b"1")
    assert make_call(store, Complete("lake", "a", first, [etag])) == store.head("lake", "a").etag
    assert make_call(store, Abort("lake", "b", second)) is None
    assert list(store.list_uploads("lake", "")) == []
    assert make_call(store, Head("lake", "a")) == store.head("lake", "a")
    assert make_call(store, Get("lake", "a")).body == b"1"  # type: ignore[union-attr]


def test_one_by_one_keeps_the_order() -> None:
    """Without threads outcomes come in the order of the calls, each drawn when it is wanted."""
    drawn: list[int] = []

    def source() -> Iterator[tuple[int, Call]]:
        for tag, call in heads(5):
            drawn.append(tag)
            yield tag, call

    outcomes = one_by_one(MemoryStore(), source())
    assert next(outcomes)[0] == 0
    assert drawn == [0]
    assert [tag for tag, _ in outcomes] == [1, 2, 3, 4]


def test_threads_work_at_the_same_time() -> None:
    """As many calls are under way at once as there are threads."""
    store = SlowStore(together=4)
    store.put("lake", "k", b"")
    outcomes = list(with_threads(store, heads(8), threads=4))
    assert sorted(tag for tag, _ in outcomes) == list(range(8))
    assert all(isinstance(outcome, ObjectInfo) for _, outcome in outcomes)


def test_threads_make_every_call_once() -> None:
    """Each of many more calls than threads has one outcome."""
    outcomes = list(with_threads(MemoryStore(), heads(500), threads=3))
    assert sorted(tag for tag, _ in outcomes) == list(range(500))


def test_threads_draw_little_ahead() -> None:
    """No more than two calls a thread are drawn before the first outcome is taken."""
    drawn: list[int] = []

    def source() -> Iterator[tuple[int, Call]]:
        for tag, call in heads(100):
            drawn.append(tag)
            yield tag, call

    outcomes = with_threads(MemoryStore(), source(), threads=3)
    next(outcomes)
    assert len(drawn) == 6
    outcomes.close()  # type: ignore[attr-defined]
    assert len(drawn) == 6


def test_no_calls_no_outcomes() -> None:
    """Nothing to do is nothing done."""
    assert list(with_threads(MemoryStore(), [], threads=3)) == []


def test_bugs_are_raised() -> None:
    """What is not a store's error is no outcome: it is raised."""
    with pytest.raises(ZeroDivisionError):
        list(with_threads(BrokenStore(), heads(1), threads=1))


@pytest.mark.parametrize("threads", [0, 2])
def test_results_come_in_the_order_of_the_items(threads: int) -> None:
    """Results have the order of the arguments, of which few are drawn ahead; an error comes in its turn."""
    drawn: list[int] = []

    def items() -> Iterator[int]:
        for number in range(100):
            drawn.append(number)
            yield number

    def inverse(number: int) -> float:
        return 1 / (20 - number)

    results = in_threads(inverse, items(), threads)
    assert [next(results) for _ in range(10)] == [1 / (20 - number) for number in range(10)]
    assert len(drawn) <= 10 + 2 * threads
    with pytest.raises(ZeroDivisionError):
        list(results)
    assert len(drawn) <= 21 + 2 * threads


def test_a_function_runs_in_several_threads() -> None:
    """As many calls as there are threads wait for one another."""
    together = threading.Barrier(4, timeout=30)
    assert len(list(in_threads(lambda _: together.wait(), range(8), 4))) == 8

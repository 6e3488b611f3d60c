"""Reading a store for a page: never longer than a person waits, and once for all who ask at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from types import GeneratorType
from typing import Any, TypeVar, cast

from airflow_s3commit.clock import Clock, SystemClock
from airflow_s3commit.exceptions import Unavailable
from airflow_s3commit.store.base import Call, ObjectStore, Outcome

__all__ = ["Reader", "StillRunning", "within"]

T = TypeVar("T")


class StillRunning(Unavailable):
    """Nothing was decided within the time that a page waits; what was begun goes on."""


class _ImpatientStore:
    """An `ObjectStore` that answers no further call after a moment."""

    def __init__(self, inner: ObjectStore, clock: Clock, seconds: float) -> None:
        self._inner = inner
        self._clock = clock
        self._seconds = seconds
        self._end = clock.monotonic() + seconds

    def __getattr__(self, verb: str) -> Any:
        attribute = getattr(self._inner, verb)
        return self._bounded(attribute) if callable(attribute) else attribute

    def perform(self, calls: Iterable[tuple[T, Call]]) -> Iterator[tuple[T, Outcome]]:
        """See `ObjectStore.perform`."""
        for answer in self._inner.perform(calls):
            self._check()
            yield answer

    def _bounded(self, attribute: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._check()
            answer = attribute(*args, **kwargs)
            return self._each(answer) if isinstance(answer, GeneratorType) else answer

        return call

    def _each(self, answers: Iterator[T]) -> Iterator[T]:
        for answer in answers:
            self._check()
            yield answer

    def _check(self) -> None:
        if self._clock.monotonic() > self._end:
            raise Unavailable(f"the store took longer than the {self._seconds:g} s that a page waits")


def within(store: ObjectStore, seconds: float, clock: Clock | None = None) -> ObjectStore:
    """Return the store as one that turns every call away after so many seconds from now."""
    return cast("ObjectStore", _ImpatientStore(store, clock or SystemClock(), seconds))


class Reader:
    """Runs readings on threads of its own; who asks for one that is under way waits for that one.

    Args:
        seconds: How long anybody waits.
        threads: Readings that run at once.

    """

    def __init__(self, seconds: float, threads: int = 8) -> None:
        self.seconds = seconds
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="s3commit-page")
        self._running: dict[object, Future[Any]] = {}
        # Reentrant: a reading that ends at once is forgotten by whoever starts it.
        self._lock = threading.RLock()

    def begin(self, key: object, reading: Callable[[], T]) -> Future[T]:
        """Start a reading, or join the one of that key that is under way."""
        with self._lock:
            future = self._running.get(key)
            if future is None:
                future = self._running[key] = self._pool.submit(reading)
                future.add_done_callback(lambda _: self._forget(key))
            return future

    def result(self, future: Future[T], seconds: float | None = None) -> T:
        """Wait for a reading.

        Raises:
            StillRunning: It takes too long; it is left to end by itself.
            S3CommitError: What the reading raised.

        """
        try:
            return future.result(self.seconds if seconds is None else seconds)
        except FutureTimeout:
            raise StillRunning(
                f"the store did not answer within {self.seconds:g} s; the page shows nothing of it"
            ) from None

    def read(self, key: object, reading: Callable[[], T]) -> T:
        """Start a reading and wait for it; see `result` for what it raises."""
        return self.result(self.begin(key, reading))

    def _forget(self, key: object) -> None:
        with self._lock:
            self._running.pop(key, None)

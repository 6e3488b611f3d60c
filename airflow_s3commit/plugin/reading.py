"""Reads stores for pages: no longer than a user waits, and only while a request waits for it.

A reading runs on a thread. Requests for the same reading share it. It stops at its next call of the store
once its time is up or the last waiting request is gone. A destination gets few threads at once, so a slow
one delays only itself.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar, cast

from airflow_s3commit._clock import Clock, SystemClock
from airflow_s3commit.exceptions import Unavailable
from airflow_s3commit.store.base import Call, ObjectStore, Outcome
from airflow_s3commit.store.forwarding import ForwardingStore

T = TypeVar("T")


class StillRunning(Unavailable):
    """The store did not answer within the time that a page waits."""


class Budget:
    """The time that a reading may take, counted from the request; it ends at once when it is cancelled.

    Args:
        seconds: Its length.
        clock: The clock.

    """

    def __init__(self, seconds: float, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._seconds = seconds
        self._end = self._clock.monotonic() + seconds
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """End the budget: no request waits any more."""
        self._cancelled.set()

    def check(self) -> None:
        """Return if there is time left.

        Raises:
            Unavailable: There is none, or no request waits any more.

        """
        if self._cancelled.is_set():
            raise Unavailable("no request waits for this reading any more")
        if self._clock.monotonic() > self._end:
            raise StillRunning(_no_answer(self._seconds))


class _BoundedStore(ForwardingStore):
    """An `ObjectStore` that refuses every further call once a budget is spent."""

    def __init__(self, inner: ObjectStore, budget: Budget) -> None:
        super().__init__(inner)
        self._budget = budget

    def forward(self, verb: str, bucket: str, key: str, make: Callable[[], T]) -> T:
        """Make the call if there is time left."""
        self._budget.check()
        result = super().forward(verb, bucket, key, make)
        return cast("T", self._each(result)) if isinstance(result, Iterator) else result

    def perform(self, calls: Iterable[tuple[T, Call]]) -> Iterator[tuple[T, Outcome]]:
        """Make the calls while there is time left."""
        self._budget.check()
        return self._each(super().perform(calls))

    def _each(self, items: Iterator[T]) -> Iterator[T]:
        for item in items:
            self._budget.check()
            yield item


def within(store: ObjectStore, budget: Budget) -> ObjectStore:
    """Return the store as one that refuses every call once the budget is spent."""
    return _BoundedStore(store, budget)


@dataclass(eq=False)
class _Reading(Generic[T]):
    """One piece of work, and the number of requests that wait for it."""

    lane: Hashable
    key: Hashable
    work: Callable[[Budget], T]
    budget: Budget
    future: Future[T] = field(default_factory=Future)
    waiting: int = 0


class Reader:
    """Runs readings on threads of its own.

    Args:
        seconds: How long a request waits, in the queue and for the reading together.
        lane: The number of readings of one lane, a destination, that run at once; the others queue.
        threads: The number of readings that run at once in all.
        forsakes: Whether a reading is cancelled when no request waits for it any more.
        clock: The clock of the budgets.

    """

    def __init__(
        self,
        seconds: float,
        *,
        lane: int = 2,
        threads: int = 64,
        forsakes: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self.seconds = seconds
        self._most = {"lane": lane, "all": threads}
        self._forsakes = forsakes
        self._clock = clock or SystemClock()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="s3commit-page")
        self._lock = threading.Lock()
        self._running: Counter[Hashable] = Counter()
        self._queue: list[_Reading[Any]] = []
        self._known: dict[tuple[Hashable, Hashable], _Reading[Any]] = {}

    async def read(self, lane: Hashable, key: Hashable, work: Callable[[Budget], T]) -> T:
        """Start a reading, or join the running one with that key, and wait for its result.

        Args:
            lane: The lane whose threads the reading uses.
            key: Identifies the reading within its lane.
            work: Reads; it must check the budget now and then, as `within` does.

        Raises:
            StillRunning: It takes too long.
            Exception: The exception of the reading.

        """
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def tell(_: Future[T]) -> None:
            with suppress(RuntimeError):  # The loop is closed.
                loop.call_soon_threadsafe(done.set)

        reading = self._join(lane, key, work)
        try:
            reading.future.add_done_callback(tell)
            async with asyncio.timeout(self.seconds):
                await done.wait()
        except TimeoutError:
            raise StillRunning(_no_answer(self.seconds)) from None
        finally:
            self._leave(reading)
        return reading.future.result()

    def _join(self, lane: Hashable, key: Hashable, work: Callable[[Budget], T]) -> _Reading[T]:
        with self._lock:
            reading = self._known.get((lane, key))
            if reading is None:
                reading = _Reading(lane, key, work, Budget(self.seconds, self._clock))
                self._known[lane, key] = reading
                self._queue.append(reading)
                self._begin_some()
            reading.waiting += 1
        return reading

    def _leave(self, reading: _Reading[Any]) -> None:
        with self._lock:
            reading.waiting -= 1
            if reading.waiting or reading.future.done() or not self._forsakes:
                return
            reading.budget.cancel()
            self._forget(reading)
            if reading in self._queue:
                self._queue.remove(reading)

    def _begin_some(self) -> None:
        """Start queued readings in order while threads are free; the lock is held."""
        for reading in list(self._queue):
            if self._running.total() >= self._most["all"]:
                return
            if self._running[reading.lane] < self._most["lane"]:
                self._queue.remove(reading)
                self._running[reading.lane] += 1
                self._pool.submit(self._run, reading)

    def _run(self, reading: _Reading[Any]) -> None:
        settle: Callable[[], None]
        try:
            settle = partial(reading.future.set_result, reading.work(reading.budget))
        except BaseException as error:
            settle = partial(reading.future.set_exception, error)
        with self._lock:
            self._forget(reading)
            self._running[reading.lane] -= 1
            if not self._running[reading.lane]:
                del self._running[reading.lane]
            self._begin_some()
        # Last, so that a request that has the answer and asks again gets a new reading.
        settle()

    def _forget(self, reading: _Reading[Any]) -> None:
        if self._known.get((reading.lane, reading.key)) is reading:
            del self._known[reading.lane, reading.key]


def _no_answer(seconds: float) -> str:
    return f"the store did not answer in {seconds:g} s"

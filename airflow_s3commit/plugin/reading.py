"""Reads stores for pages: within a time limit, and only while an HTTP request waits for the result.

A reading runs on a thread. HTTP requests for the same reading share it. It stops at its next call of the
store once its time is up or the last waiting request is gone. Each destination gets few threads, so a slow
destination does not delay the others.
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
from typing import Any, Generic, Literal, TypeAlias, TypeVar, cast

from airflow_s3commit._clock import Clock, SystemClock
from airflow_s3commit.exceptions import Unavailable
from airflow_s3commit.store.base import Call, ObjectStore, Outcome
from airflow_s3commit.store.forwarding import ForwardingStore

T = TypeVar("T")


#: What a reading is doing: it waits for a thread, connects, or reads the store.
Step: TypeAlias = Literal["queued", "connecting", "reading"]


class StillRunning(Unavailable):
    """A reading did not end within the time that a page waits.

    Args:
        message: The message.
        of_store: Whether it waited for the store, and not for a thread or a connection.

    """

    def __init__(self, message: str, *, of_store: bool) -> None:
        super().__init__(message)
        self.of_store = of_store


class Budget:
    """The time that a reading may take. A cancelled budget ends at once.

    Args:
        seconds: Length of the budget, from now.
        clock: The clock; None for the system's.

    """

    def __init__(self, seconds: float, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._seconds = seconds
        self._end = self._clock.monotonic() + seconds
        self._cancelled = threading.Event()
        self.step: Step = "queued"

    def cancel(self) -> None:
        """End the budget, because no request waits for the reading."""
        self._cancelled.set()

    def check(self) -> None:
        """Raise an error unless there is time left.

        Raises:
            Unavailable: The budget is cancelled.
            StillRunning: There is no time left.

        """
        if self._cancelled.is_set():
            raise Unavailable("the reading was cancelled, because no request waits for it")
        if self._clock.monotonic() > self._end:
            raise self.exceeded()

    def exceeded(self) -> StillRunning:
        """Return the error of a reading that takes too long; it blames the store only for its own time."""
        match self.step:
            case "queued":
                why = (
                    f"earlier readings of this store did not end within {self._seconds:g} s; reload the page"
                )
            case "connecting":
                why = f"the API server was still connecting after {self._seconds:g} s; reload the page"
            case "reading":
                why = f"the store did not respond within {self._seconds:g} s"
        return StillRunning(why, of_store=self.step == "reading")


class _BoundedStore(ForwardingStore):
    """A store that checks a budget before every call, and for every item that a call yields."""

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
    """Return a store that forwards calls while there is time left, and raises `Unavailable` afterwards."""
    budget.step = "reading"
    return _BoundedStore(store, budget)


@dataclass(eq=False)
class _Reading(Generic[T]):
    """A reading, and the number of requests that wait for it."""

    lane: Hashable
    key: Hashable
    work: Callable[[Budget], T]
    budget: Budget
    future: Future[T] = field(default_factory=Future)
    waiting: int = 0


class Reader:
    """Runs readings on threads of its own.

    Args:
        seconds: Seconds that a request waits, in the queue and for the reading together.
        lane: Maximum number of readings of one lane, such as a destination, at once; the others queue.
        threads: Maximum number of readings at once.
        cancels: Whether to cancel a reading when the last waiting request is gone.
        clock: The clock of the budgets; None for the system's.

    """

    def __init__(
        self,
        seconds: float,
        *,
        lane: int = 2,
        threads: int = 64,
        cancels: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self.seconds = seconds
        self._most = {"lane": lane, "all": threads}
        self._cancels = cancels
        self._clock = clock or SystemClock()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="s3commit-page")
        self._lock = threading.Lock()
        self._running: Counter[Hashable] = Counter()
        self._queue: list[_Reading[Any]] = []
        self._known: dict[tuple[Hashable, Hashable], _Reading[Any]] = {}

    async def read(self, lane: Hashable, key: Hashable, work: Callable[[Budget], T]) -> T:
        """Start a reading, or join the running one with the same key, and return its result.

        Args:
            lane: The lane whose threads the reading uses.
            key: Identifies the reading within its lane.
            work: Reads the store; checks the budget regularly, as the store from `within` does.

        Raises:
            StillRunning: The reading takes too long.
            Exception: The exception of the reading.

        """
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def wake(_: Future[T]) -> None:
            with suppress(RuntimeError):  # The loop is closed.
                loop.call_soon_threadsafe(done.set)

        reading = self._join(lane, key, work)
        try:
            reading.future.add_done_callback(wake)
            async with asyncio.timeout(self.seconds):
                await done.wait()
        except TimeoutError:
            raise reading.budget.exceeded() from None
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
            if reading.waiting or reading.future.done() or not self._cancels:
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
        reading.budget.step = "connecting"
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
        # Last, so that a request that has the result and reads again gets a new reading.
        settle()

    def _forget(self, reading: _Reading[Any]) -> None:
        if self._known.get((reading.lane, reading.key)) is reading:
            del self._known[reading.lane, reading.key]

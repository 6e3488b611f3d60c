"""Reading stores for a page: no longer than a person waits, and only while somebody does.

A reading runs on a thread. Who asks for one that is under way joins it. It ends early, at its next call of
the store, once its time is over or the last one who waited for it is gone. A destination has few threads at
once, so a slow one delays nothing but itself.
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
from types import GeneratorType
from typing import Any, Generic, TypeVar, cast

from airflow_s3commit.clock import Clock, SystemClock
from airflow_s3commit.exceptions import Unavailable
from airflow_s3commit.store.base import Call, ObjectStore, Outcome

__all__ = ["Budget", "Reader", "StillRunning", "within"]

T = TypeVar("T")


class StillRunning(Unavailable):
    """There was no answer within the time that a page waits."""


class Budget:
    """The time that a reading may take, from when it was asked for; over at once when it is cancelled.

    Args:
        seconds: How long that is.
        clock: Where time comes from.

    """

    def __init__(self, seconds: float, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._seconds = seconds
        self._end = self._clock.monotonic() + seconds
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """Say that nobody waits any more."""
        self._cancelled.set()

    def check(self) -> None:
        """Return if there is time left.

        Raises:
            Unavailable: There is none, or nobody waits any more.

        """
        if self._cancelled.is_set():
            raise Unavailable("nobody waits for this reading any more")
        if self._clock.monotonic() > self._end:
            raise StillRunning(_no_answer(self._seconds))


class _ImpatientStore:
    """An `ObjectStore` that answers no further call once a budget is spent."""

    def __init__(self, inner: ObjectStore, budget: Budget) -> None:
        self._inner = inner
        self._budget = budget

    def __getattr__(self, verb: str) -> Any:
        attribute = getattr(self._inner, verb)
        return self._bounded(attribute) if callable(attribute) else attribute

    def perform(self, calls: Iterable[tuple[T, Call]]) -> Iterator[tuple[T, Outcome]]:
        """See `ObjectStore.perform`."""
        self._budget.check()
        return self._each(self._inner.perform(calls))

    def _bounded(self, attribute: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._budget.check()
            answer = attribute(*args, **kwargs)
            return self._each(answer) if isinstance(answer, GeneratorType) else answer

        return call

    def _each(self, answers: Iterator[T]) -> Iterator[T]:
        for answer in answers:
            self._budget.check()
            yield answer


def within(store: ObjectStore, budget: Budget) -> ObjectStore:
    """Return the store as one that turns every call away once the budget is spent."""
    return cast("ObjectStore", _ImpatientStore(store, budget))


@dataclass(eq=False)
class _Reading(Generic[T]):
    """One piece of work, and how many wait for it."""

    lane: Hashable
    key: Hashable
    work: Callable[[Budget], T]
    budget: Budget
    future: Future[T] = field(default_factory=Future)
    waiting: int = 0


class Reader:
    """Runs readings on threads of its own.

    Args:
        seconds: How long anybody waits, in a queue and for the reading together.
        lane: Readings of one lane, a destination, that run at once; the others wait for their turn.
        threads: Readings that run at once in all.
        forsakes: Whether a reading that nobody waits for any more is cancelled.
        clock: Where readings' budgets have their time from.

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
        """Start a reading, or join the one of that key that is under way, and wait for it.

        Args:
            lane: What the reading takes the threads of.
            key: What makes two readings of a lane the same one.
            work: Reads; it must check the budget now and then, as `within` does.

        Raises:
            StillRunning: It takes too long.
            Exception: What the reading raised.

        """
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def tell(_: Future[T]) -> None:
            with suppress(RuntimeError):  # The loop is closed: nobody is there to be told.
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
        """Start what waits, the first first, as far as there are threads; the lock is held."""
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
        # Last, so that who has the answer and asks again gets a new reading.
        settle()

    def _forget(self, reading: _Reading[Any]) -> None:
        if self._known.get((reading.lane, reading.key)) is reading:
            del self._known[reading.lane, reading.key]


def _no_answer(seconds: float) -> str:
    return f"the store did not answer in {seconds:g} s"

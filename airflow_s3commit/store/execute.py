"""Makes calls: one, retried until a deadline, or many from several threads; and limits their rate.

Retries have full jitter (Marc Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015): each
pause is drawn uniformly between zero and a bound that doubles up to a cap.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

from msgspec.structs import astuple

from airflow_s3commit._clock import Clock, SystemClock
from airflow_s3commit.exceptions import REFUSALS, OutcomeUnknown, S3CommitError, Unavailable
from airflow_s3commit.store.base import Call, ObjectStore, Outcome

T = TypeVar("T")

#: The bound on the first pause, which doubles with each retry, and the bound on any pause; in seconds.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When, and for how long, a call is retried.

    A call is retried if it did not happen (`Unavailable`) or may have happened (`OutcomeUnknown`). That is
    safe: every method of `ObjectStore` may be repeated, or its caller reads back the effect. A pause is as
    long as the store requests, but no shorter than the drawn one.

    Attributes:
        deadline: Seconds from the start of the first attempt; no further attempt begins after them.
        clock: Source of time.
        draw: Returns a random number between its two arguments, in seconds.
        on_retry: Called before each retry with the error of the attempt that failed; from any thread.
    """

    deadline: float = 60.0
    clock: Clock = field(default_factory=SystemClock)
    draw: Callable[[float, float], float] = random.uniform
    on_retry: Callable[[OutcomeUnknown | Unavailable], None] = lambda _: None

    def run(self, attempt: Callable[[], T]) -> T:
        """Run ``attempt`` until it returns, raises another error, or the deadline passes.

        Raises:
            OutcomeUnknown: At the deadline or at one of `REFUSALS`, an earlier attempt may have taken effect.
            Unavailable: The deadline passed and no attempt took effect.
        """
        began, bound = self.clock.monotonic(), _FIRST_PAUSE
        unknown: OutcomeUnknown | None = None
        while True:
            try:
                return attempt()
            except (OutcomeUnknown, Unavailable) as error:
                unknown = error if isinstance(error, OutcomeUnknown) else unknown
                asked = error.retry_after if isinstance(error, Unavailable) else None
                pause = max(asked or 0.0, self.draw(0.0, bound))
                if self.clock.monotonic() + pause - began > self.deadline:
                    raise unknown or error  # noqa: B904 - the last error stays its context
                self.on_retry(error)
            except REFUSALS as error:
                if unknown is None:
                    raise
                raise OutcomeUnknown(f"{unknown}; then {error}") from error
            bound = min(bound * 2, _LONGEST_PAUSE)
            self.clock.sleep(pause)


#: Requests in flight before the store has answered any.
FIRST_WINDOW = 32

# Seconds in which the window is halved at most once; seconds' worth of requests that may go out together
# after a lull; the shortest pause: a few requests together cost less CPU than each by itself.
_CUT_SECONDS, _BURST_SECONDS, _BATCH_SECONDS = 1.0, 0.02, 0.005


class Throttle:
    """Limits requests to the rate that a store can take; shared by all runs on it, and safe between threads.

    The number in flight is bounded by a window as in TCP (RFC 5681): each success widens it by one, which
    doubles it every round trip, until the store says "slow down". Then it is halved, at most once per second
    because all requests in flight get the same response, and grows by one per window of successes.
    """

    def __init__(self, clock: Clock, *, most: int, per_second: float | None) -> None:
        self.clock = clock
        self.most = most
        self._width = float(min(FIRST_WINDOW, most))
        self._interval = 1 / per_second if per_second else 0.0
        self._due = 0.0
        self._cut: float | None = None
        self._lock = threading.Lock()

    @property
    def window(self) -> int:
        """How many requests may be in flight now."""
        return int(self._width)

    def succeeded(self, calls: int) -> None:
        """Widen the window after this many successes."""
        with self._lock:
            growth = calls if self._cut is None else calls / self._width
            self._width = min(self._width + growth, self.most)

    def slow_down(self) -> None:
        """Halve the window, unless that was done within the last second."""
        with self._lock:
            now = self.clock.monotonic()
            if self._cut is None or now - self._cut >= _CUT_SECONDS:
                self._cut = now
                self._width = max(1.0, self._width / 2)

    def pause(self) -> float:
        """Return 0 and count one request as sent now, or return the seconds until one may be sent."""
        if not self._interval:
            return 0.0
        with self._lock:
            now = self.clock.monotonic()
            if self._due > now:
                return max(self._due - now, _BATCH_SECONDS)
            self._due = max(self._due, now - _BURST_SECONDS) + self._interval
            return 0.0


R = TypeVar("R")


def in_batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield the items in lists of ``size``, the last one possibly shorter; draws one list at a time."""
    source = iter(items)
    while batch := list(islice(source, size)):
        yield batch


def in_threads(function: Callable[[T], R], items: Iterable[T], threads: int) -> Iterator[R]:
    """Yield a function's results in the order of its arguments, from several threads at once.

    An exception of the function is raised in its turn; calls that have not begun by then are not made. At
    most twice as many arguments as threads are drawn ahead. 0 threads make each call in the caller's thread.
    """
    if not threads:
        yield from map(function, items)
        return
    source = iter(items)
    pool = ThreadPoolExecutor(threads, thread_name_prefix="s3commit")
    try:
        running = deque(pool.submit(function, item) for item in islice(source, 2 * threads))
        while running:
            result = running.popleft().result()
            running.extend(pool.submit(function, item) for item in islice(source, 1))
            yield result
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def make_call(store: ObjectStore, call: Call) -> Outcome:
    """Make one call and return its outcome; an `S3CommitError` is returned, not raised."""
    try:
        outcome: Outcome = getattr(store, call.verb)(*astuple(call))
    except S3CommitError as error:
        return error
    return outcome


def outcomes(
    store: ObjectStore, calls: Iterable[tuple[T, Call]], *expected: type[S3CommitError]
) -> Iterator[tuple[T, Outcome]]:
    """Make the calls and yield their outcomes in any order; raise any unexpected error."""
    for tag, outcome in store.perform(calls):
        if isinstance(outcome, S3CommitError) and not isinstance(outcome, expected):
            raise outcome
        yield tag, outcome


def until_outage(store: ObjectStore, calls: Iterable[tuple[T, Call]]) -> Iterator[tuple[T, Outcome]]:
    """Make the calls and yield their outcomes in any order; stop after four failures in a row, an outage."""
    failed = 0
    for tag, outcome in store.perform(calls):
        yield tag, outcome
        failed = failed + 1 if isinstance(outcome, OutcomeUnknown | Unavailable) else 0
        if failed == 4:  # noqa: PLR2004 - each has taken all its retries
            return


def one_by_one(store: ObjectStore, calls: Iterable[tuple[T, Call]]) -> Iterator[tuple[T, Outcome]]:
    """Make the calls in order, in the caller's thread."""
    for tag, call in calls:
        yield tag, make_call(store, call)


def with_threads(
    store: ObjectStore, calls: Iterable[tuple[T, Call]], threads: int
) -> Iterator[tuple[T, Outcome]]:
    """Make the calls from ``threads`` threads; draw at most twice as many calls ahead.

    Outcomes come in any order: a call that the store told to wait must not hold up the others.
    """
    source = iter(calls)
    pool = ThreadPoolExecutor(threads, thread_name_prefix="s3commit")
    running: dict[Future[Outcome], T] = {}
    try:
        while True:
            for tag, call in islice(source, 2 * threads - len(running)):
                running[pool.submit(make_call, store, call)] = tag
            if not running:
                return
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                yield running.pop(future), future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)

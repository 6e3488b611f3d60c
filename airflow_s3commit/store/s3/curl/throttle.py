"""The rate at which the fast path sends requests."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_s3commit._clock import Clock

#: Requests in flight before the store has answered any.
FIRST_WINDOW = 32

#: Seconds in which the window is halved at most once.
CUT_SECONDS = 1.0

#: Seconds' worth of requests that may go out together after a lull.
BURST_SECONDS = 0.02

#: The shortest pause in seconds: a few requests together cost less CPU than each by itself.
BATCH_SECONDS = 0.005

#: Seconds below which there is no pause: finer than a sleep is accurate.
SHORTEST_PAUSE = 0.0001


class Throttle:
    """The rate that a store can take, shared by all runs on it; safe to use from several threads.

    The number in flight is bounded by TCP's congestion window (RFC 5681): each success widens it by one,
    which doubles it every round trip, until the store says "slow down". Then it is halved, at most once per
    second because all requests in flight get the same response, and widened by one per window of successes.

    Args:
        most: Maximum requests in flight.
        per_second: Maximum requests per second; None for no bound.

    Attributes:
        window: Requests that may be in flight now.
    """

    def __init__(self, clock: Clock, *, most: int, per_second: float | None) -> None:
        self._clock = clock
        self._most = float(most)
        self._width = min(float(FIRST_WINDOW), self._most)
        self.window = int(self._width)
        self._interval = 1 / per_second if per_second else 0.0
        self._due = clock.monotonic() - BURST_SECONDS
        self._cut: float | None = None
        self._lock = threading.Lock()

    def succeeded(self, calls: int) -> None:
        """Widen the window after this many successes."""
        with self._lock:
            growth = calls if self._cut is None else calls / self._width
            self._width = min(self._width + growth, self._most)
            self.window = int(self._width)

    def slow_down(self) -> None:
        """Halve the window, unless that was done within the last second."""
        with self._lock:
            now = self._clock.monotonic()
            if self._cut is None or now - self._cut >= CUT_SECONDS:
                self._cut = now
                self._width = max(1.0, self._width / 2)
                self.window = int(self._width)

    def pause(self) -> float:
        """Return 0 and count a request that goes out now, or the seconds until one may."""
        if not self._interval:
            return 0.0
        with self._lock:
            now = self._clock.monotonic()
            if self._due - now > SHORTEST_PAUSE:
                return max(self._due - now, BATCH_SECONDS)
            self._due = max(self._due, now - BURST_SECONDS) + self._interval
            return 0.0

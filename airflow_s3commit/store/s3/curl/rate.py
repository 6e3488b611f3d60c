"""How fast requests are sent: how many are in flight at once, and how many per second.

The number in flight is bounded by TCP's congestion window (RFC 5681): each success widens it by one, which
doubles it every round trip, until the store says "slow down". Then it is halved, at most once per second
because all requests in flight get the same response, and widened by one per window of successes.
"""

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
    """The rate that a store bears, shared by all runs on it; safe to use from several threads.

    Args:
        clock: Source of time.
        most: Requests in flight at most.
        per_second: Requests per second at most; None for no bound.

    Attributes:
        window: Requests that may be in flight now.
        is_bounded: Whether requests per second are bounded.

    """

    def __init__(self, clock: Clock, *, most: int, per_second: float | None) -> None:
        self._clock = clock
        self._most = float(most)
        self._width = min(float(FIRST_WINDOW), self._most)
        self.window = int(self._width)
        self.is_bounded = bool(per_second)
        self._interval = 1 / per_second if per_second else 0.0
        self._due = clock.monotonic() - BURST_SECONDS
        self._cut = clock.monotonic() - CUT_SECONDS
        self._was_cut = False
        self._lock = threading.Lock()

    def succeeded(self, calls: int = 1) -> None:
        """Widen the window after this number of successes."""
        with self._lock:
            growth = calls / self._width if self._was_cut else calls
            self._width = min(self._width + growth, self._most)
            self.window = int(self._width)

    def slow_down(self) -> None:
        """Halve the window, unless that was done within the last second."""
        with self._lock:
            now = self._clock.monotonic()
            if now - self._cut >= CUT_SECONDS:
                self._cut, self._was_cut = now, True
                self._width = max(1.0, self._width / 2)
                self.window = int(self._width)

    def pause(self) -> float:
        """Return the seconds until the next request may go out; 0 if it may now."""
        if not self._interval:
            return 0.0
        pause = self._due - self._clock.monotonic()
        return max(pause, BATCH_SECONDS) if pause > SHORTEST_PAUSE else 0.0

    def sent(self) -> None:
        """Count a request that went out."""
        if self._interval:
            with self._lock:
                self._due = max(self._due, self._clock.monotonic() - BURST_SECONDS) + self._interval

"""How hard a store is pressed: calls under way at once, and requests a second.

The window grows and shrinks as TCP's congestion window does (RFC 5681): by one with every success until the
store first says "slow down", from then on by one a windowful; it is halved when the store says so, at most
once a second, because everything that was under way at that moment hears the same.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_s3commit.clock import Clock

__all__ = ["FIRST_WINDOW", "Throttle"]

#: Calls under way at once before the store has answered any.
FIRST_WINDOW = 32

#: Seconds in which the window is halved at most once.
CUT_SECONDS = 1.0

#: Seconds' worth of requests that may go out together after a lull.
BURST_SECONDS = 0.02

#: Seconds that a pause lasts at least: a few requests together cost less than each by itself.
BATCH_SECONDS = 0.005

#: Seconds below which a pause is none: less than a clock can be trusted to sleep.
SHORTEST_PAUSE = 0.0001


class Throttle:
    """What a store lets through, learnt from its answers; shared by all that ask the same store.

    Args:
        clock: Where time comes from.
        most: Calls under way at once at most.
        per_second: Requests a second at most; None for no bound.

    """

    def __init__(self, clock: Clock, *, most: int, per_second: float | None) -> None:
        self._clock = clock
        self._most = most
        self._window = float(min(FIRST_WINDOW, most))
        self._interval = 1 / per_second if per_second else 0.0
        self._due = clock.monotonic() - BURST_SECONDS
        self._cut = clock.monotonic() - CUT_SECONDS
        self._was_told = False
        self._lock = threading.Lock()

    @property
    def window(self) -> int:
        """Calls that may be under way at once."""
        return int(self._window)

    def succeeded(self) -> None:
        """Take note that the store answered a call."""
        with self._lock:
            step = 1 / self._window if self._was_told else 1.0
            self._window = min(self._window + step, float(self._most))

    def slow_down(self) -> None:
        """Take note that the store turned a call away for being too many."""
        with self._lock:
            now = self._clock.monotonic()
            self._was_told = True
            if now - self._cut >= CUT_SECONDS:
                self._cut = now
                self._window = max(1.0, self._window / 2)

    def pause(self) -> float:
        """Return the seconds until another request may go out; 0 if it may now."""
        if not self._interval:
            return 0.0
        pause = self._due - self._clock.monotonic()
        return max(pause, BATCH_SECONDS) if pause > SHORTEST_PAUSE else 0.0

    def sent(self) -> None:
        """Take note that a request went out."""
        if self._interval:
            with self._lock:
                self._due = max(self._due, self._clock.monotonic() - BURST_SECONDS) + self._interval

"""How hard a store is pressed: calls under way at once, and requests a second.

While the store takes everything, as many calls are under way as bring the most answers a second, see
`window`. Once it has said "slow down" the window is TCP's congestion window (RFC 5681): halved when the store
says so, at most once a second, because everything that was under way at that moment hears the same, and
opened by one with every windowful of successes.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from airflow_s3commit.store.window import Window

if TYPE_CHECKING:
    from airflow_s3commit.clock import Clock

__all__ = ["Throttle"]

#: Seconds that a round of measuring lasts at least; a windowful of answers belongs to it too.
ROUND_SECONDS = 0.02

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

    Attributes:
        window: Calls that may be under way at once.
        is_bounded: Whether there is a bound of requests a second.

    """

    def __init__(self, clock: Clock, *, most: int, per_second: float | None) -> None:
        self._clock = clock
        self._most = most
        self._search = Window(most)
        self.window = self._search.width
        self.is_bounded = bool(per_second)
        self._interval = 1 / per_second if per_second else 0.0
        self._due = clock.monotonic() - BURST_SECONDS
        self._cut = clock.monotonic() - CUT_SECONDS
        self._was_told = False
        self._width = float(self.window)
        self._answers, self._began = 0, clock.monotonic()
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Take note that calls begin to be made: the time before does not count."""
        with self._lock:
            self._answers, self._began = 0, self._clock.monotonic()

    def succeeded(self, calls: int = 1) -> None:
        """Take note that the store answered so many calls."""
        with self._lock:
            if self._was_told:
                self._width = min(self._width + calls / self._width, float(self._most))
                self.window = int(self._width)
                return
            self._answers += calls
            if self._answers >= self.window:
                now = self._clock.monotonic()
                if now - self._began >= ROUND_SECONDS:
                    self._end_round(now)

    def slow_down(self) -> None:
        """Take note that the store turned a call away for being too many."""
        with self._lock:
            now = self._clock.monotonic()
            if not self._was_told:
                self._was_told, self._width = True, float(self.window)
            if now - self._cut >= CUT_SECONDS:
                self._cut = now
                self._width = max(1.0, self._width / 2)
                self.window = int(self._width)

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

    def _end_round(self, now: float) -> None:
        self._search.round_ended(self._answers / (now - self._began), now)
        self.window = self._search.width
        self._answers, self._began = 0, now

"""Stand-ins for what a test must be able to steer. They are real code, not recordings."""

from __future__ import annotations

import threading

__all__ = ["ManualClock"]


class ManualClock:
    """A clock that only moves when it is told to, or when something sleeps on it.

    Args:
        now: The time it begins at, in seconds since the epoch.

    Attributes:
        slept: Every pause that was asked for, in seconds, in order.
    """

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self._began = now
        self._now = now
        self._lock = threading.Lock()
        self.slept: list[float] = []

    def time(self) -> float:
        """Return seconds since the epoch."""
        with self._lock:
            return self._now

    def monotonic(self) -> float:
        """Return seconds since this clock was made."""
        with self._lock:
            return self._now - self._began

    def sleep(self, seconds: float) -> None:
        """Move on by ``seconds`` at once."""
        with self._lock:
            self.slept.append(seconds)
            self._now += seconds

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass without a sleep."""
        with self._lock:
            self._now += seconds

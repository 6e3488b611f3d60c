"""Time, as a thing that can be handed in: tests advance it, nothing waits for it."""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """What the package asks of time."""

    def time(self) -> float:
        """Seconds since the epoch by this machine: for people to read, never to compare with another's."""
        ...

    def monotonic(self) -> float:
        """Seconds that only grow: for deadlines and leases held by this process."""
        ...

    def sleep(self, seconds: float) -> None:
        """Let ``seconds`` pass."""
        ...


class SystemClock:
    """The machine's clock."""

    def time(self) -> float:
        """See `Clock.time`."""
        return time.time()

    def monotonic(self) -> float:
        """See `Clock.monotonic`."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """See `Clock.sleep`."""
        time.sleep(seconds)

"""Clocks: code takes one as an argument, so that tests control the time and never wait."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of time."""

    def time(self) -> float:
        """Return this machine's time in seconds since the epoch.

        It is for people to read. It cannot order events of different machines, because their clocks differ.
        """

    def monotonic(self) -> float:
        """Return a time in seconds that never goes back, for deadlines and leases within this process."""

    def sleep(self, seconds: float) -> None:
        """Block the calling thread for ``seconds``."""


class SystemClock:
    """The clock of this machine."""

    monotonic = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)
    time = staticmethod(time.time)

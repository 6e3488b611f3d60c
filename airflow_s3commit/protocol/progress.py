"""How far the completion of uploads is: the figures, and a line of them every few seconds."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from airflow_s3commit.clock import Clock, SystemClock

__all__ = ["Progress", "ProgressLog"]

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_KIB = 1024


class Progress(NamedTuple):
    """How far the completion of uploads is.

    Attributes:
        files_done: Files that are complete.
        files_total: Files that will be.
        bytes_done: Bytes of those that are complete.
        seconds: Seconds since the first was begun.
        concurrency: Requests that may be under way at once, at present.
        retries: Requests that were sent again since the first was begun.

    """

    files_done: int
    files_total: int
    bytes_done: int
    seconds: float
    concurrency: int = 0
    retries: int = 0

    @property
    def files_per_second(self) -> float:
        """Files completed a second, on average; 0 before any time has passed."""
        return self.files_done / self.seconds if self.seconds > 0 else 0.0

    def __str__(self) -> str:
        """Return the figures as people read them."""
        return f"{self.files_done:,} of {self.files_total:,} files, {self.pace}"

    @property
    def pace(self) -> str:
        """How fast it goes, as people read it."""
        return (
            f"{_size(self.bytes_done)}, {self.files_per_second:,.0f} files/s,"
            f" {self.concurrency} requests at once, {self.retries:,} sent again"
        )


class _Log(Protocol):
    """A log: Python's own, or Airflow's."""

    def info(self, msg: str, /, *args: object) -> object: ...


class ProgressLog:
    """Writes a line of progress into a log every few seconds, and when all is done.

    Args:
        log: The log.
        every: Seconds between two lines.
        clock: Where time comes from.

    """

    def __init__(self, log: _Log, every: float = 5.0, clock: Clock | None = None) -> None:
        self._log = log
        self._every = every
        self._clock = clock or SystemClock()
        self._due = self._clock.monotonic() + every

    def __call__(self, progress: Progress) -> None:
        """Take note of progress."""
        now = self._clock.monotonic()
        if now >= self._due or progress.files_done == progress.files_total:
            self._due = now + self._every
            self._log.info("Completed %s", progress)


def _size(count: float) -> str:
    for unit in _UNITS[:-1]:
        if count < _KIB:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= _KIB
    return f"{count:,.1f} {_UNITS[-1]}"

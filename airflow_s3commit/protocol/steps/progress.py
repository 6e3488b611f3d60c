"""Progress of completing uploads: counted, reported, and kept as a commit's metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from airflow_s3commit._clock import Clock, SystemClock
from airflow_s3commit._format import size
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.model.pendingset import PendingUpload


class Progress(NamedTuple):
    """Progress of completing uploads.

    Attributes:
        files_done: Files completed.
        files_total: Files to complete.
        bytes_done: Bytes of the completed files.
        seconds: Seconds since the start.
        concurrency: Current limit of concurrent requests.
        retries: Requests repeated since the start.

    """

    files_done: int
    files_total: int
    bytes_done: int
    seconds: float
    concurrency: int = 0
    retries: int = 0

    @property
    def files_per_second(self) -> float:
        """Average files completed per second; 0 at the start."""
        return self.files_done / self.seconds if self.seconds > 0 else 0.0

    def __str__(self) -> str:
        """Return the figures for people."""
        return f"{self.files_done:,} of {self.files_total:,} files, {self.pace}"

    @property
    def pace(self) -> str:
        """The rate, for people."""
        return (
            f"{size(self.bytes_done)}, {self.files_per_second:,.0f} files/s,"
            f" {self.concurrency} requests at once, {self.retries:,} sent again"
        )

    @property
    def metrics(self) -> dict[str, int]:
        """The figures as a commit's entry keeps them."""
        return {
            "complete_ms": int(self.seconds * 1000),
            "complete_files": self.files_done,
            "complete_bytes": self.bytes_done,
            "complete_files_per_second": round(self.files_per_second),
            "complete_concurrency": self.concurrency,
            "complete_retries": self.retries,
        }


class Counter:
    """Counts completed uploads, and reports the progress after each.

    Args:
        context: The job.
        total: Files to complete.
        report: Called after each completed upload.

    """

    def __init__(self, context: JobContext, total: int, report: Callable[[Progress], object] | None) -> None:
        self._store, self._clock = context.store, context.clock
        self._report, self._total = report, total
        self._began, self._retries = context.clock.monotonic(), context.store.load.retries
        self._files = self._bytes = 0

    def add(self, upload: PendingUpload) -> None:
        """Count a completed upload."""
        self._files += 1
        self._bytes += upload.length
        if self._report is not None:
            self._report(self.progress)

    @property
    def progress(self) -> Progress:
        """The progress now."""
        seconds, load = self._clock.monotonic() - self._began, self._store.load
        retries = load.retries - self._retries
        return Progress(self._files, self._total, self._bytes, seconds, load.concurrency, retries)


class _Log(Protocol):
    """A log: Python's own, or Airflow's."""

    def info(self, msg: str, /, *args: object) -> object: ...


class ProgressLog:
    """Logs the progress every few seconds, and at the end.

    Args:
        log: The log.
        every: Seconds between two lines.
        clock: Source of time.

    """

    def __init__(self, log: _Log, every: float = 5.0, clock: Clock | None = None) -> None:
        self._log = log
        self._every = every
        self._clock = clock or SystemClock()
        self._due = self._clock.monotonic() + every

    def __call__(self, progress: Progress) -> None:
        """Log the progress if a line is due."""
        now = self._clock.monotonic()
        if now >= self._due or progress.files_done == progress.files_total:
            self._due = now + self._every
            self._log.info("Completed %s", progress)

"""Metrics that the tasks emit through Airflow: commits, aborts, sweeps, pending bytes, durations, requests.

Every name begins with ``s3commit.``; the reference gives the meaning of each, which never changes.
Without a metrics backend in Airflow the functions do nothing. They never fail a task.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from airflow_s3commit.airflow_version import stats
from airflow_s3commit.protocol.model.destination import Destination

if TYPE_CHECKING:
    from airflow_s3commit.exceptions import OutcomeUnknown, Unavailable
    from airflow_s3commit.protocol.inspect.jobs import JobSummary
    from airflow_s3commit.protocol.model.manifest import Manifest
    from airflow_s3commit.protocol.sweep import SweepReport

__all__ = ["count_abort", "count_retry", "count_sweep", "counted", "gauge_pending"]

logger = logging.getLogger(__name__)


def count_retry(error: OutcomeUnknown | Unavailable) -> None:
    """Count a retry of a request; for ``on_retry`` of `airflow_s3commit.store.execute.RetryPolicy`."""
    from airflow_s3commit.exceptions import Unavailable  # noqa: PLC0415 - its name alone is needed above

    _count("s3commit.store.retries", 1, {})
    if isinstance(error, Unavailable):
        _count("s3commit.store.throttles", 1, {})


def counted(destination: str, commit: Callable[[], Manifest]) -> Manifest:
    """Call ``commit``, and send its counts and duration, or count its failure. Repeats count again."""
    from airflow_s3commit.store.forwarding import total_requests  # noqa: PLC0415 - keeps DAG parsing light

    began, tags = time.monotonic(), _tags(destination)
    try:
        manifest = commit()
    except BaseException:
        _count("s3commit.commit.failures", 1, tags)
        raise
    _send("timing", "s3commit.commit.duration", (time.monotonic() - began) * 1000, tags)
    duration = manifest.metrics.get("complete_ms")
    if duration is not None:
        _send("timing", "s3commit.commit.complete_duration", duration, tags)
    for name, count in (
        ("s3commit.commits", 1),
        ("s3commit.commit.files", manifest.counts.files),
        ("s3commit.commit.bytes", manifest.counts.bytes),
        ("s3commit.commit.rows", manifest.counts.rows or 0),
        ("s3commit.commit.partitions", len(manifest.partitions)),
        ("s3commit.commit.replaced_files", manifest.replaced.files),
        ("s3commit.commit.requests", total_requests(manifest.metrics) or 0),
    ):
        _count(name, count, tags)
    return manifest


def count_abort(destination: str, uploads: int) -> None:
    """Count an abort, and its uploads."""
    tags = _tags(destination)
    _count("s3commit.aborts", 1, tags)
    _count("s3commit.abort.uploads", uploads, tags)


def count_sweep(report: SweepReport) -> None:
    """Count a sweep, unless it was a dry run."""
    if report.dry_run:
        return
    tags = _tags(report.plan.destination)
    _count("s3commit.sweeps", 1, tags)
    _count("s3commit.sweep.jobs", len(report.jobs), tags)
    _count("s3commit.sweep.uploads", report.uploads + sum(job.uploads for job in report.jobs), tags)
    _count("s3commit.sweep.failures", len(report.failures), tags)


def gauge_pending(destination: str, jobs: Iterable[JobSummary]) -> None:
    """Report the jobs in progress of a destination."""
    found, tags = list(jobs), _tags(destination)
    idle = max((job.silent for job in found if job.silent is not None), default=0.0)
    _send("gauge", "s3commit.pending.jobs", len(found), tags)
    _send("gauge", "s3commit.pending.bytes", sum(job.output.bytes for job in found), tags)
    _send("gauge", "s3commit.pending.idle", idle, tags)


def _tags(destination: str) -> dict[str, str]:
    """Return the tags. The job is not among them, because its values are unbounded."""
    place = Destination.parse(destination)
    return {"bucket": place.bucket, "destination": place.prefix.rstrip("/") or "/"}


def _count(name: str, value: int, tags: Mapping[str, str]) -> None:
    if value:
        _send("incr", name, value, tags)


def _send(sender: str, name: str, value: float, tags: Mapping[str, str]) -> None:
    """Send a value by one of Airflow's methods."""
    try:
        getattr(stats(), sender)(name, value, tags=dict(tags))
    except Exception:
        logger.warning("A metric could not be sent to Airflow", exc_info=True)

"""Metrics that the tasks emit through Airflow: commits, aborts, sweeps, pending bytes, durations, requests.

Every name begins with ``s3commit.``; `METRICS` has all of them. Without a metrics backend in Airflow the
functions do nothing. They never fail a task.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from airflow_s3commit.airflow_version import stats
from airflow_s3commit.protocol.model.destination import Destination

if TYPE_CHECKING:
    from airflow_s3commit.exceptions import OutcomeUnknown, Unavailable
    from airflow_s3commit.protocol.inspect.jobs import JobSummary
    from airflow_s3commit.protocol.model.manifest import Manifest
    from airflow_s3commit.protocol.sweep import SweepReport

__all__ = [
    "METRICS",
    "Metric",
    "commit_counted",
    "count_abort",
    "count_retry",
    "count_sweep",
    "gauge_pending",
]

logger = logging.getLogger(__name__)

Kind: TypeAlias = Literal["counter", "timer", "gauge"]

#: The methods of Airflow's that send each kind.
_SENDERS: Final[Mapping[Kind, str]] = {"counter": "incr", "timer": "timing", "gauge": "gauge"}


class Metric(NamedTuple):
    """A metric.

    Attributes:
        kind: ``counter``, ``timer`` or ``gauge``.
        unit: Unit of the values.
        meaning: The meaning, in one sentence.
    """

    kind: Kind
    unit: str
    meaning: str


#: Every metric by its name. A published name keeps its meaning.
METRICS: Final[Mapping[str, Metric]] = {
    "s3commit.commit.duration": Metric("timer", "milliseconds", "Duration of the commit task."),
    "s3commit.commit.complete_duration": Metric(
        "timer", "milliseconds", "Duration of completing all uploads."
    ),
    "s3commit.commits": Metric("counter", "jobs", "Commits that a task finished."),
    "s3commit.commit.failures": Metric("counter", "tries", "Tries of a commit task that failed."),
    "s3commit.commit.files": Metric("counter", "files", "Files that commits made visible."),
    "s3commit.commit.bytes": Metric("counter", "bytes", "Bytes that commits made visible."),
    "s3commit.commit.rows": Metric(
        "counter", "rows", "Rows that commits made visible, if their number is known."
    ),
    "s3commit.commit.partitions": Metric("counter", "partitions", "Partitions that commits wrote to."),
    "s3commit.commit.replaced_files": Metric("counter", "files", "Files that commits replaced."),
    "s3commit.commit.requests": Metric("counter", "requests", "Requests that commits made, without retries."),
    "s3commit.store.retries": Metric("counter", "requests", "Requests that were retried, for any reason."),
    "s3commit.store.throttles": Metric(
        "counter", "requests", "Requests that were retried after throttling or a failed connection."
    ),
    "s3commit.aborts": Metric("counter", "jobs", "Jobs that a task aborted."),
    "s3commit.abort.uploads": Metric("counter", "uploads", "Pending uploads that aborts removed."),
    "s3commit.sweeps": Metric("counter", "sweeps", "Sweeps, without dry runs."),
    "s3commit.sweep.jobs": Metric("counter", "jobs", "Dead jobs that sweeps ended."),
    "s3commit.sweep.uploads": Metric("counter", "uploads", "Pending uploads that sweeps removed."),
    "s3commit.sweep.failures": Metric("counter", "removals", "Removals of sweeps that failed."),
    "s3commit.pending.jobs": Metric("gauge", "jobs", "Jobs in progress, at each run of the sweep operator."),
    "s3commit.pending.bytes": Metric("gauge", "bytes", "Pending bytes in the records of these jobs."),
    "s3commit.pending.idle": Metric(
        "gauge", "seconds", "Time since the last activity of the job that is idle longest; 0 without jobs."
    ),
}


def count_retry(error: OutcomeUnknown | Unavailable) -> None:
    """Count a request that is retried, as ``on_retry`` of `airflow_s3commit.store.execute.RetryPolicy`.

    :param error: The error of the previous attempt.
    """
    from airflow_s3commit.exceptions import Unavailable  # noqa: PLC0415 - its name alone is needed above

    _emit("s3commit.store.retries", 1, {})
    if isinstance(error, Unavailable):
        _emit("s3commit.store.throttles", 1, {})


@contextmanager
def commit_counted(destination: str) -> Iterator[Callable[[Manifest], None]]:
    """Count a commit and the duration of the ``with`` block, or count a failure.

    Call the yielded function with the manifest. A repeated commit of a committed job counts again.

    :param destination: URI of the job's destination.
    """
    began = time.monotonic()
    committed: list[Manifest] = []
    try:
        yield committed.append
    except BaseException:
        _emit("s3commit.commit.failures", 1, _tags(destination))
        raise
    for manifest in committed:
        _count_commit(manifest, time.monotonic() - began)


def count_abort(destination: str, uploads: int) -> None:
    """Count an abort.

    :param destination: URI of the job's destination.
    :param uploads: Number of aborted uploads.
    """
    tags = _tags(destination)
    _emit("s3commit.aborts", 1, tags)
    _emit("s3commit.abort.uploads", uploads, tags)


def count_sweep(report: SweepReport) -> None:
    """Count a sweep, unless it was a dry run.

    :param report: The sweep's report.
    """
    if report.dry_run:
        return
    tags = _tags(report.plan.destination)
    _emit("s3commit.sweeps", 1, tags)
    _emit("s3commit.sweep.jobs", len(report.jobs), tags)
    _emit("s3commit.sweep.uploads", report.uploads + sum(job.uploads for job in report.jobs), tags)
    _emit("s3commit.sweep.failures", len(report.failures), tags)


def gauge_pending(destination: str, jobs: Iterable[JobSummary]) -> None:
    """Report the jobs in progress of a destination.

    :param destination: URI of the destination.
    :param jobs: The jobs, from `airflow_s3commit.protocol.inspect.jobs.list_jobs`.
    """
    found, tags = list(jobs), _tags(destination)
    idle = max((job.silent for job in found if job.silent is not None), default=0.0)
    _emit("s3commit.pending.jobs", len(found), tags)
    _emit("s3commit.pending.bytes", sum(job.output.bytes for job in found), tags)
    _emit("s3commit.pending.idle", idle, tags)


def _count_commit(manifest: Manifest, seconds: float) -> None:
    from airflow_s3commit.store.forwarding import total_requests  # noqa: PLC0415 - keeps DAG parsing light

    tags = _tags(manifest.destination)
    _emit("s3commit.commit.duration", seconds * 1000, tags)
    duration = manifest.metrics.get("complete_ms")
    if duration is not None:
        _emit("s3commit.commit.complete_duration", duration, tags)
    for name, count in (
        ("s3commit.commits", 1),
        ("s3commit.commit.files", manifest.counts.files),
        ("s3commit.commit.bytes", manifest.counts.bytes),
        ("s3commit.commit.rows", manifest.counts.rows or 0),
        ("s3commit.commit.partitions", len(manifest.partitions)),
        ("s3commit.commit.replaced_files", manifest.replaced.files),
        ("s3commit.commit.requests", total_requests(manifest.metrics) or 0),
    ):
        _emit(name, count, tags)


def _tags(destination: str) -> dict[str, str]:
    """Return the tags. The job is not among them, because its values are unbounded."""
    place = Destination.parse(destination)
    return {"bucket": place.bucket, "destination": place.prefix.rstrip("/") or "/"}


def _emit(name: str, value: float, tags: Mapping[str, str]) -> None:
    kind = METRICS[name].kind
    if kind == "counter" and not value:
        return
    try:
        getattr(stats(), _SENDERS[kind])(name, value, tags=dict(tags))
    except Exception:
        logger.warning("A metric could not be sent to Airflow", exc_info=True)

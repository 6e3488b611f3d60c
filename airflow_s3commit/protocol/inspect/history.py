"""What happened and when: the commits of a table, newest first, and the timeline of a job.

A timeline, and the progress of a commit, come from ``Last-Modified`` of records and from listings.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Literal, TypeAlias

from msgspec import Struct

from airflow_s3commit._clock import Clock
from airflow_s3commit.exceptions import NoSuchKey, Unavailable
from airflow_s3commit.protocol.inspect.jobs import JobSummary
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.log import newest_entries, next_entries
from airflow_s3commit.protocol.metadata.sealed_job import stage_attempts
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.layout import owner_of
from airflow_s3commit.protocol.model.manifest import ManifestRecord
from airflow_s3commit.store.base import Head, ObjectInfo, ObjectStore
from airflow_s3commit.store.execute import outcomes

logger = logging.getLogger(__name__)


def history(
    store: ObjectStore, destination: str | Destination, *, limit: int | None = None
) -> Iterator[ManifestRecord]:
    """Yield the manifest of each commit to a destination, newest first; none without a log.

    A manifest's ``generation`` is the number of its commit in the log. Numbers in between are of jobs that
    were aborted. The log is read while the caller iterates: stopping early saves requests. May be repeated.

    Args:
        store: The store of the destination.
        destination: URI of the dataset's directory, or a `Destination`.
        limit: How many commits to return; None for all.

    Raises:
        InvalidRecord: An entry of the log is damaged or missing.

    """
    place = Destination.of(destination)
    entries = newest_entries(store, place, limit, limit) if limit else newest_entries(store, place)
    return islice((entry.manifest for entry in entries if entry.manifest is not None), limit)


def follow(
    store: ObjectStore,
    destination: Destination,
    after: int,
    *,
    interval: float,
    clock: Clock,
    draw: Callable[[float, float], float] = random.uniform,
) -> Iterator[ManifestRecord]:
    """Yield the manifest of each commit after a generation, in their order, for ever; waits for new ones.

    A look for new ones takes one request. A store that is unavailable is asked again at the next look.

    Args:
        store: The store of the destination.
        destination: The destination.
        after: The generation; 0 for all.
        interval: Seconds from one look to the next, give or take a fifth, so that many do not look at once.
        clock: Waits.
        draw: Returns a random number between two.

    Raises:
        InvalidRecord: An entry of the log is damaged or missing.
        S3CommitError: A request was refused.

    """
    while True:
        try:
            for entry in next_entries(store, destination, after):
                after = entry.number
                if entry.manifest is not None:
                    yield entry.manifest
        except Unavailable as error:
            logger.warning("%s: trying again later: %s", destination.uri, error)
        clock.sleep(draw(0.8 * interval, 1.2 * interval))


EventName: TypeAlias = Literal[
    "open", "stage sealed", "sealed", "planned", "committing", "committed", "aborting", "aborted"
]

#: Order of events within one second, by the protocol.
_ORDER: tuple[EventName, ...] = (
    "open",
    "stage sealed",
    "sealed",
    "planned",
    "committing",
    "committed",
    "aborting",
    "aborted",
)


#: Maximum number of stages in a timeline.
_MAX_STAGES = 100

#: Maximum number of uploads to list for the progress: twenty requests.
_MAX_LISTED = 20_000


class TimelineEvent(Struct, frozen=True, kw_only=True):
    """One event of a job.

    Attributes:
        name: The state that the job entered, or the step it completed.
        at: Seconds since the epoch, by the store's clock unless ``estimated``.
        what: For ``stage sealed``, the stage attempt as ``<stage>-<attempt>``; else None.
        estimated: Whether the time is from the clock of the machine that ended the job.

    """

    name: EventName
    at: float
    what: str | None = None
    estimated: bool = False


def timeline(context: JobContext, summary: JobSummary) -> list[TimelineEvent]:
    """Return the events of a job, earliest first. Reads only.

    Events whose records are gone are missing. A job that is committed and cleaned up has two: the time of
    its commit, and the start of its commit, computed from the duration in the manifest.

    Args:
        context: The job.
        summary: The job's summary.

    Raises:
        S3CommitError: A request failed.

    """
    if summary.staging is None:
        return list(_from_manifest(summary))
    # ``Last-Modified`` has whole seconds.
    return sorted(
        _from_records(context, summary),
        key=lambda event: (int(event.at), _ORDER.index(event.name)),
    )


def _from_records(context: JobContext, summary: JobSummary) -> Iterator[TimelineEvent]:
    layout = context.layout
    keys: list[tuple[tuple[EventName, str | None], str]] = [
        (("open", None), layout.job),
        (("sealed", None), layout.seal),
    ]
    plans = [
        info.modified
        for info in context.store.list_objects(context.staging_bucket, layout.plans)
        if info.key.endswith("/summary.json")
    ]
    if plans:
        yield TimelineEvent(name="planned", at=max(plans))
    if summary.state in ("committing", "committed", "aborting", "aborted"):
        keys.append(((summary.state, None), layout.state))
    for stage, attempt, sealed in islice(stage_attempts(context), _MAX_STAGES):
        if sealed:
            keys.append((("stage sealed", f"{stage}-{attempt}"), layout.stage_seal(stage, attempt)))
    calls = [(tag, Head(context.staging_bucket, key)) for tag, key in keys]
    for (name, what), outcome in outcomes(context.store, calls, NoSuchKey):
        if isinstance(outcome, ObjectInfo):
            yield TimelineEvent(name=name, at=outcome.modified, what=what)


def _from_manifest(summary: JobSummary) -> Iterator[TimelineEvent]:
    if summary.since is None or summary.state not in ("committed", "aborted"):
        return
    ended = summary.since / 1000
    took = summary.manifest.metrics.get("complete_ms") if summary.manifest is not None else None
    if took is not None:
        yield TimelineEvent(name="committing", at=ended - took / 1000, estimated=True)
    yield TimelineEvent(name=summary.state, at=ended, estimated=True)


class CommitProgress(Struct, frozen=True, kw_only=True):
    """Progress of a running commit.

    Attributes:
        completed: Uploads completed so far.
        files: Uploads of the job.
        rate: Completed uploads per second since the commit began; None in its first second.
        left: Estimated seconds until all uploads are completed; None if unknown.

    """

    completed: int
    files: int
    rate: float | None = None
    left: float | None = None

    @property
    def share(self) -> float:
        """Completed share, from 0 to 1."""
        return self.completed / self.files if self.files else 1.0


def commit_progress(
    store: ObjectStore, destination: Destination, jobs: Iterable[JobSummary]
) -> dict[str, CommitProgress]:
    """Return the progress of the jobs that are committing, by job id. Reads only.

    Omits jobs adopted from Hadoop, because the names of their files need not have the job's id. Omits all
    jobs if more than 20,000 uploads are pending.

    Args:
        store: The store of the destination.
        destination: The destination of the jobs.
        jobs: Summaries of jobs; those that are not committing are ignored.

    Raises:
        S3CommitError: A request failed.

    """
    committing = [job for job in jobs if job.state == "committing" and "adopted_from" not in job.context]
    if not committing:
        return {}
    listed = list(islice(store.list_uploads(destination.bucket, destination.prefix), _MAX_LISTED + 1))
    if len(listed) > _MAX_LISTED:
        return {}
    keys = [upload.key for upload in listed]
    return {job.job_id: _progress(job, keys) for job in committing}


def _progress(job: JobSummary, keys: Iterable[str]) -> CommitProgress:
    pending = sum(owner_of(key) == job.job_id for key in keys)
    files = job.output.files
    completed = max(files - pending, 0)
    rate = completed / job.age if job.age is not None and job.age >= 1 else None
    left = (files - completed) / rate if rate else None
    return CommitProgress(completed=completed, files=files, rate=rate, left=left)

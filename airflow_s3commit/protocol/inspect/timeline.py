"""Timeline of a job: when it entered each state, from its records' ``Last-Modified``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Literal, TypeAlias

from msgspec import Struct

from airflow_s3commit.exceptions import NoSuchKey
from airflow_s3commit.protocol.inspect.jobs import JobSummary
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.seals import stage_attempts
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.layout import owner_of
from airflow_s3commit.store.base import Head, ObjectInfo, ObjectStore
from airflow_s3commit.store.execute import outcomes

EventName: TypeAlias = Literal[
    "open", "stage sealed", "sealed", "planned", "committing", "committed", "aborting", "aborted"
]


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
_STAGES = 100


class TimelineEvent(Struct, frozen=True, kw_only=True):
    """One event of a job.

    Attributes:
        name: The state entered, or the step done.
        at: Seconds since the epoch; by the store's clock unless ``estimated``.
        what: The stage attempt of ``stage sealed``.
        estimated: The time is from the clock of the machine that committed the job.

    """

    name: EventName
    at: float
    what: str | None = None
    estimated: bool = False


def timeline(context: JobContext, summary: JobSummary) -> list[TimelineEvent]:
    """Return the events of a job, earliest first, as far as its records exist. Reads only.

    A job that is committed and cleaned up has only its manifest: its commit time, and the start of its
    commit, computed from the duration in the manifest.

    Args:
        context: The job.
        summary: The job's summary.

    Raises:
        S3CommitError: A request failed.

    """
    if summary.staging is None:
        return list(_from_manifest(summary))
    # A store's times are whole seconds: events within one second are sorted by the order of the protocol.
    return sorted(
        _from_records(context, summary),
        key=lambda event: (int(event.at), _ORDER.index(event.name)),
    )


def _from_records(context: JobContext, summary: JobSummary) -> Iterator[TimelineEvent]:
    layout = context.layout
    asked: list[tuple[tuple[EventName, str | None], str]] = [
        (("open", None), layout.job),
        (("sealed", None), layout.seal),
        (("planned", None), layout.plan),
    ]
    if summary.state in ("committing", "committed", "aborting", "aborted"):
        asked.append(((summary.state, None), layout.state))
    for stage, attempt, sealed in list(stage_attempts(context))[:_STAGES]:
        if sealed:
            asked.append((("stage sealed", f"{stage}-{attempt}"), layout.stage_seal(stage, attempt)))
    calls = [(tag, Head(context.staging_bucket, key)) for tag, key in asked]
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


#: Maximum number of uploads to list: twenty requests.
_LISTED = 20_000


class CommitProgress(Struct, frozen=True, kw_only=True):
    """Progress of a running commit.

    Attributes:
        completed: Uploads completed so far.
        files: Uploads of the job.
        rate: Completions per second since the commit began; None in its first second.
        left: Estimated seconds until all are completed; None if unknown.

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
    """Return the progress of those of the jobs that are committing, by job id. Reads only.

    Omits jobs whose file names do not contain the job id, because a listing of uploads does not show their
    owner; omits all jobs if more uploads are pending than are listed.

    Raises:
        S3CommitError: A request failed.

    """
    committing = [
        job
        for job in jobs
        if job.state == "committing" and job.options is not None and job.options.unique_filenames
    ]
    if not committing:
        return {}
    listed = list(islice(store.list_uploads(destination.bucket, destination.prefix), _LISTED + 1))
    if len(listed) > _LISTED:
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

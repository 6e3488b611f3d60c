"""Views of a destination, of a job, and of all destinations, as values for the pages.

A destination is read once for all users; `DestinationView.visible_to` then drops the jobs that a user may not
see. The search over all destinations is a pure function of what was read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice
from typing import Final

from airflow_s3commit.exceptions import InvalidRecord, NoSuchKey, Refused
from airflow_s3commit.operators.tries import is_same_task, place_in_order
from airflow_s3commit.plugin.stores import Place
from airflow_s3commit.present import published
from airflow_s3commit.protocol.inspect.details import JobDetails, describe_job
from airflow_s3commit.protocol.inspect.jobs import (
    CommitProgress,
    JobSummary,
    commit_progress,
    latest_endings,
    list_jobs,
)
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.sealed_job import find_seal
from airflow_s3commit.protocol.model.destination import is_pattern, matches
from airflow_s3commit.protocol.model.layout import Layout
from airflow_s3commit.protocol.model.sealed_job import Counts
from airflow_s3commit.protocol.steps.preview import ReplacedFile, replaced_files
from airflow_s3commit.store.base import ObjectStore

#: Maximum number of jobs in progress to read at a destination.
MOST_JOBS = 200

#: Maximum number of recently ended jobs to read at a destination.
MOST_ENDED = 100

#: Maximum number of partitions on a page.
MOST_PARTITIONS = 200

#: Maximum number of files to replace on a page.
MOST_FILES = 50


@dataclass(frozen=True)
class DestinationView:
    """One destination and its jobs.

    Attributes:
        place: The destination.
        jobs: The jobs that are in progress or not finished.
        ended: The jobs that ended recently, latest first.
        progress: Progress of running or interrupted commits, by job id.
        cut: Whether there are more jobs than were read.
        problem: Why the destination could not be read; None if it was read.
        damage: Why the jobs that ended could not be read; None if they were, or were not wanted.

    """

    place: Place
    jobs: Sequence[JobSummary] = ()
    ended: Sequence[JobSummary] = ()
    progress: Mapping[str, CommitProgress] = field(default_factory=dict)
    cut: bool = False
    problem: str | None = None
    damage: str | None = None

    def visible_to(self, may_read: Callable[[Mapping[str, str]], bool]) -> DestinationView:
        """Return the view without the jobs that a user may not see.

        Args:
            may_read: Returns whether the user may see a job with a given context.

        """
        return replace(
            self,
            jobs=[job for job in self.jobs if may_read(job.context)],
            ended=[job for job in self.ended if may_read(job.context)],
        )


def read_destination(store: ObjectStore, place: Place, *, ended: bool = True) -> DestinationView:
    """Read the jobs of a destination that are in progress or ended recently.

    Args:
        store: The store of the destination.
        place: The destination.
        ended: Whether to read the jobs that ended; without this, a destination without jobs takes two
            requests.

    Raises:
        S3CommitError: A request failed.

    """
    found = list(islice(list_jobs(store, place.destination, place.staging_root), MOST_JOBS + 1))
    jobs = found[:MOST_JOBS]
    progress = commit_progress(store, place.destination, jobs)
    alive = {job.job_id for job in jobs}
    endings: list[JobSummary] = []
    damage = None
    try:
        endings = latest_endings(store, place.destination, MOST_ENDED) if ended else []
    except InvalidRecord as error:
        damage = str(error)

    return DestinationView(
        place,
        jobs=jobs,
        ended=[job for job in endings if job.job_id not in alive],
        progress=progress,
        cut=len(found) > MOST_JOBS,
        damage=damage,
    )


@dataclass(frozen=True)
class JobView:
    """One job in detail.

    Attributes:
        place: Destination of the job.
        details: The details that ``s3commit show`` prints.
        partitions: Totals of the first partitions, from its manifest or seal.
        partition_count: Number of all partitions.
        replaced: The first files that its commit would replace now.
        progress: Progress of its commit; None unless it has begun and is not in the log.
        successor: The job with which a later try of the same task has ended, so that this one is left over;
            None if there is none, or if this one has ended or its commit has begun.

    """

    place: Place
    details: JobDetails
    partitions: Mapping[str, Counts] = field(default_factory=dict)
    partition_count: int = 0
    replaced: Sequence[ReplacedFile] = ()
    progress: CommitProgress | None = None
    successor: JobSummary | None = None

    @property
    def summary(self) -> JobSummary:
        """The job's summary."""
        return self.details.summary


def read_job(store: ObjectStore, place: Place, job_id: str) -> JobView:
    """Read one job in detail.

    Raises:
        NoSuchJob: The job does not exist.
        InvalidRecord: The job id is not valid.
        S3CommitError: A request failed.

    """
    details = describe_job(store, place.destination, job_id)
    summary = details.summary
    layout = Layout.of(place.destination, job_id)
    context = JobContext(store, layout).in_staging(summary.staging or "")
    partitions, replaced = _partitions_and_replaced(context, summary)
    return JobView(
        place,
        details,
        partitions=dict(islice(sorted(partitions.items()), MOST_PARTITIONS)),
        partition_count=len(partitions),
        replaced=replaced,
        progress=commit_progress(store, place.destination, [summary]).get(job_id),
        successor=None if summary.has_ended or published(details) else _successor(store, place, summary),
    )


def _successor(store: ObjectStore, place: Place, job: JobSummary) -> JobSummary | None:
    """Return the newest of the jobs that later tries of a job's task have ended; None if there is none."""
    own = place_in_order(job.context, job.job_id)
    endings = latest_endings(store, place.destination, MOST_ENDED)
    later = [
        (order, ended)
        for ended in endings
        if is_same_task(job.context, ended.context)
        and (order := place_in_order(ended.context, ended.job_id)) > own
    ]
    return max(later, key=lambda pair: pair[0])[1] if later else None


def _partitions_and_replaced(
    context: JobContext, summary: JobSummary
) -> tuple[Mapping[str, Counts], Sequence[ReplacedFile]]:
    """Return the partitions that a job writes, and the first files that its commit would replace now."""
    if summary.manifest is not None:
        return summary.manifest.partitions, ()
    if summary.state != "sealed":
        return {}, ()
    try:
        seal = find_seal(context)
        partitions = seal.record.partitions if seal is not None else {}
        return partitions, list(islice(replaced_files(context), MOST_FILES))
    except (Refused, NoSuchKey):
        # The details name a damaged record, and conflict mode fail; or another process has ended the job.
        return {}, ()


def refreshed(job: JobSummary) -> str:
    """Return what a job refreshes, such as a day: its run's partition key, its partitions, or a logical date.

    The partitions are known once it is committed. Empty if nothing is known.
    """
    if key := job.context.get("partition_key"):
        return key
    partitions = [name for name in job.manifest.partitions if name] if job.manifest is not None else []
    if partitions:
        more = f" and {len(partitions) - 1} more" if len(partitions) > 1 else ""
        return f"{min(partitions)}{more}"
    try:
        at = datetime.fromisoformat(job.context.get("logical_date", ""))
    except ValueError:
        return ""
    return f"{at:%Y-%m-%d %H:%M}".removesuffix(" 00:00")


#: Choices of the filter by state, and their labels.
STATES: Final = {
    "": "any state",
    "open": "open",
    "sealed": "sealed",
    "publishing": "publishing",
    "ended": "ended, not finished",
    "damaged": "damaged, or without a state",
}

#: Choices of the filter by idle time, in seconds, and their labels.
IDLE: Final = {
    0: "any time",
    3600: "1 hour",
    6 * 3600: "6 hours",
    24 * 3600: "1 day",
    7 * 24 * 3600: "7 days",
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """A search over all destinations.

    Attributes:
        text: Part of a destination's URI, a job's id, its name or day, its DAG or run, regardless of case; or
            a pattern of URIs, such as ``s3://lake/*/orders``. Empty for all.
        state: One of `STATES`.
        idle: Minimum seconds without activity.

    """

    text: str = ""
    state: str = ""
    idle: int = 0

    @property
    def is_all(self) -> bool:
        """Whether nothing is filtered."""
        return self == Wanted()

    @property
    def of_jobs(self) -> bool:
        """Whether only destinations with matching jobs are wanted."""
        return bool(self.state or self.idle)


@dataclass(frozen=True, slots=True)
class Row:
    """The jobs in progress of a destination that match a search.

    Attributes:
        view: The destination.
        jobs: The matching jobs.

    """

    view: DestinationView
    jobs: Sequence[JobSummary]

    @property
    def pending_bytes(self) -> int:
        """Pending bytes of these jobs, from their records."""
        return sum(job.output.bytes for job in self.jobs)

    @property
    def idle(self) -> float | None:
        """Idle time in seconds of the job that has been idle longest; None without jobs."""
        return max((idle for job in self.jobs if (idle := idle_of(job)) is not None), default=None)

    @property
    def publishing(self) -> int:
        """Number of running or interrupted commits."""
        return sum(job.job_id in self.view.progress for job in self.jobs)


@dataclass(frozen=True, slots=True)
class Fleet:
    """What a search finds.

    Attributes:
        rows: The destinations, with the most pending bytes first.
        jobs: Their jobs with their destinations: commits first, then those that have been idle longest.
        ended: The jobs that ended recently, where they were read, with their destinations, latest first.
        unread: Destinations that could not be read, by reason.
        stale: Number of destinations that could not be read now, and are shown as last read.

    """

    rows: Sequence[Row]
    jobs: Sequence[tuple[DestinationView, JobSummary]]
    ended: Sequence[tuple[DestinationView, JobSummary]]
    unread: Sequence[tuple[str, Sequence[str]]]
    stale: int

    @property
    def pending_bytes(self) -> int:
        """Pending bytes of the jobs."""
        return sum(row.pending_bytes for row in self.rows)

    @property
    def idle(self) -> float | None:
        """Idle time in seconds of the job that has been idle longest; None without jobs."""
        return max((row.idle for row in self.rows if row.idle is not None), default=None)


def idle_of(job: JobSummary) -> float | None:
    """Return the seconds since a job's last activity, or since it entered its state; None if unknown."""
    return job.silent if job.silent is not None else job.age


def search_fleet(views: Sequence[DestinationView], wanted: Wanted) -> Fleet:
    """Return the destinations and jobs that match, of those that the user may see."""
    rows = []
    ended: list[tuple[DestinationView, JobSummary]] = []
    unread: dict[str, list[str]] = {}
    for view in views:
        whole = _matches_place(view, wanted.text)
        jobs = [
            job for job in view.jobs if (whole or _matches_job(job, wanted.text)) and _fits(view, job, wanted)
        ]
        if view.problem is not None and whole:
            unread.setdefault(view.problem, []).append(view.place.uri)
        if jobs or (whole and not wanted.of_jobs and view.problem is None):
            rows.append(Row(view, jobs))
        if not wanted.of_jobs:
            ended += [(view, job) for job in view.ended if whole or _matches_job(job, wanted.text)]
    ended.sort(key=lambda pair: -(pair[1].since or 0))
    rows.sort(key=lambda row: (-row.pending_bytes, -len(row.jobs), row.view.place.uri))
    found = [(row.view, job) for row in rows for job in row.jobs]
    found.sort(key=lambda pair: (pair[1].job_id not in pair[0].progress, -(idle_of(pair[1]) or 0.0)))
    stale = sum(row.view.problem is not None for row in rows)
    return Fleet(rows, found, ended, sorted(unread.items(), key=lambda one: -len(one[1])), stale)


def _matches_place(view: DestinationView, text: str) -> bool:
    uri = view.place.uri
    return matches(uri, text) if is_pattern(text) else text.lower() in uri.lower()


def _matches_job(job: JobSummary, text: str) -> bool:
    return any(text.lower() in known.lower() for known in _texts(job))


def _texts(job: JobSummary) -> Iterator[str]:
    yield job.job_id
    yield refreshed(job)
    for name in ("name", "dag_id", "run_id"):
        yield job.context.get(name, "")


def _fits(view: DestinationView, job: JobSummary, wanted: Wanted) -> bool:
    if wanted.idle and (idle_of(job) or 0.0) < wanted.idle:
        return False
    match wanted.state:
        case "":
            return True
        case "damaged":
            return job.state is None or job.problem is not None
        case "publishing":
            return job.job_id in view.progress
        case "ended":
            return job.has_ended
        case state:
            return job.state == state

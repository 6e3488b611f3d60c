"""Values for the pages about a destination, about a job, and about a search in all destinations.

A destination is read once for all users; `DestinationView.visible_to` drops the jobs that one may not see.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice
from typing import Literal, NamedTuple, TypeAlias

from airflow_s3commit._format import shortened
from airflow_s3commit.exceptions import InvalidRecord, NoSuchKey, Refused
from airflow_s3commit.operators.setup import is_same_task, place_in_order
from airflow_s3commit.present import published
from airflow_s3commit.protocol.inspect.jobs import (
    CommitProgress,
    JobDetails,
    JobSummary,
    commit_progress,
    describe_job,
    latest_endings,
    list_jobs,
)
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.sealed_job import find_seal
from airflow_s3commit.protocol.model.destination import RegisteredDestination, is_pattern, matches
from airflow_s3commit.protocol.model.layout import Layout
from airflow_s3commit.protocol.model.manifest import FileEntry
from airflow_s3commit.protocol.model.sealed_job import Counts
from airflow_s3commit.protocol.model.table import UnownedObject
from airflow_s3commit.protocol.steps.commit import replaced_files
from airflow_s3commit.store.base import ObjectStore

#: Maximum number of jobs in progress to read at a destination, of jobs that ended, and of files to replace.
MOST_JOBS, MOST_ENDED, MOST_FILES = 200, 100, 50

#: The states that a search can pick: ``ended`` jobs are not cleaned up, ``damaged`` ones may have none.
Filter: TypeAlias = Literal["", "open", "sealed", "publishing", "ended", "damaged"]

#: What the page offers to do with a job.
Offer: TypeAlias = Literal["commit", "abort", "continue", "undo", "finish"]


@dataclass(frozen=True, slots=True)
class Listed:
    """A job in a list; ``progress`` is that of its commit, None unless the commit runs or was interrupted."""

    home: RegisteredDestination
    job: JobSummary
    progress: CommitProgress | None = None

    @property
    def day(self) -> str:
        """What the job refreshes: its partition key, the partitions it committed, or its logical date."""
        if key := self.job.context.get("partition_key"):
            return key
        manifest = self.job.manifest
        if partitions := sorted(filter(None, manifest.partitions)) if manifest is not None else []:
            return shortened(partitions)
        try:
            at = datetime.fromisoformat(self.job.context.get("logical_date", ""))
        except ValueError:
            return ""
        return f"{at:%Y-%m-%d %H:%M}".removesuffix(" 00:00")

    @property
    def idle(self) -> float | None:
        """Seconds since its last activity, or since it entered its state; None if unknown."""
        return self.job.silent if self.job.silent is not None else self.job.age

    def has(self, text: str) -> bool:
        """Return whether its id, name, day, DAG or run contains a text, regardless of case."""
        facts = (self.job.context.get(name, "") for name in ("name", "dag_id", "run_id"))
        return any(text.lower() in known.lower() for known in (self.job.job_id, self.day, *facts))

    def fits(self, state: Filter, idle: float) -> bool:
        """Return whether it is in a state, and has been idle for so many seconds."""
        matching = {
            "": True,
            "damaged": self.job.state is None or self.job.problem is not None,
            "publishing": self.progress is not None,
            "ended": self.job.has_ended,
        }
        return matching.get(state, self.job.state == state) and (self.idle or 0.0) >= idle


def longest_idle(jobs: Sequence[Listed]) -> float | None:
    """Return the idle time in seconds of the job that has been idle longest; None without jobs."""
    return max((listed.idle for listed in jobs if listed.idle is not None), default=None)


def stored(jobs: Sequence[Listed]) -> int:
    """Return the bytes of some jobs, from their records."""
    return sum(listed.job.output.bytes for listed in jobs)


@dataclass(frozen=True)
class DestinationView:
    """One destination and its jobs.

    Attributes:
        jobs: The jobs that are in progress or not finished.
        ended: The jobs that ended recently, latest first.
        cut: Whether there are more jobs than were read.
        problem: Why the destination could not be read; None if it was read.
        damage: Why the jobs that ended could not be read; None if they were, or were not wanted.
    """

    home: RegisteredDestination
    jobs: Sequence[Listed] = ()
    ended: Sequence[Listed] = ()
    cut: bool = False
    problem: str | None = None
    damage: str | None = None

    def visible_to(self, may_read: Callable[[Mapping[str, str]], bool]) -> DestinationView:
        """Return the view without the jobs whose context a user may not read."""
        return replace(
            self,
            jobs=[listed for listed in self.jobs if may_read(listed.job.context)],
            ended=[listed for listed in self.ended if may_read(listed.job.context)],
        )


def read_destination(
    store: ObjectStore, home: RegisteredDestination, *, ended: bool = True
) -> DestinationView:
    """Read the jobs of a destination that are in progress and, with ``ended``, those that ended recently."""
    found = list(islice(list_jobs(store, home.place, home.staging_root), MOST_JOBS + 1))
    progress = commit_progress(store, home.place, found)
    jobs = [Listed(home, job, progress.get(job.job_id)) for job in found[:MOST_JOBS]]
    endings, damage = list[JobSummary](), None
    try:
        endings = latest_endings(store, home.place, MOST_ENDED) if ended else []
    except InvalidRecord as error:
        damage = str(error)
    alive = {job.job_id for job in found}
    done = [Listed(home, job) for job in endings if job.job_id not in alive]
    return DestinationView(home, jobs, done, cut=len(found) > MOST_JOBS, damage=damage)


@dataclass(frozen=True)
class JobView:
    """One job in detail.

    Attributes:
        endpoint: The store's address, for command lines.
        replaced: The first files that its commit would replace now.
        progress: Progress of its commit; None unless it has begun and is not in the log.
        successor: The newest ended job of a later try of the same task, which makes this job a leftover.
    """

    home: RegisteredDestination
    details: JobDetails
    endpoint: str
    partitions: Mapping[str, Counts] = field(default_factory=dict)
    replaced: Sequence[FileEntry | UnownedObject] = ()
    progress: CommitProgress | None = None
    successor: JobSummary | None = None

    @property
    def job(self) -> JobSummary:
        """The job's summary."""
        return self.details.summary

    @property
    def offers(self) -> list[Offer]:
        """What can be done with the job in its state; no commit if its run has ended with another job."""
        if self.job.staging is None:
            return []
        if self.job.has_ended:
            return ["finish"]
        if published(self.details):
            return ["continue", "undo"]
        return ["commit", "abort"] if self.job.state == "sealed" and self.successor is None else ["abort"]


def read_job(store: ObjectStore, home: RegisteredDestination, job_id: str) -> JobView:
    """Read one job in detail; raises `NoSuchJob`, or `InvalidRecord` for an id that is not valid."""
    details = describe_job(store, home.place, job_id)
    job = details.summary
    partitions: Mapping[str, Counts] = job.manifest.partitions if job.manifest is not None else {}
    replaced: Sequence[FileEntry | UnownedObject] = ()
    if job.state == "sealed":
        context = JobContext(store, Layout.of(home.place, job_id)).in_staging(job.staging or "")
        try:
            seal = find_seal(context)
            partitions = seal.record.partitions if seal is not None else {}
            replaced = list(islice(replaced_files(context), MOST_FILES))
        except (Refused, NoSuchKey):
            # The details tell of a damaged record or a conflict; or another process has ended the job.
            partitions = {}
    return JobView(
        home,
        details,
        store.endpoint,
        partitions=dict(sorted(partitions.items())),
        replaced=replaced,
        progress=commit_progress(store, home.place, [job]).get(job_id),
        successor=None if job.has_ended or published(details) else _successor(store, home, job),
    )


def _successor(store: ObjectStore, home: RegisteredDestination, job: JobSummary) -> JobSummary | None:
    """Return the newest of the jobs that later tries of a job's task have ended; None if none is known."""

    def order(one: JobSummary) -> tuple[str, int, str, str]:
        return place_in_order(one.context, one.job_id)

    try:
        endings = latest_endings(store, home.place, MOST_ENDED)
    except InvalidRecord:
        return None
    later = [one for one in endings if is_same_task(job.context, one.context) and order(one) > order(job)]
    return max(later, key=order, default=None)


class Fleet(NamedTuple):
    """What a search finds.

    Attributes:
        rows: The destinations with their matching jobs in progress, those with the most pending bytes first.
        jobs: Their jobs in progress: those whose commit has begun first, then those idle for longest.
        unread: Destinations that could not be read, by reason.
    """

    rows: Sequence[DestinationView]
    jobs: Sequence[Listed]
    ended: Sequence[Listed]
    unread: Mapping[str, Sequence[str]]


def search_fleet(
    views: Sequence[DestinationView], text: str = "", state: Filter = "", idle: float = 0
) -> Fleet:
    """Return the destinations and jobs that match, of those that the user may see.

    The text is part of a destination's URI or of a job's facts (`Listed.has`), or a pattern of URIs. With a
    state, or with minimum seconds without activity, only destinations with such jobs match.
    """
    rows: list[DestinationView] = []
    unread: dict[str, list[str]] = {}
    for view in views:
        uri = view.home.destination
        whole = matches(uri, text) if is_pattern(text) else text.lower() in uri.lower()
        jobs = [job for job in view.jobs if (whole or job.has(text)) and job.fits(state, idle)]
        ended = [job for job in view.ended if (whole or job.has(text)) and not (state or idle)]
        if view.problem is not None and whole:
            unread.setdefault(view.problem, []).append(uri)
        if jobs or ended or (whole and not (state or idle) and view.problem is None):
            rows.append(replace(view, jobs=jobs, ended=ended))
    rows.sort(key=lambda view: (-stored(view.jobs), -len(view.jobs), view.home.destination))
    found = [job for view in rows for job in view.jobs]
    found.sort(key=lambda listed: (listed.progress is None, -(listed.idle or 0.0)))
    done = [job for view in rows for job in view.ended]
    done.sort(key=lambda listed: -(listed.job.since or 0))
    return Fleet(rows, found, done, unread)

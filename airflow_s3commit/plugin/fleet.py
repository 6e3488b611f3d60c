"""The view of all destinations: search, filters, and totals, as pure functions of what was read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from airflow_s3commit.plugin.views import DestinationView
from airflow_s3commit.protocol.inspect.jobs import JobSummary
from airflow_s3commit.protocol.model.destination import is_pattern, matches

#: Choices of the filter by state, and their labels.
STATES: Final = {
    "": "any state",
    "open": "open",
    "sealed": "sealed",
    "committing": "committing",
    "aborting": "aborting",
    "ended": "ended, not cleaned up",
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

_ENDED = frozenset({"committed", "aborted", "lost"})


@dataclass(frozen=True, slots=True)
class Wanted:
    """A search over all destinations.

    Attributes:
        text: Part of a destination's URI, a job's id, its name, its DAG or run, regardless of case; or a
            pattern of URIs, such as ``s3://lake/*/orders``. Empty for all.
        state: One of `STATES`.
        idle: Seconds without activity that a job has at least.

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
        """Seconds without activity of the job that is idle longest; None without jobs."""
        return max((idle for job in self.jobs if (idle := idle_of(job)) is not None), default=None)

    @property
    def committing(self) -> int:
        """Number of running or interrupted commits."""
        return sum(job.state == "committing" for job in self.jobs)


@dataclass(frozen=True, slots=True)
class Fleet:
    """What a search finds.

    Attributes:
        rows: The destinations, with the most pending bytes first.
        jobs: Their jobs with their destinations: commits first, then those that are idle longest.
        unread: Destinations that could not be read, by the reason.
        stale: Number of destinations that could not be read now, and are shown as they were read before.

    """

    rows: Sequence[Row]
    jobs: Sequence[tuple[DestinationView, JobSummary]]
    unread: Sequence[tuple[str, Sequence[str]]]
    stale: int

    @property
    def pending_bytes(self) -> int:
        """Pending bytes of the jobs."""
        return sum(row.pending_bytes for row in self.rows)

    @property
    def idle(self) -> float | None:
        """Seconds without activity of the job that is idle longest; None without jobs."""
        return max((row.idle for row in self.rows if row.idle is not None), default=None)


def idle_of(job: JobSummary) -> float | None:
    """Return the seconds since a job's last activity, or since it entered its state; None if unknown."""
    return job.silent if job.silent is not None else job.age


def search_fleet(views: Sequence[DestinationView], wanted: Wanted) -> Fleet:
    """Return the destinations and jobs that match, of those that the user may see."""
    rows = []
    unread: dict[str, list[str]] = {}
    for view in views:
        whole = _matches_place(view, wanted.text)
        jobs = [job for job in view.jobs if (whole or _matches_job(job, wanted.text)) and _fits(job, wanted)]
        if view.problem is not None and whole:
            unread.setdefault(view.problem, []).append(view.place.uri)
        if jobs or (whole and not wanted.of_jobs and view.problem is None):
            rows.append(Row(view, jobs))
    rows.sort(key=lambda row: (-row.pending_bytes, -len(row.jobs), row.view.place.uri))
    found = [(row.view, job) for row in rows for job in row.jobs]
    found.sort(key=lambda pair: (pair[1].state != "committing", -(idle_of(pair[1]) or 0.0)))
    stale = sum(row.view.problem is not None for row in rows)
    return Fleet(rows, found, sorted(unread.items(), key=lambda one: -len(one[1])), stale)


def _matches_place(view: DestinationView, text: str) -> bool:
    uri = view.place.uri
    return matches(uri, text) if is_pattern(text) else text.lower() in uri.lower()


def _matches_job(job: JobSummary, text: str) -> bool:
    return any(text.lower() in known.lower() for known in _texts(job))


def _texts(job: JobSummary) -> Iterator[str]:
    yield job.job_id
    for name in ("name", "dag_id", "run_id"):
        yield job.context.get(name, "")


def _fits(job: JobSummary, wanted: Wanted) -> bool:
    if wanted.idle and (idle_of(job) or 0.0) < wanted.idle:
        return False
    match wanted.state:
        case "":
            return True
        case "damaged":
            return job.state is None or job.problem is not None
        case "ended":
            return job.state in _ENDED
        case state:
            return job.state == state

"""What the list of jobs shows: read without regard to who looks, then cut to what they may see."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from airflow_s3commit.plugin.places import Place
from airflow_s3commit.protocol.commit_progress import CommitProgress, commit_progress
from airflow_s3commit.protocol.endings import latest_endings
from airflow_s3commit.protocol.records import ManifestRecord
from airflow_s3commit.protocol.survey import JobSummary, list_jobs
from airflow_s3commit.protocol.sweep_plan import monthly_cost
from airflow_s3commit.store.base import ObjectStore
from airflow_s3commit.store.counting import total_requests

__all__ = ["MOST_ENDED", "MOST_JOBS", "Glance", "dollars_a_day", "look", "rate_of", "requests_of"]

#: Jobs under way that are read of one destination.
MOST_JOBS = 200

#: Jobs that ended lately that are read of one destination.
MOST_ENDED = 100

_DAYS = 30.0


@dataclass(frozen=True)
class Glance:
    """One destination at a glance.

    Attributes:
        place: Which.
        jobs: The jobs under way, and those that something is left of; the longest silent last.
        ended: The jobs that ended lately, the last one first.
        progress: How far running commits are, by job id.
        cut: Not all of the jobs were read.
        problem: Why nothing could be read, in words; None if it could.

    """

    place: Place
    jobs: Sequence[JobSummary] = ()
    ended: Sequence[JobSummary] = ()
    progress: Mapping[str, CommitProgress] = field(default_factory=dict)
    cut: bool = False
    problem: str | None = None

    @property
    def pending_bytes(self) -> int:
        """Bytes that the jobs under way have pending, as their records say."""
        return sum(job.output.bytes for job in self.jobs)

    def seen_by(self, may_read: Callable[[Mapping[str, str]], bool]) -> Glance:
        """Return what somebody may see of it.

        Args:
            may_read: Tells whether they may see a job, by the job's context.

        """
        return replace(
            self,
            jobs=[job for job in self.jobs if may_read(job.context)],
            ended=[job for job in self.ended if may_read(job.context)],
        )


def look(store: ObjectStore, place: Place) -> Glance:
    """Read the jobs of a destination, those under way and those that ended lately.

    Raises:
        S3CommitError: The store could not be asked.

    """
    found = list(islice(list_jobs(store, place.destination, place.staging_root), MOST_JOBS + 1))
    jobs = sorted(found[:MOST_JOBS], key=_liveliness)
    alive = {job.job_id for job in jobs}
    endings = latest_endings(store, place.destination, MOST_ENDED)
    return Glance(
        place,
        jobs=jobs,
        ended=[job for job in endings.jobs if job.job_id not in alive],
        progress=commit_progress(store, place.destination, jobs),
        cut=len(found) > MOST_JOBS or not endings.complete,
    )


def dollars_a_day(stored: int) -> float:
    """Return what keeping bytes costs a day, in US dollars, at the price that the sweep goes by."""
    return monthly_cost(stored) / _DAYS


def requests_of(manifest: ManifestRecord) -> int | None:
    """Return how many requests the process that finished a commit made; None if it did not count them."""
    return total_requests(manifest.metrics)


def rate_of(manifest: ManifestRecord) -> float | None:
    """Return how many uploads a second a commit completed; None if it did not say how long it took."""
    took = manifest.metrics.get("complete_ms")
    return manifest.metrics.get("complete_files", manifest.counts.files) / (took / 1000) if took else None


def _liveliness(job: JobSummary) -> tuple[bool, float]:
    return job.state != "committing", job.silent if job.silent is not None else float("inf")

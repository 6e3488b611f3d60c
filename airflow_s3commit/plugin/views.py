"""What the pages show of a destination and of one job, as values.

A destination is read once for all users; `DestinationView.seen_by` then drops what one may not see.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from airflow_s3commit.exceptions import NoSuchJob, NoSuchKey, Refused
from airflow_s3commit.plugin.config import Place
from airflow_s3commit.protocol.inspect.details import JobDetails, describe_job
from airflow_s3commit.protocol.inspect.jobs import JobSummary, find_ending, latest_endings, list_jobs
from airflow_s3commit.protocol.inspect.timeline import (
    CommitProgress,
    TimelineEvent,
    commit_progress,
    timeline,
)
from airflow_s3commit.protocol.metadata import records
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.plans import find_plan, planned_objects
from airflow_s3commit.protocol.metadata.state import read_state
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.layout import Layout
from airflow_s3commit.protocol.model.plan import PlannedObject
from airflow_s3commit.protocol.model.seal import Counts, SealRecord
from airflow_s3commit.store.base import ObjectStore

#: Unfinished jobs that are read of one destination.
MOST_JOBS = 200

#: Recently ended jobs that are read of one destination.
MOST_ENDED = 100


@dataclass(frozen=True)
class DestinationView:
    """One destination and its jobs.

    Attributes:
        place: The destination.
        jobs: The jobs that have a staging: commits first, then by their last sign of life, the latest first.
        ended: The jobs that ended recently, the latest first.
        progress: The progress of running commits, by job id.
        cut: Whether more jobs exist than were read.
        problem: Why the destination could not be read; None if it was.

    """

    place: Place
    jobs: Sequence[JobSummary] = ()
    ended: Sequence[JobSummary] = ()
    progress: Mapping[str, CommitProgress] = field(default_factory=dict)
    cut: bool = False
    problem: str | None = None

    @property
    def pending_bytes(self) -> int:
        """Pending bytes of the unfinished jobs, by their records."""
        return sum(job.output.bytes for job in self.jobs)

    def seen_by(self, may_read: Callable[[Mapping[str, str]], bool]) -> DestinationView:
        """Return the part of it that a user may see.

        Args:
            may_read: Returns whether the user may see a job with this context.

        """
        return replace(
            self,
            jobs=[job for job in self.jobs if may_read(job.context)],
            ended=[job for job in self.ended if may_read(job.context)],
        )


def read_destination(store: ObjectStore, place: Place) -> DestinationView:
    """Read the unfinished jobs of a destination, and those that ended recently.

    Raises:
        S3CommitError: The store did not answer.

    """
    found = list(islice(list_jobs(store, place.destination, place.staging_root), MOST_JOBS + 1))
    jobs = sorted(found[:MOST_JOBS], key=_liveliness)
    alive = {job.job_id for job in jobs}
    endings = latest_endings(store, place.destination, MOST_ENDED)
    return DestinationView(
        place,
        jobs=jobs,
        ended=[job for job in endings.jobs if job.job_id not in alive],
        progress=commit_progress(store, place.destination, jobs),
        cut=len(found) > MOST_JOBS or not endings.complete,
    )


def _liveliness(job: JobSummary) -> tuple[bool, float]:
    return job.state != "committing", job.silent if job.silent is not None else float("inf")


#: Partitions that a page shows.
MOST_PARTITIONS = 200

#: Objects to be replaced that a page shows.
MOST_OBJECTS = 50


@dataclass(frozen=True)
class JobView:
    """Everything about one job.

    Attributes:
        place: Its destination.
        details: What ``s3commit show`` shows.
        timeline: When it entered each state.
        partitions: The counts of its first partitions, from its seal or manifest.
        partition_count: The number of all of its partitions.
        replaced: The first objects that its plan replaces.
        progress: The progress of its commit, while that runs.
        manifest_uri: URI of its manifest, if it is committed.
        now: The store's time, in seconds since the epoch; None if it is not known.

    """

    place: Place
    details: JobDetails
    timeline: Sequence[TimelineEvent] = ()
    partitions: Mapping[str, Counts] = field(default_factory=dict)
    partition_count: int = 0
    replaced: Sequence[PlannedObject] = ()
    progress: CommitProgress | None = None
    manifest_uri: str | None = None
    now: float | None = None

    @property
    def summary(self) -> JobSummary:
        """The job as lists of jobs show it."""
        return self.details.summary


def read_job(store: ObjectStore, place: Place, job_id: str) -> JobView:
    """Read everything about one job.

    Raises:
        NoSuchJob: The job is not known.
        InvalidRecord: The id is not valid.
        S3CommitError: The store did not answer.

    """
    root = _root_of(store, place, job_id)
    context = JobContext(store, Layout.of(place.destination, job_id, root))
    details = _described(context, root)
    summary, manifest = details.summary, details.summary.manifest
    partitions, replaced = _planned(context, summary)
    if manifest is not None:
        partitions = manifest.partitions
    moments = timeline(context, summary)
    age = summary.age
    state_at = next((m.at for m in reversed(moments) if m.name == summary.state), None)
    return JobView(
        place,
        details,
        timeline=moments,
        partitions=dict(islice(sorted(partitions.items()), MOST_PARTITIONS)),
        partition_count=len(partitions),
        replaced=replaced,
        progress=commit_progress(store, place.destination, [summary]).get(job_id),
        manifest_uri=join_uri(context.bucket, context.layout.manifest) if manifest is not None else None,
        now=state_at + age if state_at is not None and age is not None else None,
    )


def _root_of(store: ObjectStore, place: Place, job_id: str) -> Destination | None:
    """Return the root of a job's staging; not every job uses the configured one."""
    if place.staging_root is None:
        return None
    staging = Layout.of(place.destination, job_id, place.staging_root).staging
    listed = store.list_objects(staging.bucket, staging.prefix)
    return place.staging_root if next(iter(listed), None) is not None else None


def _described(context: JobContext, root: Destination | None) -> JobDetails:
    destination = context.layout.destination
    try:
        return describe_job(context.store, destination, context.job_id, root)
    except NoSuchJob:
        ended = find_ending(context.store, destination, context.layout.aborted)
        if ended is None:
            raise
        return JobDetails(summary=ended)


def _planned(
    context: JobContext, summary: JobSummary
) -> tuple[Mapping[str, Counts], Sequence[PlannedObject]]:
    """Return the partitions of the seal and the first objects of the plan; both empty without the records."""
    if summary.staging is None:
        return {}, ()
    try:
        seal = records.find(context.store, context.staging_bucket, context.layout.seal, SealRecord)
        state = read_state(context)
        plan = find_plan(context, state.record.plan_etag if state is not None else None)
        replaced = (
            list(islice(planned_objects(context, plan.record), MOST_OBJECTS)) if plan is not None else []
        )
    except (Refused, NoSuchKey):
        # Damaged, which the details report, or changed by another process meanwhile.
        return {}, ()
    return (seal.record.partitions if seal is not None else {}), replaced

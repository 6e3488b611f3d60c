"""What one job's page shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from airflow_s3commit.exceptions import NoSuchJob, NoSuchKey, Refused
from airflow_s3commit.plugin.places import Place
from airflow_s3commit.protocol import journal
from airflow_s3commit.protocol.commit_progress import CommitProgress, commit_progress
from airflow_s3commit.protocol.conflicts import find_plan, planned_objects
from airflow_s3commit.protocol.context import JobContext
from airflow_s3commit.protocol.destination import Destination, join_uri
from airflow_s3commit.protocol.endings import aborted_summary
from airflow_s3commit.protocol.job_details import JobDetails, describe_job
from airflow_s3commit.protocol.layout import Layout
from airflow_s3commit.protocol.milestones import Milestone, milestones
from airflow_s3commit.protocol.records import AbortedRecord, Counts, PlannedObject, SealRecord
from airflow_s3commit.protocol.state import read_state
from airflow_s3commit.protocol.survey import JobSummary
from airflow_s3commit.store.base import ObjectStore

__all__ = ["MOST_OBJECTS", "MOST_PARTITIONS", "Dossier", "look_closely"]

#: Partitions that are shown.
MOST_PARTITIONS = 200

#: Objects to be replaced that are shown.
MOST_OBJECTS = 50


@dataclass(frozen=True)
class Dossier:
    """Everything about one job.

    Attributes:
        place: Its destination.
        details: What ``s3commit show`` shows.
        milestones: When it came where.
        partitions: What it writes by partition, as its seal or manifest says; the first of them.
        partition_count: How many partitions that are in all.
        replaced: The first objects that its plan replaces.
        progress: How far its commit is, while it runs.
        manifest_uri: URI of its manifest, if it is committed.
        now: The store's time, in seconds since the epoch; None if there was nothing to tell it by.

    """

    place: Place
    details: JobDetails
    milestones: Sequence[Milestone] = ()
    partitions: Mapping[str, Counts] = field(default_factory=dict)
    partition_count: int = 0
    replaced: Sequence[PlannedObject] = ()
    progress: CommitProgress | None = None
    manifest_uri: str | None = None
    now: float | None = None

    @property
    def summary(self) -> JobSummary:
        """What a list of jobs shows of it."""
        return self.details.summary


def look_closely(store: ObjectStore, place: Place, job_id: str) -> Dossier:
    """Read everything about one job.

    Raises:
        NoSuchJob: Nothing is known of it.
        InvalidRecord: The id is none.
        S3CommitError: The store could not be asked.

    """
    root = _root_of(store, place, job_id)
    context = JobContext(store, Layout.of(place.destination, job_id, root))
    details = _described(context, root)
    summary, manifest = details.summary, details.summary.manifest
    partitions, replaced = _planned(context, summary)
    if manifest is not None:
        partitions = manifest.partitions
    moments = milestones(context, summary)
    age = summary.age
    state_at = next((m.at for m in reversed(moments) if m.name == summary.state), None)
    return Dossier(
        place,
        details,
        milestones=moments,
        partitions=dict(islice(sorted(partitions.items()), MOST_PARTITIONS)),
        partition_count=len(partitions),
        replaced=replaced,
        progress=commit_progress(store, place.destination, [summary]).get(job_id),
        manifest_uri=join_uri(context.bucket, context.layout.manifest) if manifest is not None else None,
        now=state_at + age if state_at is not None and age is not None else None,
    )


def _root_of(store: ObjectStore, place: Place, job_id: str) -> Destination | None:
    """Return where a job has its records: not every job on a destination has them in the configured place."""
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
        stored = journal.find(context.store, context.bucket, context.layout.aborted, AbortedRecord)
        if stored is None:
            raise
        age = max(stored.date - stored.modified, 0.0)
        return JobDetails(summary=aborted_summary(stored.record, destination, age))


def _planned(
    context: JobContext, summary: JobSummary
) -> tuple[Mapping[str, Counts], Sequence[PlannedObject]]:
    """Read what the seal says of partitions, and the first objects of the plan; nothing if they are gone."""
    if summary.staging is None:
        return {}, ()
    try:
        seal = journal.find(context.store, context.staging_bucket, context.layout.seal, SealRecord)
        state = read_state(context)
        plan = find_plan(context, state.record.plan_etag if state is not None else None)
        replaced = (
            list(islice(planned_objects(context, plan.record), MOST_OBJECTS)) if plan is not None else []
        )
    except (Refused, NoSuchKey):
        # Damaged, which the details say, or moved on by another process meanwhile.
        return {}, ()
    return (seal.record.partitions if seal is not None else {}), replaced

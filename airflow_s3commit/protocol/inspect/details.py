"""Details of one job: its stages, its pending uploads, and what its commit would replace."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from airflow_s3commit._columns import Column
from airflow_s3commit._format import number, size
from airflow_s3commit.exceptions import DestinationNotEmpty, NoSuchJob, Refused
from airflow_s3commit.protocol.inspect.jobs import JobSummary, summary_of
from airflow_s3commit.protocol.inspect.verify_job import PendingReport, verify_pending
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.sealed_job import find_seal, load_stage_seal, stage_attempts
from airflow_s3commit.protocol.model.codec import Plain
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.layout import PENDINGSET_SUFFIX, Layout
from airflow_s3commit.protocol.model.sealed_job import Counts
from airflow_s3commit.protocol.steps.preview import Preview, preview
from airflow_s3commit.protocol.steps.setup import never_set_up
from airflow_s3commit.store.base import ObjectStore


class StageDetails(Struct, frozen=True, kw_only=True):
    """One stage attempt of a job.

    Attributes:
        stage: Id of the stage.
        attempt: Id of the attempt.
        sealed: Whether the stage attempt is sealed.
        counts: Whether the job's seal lists the stage attempt; None before the job is sealed.
        tasks: Number of task attempts: those in its seal or, before it is sealed, those committed so far.
        output: Totals of its output; None before it is sealed.
    """

    columns = (
        Column("stage", "stage", folds=True),
        Column("attempt", "attempt"),
        Column("sealed", "sealed"),
        Column("counts", "counts"),
        Column("tasks", "tasks", number),
        Column("files", "output.files", number),
        Column("size", "output.bytes", size),
        Column("rows", "output.rows", number),
    )

    stage: str
    attempt: str
    sealed: bool
    counts: bool | None
    tasks: int
    output: Counts | None = None


class JobDetails(Plain, Struct, frozen=True, kw_only=True):
    """Details of one job.

    Attributes:
        summary: The job's summary.
        stages: Its stage attempts.
        uploads: Comparison of its records with the store; None unless the job is open or sealed.
        preview: What its commit would take from the table; None unless the job is sealed.
        conflict: Why its commit would be refused as the table is now; None if it would not.
        problems: Why records could not be read.
    """

    summary: JobSummary
    stages: list[StageDetails] = []
    uploads: PendingReport | None = None
    preview: Preview | None = None
    conflict: str | None = None
    problems: list[str] = []


def describe_job(store: ObjectStore, destination: Destination, job_id: str) -> JobDetails:
    """Return the details of one job. Reads only. A damaged record does not raise: it is a problem.

    Raises:
        NoSuchJob: The job has neither records nor a staging, and has not ended.
        S3CommitError: A request failed.
    """
    summary = summary_of(store, destination, job_id)
    if summary is None:
        raise NoSuchJob(never_set_up(JobContext(store, Layout.of(destination, job_id))))
    problems = [summary.problem] if summary.problem is not None else []
    if summary.staging is None or summary.state not in ("open", "sealed") or problems:
        return JobDetails(summary=summary, problems=problems)
    context = JobContext(store, Layout(destination, Destination.parse(summary.staging), job_id))
    stages: list[StageDetails] = []
    uploads = planned = conflict = None
    try:
        stages = list(_stages(context))
        uploads = verify_pending(context)
        planned = preview(context) if summary.state == "sealed" else None
    except DestinationNotEmpty as error:
        conflict = str(error)
    except Refused as error:
        # A record is damaged, or another process changed the job in the meantime.
        problems.append(str(error))
    return JobDetails(
        summary=summary,
        stages=stages,
        uploads=uploads,
        preview=planned,
        conflict=conflict,
        problems=problems,
    )


def _stages(context: JobContext) -> Iterator[StageDetails]:
    seal = find_seal(context)
    chosen = (
        {(stage.stage, stage.stage_attempt) for stage in seal.record.stages} if seal is not None else None
    )
    for stage, attempt, sealed in sorted(stage_attempts(context)):
        output = None
        if sealed:
            record = load_stage_seal(context, stage, attempt, None).record
            tasks, output = len(record.tasks), record.counts.without_columns()
        else:
            prefix = context.layout.tasks(stage, attempt)
            listed = context.store.list_objects(context.staging_bucket, prefix)
            tasks = sum(info.key.endswith(PENDINGSET_SUFFIX) for info in listed)
        yield StageDetails(
            stage=stage,
            attempt=attempt,
            sealed=sealed,
            counts=(stage, attempt) in chosen if chosen is not None else None,
            tasks=tasks,
            output=output,
        )

"""Details of one job: its stages, pending uploads, ``begin`` entry, and a preview of its commit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from msgspec import Struct

from airflow_s3commit.exceptions import Refused
from airflow_s3commit.protocol.inspect.jobs import JobSummary, find_ending, list_jobs
from airflow_s3commit.protocol.inspect.preview import CommitPreview, preview_commit
from airflow_s3commit.protocol.inspect.verify_pending import PendingReport, verify_pending
from airflow_s3commit.protocol.metadata import records
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.log import Log
from airflow_s3commit.protocol.metadata.seals import load_stage_seal, stage_attempts
from airflow_s3commit.protocol.metadata.state import find_job, gone
from airflow_s3commit.protocol.model.codec import Plain
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.layout import PENDINGSET_SUFFIX, Layout
from airflow_s3commit.protocol.model.seal import Counts, SealRecord
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
        uploads: Comparison of its records with the store; None unless the job is open, sealed or
            committing.
        preview: The effect of its commit; None unless the job is sealed or committing.
        begun: Number of its ``begin`` entry, after which nobody can abort it; None if there is none.
        problems: Why records could not be read.

    """

    summary: JobSummary
    stages: list[StageDetails] = []
    uploads: PendingReport | None = None
    preview: CommitPreview | None = None
    begun: int | None = None
    problems: list[str] = []


def describe_job(
    store: ObjectStore, destination: Destination, job_id: str, staging_root: Destination | None = None
) -> JobDetails:
    """Return the details of one job. Reads only.

    A damaged record does not raise: it is among the ``problems``.

    Args:
        store: The store of the destination.
        destination: The destination of the job.
        job_id: Id of the job.
        staging_root: The root of the job's staging, if not the destination.

    Raises:
        NoSuchJob: The job has neither a staging nor a manifest.
        S3CommitError: A request failed.

    """
    context = JobContext(store, Layout.of(destination, job_id, staging_root))
    summary = _summary(context, staging_root)
    problems = [summary.problem] if summary.problem is not None else []
    if summary.staging is None:
        return JobDetails(summary=summary)
    uploads = preview = begun = None
    stages: list[StageDetails] = []
    if summary.problem is None:
        try:
            stages = list(_stages(context))
            if summary.state in ("open", "sealed", "committing"):
                uploads = verify_pending(context)
            if summary.state in ("sealed", "committing"):
                preview = preview_commit(context)
            if summary.state == "committing":
                begun = _begun(context)
        except Refused as error:
            # A record is damaged, or another process changed the job in the meantime.
            problems.append(str(error))
    return JobDetails(
        summary=summary,
        stages=stages,
        uploads=uploads,
        preview=preview,
        begun=begun,
        problems=problems,
    )


def _summary(context: JobContext, staging_root: Destination | None) -> JobSummary:
    destination = context.layout.destination
    for summary in list_jobs(context.store, destination, staging_root):
        if summary.job_id == context.job_id:
            return summary
    ended = find_ending(context.store, destination, context.layout.manifest)
    if ended is None:
        ended = find_ending(context.store, destination, context.layout.aborted)
        if ended is None or ended.state != "lost":
            raise gone(context)
    return ended


def _stages(context: JobContext) -> Iterator[StageDetails]:
    seal = records.find(context.store, context.staging_bucket, context.layout.seal, SealRecord)
    chosen = {(s.stage, s.stage_attempt) for s in seal.record.stages} if seal is not None else None
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


def _begun(context: JobContext) -> int | None:
    log = Log(replace(context, record=find_job(context)))
    begun = log.begun()
    return begun.number if begun is not None and log.ending() is None else None

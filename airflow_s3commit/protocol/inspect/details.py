"""Details of one job: its stages, its pending uploads, and what its commit would replace."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import UNSET, Struct

from airflow_s3commit.exceptions import InvalidRecord, Refused
from airflow_s3commit.protocol.inspect.jobs import JobSummary, find_ending, list_jobs
from airflow_s3commit.protocol.inspect.verify_pending import PendingReport, verify_pending
from airflow_s3commit.protocol.lifecycle.plan import existing_objects
from airflow_s3commit.protocol.metadata import records
from airflow_s3commit.protocol.metadata.context import JobContext, naming
from airflow_s3commit.protocol.metadata.sealed_job import (
    find_plan,
    load_seal,
    load_stage_seal,
    stage_attempts,
)
from airflow_s3commit.protocol.metadata.snapshot import is_retained_at
from airflow_s3commit.protocol.metadata.state import gone, load_job, require_state
from airflow_s3commit.protocol.model.codec import Plain
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.job import ConflictMode, JobRecord, StateRecord
from airflow_s3commit.protocol.model.layout import PENDINGSET_SUFFIX, Layout
from airflow_s3commit.protocol.model.sealed_job import Counts, SealRecord
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
        problems: Why records could not be read.

    """

    summary: JobSummary
    stages: list[StageDetails] = []
    uploads: PendingReport | None = None
    preview: CommitPreview | None = None
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
    uploads = preview = None
    stages: list[StageDetails] = []
    if summary.problem is None:
        try:
            stages = list(_stages(context))
            if summary.state in ("open", "sealed", "committing"):
                uploads = verify_pending(context)
            if summary.state in ("sealed", "committing"):
                preview = preview_commit(context)
        except Refused as error:
            # A record is damaged, or another process changed the job in the meantime.
            problems.append(str(error))
    return JobDetails(
        summary=summary,
        stages=stages,
        uploads=uploads,
        preview=preview,
        problems=problems,
    )


def _summary(context: JobContext, staging_root: Destination | None) -> JobSummary:
    destination = context.layout.destination
    for summary in list_jobs(context.store, destination, staging_root):
        if summary.job_id == context.job_id:
            return summary
    ended = find_ending(context.store, destination, context.layout.manifest)
    if ended is None:
        raise gone(context)
    return ended


def _stages(context: JobContext) -> Iterator[StageDetails]:
    seal = records.find(context.store, context.staging_bucket, context.layout.seal, SealRecord)
    chosen = {(s.stage, s.stage_attempt): s for s in seal.record.stages} if seal is not None else None
    for stage, attempt, is_object in sorted(stage_attempts(context)):
        output = None
        within = chosen[stage, attempt].within if chosen and (stage, attempt) in chosen else UNSET
        sealed = is_object or within is not UNSET
        if sealed:
            if within is UNSET:
                within = load_stage_seal(context, stage, attempt, None).record
            tasks, output = len(within.tasks), within.counts.without_columns()
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


class CommitPreview(Plain, Struct, frozen=True, kw_only=True):
    """The effect of a commit on a destination.

    Attributes:
        conflict_mode: Conflict mode of the job.
        planned: Whether the numbers are from the plan that the commit follows; if not, they are from a
            listing, and a plan made later may differ.
        files: Number of files that the commit makes visible.
        bytes: Bytes of these files.
        partitions: Number of partitions that receive files.
        replaced: Number of existing objects that the commit deletes.
        replaced_bytes: Bytes of these objects.
        conflict: URI of an existing object because of which conflict mode ``fail`` refuses the commit; None
            if the commit is possible.

    """

    conflict_mode: ConflictMode
    planned: bool
    files: int
    bytes: int
    partitions: int
    replaced: int = 0
    replaced_bytes: int = 0
    conflict: str | None = None


def preview_commit(context: JobContext) -> CommitPreview:
    """Return the effect of the commit of a sealed job. Reads only.

    Args:
        context: The job; its state is ``sealed`` or ``committing``.

    Raises:
        AlreadyCommitted: The job is committed.
        JobClosed: The job is not sealed yet, or is aborted.
        NoSuchJob: The job does not exist.
        InvalidRecord: The job's seal or plan is damaged.
        S3CommitError: A request failed.

    """
    with naming(context, "preview"):
        state = require_state(context, "sealed", "committing").record
        seal = load_seal(context, state.seal_etag)
        job = load_job(context)
        preview = CommitPreview(
            conflict_mode=job.options.conflict_mode,
            planned=False,
            files=seal.record.counts.files,
            bytes=seal.record.counts.bytes,
            partitions=len(seal.record.partitions),
        )
        return _from_plan(context, state, seal.etag, preview) or _from_listing(
            context, job, seal.record, preview
        )


def _from_plan(
    context: JobContext, state: StateRecord, seal_etag: str, preview: CommitPreview
) -> CommitPreview | None:
    """Return the preview from the plan that the commit follows; None if the commit will make a plan."""
    try:
        stored = find_plan(context, state)
    except InvalidRecord:
        if state.state == "committing":
            raise
        return None
    if stored is None or stored.record.seal_etag != seal_etag:
        return None
    plan = stored.record
    return msgspec.structs.replace(preview, planned=True, replaced=plan.objects, replaced_bytes=plan.bytes)


def _from_listing(
    context: JobContext, job: JobRecord, seal: SealRecord, preview: CommitPreview
) -> CommitPreview:
    """Return the preview from a listing."""
    options = job.options.as_sealed(seal.removes)
    is_retained = is_retained_at(context.store, context.layout.destination)
    replaced = size = 0
    for info in existing_objects(context, job, seal, is_retained):
        if options.conflict_mode == "fail":
            return msgspec.structs.replace(preview, conflict=join_uri(context.bucket, info.key))
        replaced, size = replaced + 1, size + info.size
    return msgspec.structs.replace(preview, replaced=replaced, replaced_bytes=size)

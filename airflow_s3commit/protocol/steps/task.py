"""The end of a task attempt: record its uploads, then look whether the job has ended; or abort them."""

from __future__ import annotations

from collections.abc import Callable

from airflow_s3commit._causes import undoing
from airflow_s3commit.exceptions import DuplicateOutput, InvalidRecord, JobClosed
from airflow_s3commit.protocol.metadata import records
from airflow_s3commit.protocol.metadata.context import JobContext, naming
from airflow_s3commit.protocol.metadata.pending_uploads import tracked_uploads
from airflow_s3commit.protocol.metadata.removal import PendingId, abort_uploads, delete_record, delete_records
from airflow_s3commit.protocol.metadata.sealed_job import committed_task, find_stage_seal
from airflow_s3commit.protocol.model.layout import PENDINGSET_SUFFIX
from airflow_s3commit.protocol.model.pendingset import PendingSet, PendingUpload, TaskExtra
from airflow_s3commit.protocol.model.sealed_job import CommittedTask
from airflow_s3commit.protocol.steps.setup import find_end, refuse_ended


def commit_attempt(
    context: JobContext, extra: TaskExtra, uploads: list[PendingUpload], *, undo: Callable[[], object]
) -> CommittedTask:
    """Write the pendingset of a task attempt. Repeatable with the same nonce.

    Before: the parts of every upload are there. After: the pendingset exists, and the job had not ended when
    this process looked, after the write. A process that ends the job writes its receipt before it lists
    uploads, so of the two at least one sees the other.

    Args:
        context: The job.
        extra: The attempt.
        uploads: Its uploads.
        undo: Withdraws the attempt if the job has ended: `withdraw_attempt`, or more than that.

    Raises:
        DuplicateOutput: Another process has committed an attempt with the same ids.
        AlreadyCommitted: The job is committed without this attempt, whose uploads are aborted.
        JobClosed: The job is aborted, and so are the attempt's uploads.

    """
    key = context.layout.pendingset(extra.stage, extra.stage_attempt, extra.task, extra.attempt)
    record = PendingSet(jobId=context.job_id, commits=uploads, s3commit=extra)
    stored = records.create(context.store, context.staging_bucket, key, record)
    if stored.record.s3commit is None or stored.record.s3commit.nonce != extra.nonce:
        raise DuplicateOutput(
            f"another process has committed task {extra.task} attempt {extra.attempt} of {context.name}; give"
            " each attempt an id of its own"
        )
    with undoing(undo, f"withdrawing task {extra.task} of {context.name}", "a sweep removes what is left"):
        refuse_ended(context, find_end(context))
    return committed_task(context, key, extra, stored, uploads)


def withdraw_attempt(context: JobContext, extra: TaskExtra, uploads: list[PendingUpload]) -> None:
    """Abort the uploads of an attempt of a job that has ended, then delete its pendingset. Repeatable."""
    abort_uploads(context, map(PendingId.of, uploads))
    key = context.layout.pendingset(extra.stage, extra.stage_attempt, extra.task, extra.attempt)
    delete_record(context, context.staging_bucket, key)


def abort_stage(context: JobContext, stage: str, stage_attempt: str) -> int:
    """Abort the recorded uploads of a stage attempt that another attempt replaces; return how many.

    Repeatable by any process.

    For the errors see `Job.abort_stage`.

    """
    _refuse_if_sealed(context, stage, stage_attempt)
    tracked = tracked_uploads(context, context.layout.stage(stage, stage_attempt))
    return abort_uploads(context, (PendingId.of(upload) for upload in tracked if upload is not None))


def abort_attempt(context: JobContext, stage: str, stage_attempt: str, task: str, attempt: str) -> int:
    """Abort the recorded uploads of a task attempt whose process is gone; return how many.

    Before: the stage attempt is not sealed. After: the uploads and their records are gone, so the attempt
    cannot be sealed. Repeatable by any process. With ``track_pending="task"`` an attempt records nothing
    before it commits: the job's commit or abort, or a sweep, finds its uploads.

    For the errors see `Job.abort_attempt`.

    """
    pendingset = context.layout.pendingset(stage, stage_attempt, task, attempt)
    with naming(context, f"abort of task {task} attempt {attempt} of stage {stage}-{stage_attempt}"):
        _refuse_if_sealed(context, stage, stage_attempt)
        directory = pendingset.removesuffix(PENDINGSET_SUFFIX) + "/"
        recorded = [*tracked_uploads(context, pendingset), *tracked_uploads(context, directory)]
        if None in recorded:
            raise InvalidRecord(f"{context.staging_uri(pendingset)}, or a record beside it, cannot be read")
        aborted = abort_uploads(context, {PendingId.of(upload) for upload in recorded if upload is not None})
        # Last: a pending upload must always have a record.
        delete_record(context, context.staging_bucket, pendingset)
        listed = context.store.list_objects(context.staging_bucket, directory)
        delete_records(context, (info.key for info in listed))
    return aborted


def _refuse_if_sealed(context: JobContext, stage: str, stage_attempt: str) -> None:
    if find_stage_seal(context, stage, stage_attempt) is not None:
        raise JobClosed(
            f"{context.name}: stage {stage}-{stage_attempt} is sealed; its uploads may be committed"
        )

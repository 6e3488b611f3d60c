"""The end of a task attempt: record its uploads, then look whether the job has ended meanwhile."""

from __future__ import annotations

from collections.abc import Callable

from airflow_s3commit._causes import undoing
from airflow_s3commit.exceptions import DuplicateOutput
from airflow_s3commit.protocol.metadata import records
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.removal import PendingId, abort_uploads, delete_record
from airflow_s3commit.protocol.metadata.sealed_job import committed_task
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

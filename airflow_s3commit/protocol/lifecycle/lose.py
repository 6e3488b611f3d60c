"""Give up a job that has begun: nobody can abort it, so it ends with what is published of it."""

from __future__ import annotations

import logging

from airflow_s3commit.exceptions import (
    AlreadyCommitted,
    InvalidRecord,
    JobClosed,
    NoSuchKey,
    NotReversible,
    S3CommitError,
)
from airflow_s3commit.protocol.lifecycle.abort import abort_job
from airflow_s3commit.protocol.lifecycle.commit import commit_job, settle
from airflow_s3commit.protocol.lifecycle.enter import enter_lost
from airflow_s3commit.protocol.lifecycle.manifest import FileList
from airflow_s3commit.protocol.lifecycle.run import CommitRun
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.job_record import load_job
from airflow_s3commit.protocol.metadata.pending_index import tracked_uploads, untracked_uploads
from airflow_s3commit.protocol.metadata.plans import nothing_planned
from airflow_s3commit.protocol.metadata.removal import PendingId, abort_uploads
from airflow_s3commit.protocol.metadata.state import follow, read_state
from airflow_s3commit.protocol.model.job import AbortReport, LostFiles
from airflow_s3commit.protocol.model.ownership import is_ours
from airflow_s3commit.protocol.model.pendingset import PendingUpload
from airflow_s3commit.protocol.model.seal import Counts, SealRecord
from airflow_s3commit.store.base import Head, ObjectInfo
from airflow_s3commit.store.execute import in_batches, outcomes

logger = logging.getLogger(__name__)

_BATCH = 1_000


def abort_or_lose(context: JobContext, *, force: bool, reason: str | None) -> AbortReport:
    """Abort a job, as `abort_job` does; with ``force`` also end one that has begun, as `give_up` does."""
    try:
        return abort_job(context, force=force, reason=reason)
    except NotReversible:
        if not force:
            raise
        ended = give_up(context, reason)
    raise ended


def give_up(context: JobContext, reason: str | None) -> S3CommitError:
    """Abort the uploads of a begun job that are not published yet, and drive it to its end. Repeatable.

    After: the job is lost; or committed, if all of its files were published. Damaged seals, pendingsets and
    plans do not prevent it.

    Args:
        context: The job.
        reason: Why, for the program's log.

    Returns:
        The error that says how the job ended.

    """
    logger.warning("%s: giving up what is not published yet: %s", context.name, reason)
    abort_uploads(context, map(PendingId.of, _recorded(context)))
    abort_uploads(context, untracked_uploads(context))
    try:
        commit_job(context)
    except JobClosed as error:
        return error
    except (InvalidRecord, NotReversible) as error:
        logger.warning("%s: ending it with the records that can be read: %s", context.name, error)
        _lose(context)
        return give_up(context, reason)
    return AlreadyCommitted(
        f"{context.name} was published completely: it is committed, and cannot be aborted"
    )


def _lose(context: JobContext) -> None:
    """Create the ``lost`` entry of a begun job by its objects, whatever records are damaged."""
    run = CommitRun(context, settle)
    begun, job, current = run.log.begun(), load_job(context), read_state(context)
    if begun is None or begun.begin is None:
        raise NotReversible(f"{context.name} has not begun")
    entry = run.log.ending()
    if entry is None:
        run.left = _published(context)
        seal = SealRecord(
            **context.layout.place,
            stages=[],
            partitions={partition: Counts() for partition in begun.begin.partitions},
            counts=Counts(),
            created=0,
            nonce="none",
        )
        left = sum(counts.files for counts in run.left.counts().values())
        lost = LostFiles(count=max(begun.begin.files - left, 0), keys=[])
        plan = nothing_planned(context, begun.begin.seal_etag)
        entry = enter_lost(run, job, seal, plan, lost)
    if current is not None:
        follow(context, current, entry)


def _published(context: JobContext) -> FileList:
    """Return the files of the job that are there, by every pendingset that can be read."""
    files = FileList(context)
    for batch in in_batches(_recorded(context), _BATCH):
        calls = [(upload, Head(upload.bucket, upload.destinationKey)) for upload in batch]
        for upload, outcome in outcomes(context.store, calls, NoSuchKey):
            if isinstance(outcome, ObjectInfo) and is_ours(upload, outcome):
                files.add(upload)
    return files


def _recorded(context: JobContext) -> list[PendingUpload]:
    recorded = tracked_uploads(context, context.layout.staging.prefix)
    return [upload for upload in recorded if upload is not None]

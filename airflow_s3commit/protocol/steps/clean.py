"""Remove what is left of a job that has ended: pending uploads, staging, records."""

from __future__ import annotations

from collections.abc import Container, Iterator

from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.pending_uploads import tracked_uploads, untracked_uploads
from airflow_s3commit.protocol.metadata.removal import PendingId, abort_uploads, delete_record, delete_records
from airflow_s3commit.protocol.model.entry import Entry
from airflow_s3commit.protocol.model.layout import job_key, seal_key
from airflow_s3commit.protocol.model.pendingset import PendingUpload
from airflow_s3commit.protocol.steps.fold import write_checkpoint


def abort_pending(context: JobContext, counted: Container[str] = ()) -> int:
    """Abort every upload of the job that a listing or a record in its staging shows; return how many.

    Before: the job's receipt is written. Repeatable.

    Args:
        context: The job.
        counted: Keys of the pendingsets whose uploads are completed.

    Raises:
        S3CommitError: An upload could not be aborted.

    """
    listed = set(untracked_uploads(context))
    named = (PendingId.of(one) for one in recorded_uploads(context, counted) if one is not None)
    known = {(one.key, one.upload_id) for one in listed}
    late = [one for one in named if (one.key, one.upload_id) not in known]
    return abort_uploads(context, listed) + abort_uploads(context, late)


def recorded_uploads(context: JobContext, counted: Container[str] = ()) -> Iterator[PendingUpload | None]:
    """Yield every upload that a record in the job's staging names; None for a record that cannot be read.

    Hadoop's own pendingsets are beside those of a job that was adopted.

    Args:
        context: The job.
        counted: Keys of the pendingsets to leave out.

    """
    return tracked_uploads(context, context.layout.staging.prefix, skip=counted)


def clean(context: JobContext, entry: Entry) -> None:
    """Delete the staging and the records of a job that has ended. Repeatable.

    The job's record goes last: as long as it is there, the job is found among those to be finished.

    Args:
        context: The job.
        entry: Its end, which names its staging.

    """
    store, layout = context.store, context.layout
    if entry.staging in ("", layout.staging.uri):
        listed = store.list_objects(context.staging_bucket, layout.staging.prefix)
        delete_records(context, (info.key for info in listed))
    for key in (seal_key(layout.destination, context.job_id), job_key(layout.destination, context.job_id)):
        delete_record(context, context.bucket, key)
    write_checkpoint(store, layout.destination, entry)

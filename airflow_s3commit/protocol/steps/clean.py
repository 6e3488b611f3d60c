"""Remove what is left of a job that has ended: pending uploads, staging, records."""

from __future__ import annotations

from collections.abc import Container

from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.pending_uploads import tracked_uploads
from airflow_s3commit.protocol.metadata.removal import PendingId, abort_uploads, delete_record, delete_records
from airflow_s3commit.protocol.model.layout import owner_of
from airflow_s3commit.protocol.model.places import job_key, lists_prefix, seal_key
from airflow_s3commit.protocol.steps.entry import Entry
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
    home = context.layout.destination
    lists = lists_prefix(home, context.job_id)
    listed = {
        PendingId(home.bucket, one.key, one.upload_id, "writer" if one.key.startswith(lists) else "name")
        for one in context.store.list_uploads(home.bucket, home.prefix)
        if owner_of(one.key) == context.job_id or one.key.startswith(lists)
    }
    recorded = (PendingId.of(one) for one in tracked_uploads(context, skip=counted) if one is not None)
    known = {(one.key, one.upload_id) for one in listed}
    late = [one for one in recorded if (one.key, one.upload_id) not in known]
    return abort_uploads(context, listed) + abort_uploads(context, late)


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

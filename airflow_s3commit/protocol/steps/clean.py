"""Remove what is left of a job that has ended: pending uploads, staging, records."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from itertools import chain, islice

from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.pending_uploads import tracked_uploads, untracked_uploads
from airflow_s3commit.protocol.metadata.removal import PendingId, abort_uploads, delete_record, delete_records
from airflow_s3commit.protocol.model.entry import Entry
from airflow_s3commit.protocol.model.layout import job_key, seal_key
from airflow_s3commit.protocol.model.pendingset import PendingUpload
from airflow_s3commit.protocol.steps.fold import write_checkpoint

#: Objects on a page of a listing.
_PAGE = 1_000


def list_staging(context: JobContext) -> list[str] | None:
    """Return the keys in a job's staging if that is at most one page of a listing; otherwise None.

    Before: the job's receipt is written: who writes there later finds the receipt, and withdraws.
    """
    listed = context.store.list_objects(context.staging_bucket, context.layout.staging.prefix)
    found = [info.key for info in islice(listed, _PAGE + 1)]
    return found if len(found) <= _PAGE else None


def abort_pending(context: JobContext, staged: list[str] | None, counted: Container[str] = ()) -> int:
    """Abort every upload of the job that a listing or a record in its staging shows; return how many.

    Before: the job's receipt is written. Repeatable.

    Args:
        context: The job.
        staged: What `list_staging` returned.
        counted: Keys of the pendingsets whose uploads are completed.

    Raises:
        S3CommitError: An upload could not be aborted.

    """
    recorded = (PendingId.of(one) for one in recorded_uploads(context, staged, counted) if one is not None)
    return abort_uploads(context, recorded) + abort_uploads(context, untracked_uploads(context))


def has_leftovers(context: JobContext) -> bool:
    """Return whether tasks that outlived their finished job have left staging or uploads. Reads only."""
    return list_staging(context) != [] or any(True for _ in untracked_uploads(context))


def recorded_uploads(
    context: JobContext, staged: list[str] | None, counted: Container[str] = ()
) -> Iterator[PendingUpload | None]:
    """Yield every upload that a record in the job's staging names; None for a record that cannot be read.

    Hadoop's own pendingsets are beside those of a job that was adopted.

    Args:
        context: The job.
        staged: What `list_staging` returned.
        counted: Keys of the pendingsets to leave out.

    """
    return tracked_uploads(context, context.layout.staging.prefix, skip=counted, listed=staged)


def clean(context: JobContext, entry: Entry, staged: list[str] | None) -> None:
    """Delete the staging and the records of a job that has ended. Repeatable.

    The job's record goes last: as long as it is there, the job is found among those to be finished.

    Args:
        context: The job.
        entry: Its end.
        staged: What `list_staging` returned.

    """
    store, layout = context.store, context.layout
    seal = seal_key(layout.destination, context.job_id)
    # The seal goes with the same request, if it is in the same bucket.
    is_near = context.staging_bucket == context.bucket
    found: Iterable[str] | None = staged
    if found is None:
        listed = store.list_objects(context.staging_bucket, layout.staging.prefix)
        found = (info.key for info in listed)
    delete_records(context, chain(found, [seal] if is_near else []))
    if not is_near:
        delete_record(context, context.bucket, seal)
    delete_record(context, context.bucket, job_key(layout.destination, context.job_id))
    write_checkpoint(store, layout.destination, entry)

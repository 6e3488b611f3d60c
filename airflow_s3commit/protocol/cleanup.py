"""Removing a job's staging, in the order that a crash in the middle can be read from.

The job's record goes first: where it is gone and the state is still there, the job has ended and only the
rest of this remains to be done. The state goes last.
"""

from __future__ import annotations

import logging

from airflow_s3commit.exceptions import ForeignRecord, InvalidRecord, NoSuchKey
from airflow_s3commit.protocol.context import JobContext
from airflow_s3commit.protocol.records import StateRecord
from airflow_s3commit.protocol.removal import delete_record, delete_records
from airflow_s3commit.protocol.setup import find_job
from airflow_s3commit.protocol.state import find_aborted, find_manifest, read_state

__all__ = ["clean_if_ended", "clean_staging", "is_own_staging"]

logger = logging.getLogger(__name__)


def clean_if_ended(context: JobContext) -> bool:
    """Remove what this process wrote into the staging of a job that ended meanwhile; tell whether it did.

    A step that writes a record looks here afterwards, so that of it and a cleanup at the same time at least
    one sees the other.
    """
    stored = read_state(context)
    if stored is None or stored.record.state == "aborted" or _is_being_cleaned(context, stored.record):
        clean_staging(context)
        return True
    return False


def clean_staging(context: JobContext) -> None:
    """Remove everything below the job's staging prefix, if a record of the job says that it is its own.

    Before: the job is committed and its manifest written, or aborted. After: nothing of it is left there.
    Run again: removes what is left.

    Raises:
        InvalidRecord: A record there is of another place: the staging was copied.
        StoreRejected: The store kept an object.

    """
    if not is_own_staging(context):
        logger.warning(
            "%s: %s is left: no record of the job says that it is its own",
            context.name,
            context.layout.staging.uri,
        )
        return
    store, bucket, layout = context.store, context.staging_bucket, context.layout
    delete_record(context, bucket, layout.job)
    listed = store.list_objects(bucket, layout.staging.prefix)
    delete_records(context, (info.key for info in listed if info.key != layout.state))
    delete_record(context, bucket, layout.state)


def is_own_staging(context: JobContext) -> bool:
    """Tell whether a record of the job says that this staging is its own.

    That is the job's own record; or, once it is gone, the manifest or the record of its abort at the
    destination. All three are written once. `Layout` sees to it that the directory is called after the job.

    Raises:
        InvalidRecord: The ending is damaged, or something was copied here.

    """
    if context.record is not None or _is_job_here(context):
        return True
    ending = find_manifest(context) or find_aborted(context)
    if ending is None:
        return False
    # Endings that older versions wrote name no staging: then it is the one below the destination.
    return ending.staging == context.layout.staging.uri or (
        ending.staging is None and context.layout.is_below_destination
    )


def _is_job_here(context: JobContext) -> bool:
    try:
        return find_job(context) is not None
    except ForeignRecord:
        raise
    except InvalidRecord as error:
        logger.warning("%s: its record says nothing: %s", context.name, error)
        return False


def _is_being_cleaned(context: JobContext, state: StateRecord) -> bool:
    if state.state != "committed":
        return False
    try:
        context.store.head(context.staging_bucket, context.layout.job)
    except NoSuchKey:
        return True
    return False

"""Removing a job's staging, in the order that a crash in the middle can be read from.

The job's record goes first: where it is gone and the state is still there, the job has ended and only the
rest of this remains to be done. The state goes last.
"""

from __future__ import annotations

from airflow_s3commit.exceptions import NoSuchKey, StoreRejected
from airflow_s3commit.protocol.context import JobContext
from airflow_s3commit.protocol.records import StateRecord
from airflow_s3commit.protocol.state import read_state
from airflow_s3commit.store.base import Doomed
from airflow_s3commit.store.calls import in_batches

__all__ = ["clean_if_ended", "clean_staging"]

_DELETE_BATCH = 1_000


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
    """Remove everything below the job's staging prefix.

    Before: the job is committed and its manifest written, or aborted. After: nothing of it is left there.
    Run again: removes what is left.

    Raises:
        StoreRejected: The store kept an object.

    """
    store, bucket, layout = context.store, context.staging_bucket, context.layout
    store.delete(bucket, layout.job)
    listed = store.list_objects(bucket, layout.staging.prefix)
    doomed = (Doomed(info.key) for info in listed if info.key != layout.state)
    for batch in in_batches(doomed, _DELETE_BATCH):
        failures = store.delete_many(bucket, batch)
        if failures:
            first = failures[0]
            raise StoreRejected(
                f"{context.name}: could not delete {context.staging_uri(first.key)}:"
                f" {first.code} {first.message}",
                code=first.code,
            )
    store.delete(bucket, layout.state)


def _is_being_cleaned(context: JobContext, state: StateRecord) -> bool:
    if state.state != "committed":
        return False
    try:
        context.store.head(context.staging_bucket, context.layout.job)
    except NoSuchKey:
        return True
    return False

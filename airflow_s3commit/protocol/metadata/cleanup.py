"""Remove a job's staging in an order that survives a crash.

The job's record goes with the first request, and its state with the last: a state without the record shows a
job that has ended and whose clean-up is unfinished. Up to a thousand records go with one request. Should the
store fail to delete one in the last request, the step fails, and a sweep removes the record.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from itertools import chain

from airflow_s3commit.exceptions import InvalidRecord
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.manifests import find_manifest
from airflow_s3commit.protocol.metadata.records import exists, unless_damaged
from airflow_s3commit.protocol.metadata.removal import delete_records
from airflow_s3commit.protocol.metadata.state import find_aborted, find_job, read_state
from airflow_s3commit.protocol.model.job import StateRecord
from airflow_s3commit.store.base import ObjectInfo

logger = logging.getLogger(__name__)


def clean_if_ended(context: JobContext) -> bool:
    """Clean the staging if the job has ended; return whether it has.

    Every step that writes a record calls this afterwards, so that of the step and a concurrent clean-up at
    least one sees the other.
    """
    stored = read_state(context)
    if stored is None or stored.record.state == "aborted":
        clean_staging(context)
    elif _is_being_cleaned(context, stored.record):
        # Not its state: a process of an older version may have died before it wrote ``_SUCCESS``.
        clean_staging(context, keep_state=True)
    else:
        return False
    return True


def clean_staging(
    context: JobContext, *, keep_state: bool = False, listed: Iterable[ObjectInfo] | None = None
) -> None:
    """Delete everything below the job's staging prefix, if a record of the job proves that it is its own.

    Before: the job is committed, and its manifest and ``_SUCCESS`` written; or it is aborted or lost.
    Repeatable.

    Args:
        context: The job.
        keep_state: Leave its state.
        listed: The staging as it was listed after the job ended; None to list it.

    Raises:
        InvalidRecord: A record in the staging is of another place: the staging was copied.
        StoreRejected: The store refused to delete an object.

    """
    if not is_own_staging(context):
        logger.warning(
            "%s: %s is left: no record of the job says that it is its own",
            context.name,
            context.layout.staging.uri,
        )
        return
    store, bucket, layout = context.store, context.staging_bucket, context.layout
    context.known.forget(layout.state)
    if listed is None:
        listed = store.list_objects(bucket, layout.staging.prefix)
    left = (info.key for info in listed if info.key not in (layout.job, layout.state))
    delete_records(context, chain([layout.job], left, [] if keep_state else [layout.state]))


def is_own_staging(context: JobContext) -> bool:
    """Return whether a record of the job proves that this staging is its own.

    That is the job's record or, once that is gone, the manifest or abort record at the destination. All
    three are written once. `Layout` checks that the directory has the job's id.

    Raises:
        InvalidRecord: The manifest or abort record is damaged, or a record was copied here.

    """
    if context.record is not None or _is_job_here(context):
        return True
    ending = find_manifest(context) or find_aborted(context)
    if ending is None:
        return False
    # Records of older versions name no staging: then it is below the destination.
    return ending.staging == context.layout.staging.uri or (
        ending.staging is None and context.layout.is_below_destination
    )


def _is_job_here(context: JobContext) -> bool:
    def ignore(error: InvalidRecord) -> None:
        logger.warning("%s: ignoring its damaged record: %s", context.name, error)

    return unless_damaged(lambda: find_job(context), ignore) is not None


def _is_being_cleaned(context: JobContext, state: StateRecord) -> bool:
    # The process that creates the last entry leaves the state at ``committing``.
    has_begun = state.state in ("committing", "committed", "lost")
    return has_begun and not exists(context.store, context.staging_bucket, context.layout.job)

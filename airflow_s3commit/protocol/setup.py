"""Setting a job up: the bucket is asked what it can do, and the job's record and first state are written."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from airflow_s3commit.causes import noting
from airflow_s3commit.exceptions import (
    AccessDenied,
    DestinationNotEmpty,
    InvalidDestination,
    JobClosed,
    JobMismatch,
    NoSuchJob,
    NoSuchKey,
)
from airflow_s3commit.protocol import journal
from airflow_s3commit.protocol.conflicts import data_objects
from airflow_s3commit.protocol.context import JobContext, naming
from airflow_s3commit.protocol.destination import join_uri
from airflow_s3commit.protocol.layout import check_new_id
from airflow_s3commit.protocol.ownership import check_place
from airflow_s3commit.protocol.preflight import check_store
from airflow_s3commit.protocol.records import JobOptions, JobRecord
from airflow_s3commit.protocol.removal import delete_unchanged
from airflow_s3commit.protocol.state import find_manifest, first_state, is_spent, read_state
from airflow_s3commit.store.headers import with_headers

__all__ = ["find_job", "load_job", "set_up_job"]

logger = logging.getLogger(__name__)


def set_up_job(
    context: JobContext, options: JobOptions, job_context: Mapping[str, str], *, adopting: bool = False
) -> JobRecord | None:
    """Set a job up, or find it set up already.

    Before: nothing. After: the job's record and state stand, and the job is open. Run again with the same
    options: the same job, in whatever state it is; None if it is committed and cleaned up.

    Args:
        context: The job.
        options: How it commits.
        job_context: What the orchestrator wants to be remembered: DAG, run, partition.
        adopting: The job is Hadoop's, and keeps whatever id it has there.

    Raises:
        InvalidRecord: The id of a new job is no UUID; or what stands under it was copied here.
        JobMismatch: The id is taken by a job with other options.
        JobClosed: A job of this id was aborted.
        DestinationNotEmpty: Committer ``directory``, conflict mode ``fail``, and there is data.
        InvalidDestination: The destination is an object.
        StoreUnsuitable: The store ignores conditional writes and ``fencing`` is ``required``.

    """
    context = replace(context, store=with_headers(context.store, options.object_options.of_records))
    with naming(context, "setup"):
        standing = find_job(context)
        written: list[tuple[str, str]] = []
        if standing is None:
            if not adopting:
                check_new_id(context.job_id)
            if _has_committed(context):
                return None
            conditional = check_store(context, options)
            _refuse_object(context)
            _refuse_data(context, options)
            record = JobRecord(
                **context.layout.place,
                options=options,
                context=dict(job_context),
                conditional_writes=conditional,
                created=context.now_ms(),
                nonce=context.new_id(),
            )
            stored = journal.create(
                context.store, context.staging_bucket, context.layout.job, record, conditional=conditional,
                signer=context.signer,
            )  # fmt: skip
            standing = stored.record
            check_place(standing, context.layout, context.staging_uri(context.layout.job))
            if standing.nonce == record.nonce:
                written.append((context.layout.job, stored.etag))
        recorded = context.as_recorded(standing)
        if standing.options != options:
            raise JobMismatch(f"{context.name} exists with other options; choose another job id")
        if read_state(context) is None:
            first = first_state(context)
            state = journal.create(
                context.store,
                context.staging_bucket,
                context.layout.state,
                first,
                conditional=standing.conditional_writes,
            )
            if state.record.nonce == first.nonce:
                written.append((context.layout.state, state.etag))
            if _has_ended_meanwhile(recorded, written):
                return None
    logger.info("%s: set up, %s, conflict mode %s", context.name, options.committer, options.conflict_mode)
    return standing


def _has_committed(context: JobContext) -> bool:
    """Tell whether a job of this id has committed; refuse the id if one was aborted."""
    if find_manifest(context) is not None:
        return True
    if is_spent(context):
        raise JobClosed(f"{context.name} was aborted, and its id is spent; set up a job with another id")
    return False


def _has_ended_meanwhile(context: JobContext, written: list[tuple[str, str]]) -> bool:
    """Look again after the job's records were written, and withdraw ours if the id has ended by then.

    A commit or abort leaves its own record before it removes the job's. So of a setup and the end of an
    earlier job of this id at the same time, at least one sees the other.
    """
    try:
        committed = _has_committed(context)
    except JobClosed as refusal:
        with noting(
            refusal,
            f"withdrawing the records in {context.layout.staging.uri}",
            "they are left until a sweep; nothing is visible or pending",
        ):
            _withdraw(context, written)
        raise
    if committed:
        _withdraw(context, written)
    return committed


def _withdraw(context: JobContext, written: list[tuple[str, str]]) -> None:
    """Delete the records that this process wrote, by key and ETag, as far as nobody has written over them."""
    for key, etag in written:
        if not delete_unchanged(context, context.staging_bucket, key, etag):
            logger.info("%s: %s is another process's by now", context.name, context.staging_uri(key))


def find_job(context: JobContext) -> JobRecord | None:
    """Read a job's record; None if there is none.

    Raises:
        InvalidRecord: It is damaged, another job's or destination's, or was copied here.

    """
    stored = journal.find(
        context.store, context.staging_bucket, context.layout.job, JobRecord, signer=context.signer
    )
    if stored is None:
        return None
    check_place(stored.record, context.layout, context.staging_uri(context.layout.job))
    return stored.record


def load_job(context: JobContext) -> JobRecord:
    """Read a job's record.

    Raises:
        NoSuchJob: There is none.
        InvalidRecord: It is damaged, another job's or destination's, or was copied here.

    """
    record = find_job(context)
    if record is None:
        raise NoSuchJob(
            f"{context.name} is not known: it was never set up, or it ended and was cleaned up. Set up"
            " a new job"
        )
    return record


def _refuse_object(context: JobContext) -> None:
    destination = context.layout.destination
    if not destination.prefix:
        return
    key = destination.prefix.rstrip("/")
    try:
        context.store.head(destination.bucket, key)
    except (NoSuchKey, AccessDenied):
        # Least privilege ends at the directory's own prefix, which that name is not below.
        return
    raise InvalidDestination(f"{join_uri(destination.bucket, key)} is an object; data goes into a directory")


def _refuse_data(context: JobContext, options: JobOptions) -> None:
    if options.conflict_mode != "fail" or not options.whole_destination:
        return
    for info in data_objects(context, None):
        raise DestinationNotEmpty(
            f"{context.name}: conflict mode is fail and {join_uri(context.bucket, info.key)} exists;"
            " use replace or append, or another destination"
        )

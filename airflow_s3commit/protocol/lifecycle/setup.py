"""Setup: look at the store, and write the job's record and its first state."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, TypeAlias

from airflow_s3commit._causes import noting
from airflow_s3commit.exceptions import (
    AccessDenied,
    DestinationNotEmpty,
    InvalidDestination,
    InvalidOption,
    JobClosed,
    JobMismatch,
    NoSuchKey,
    Refused,
    StoreRejected,
    StoreUnsuitable,
)
from airflow_s3commit.protocol.metadata import records
from airflow_s3commit.protocol.metadata.context import JobContext, naming
from airflow_s3commit.protocol.metadata.endings import record_ending
from airflow_s3commit.protocol.metadata.listing import data_objects
from airflow_s3commit.protocol.metadata.log import read_entry
from airflow_s3commit.protocol.metadata.log_end import find_head, own_entry, remembered_end
from airflow_s3commit.protocol.metadata.manifests import find_manifest
from airflow_s3commit.protocol.metadata.records import Stored
from airflow_s3commit.protocol.metadata.removal import delete_record, delete_unchanged
from airflow_s3commit.protocol.metadata.snapshot import KnownFiles, known_files, read_snapshot
from airflow_s3commit.protocol.metadata.state import find_job, first_state, is_spent, read_state
from airflow_s3commit.protocol.metadata.store_check import (
    look_at_conditions,
    look_at_destination,
    look_at_uploads,
    unfenced,
)
from airflow_s3commit.protocol.model.codec import encode
from airflow_s3commit.protocol.model.destination import join_uri
from airflow_s3commit.protocol.model.job import BEFORE_COMMIT, JobOptions, JobRecord, StateRecord
from airflow_s3commit.protocol.model.layout import check_new_id, entry_key
from airflow_s3commit.protocol.model.log import LogEntry
from airflow_s3commit.protocol.model.ownership import check_place
from airflow_s3commit.store.headers import with_headers

logger = logging.getLogger(__name__)

#: When to look for an earlier job with a new job's id: before anything is written, and after it; after it
#: only, which saves requests where one is unlikely; after it, and only if the log has moved on since this
#: process's own entry; or never, because the caller has just made the id.
Look: TypeAlias = Literal["first", "after", "moved", "never"]


def set_up_job(
    context: JobContext,
    options: JobOptions,
    job_context: Mapping[str, str],
    *,
    adopting: bool = False,
    look: Look = "first",
) -> JobRecord | None:
    """Set up a job, or find the existing one.

    After: the job's record and state exist, and a new job is open. Repeatable with the same options: returns
    the same job in whatever state; None if it is committed and cleaned up.

    Args:
        context: The job.
        options: How it commits.
        job_context: Facts of the orchestrator to keep with the job: DAG, run, partition.
        adopting: The job is Hadoop's, and keeps its id, which need not be a UUID.
        look: When to look for an earlier job with this id. With ``moved`` such a job can only have ended
            after the entry that this process created last in the log.

    Raises:
        InvalidRecord: The id of a new job is no UUID; or its record was copied here.
        JobMismatch: A job with this id exists with other options.
        JobClosed: A job of this id was aborted.
        DestinationNotEmpty: Committer ``directory``, conflict mode ``fail``, and there is data.
        InvalidDestination: The destination is an object.
        InvalidOption: ``retain`` on a table with a marker in each partition, or ``partition_success`` on one
            with retained files.
        StoreUnsuitable: The store ignores conditional writes.

    """
    context = replace(context, store=with_headers(context.store, options.object_options.of_records))
    with naming(context, "setup"):
        # First: from now on the commit sees an abort of this id.
        head, newest = _head_of_log(context)
        # Without an entry no job has ended here.
        existing = find_job(context) if look == "first" and head else None
        is_created, etag = False, None
        if existing is None:
            if not adopting:
                check_new_id(context.job_id)
            if look == "first" and head and _has_committed(context):
                return None
            look_at_uploads(context, options)
            existing = _refuse_or_find(context, options, newest)
        if existing is None:
            record = JobRecord(
                **context.layout.place,
                options=options,
                context=dict(job_context),
                adopted=adopting,
                created=context.now_ms(),
                log=head,
                epoch=newest.epoch if newest is not None else 0,
                retaining=newest is not None and newest.retaining,
                marking=newest is not None and newest.marking,
                nonce=context.new_id(),
            )
            stored = _create_job(context, record)
            existing, etag = stored.record, stored.etag
            is_created = existing.nonce == record.nonce
        recorded = context.as_recorded(existing)
        if existing.options != options:
            raise JobMismatch(f"{context.name} exists with other options; choose another job id")
        # The process that created the job's record creates its state, unless another one was faster.
        state = None if is_created else read_state(context)
        if state is None:
            # Only a process that has looked at the store opens the job.
            _look_at_conditions(context, existing, etag, is_created=is_created)
            state = records.create(
                context.store, context.staging_bucket, context.layout.state, first_state(context, existing)
            )
            check_place(state.record, context.layout, context.staging_uri(context.layout.state))
            context.known.keep(context.layout.state, state)
        is_new = is_created or state.record.state in BEFORE_COMMIT
        if is_new and _has_ended(recorded, state, look):
            return None
    logger.info("%s: set up, %s, conflict mode %s", context.name, options.committer, options.conflict_mode)
    return existing


def _refuse_or_find(context: JobContext, options: JobOptions, newest: LogEntry | None) -> JobRecord | None:
    """Refuse what the new job may not do; return the job's record if it is there already after all."""
    try:
        if newest is None:
            _refuse_object(context)
        elif newest is not own_entry(context.store, context.layout.destination):
            record_ending(context, newest)
        _refuse_data(context, options, newest)
        _refuse_markers_beside_retained(context, options, newest)
    except Refused:
        # What is there may be the job's own.
        existing = find_job(context)
        if existing is None:
            raise
        return existing
    return None


def _create_job(context: JobContext, record: JobRecord) -> Stored[JobRecord]:
    """Create the job's record, or return the one that is there."""
    bucket, key = context.staging_bucket, context.layout.job
    try:
        stored = records.create(context.store, bucket, key, record)
    except StoreRejected as error:
        if error.code != "NotImplemented":
            raise
        raise unfenced(context, bucket, f"a write with If-None-Match: * is rejected ({error})") from error
    check_place(stored.record, context.layout, context.staging_uri(key))
    return stored


def _look_at_conditions(
    context: JobContext, record: JobRecord, etag: str | None, *, is_created: bool
) -> None:
    """Look at conditional writes on the job's record; remove the record if the store is unsuitable."""
    bucket, key = context.staging_bucket, context.layout.job
    try:
        look_at_conditions(context, bucket, key, encode(record), etag)
        # Only if that is another bucket.
        look_at_destination(context)
    except StoreUnsuitable as error:
        if is_created:
            with noting(error, f"deleting {context.staging_uri(key)}", "it is left until a sweep"):
                delete_record(context, bucket, key)
        raise


def _head_of_log(context: JobContext) -> tuple[int, LogEntry | None]:
    """Return the number of the newest entry, and the entry; None for one that was copied here."""
    store, destination = context.store, context.layout.destination
    remembered = remembered_end(store, destination)
    if remembered is not None:
        return remembered.number, remembered
    head = find_head(store, destination)
    if not head:
        return 0, None
    entry = read_entry(store, destination, head)
    return head, entry if entry.destination == destination.uri else None


def _has_committed(context: JobContext) -> bool:
    """Return whether a job with this id has committed; raise if one was aborted."""
    if find_manifest(context) is not None:
        return True
    if is_spent(context):
        raise JobClosed(f"{context.name} was aborted, and its id is spent; set up a job with another id")
    return False


def _has_moved(context: JobContext) -> bool:
    """Return whether the log's head at setup was not this process's entry, or another entry follows it.

    Asks for the next entry by its key, because a listing may lack it. A job has its last entry before its
    records are removed: if one with this id ended before this job's were written, that entry is there.
    """
    destination, record = context.layout.destination, context.record
    own = own_entry(context.store, destination)
    if own is None or record is None or record.log != own.number:
        return True
    return records.exists(context.store, destination.bucket, entry_key(destination, own.number + 1))


def _has_ended(context: JobContext, state: Stored[StateRecord], look: Look) -> bool:
    """Check after the records are written; withdraw them and return True if the job has committed.

    A commit or abort writes its own record before it removes the job's. So of a setup and the concurrent end
    of an earlier job with this id, at least one sees the other. A job that has ended is never open again, so
    what says so was left by a setup that slept, or died before it looked.
    """
    if look == "never" or (look == "moved" and not _has_moved(context)):
        return False
    record, destination = context.record, context.layout.destination
    # If the log was empty before the record was written, an earlier job's end would be its first entry.
    is_first = record is not None and not record.log
    if is_first and not records.exists(context.store, destination.bucket, entry_key(destination, 1)):
        return False
    try:
        committed = _has_committed(context)
    except JobClosed as refusal:
        with noting(
            refusal,
            f"withdrawing the records in {context.layout.staging.uri}",
            "they are left until a sweep; nothing is visible or pending",
        ):
            _withdraw(context, state)
        raise
    if committed:
        _withdraw(context, state)
    return committed


def _withdraw(context: JobContext, state: Stored[StateRecord]) -> None:
    """Delete the records of a job that had ended before they were written, unless they change meanwhile.

    A state that is further is the ended job's own, or another process moved it: without the record it is
    taken for that of a job whose clean-up is unfinished.
    """
    context.known.forget(context.layout.state)
    job = records.find(context.store, context.staging_bucket, context.layout.job, JobRecord)
    # The state first: without it nobody can seal or commit the job.
    doomed = [(context.layout.state, state.etag)] if state.record.state in BEFORE_COMMIT else []
    doomed += [(context.layout.job, job.etag)] if job is not None else []
    for key, etag in doomed:
        if not delete_unchanged(context, context.staging_bucket, key, etag):
            logger.info("%s: %s was changed by another process", context.name, context.staging_uri(key))


def _refuse_object(context: JobContext) -> None:
    destination = context.layout.destination
    if not destination.prefix:
        return
    key = destination.prefix.rstrip("/")
    try:
        context.store.head(destination.bucket, key)
    except (NoSuchKey, AccessDenied):
        # A role limited to the destination's prefix may not read this key, which is not below it.
        return
    raise InvalidDestination(f"{join_uri(destination.bucket, key)} is an object; data goes into a directory")


def _refuse_markers_beside_retained(
    context: JobContext, options: JobOptions, newest: LogEntry | None
) -> None:
    """Refuse what would show retained files to a reader that waits for a marker and lists the partition."""
    home = context.layout.destination.uri
    if newest is None:
        return
    if options.retain_seconds and newest.marking:
        raise InvalidOption(
            f"{context.name}: retain={options.retain!r} is refused, because a commit of {home} has asked for"
            " partition_success=True: a reader that waits for the marker of a partition lists it, and would"
            " see the retained files too. Set the job up without retain"
        )
    if not options.partition_success or newest.marking or not newest.retaining:
        return
    snapshot = read_snapshot(context.store, context.layout.destination, at_least=newest.number)
    retained = snapshot.retained() if snapshot is not None else []
    removed = [commit.removed for commit in retained if not commit.released]
    if removed:
        raise InvalidOption(
            f"{context.name}: partition_success=True is refused, because {home} retains files that generation"
            f" {max(removed)} replaced: a reader that waits for the marker of a partition lists it, and would"
            " see them too. Set the job up without it, or first remove them once their time has passed:"
            f" s3commit sweep {home} --older-than 7d --apply"
        )


def _refuse_data(context: JobContext, options: JobOptions, newest: LogEntry | None) -> None:
    if options.conflict_mode != "fail" or not options.whole_destination:
        return
    known: KnownFiles | None = None
    if newest is not None and newest.retaining:
        known = known_files(context.store, context.layout.destination, at_least=newest.number)
    for info in data_objects(context, None):
        if known is not None and known.is_retained(info.key):
            continue
        raise DestinationNotEmpty(
            f"{context.name}: conflict mode is fail and {join_uri(context.bucket, info.key)} exists;"
            " use replace or append, or another destination"
        )

"""Locks of older versions at a destination.

Versions without a log take ``lock.json`` for every job but an append with unique names. `bar_older_versions`
takes it for ever: a ``replace`` of theirs would delete files that it knows nothing of.

The versions before ``begin`` entries took ``commit-lock.json`` for jobs that destroy old data before their
last entry. `remove_former_lock` ends the job that died with it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import msgspec

from airflow_s3commit.exceptions import (
    ForeignRecord,
    LockHeld,
    NoSuchKey,
    OutcomeUnknown,
    Refused,
    S3CommitError,
)
from airflow_s3commit.protocol.metadata import records
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.fitness import STORE_CLOCK_SECONDS
from airflow_s3commit.protocol.metadata.manifests import find_manifest
from airflow_s3commit.protocol.metadata.removal import delete_unchanged
from airflow_s3commit.protocol.metadata.state import find_aborted, find_job, first_state
from airflow_s3commit.protocol.model.codec import encode
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.job import JobOptions, JobRecord, LockRecord
from airflow_s3commit.protocol.model.layout import Layout, barrier_of, former_lock_key, older_lock_key
from airflow_s3commit.protocol.model.ownership import check_place

logger = logging.getLogger(__name__)

#: What holds the lock of versions without a log, for people and to recognise it; and its lease, which is over
#: soon: only then does such a version read the holder's record and end.
_BARRIER_OWNER: Final = "every version of this package with a log of commits"
_BARRIER_LEASE: Final = 1.0

#: Seconds to wait for a live job of a version without a log, and between two looks.
_WAIT_SECONDS: Final = 600.0
_POLL_SECONDS: Final = 2.0


def bar_older_versions(context: JobContext, settle: Callable[[JobContext], None]) -> None:
    """Take the lock of versions without a log for ever; wait ten minutes for a live job that holds it.

    A version without a log needs that lock for every job but an append with unique names. It waits until the
    lease of the holder lapses, cannot settle it, because the holder's record is of a version that it does not
    know, and ends with `InvalidRecord`. Its appends take no lock. Its sweep leaves the lock of a holder that
    has a state. Repeatable.

    Args:
        context: The job.
        settle: Finishes, aborts or fences off the job of a lapsed lock.

    Raises:
        LockHeld: A live job held it for all that time.
        InvalidRecord: The lock, or a record of its dead holder, is damaged.

    """
    barrier = replace(context, layout=barrier_of(context.layout.destination), owner=_BARRIER_OWNER)
    job = JobRecord(**barrier.layout.place, options=JobOptions(), created=0, nonce="none")
    state = msgspec.structs.replace(first_state(barrier), since=0, nonce="none")
    unknown = encode(job).replace(b'"version":1', b'"version":2', 1)
    for key, body in ((barrier.layout.job, unknown), (barrier.layout.state, encode(state))):
        try:
            context.store.put(context.bucket, key, body)
        except OutcomeUnknown:
            # Every process writes the same bytes.
            context.store.put(context.bucket, key, body)
    lock = LockRecord(**barrier.layout.place, owner=_BARRIER_OWNER, lease=_BARRIER_LEASE, nonce="none")
    _take(context, older_lock_key(context.layout.destination), lock, settle)


def is_barrier(holder: LockRecord) -> bool:
    """Return whether a lock is the one that `bar_older_versions` takes."""
    return holder.owner == _BARRIER_OWNER


def remove_former_lock(context: JobContext, settle: Callable[[JobContext], None]) -> bool:
    """Remove the lock of the versions before ``begin`` entries, if any; return whether it was there.

    Its holder's job is settled first. Repeatable.

    Such a job may have published without a ``begin``. Its process is expected to be dead.

    Args:
        context: The job.
        settle: As for `bar_older_versions`.

    Raises:
        InvalidRecord: The lock, or a record of its holder, is damaged.

    """
    key = former_lock_key(context.layout.destination)
    stored = records.find(context.store, context.bucket, key, LockRecord)
    if stored is None:
        return False
    holder = stored.record
    if holder.job_id != context.job_id and holder.destination in (None, context.layout.destination.uri):
        _settle_holder(context, holder, key, settle)
    delete_unchanged(context, context.bucket, key, stored.etag)
    return True


def _take(context: JobContext, key: str, lock: LockRecord, settle: Callable[[JobContext], None]) -> None:
    began = context.clock.monotonic()
    while True:
        try:
            stored = records.create(context.store, context.bucket, key, lock)
        except NoSuchKey:
            continue
        holder = stored.record
        if holder == lock:
            return
        if (holder.job_id, holder.staging) == (context.job_id, context.layout.staging.uri):
            pass
        elif holder.destination not in (None, context.layout.destination.uri):
            logger.warning("%s: the commit lock was copied here from %s", context.name, holder.destination)
        elif stored.date - stored.modified > holder.lease + STORE_CLOCK_SECONDS:
            _settle_holder(context, holder, key, settle)
        else:
            _wait(context, holder, began)
            continue
        if records.swap(context.store, context.bucket, key, lock, stored.etag):
            return


def _settle_holder(
    context: JobContext, holder: LockRecord, key: str, settle: Callable[[JobContext], None]
) -> None:
    dead = _holder_here(context, holder, key)
    if dead is None:
        return
    logger.warning("%s: job %s died with a lock; settling that job first", context.name, holder.job_id)
    try:
        settle(dead)
    except S3CommitError as error:
        error.add_note(
            f"while settling {dead.name}, which died with a lock; end that job first: s3commit show"
            f" {dead.layout.destination.uri} {dead.job_id}"
        )
        raise


def _holder_here(context: JobContext, holder: LockRecord, key: str) -> JobContext | None:
    """Return the job that holds a lock, if its own record proves that it is on this destination.

    None if the lock was copied here with its dataset, or the job ended and was cleaned up: then there is
    nothing to settle.

    Raises:
        InvalidRecord: A record of the job is damaged, so that it cannot be settled.

    """
    try:
        layout = Layout(context.layout.destination, Destination.parse(holder.staging), holder.job_id)
    except Refused as error:
        logger.warning("%s: the commit lock names no job: %s", context.name, error)
        return None
    try:
        check_place(holder, layout, join_uri(context.bucket, key))
        found = replace(context, layout=layout, record=None)
        record = find_job(found)
    except ForeignRecord as error:
        logger.warning("%s: the commit lock is of another place: %s", context.name, error)
        return None
    if record is not None:
        return found.as_recorded(record)
    # Clean-up removes the job's record first, after the manifest or abort record is written.
    ended = layout.is_below_destination or find_manifest(found) or find_aborted(found)
    return found if ended else None


def _wait(context: JobContext, holder: LockRecord, began: float) -> None:
    waited = context.clock.monotonic() - began
    if waited >= _WAIT_SECONDS:
        raise LockHeld(
            f"{context.name}: job {holder.job_id} ({holder.owner}), of an older version, holds the commit"
            f" lock of {context.layout.destination.uri}, and did so for the {waited:.0f} s this one waited;"
            " run the commit again later, or look at that job with: s3commit show"
        )
    logger.info("%s: waiting for job %s, which holds the commit lock", context.name, holder.job_id)
    context.clock.sleep(min(_POLL_SECONDS, _WAIT_SECONDS - waited))

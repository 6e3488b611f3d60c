"""The commit lock of a destination, for jobs that destroy old data before their entry is in the log.

Those are jobs with fixed file names, and jobs that delete before they publish: they must not publish at the
same time. A job that replaces files with no job's id in their names waits for the lock if it is held: the
files may be of a job that is publishing.

The lock belongs to a job, not to a process: processes that commit the same job share it, because every step
is repeatable and fenced by the job's state. It lapses when it is not renewed within its lease, by the store's
clock. A process that finds it lapsed first settles the holder's job (finishes it, rolls it back, or fences
it off) and then takes the lock.

Versions without a log have a lock of their own, and a ``replace`` of theirs would delete files that it knows
nothing of. `bar_older_versions` takes that lock for ever.
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
from airflow_s3commit.protocol.metadata.job_record import find_job
from airflow_s3commit.protocol.metadata.manifests import find_manifest
from airflow_s3commit.protocol.metadata.records import Stored
from airflow_s3commit.protocol.metadata.removal import delete_unchanged
from airflow_s3commit.protocol.metadata.state import find_aborted, first_state
from airflow_s3commit.protocol.metadata.store_clock import STORE_CLOCK_SECONDS
from airflow_s3commit.protocol.model.codec import encode
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.job import JobOptions, JobRecord, LockRecord
from airflow_s3commit.protocol.model.layout import Layout, barrier_of, older_lock_key
from airflow_s3commit.protocol.model.ownership import check_place

logger = logging.getLogger(__name__)

#: Fraction of the lease after which the holder renews it.
_RENEW_AFTER = 1 / 3

#: What holds the lock of versions without a log, for people and to recognise it; and its lease, which is over
#: soon: only then does such a version read the holder's record and end.
_BARRIER_OWNER: Final = "every version of this package with a log of commits"
_BARRIER_LEASE: Final = 1.0

#: Seconds between polls of a lock that another live job holds.
_POLL_SECONDS = 2.0


class CommitLock:
    """A lock that this process's job holds.

    Args:
        context: The job.
        stored: The lock as it was taken.

    """

    def __init__(self, context: JobContext, stored: Stored[LockRecord]) -> None:
        self._context = context
        self._stored = stored
        self._renewed = context.clock.monotonic()

    def renew_if_due(self) -> bool:
        """Renew the lease after a third of it; return False if another job has taken the lock.

        Raises:
            OutcomeUnknown: The response was lost.

        """
        context = self._context
        if context.clock.monotonic() - self._renewed < context.lease * _RENEW_AFTER:
            return True
        key = context.layout.lock
        renewed = _swap(context, key, _record(context), self._stored)
        if renewed is None:
            existing = _find(context)
            if existing is None or existing.record.job_id != context.job_id:
                return False
            renewed = _swap(context, key, _record(context), existing) or existing
        self._stored, self._renewed = renewed, context.clock.monotonic()
        return True


def take_lock(context: JobContext, settle: Callable[[JobContext], None]) -> CommitLock:
    """Take the lock for this job; wait for another live job up to ``context.lock_wait`` seconds.

    Repeatable: a job that holds the lock gets a new lease.

    Args:
        context: The job.
        settle: Finishes, aborts or fences off the job of a lapsed lock.

    Raises:
        LockHeld: Another live job held it for all that time.

    """
    return CommitLock(context, _take(context, context.layout.lock, _record, settle))


def bar_older_versions(context: JobContext, settle: Callable[[JobContext], None]) -> None:
    """Take the lock of versions without a log for ever; wait for a job that holds it, as `take_lock` does.

    A version without a log needs that lock for every job but an append with unique names. It waits until the
    lease of the holder lapses, cannot settle it, because the holder's record is of a version that it does not
    know, and ends with `InvalidRecord`. Its appends take no lock. Its sweep leaves the lock of a holder that
    has a state. Repeatable.

    Args:
        context: The job.
        settle: As for `take_lock`.

    Raises:
        LockHeld: A live job held it for all the time that this job waits.
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
    _take(context, older_lock_key(context.layout.destination), lambda _: lock, settle)


def is_barrier(holder: LockRecord) -> bool:
    """Return whether a lock is the one that `bar_older_versions` takes."""
    return holder.owner == _BARRIER_OWNER


def _take(
    context: JobContext,
    key: str,
    record: Callable[[JobContext], LockRecord],
    settle: Callable[[JobContext], None],
) -> Stored[LockRecord]:
    began = context.clock.monotonic()
    while True:
        ours = record(context)
        try:
            stored = records.create(context.store, context.bucket, key, ours, conditional=context.conditional)
        except NoSuchKey:
            continue
        holder = stored.record
        if holder == ours:
            return stored
        if (holder.job_id, holder.staging) == (context.job_id, context.layout.staging.uri):
            pass
        elif holder.destination not in (None, context.layout.destination.uri):
            logger.warning("%s: the commit lock was copied here from %s", context.name, holder.destination)
        elif stored.date - stored.modified > holder.lease + STORE_CLOCK_SECONDS:
            _settle_holder(context, holder, key, settle)
        else:
            _wait(context, holder, began)
            continue
        taken = _swap(context, key, record(context), stored)
        if taken is not None:
            return taken


def is_held_by_another(context: JobContext) -> bool:
    """Return whether another job of this destination holds the lock, lapsed or not."""
    stored = _find(context)
    return (
        stored is not None
        and stored.record.job_id != context.job_id
        and stored.record.destination in (None, context.layout.destination.uri)
    )


def release_lock(context: JobContext) -> None:
    """Release the lock if this job holds it. Repeatable."""
    stored = _find(context)
    while stored is not None and stored.record.job_id == context.job_id:
        if delete_unchanged(context, context.bucket, context.layout.lock, stored.etag):
            return
        stored = _find(context)


def _record(context: JobContext) -> LockRecord:
    return LockRecord(
        **context.layout.place,
        owner=context.owner,
        lease=context.lease,
        nonce=context.new_id(),
    )


def _find(context: JobContext) -> Stored[LockRecord] | None:
    return records.find(context.store, context.bucket, context.layout.lock, LockRecord)


def _swap(
    context: JobContext, key: str, record: LockRecord, stored: Stored[LockRecord]
) -> Stored[LockRecord] | None:
    return records.swap(
        context.store, context.bucket, key, record, stored.etag, conditional=context.conditional
    )


def _settle_holder(
    context: JobContext, holder: LockRecord, key: str, settle: Callable[[JobContext], None]
) -> None:
    dead = _holder_here(context, holder, key)
    if dead is None:
        return
    logger.warning("%s: the lock of job %s lapsed; settling that job first", context.name, holder.job_id)
    try:
        settle(dead)
    except S3CommitError as error:
        error.add_note(
            f"while settling {dead.name}, whose commit lock lapsed; end that job first: s3commit show"
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
    if waited >= context.lock_wait:
        raise LockHeld(
            f"{context.name}: job {holder.job_id} ({holder.owner}) holds the commit lock of"
            f" {context.layout.destination.uri}, and did so for the {waited:.0f} s this one waited;"
            " run the commit again later, or look at that job with: s3commit show"
        )
    logger.info("%s: waiting for job %s, which holds the commit lock", context.name, holder.job_id)
    context.clock.sleep(min(_POLL_SECONDS, context.lock_wait - waited))

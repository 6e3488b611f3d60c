"""The commit lock of a destination, for jobs that destroy old data before their entry is in the log.

Those are jobs with fixed file names, and jobs that delete before they publish: they must not publish at the
same time. A job that replaces files with no job's id in their names waits for the lock if it is held: the
files may be of a job that is publishing.

The lock belongs to a job, not to a process: processes that commit the same job share it, because every step
is repeatable and fenced by the job's state. It lapses when it is not renewed within its lease, by the store's
clock. A process that finds it lapsed first settles the holder's job (finishes it, rolls it back, or fences
it off) and then takes the lock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from airflow_s3commit.exceptions import ForeignRecord, LockHeld, NoSuchKey, Refused, S3CommitError
from airflow_s3commit.protocol.metadata import records
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.job_record import find_job
from airflow_s3commit.protocol.metadata.manifests import find_manifest
from airflow_s3commit.protocol.metadata.records import Stored
from airflow_s3commit.protocol.metadata.removal import delete_unchanged
from airflow_s3commit.protocol.metadata.state import find_aborted
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.job import LockRecord
from airflow_s3commit.protocol.model.layout import Layout
from airflow_s3commit.protocol.model.ownership import check_place

logger = logging.getLogger(__name__)

#: Fraction of the lease after which the holder renews it.
_RENEW_AFTER = 1 / 3

#: A store's times are whole seconds: a lease has lapsed when it is exceeded by more than this.
_STORE_CLOCK_SECONDS = 1.0

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
        renewed = _swap(context, self._stored)
        if renewed is None:
            existing = _find(context)
            if existing is None or existing.record.job_id != context.job_id:
                return False
            renewed = _swap(context, existing) or existing
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
    began = context.clock.monotonic()
    while True:
        ours = _record(context)
        try:
            stored = records.create(
                context.store, context.bucket, context.layout.lock, ours, conditional=context.conditional
            )
        except NoSuchKey:
            continue
        holder = stored.record
        if (holder.job_id, holder.staging) == (context.job_id, context.layout.staging.uri):
            taken: Stored[LockRecord] | None = stored if holder == ours else _swap(context, stored)
        elif holder.destination not in (None, context.layout.destination.uri):
            logger.warning("%s: the commit lock was copied here from %s", context.name, holder.destination)
            taken = _swap(context, stored)
        elif stored.date - stored.modified > holder.lease + _STORE_CLOCK_SECONDS:
            _settle_holder(context, holder, settle)
            taken = _swap(context, stored)
        else:
            taken = None
            _wait(context, holder, began)
        if taken is not None:
            return CommitLock(context, taken)


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


def _swap(context: JobContext, stored: Stored[LockRecord]) -> Stored[LockRecord] | None:
    return records.swap(
        context.store,
        context.bucket,
        context.layout.lock,
        _record(context),
        stored.etag,
        conditional=context.conditional,
    )


def _settle_holder(context: JobContext, holder: LockRecord, settle: Callable[[JobContext], None]) -> None:
    dead = _holder_here(context, holder)
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


def _holder_here(context: JobContext, holder: LockRecord) -> JobContext | None:
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
        check_place(holder, layout, join_uri(context.bucket, context.layout.lock))
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

"""The destination's commit lock: of two jobs that must not publish at once, one goes first.

The lock belongs to a job, not to a process: processes that commit the same job share it, because every step
they take is repeatable and fenced by the job's state. It lapses when nobody renewed it for its lease,
counted by the store's own clock. Whoever finds it lapsed first settles the holder's job (finishes it, rolls
it back, or fences it off) and only then takes the lock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from airflow_s3commit.exceptions import LockHeld, NoSuchKey, PreconditionFailed, StoreRejected
from airflow_s3commit.protocol import journal
from airflow_s3commit.protocol.context import JobContext
from airflow_s3commit.protocol.destination import Destination
from airflow_s3commit.protocol.journal import Stored
from airflow_s3commit.protocol.layout import Layout
from airflow_s3commit.protocol.records import LockRecord

__all__ = ["CommitLock", "release_lock", "take_lock"]

logger = logging.getLogger(__name__)

#: Part of the lease after which its holder renews it.
_RENEW_AFTER = 1 / 3

#: Stores tell times in whole seconds; a lease is over when it is over by more than that.
_STORE_CLOCK_SECONDS = 1.0

#: Seconds between looks at a lock that another living job holds.
_LOOK_AGAIN = 2.0


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
        """Renew the lease when a third of it has passed; return False if another job has taken the lock.

        Raises:
            OutcomeUnknown: The answer was lost.

        """
        context = self._context
        if context.clock.monotonic() - self._renewed < context.lease * _RENEW_AFTER:
            return True
        renewed = _swap(context, self._stored)
        if renewed is None:
            standing = _find(context)
            if standing is None or standing.record.job_id != context.job_id:
                return False
            renewed = _swap(context, standing) or standing
        self._stored, self._renewed = renewed, context.clock.monotonic()
        return True


def take_lock(context: JobContext, settle: Callable[[JobContext], None]) -> CommitLock:
    """Take the lock for this job, waiting for another living job up to ``context.lock_wait`` seconds.

    Before: anything. After: the lock is this job's. Run again: it is still, with a new lease.

    Args:
        context: The job.
        settle: Brings the job of a lapsed lock to an end, or fences it off.

    Raises:
        LockHeld: Another job held it, alive, for all that time.

    """
    began = context.clock.monotonic()
    while True:
        ours = _record(context)
        try:
            stored = journal.create(
                context.store, context.bucket, context.layout.lock, ours, conditional=context.conditional
            )
        except NoSuchKey:
            continue
        holder = stored.record
        if holder.job_id == context.job_id:
            taken: Stored[LockRecord] | None = stored if holder == ours else _swap(context, stored)
        elif stored.date - stored.modified > holder.lease + _STORE_CLOCK_SECONDS:
            logger.warning(
                "%s: the lock of job %s lapsed; settling that job first", context.name, holder.job_id
            )
            settle(_holder_context(context, holder))
            taken = _swap(context, stored)
        else:
            taken = None
            _wait(context, holder, began)
        if taken is not None:
            return CommitLock(context, taken)


def release_lock(context: JobContext) -> None:
    """Give the lock up if this job holds it. Run again: nothing more happens."""
    stored = _find(context)
    while stored is not None and stored.record.job_id == context.job_id:
        try:
            context.store.delete(
                context.bucket, context.layout.lock, if_match=stored.etag if context.conditional else None
            )
        except PreconditionFailed:
            stored = _find(context)
        except StoreRejected:
            # A store without conditional deletes: the lock was ours a moment ago, and its lease still runs.
            context.store.delete(context.bucket, context.layout.lock)
            return
        else:
            return


def _record(context: JobContext) -> LockRecord:
    return LockRecord(
        job_id=context.job_id,
        staging=context.layout.staging.uri,
        owner=context.owner,
        lease=context.lease,
        nonce=context.new_id(),
    )


def _find(context: JobContext) -> Stored[LockRecord] | None:
    return journal.find(context.store, context.bucket, context.layout.lock, LockRecord)


def _swap(context: JobContext, stored: Stored[LockRecord]) -> Stored[LockRecord] | None:
    return journal.swap(
        context.store,
        context.bucket,
        context.layout.lock,
        _record(context),
        stored.etag,
        conditional=context.conditional,
    )


def _holder_context(context: JobContext, holder: LockRecord) -> JobContext:
    layout = Layout(context.layout.destination, Destination.parse(holder.staging), holder.job_id)
    return replace(context, layout=layout)


def _wait(context: JobContext, holder: LockRecord, began: float) -> None:
    waited = context.clock.monotonic() - began
    if waited >= context.lock_wait:
        raise LockHeld(
            f"{context.name}: job {holder.job_id} ({holder.owner}) holds the commit lock of"
            f" {context.layout.destination.uri}, and did so for the {waited:.0f} s this one waited;"
            " run the commit again later, or look at that job with: s3commit show"
        )
    logger.info("%s: waiting for job %s, which holds the commit lock", context.name, holder.job_id)
    context.clock.sleep(min(_LOOK_AGAIN, context.lock_wait - waited))

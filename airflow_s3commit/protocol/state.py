"""Where a job is, and the only way to move it: compare-and-swap.

::

    open ──seal──▶ sealed ──begin──▶ committing ──▶ committed ──▶ (cleaned: the manifest remains)
      │               │                  │
      └──abort──▶ aborting ◀───abort─────┘ (with rollback)
                      └──▶ aborted ──▶ (cleaned: nothing remains)

Whoever loses a race reads what the winner wrote and acts on that. ``committing → committed`` is the point of
no return.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from airflow_s3commit.exceptions import (
    AlreadyCommitted,
    InvalidRecord,
    JobClosed,
    NoSuchJob,
    S3CommitError,
)
from airflow_s3commit.protocol import journal
from airflow_s3commit.protocol.context import JobContext
from airflow_s3commit.protocol.journal import Stored
from airflow_s3commit.protocol.limits import PROSE
from airflow_s3commit.protocol.records import AbortedRecord, ManifestRecord, State, StateRecord, encode

__all__ = [
    "find_manifest",
    "first_state",
    "gone",
    "is_spent",
    "move",
    "pinned_etags",
    "read_state",
    "require_state",
    "spend",
]


def first_state(context: JobContext) -> StateRecord:
    """Return the state that a job begins with."""
    return StateRecord(
        job_id=context.job_id,
        state="open",
        owner=context.owner,
        attempt=0,
        since=context.now_ms(),
        nonce=context.new_id(),
    )


def read_state(context: JobContext) -> Stored[StateRecord] | None:
    """Read a job's state; None where it has none: it was never set up, or it ended and was cleaned up.

    Raises:
        InvalidRecord: The record is damaged or another job's.

    """
    stored = journal.find(context.store, context.staging_bucket, context.layout.state, StateRecord)
    if stored is not None and stored.record.job_id != context.job_id:
        where = context.staging_uri(context.layout.state)
        raise InvalidRecord(f"{where} is the state of job {stored.record.job_id}, not of {context.job_id}")
    return stored


def move(
    context: JobContext, current: Stored[StateRecord], to: State, **changes: Any
) -> Stored[StateRecord] | None:
    """Move a job on from the state that was read; return None if somebody else moved it first.

    Args:
        context: The job.
        current: The state as it was read.
        to: The state to move to; the same state again fences off whoever read the old record.
        **changes: Further fields to set.

    Raises:
        OutcomeUnknown: The answer was lost; read the state again.

    """
    if changes.get("reason") is not None:
        changes["reason"] = changes["reason"][:PROSE]
    record = msgspec.structs.replace(
        current.record,
        state=to,
        owner=context.owner,
        attempt=current.record.attempt + 1,
        since=context.now_ms(),
        nonce=context.new_id(),
        **changes,
    )
    return journal.swap(
        context.store,
        context.staging_bucket,
        context.layout.state,
        record,
        current.etag,
        conditional=context.conditional,
    )


def require_state(context: JobContext, *allowed: State) -> Stored[StateRecord]:
    """Read a job's state and refuse to go on unless it is one of ``allowed``.

    Raises:
        AlreadyCommitted: The job is committed.
        JobClosed: It is in another state.
        NoSuchJob: It is not known here, or was aborted and cleaned up.

    """
    stored = read_state(context)
    if stored is None:
        raise gone(context)
    if stored.record.state not in allowed:
        if stored.record.state == "committed":
            raise AlreadyCommitted(f"{context.name} is committed")
        raise JobClosed(f"{context.name} is {stored.record.state}; this step needs it {' or '.join(allowed)}")
    return stored


def pinned_etags(context: JobContext, state: StateRecord) -> tuple[str, str]:
    """Return the ETags of the seal and the plan that a commit goes by.

    Raises:
        InvalidRecord: The state names none.

    """
    if state.seal_etag is None or state.plan_etag is None:
        where = context.staging_uri(context.layout.state)
        raise InvalidRecord(f"{where} says that the job is {state.state}, and names no seal or no plan")
    return state.seal_etag, state.plan_etag


def find_manifest(context: JobContext) -> ManifestRecord | None:
    """Return the manifest that proves the job committed, or None."""
    stored = journal.find(context.store, context.bucket, context.layout.manifest, ManifestRecord)
    return stored.record if stored is not None else None


def is_spent(context: JobContext) -> bool:
    """Tell whether a job of this id was aborted: then none can be set up under it again."""
    return journal.find(context.store, context.bucket, context.layout.aborted, AbortedRecord) is not None


def spend(context: JobContext, reason: str | None, job_context: Mapping[str, str]) -> None:
    """Write down that the job was aborted. Run again: the same.

    Args:
        context: The job.
        reason: Why.
        job_context: What the orchestrator said of the job, to be remembered when its own record is gone.

    """
    record = AbortedRecord(
        job_id=context.job_id,
        since=context.now_ms(),
        reason=reason[:PROSE] if reason is not None else None,
        context=dict(job_context),
    )
    context.store.put(context.bucket, context.layout.aborted, encode(record))


def gone(context: JobContext) -> S3CommitError:
    """Return the error that says why a job has no state."""
    if find_manifest(context) is not None:
        return AlreadyCommitted(f"{context.name} is committed and cleaned up; see its manifest")
    return NoSuchJob(
        f"{context.name} is not known: it was never set up, or it was aborted and cleaned up. Set up a"
        " new job"
    )

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
    NoSuchKey,
    PreconditionFailed,
    S3CommitError,
)
from airflow_s3commit.protocol import journal
from airflow_s3commit.protocol.context import JobContext
from airflow_s3commit.protocol.destination import join_uri
from airflow_s3commit.protocol.journal import Stored
from airflow_s3commit.protocol.limits import PROSE
from airflow_s3commit.protocol.ownership import check_ending, check_place
from airflow_s3commit.protocol.records import AbortedRecord, ManifestRecord, State, StateRecord, encode

__all__ = [
    "find_aborted",
    "find_manifest",
    "first_state",
    "gone",
    "is_spent",
    "move",
    "pinned_etags",
    "read_state",
    "replace_state",
    "require_state",
    "spend",
]


def first_state(context: JobContext) -> StateRecord:
    """Return the state that a job begins with."""
    return StateRecord(
        **context.layout.place,
        state="open",
        owner=context.owner,
        attempt=0,
        since=context.now_ms(),
        nonce=context.new_id(),
    )


def read_state(context: JobContext) -> Stored[StateRecord] | None:
    """Read a job's state; None where it has none: it was never set up, or it ended and was cleaned up.

    Raises:
        InvalidRecord: The record is damaged, another job's, or a copy.

    """
    try:
        stored = journal.find(context.store, context.staging_bucket, context.layout.state, StateRecord)
    except InvalidRecord as error:
        error.add_note(
            "s3commit recover finds out from the job's other records how far it came;"
            " s3commit abort --force discards it, whatever its state was"
        )
        raise
    if stored is not None:
        check_place(stored.record, context.layout, context.staging_uri(context.layout.state))
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


def replace_state(context: JobContext, state: State, **fields: Any) -> Stored[StateRecord] | None:
    """Write a state over a damaged one; return None if somebody else changed it meanwhile.

    Args:
        context: The job.
        state: The state, as the job's other records tell it.
        **fields: Further fields to set.

    Raises:
        OutcomeUnknown: The answer was lost; read the state again.

    """
    damaged = context.store.head(context.staging_bucket, context.layout.state)
    record = msgspec.structs.replace(first_state(context), state=state, **fields)
    etag = damaged.etag if context.conditional else None
    try:
        written = context.store.put(
            context.staging_bucket, context.layout.state, encode(record), if_match=etag
        )
    except (PreconditionFailed, NoSuchKey):
        return None
    return Stored(record, written.etag, written.date, written.date)


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
    """Return the manifest that proves the job committed, or None.

    Raises:
        InvalidRecord: It is damaged, another job's, or was copied here with its dataset.

    """
    stored = journal.find(
        context.store, context.bucket, context.layout.manifest, ManifestRecord, signer=context.signer
    )
    if stored is None:
        return None
    where = join_uri(context.bucket, context.layout.manifest)
    check_ending(stored.record, context.layout.destination, context.job_id, where)
    return stored.record


def find_aborted(context: JobContext) -> AbortedRecord | None:
    """Return the record that a job of this id was aborted here, or None.

    Raises:
        InvalidRecord: It is damaged, another job's, or was copied here with its dataset.

    """
    stored = journal.find(context.store, context.bucket, context.layout.aborted, AbortedRecord)
    if stored is None:
        return None
    where = join_uri(context.bucket, context.layout.aborted)
    check_ending(stored.record, context.layout.destination, context.job_id, where)
    return stored.record


def is_spent(context: JobContext) -> bool:
    """Tell whether a job of this id was aborted here: then none can be set up under it again."""
    return find_aborted(context) is not None


def spend(context: JobContext, reason: str | None, job_context: Mapping[str, str]) -> None:
    """Write down that the job was aborted, unless that is written already. Run again: the same.

    Args:
        context: The job.
        reason: Why.
        job_context: What the orchestrator said of the job, to be remembered when its own record is gone.

    """
    record = AbortedRecord(
        **context.layout.place,
        since=context.now_ms(),
        reason=reason[:PROSE] if reason is not None else None,
        context=dict(job_context),
    )
    try:
        context.store.put(
            context.bucket, context.layout.aborted, encode(record), if_none_match=context.conditional
        )
    except PreconditionFailed:
        find_aborted(context)


def gone(context: JobContext) -> S3CommitError:
    """Return the error that says why a job has no state."""
    if find_manifest(context) is not None:
        return AlreadyCommitted(f"{context.name} is committed and cleaned up; see its manifest")
    return NoSuchJob(
        f"{context.name} is not known: it was never set up, or it was aborted and cleaned up. Set up a"
        " new job"
    )

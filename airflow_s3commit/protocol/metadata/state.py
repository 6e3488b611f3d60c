"""The record of a job, which never changes, and its state, which changes only by compare-and-swap.

::

    open ──seal──▶ sealed ──begin──▶ committing ──▶ committed ──▶ (cleaned: the entry remains)
      │               │                  │
      └──abort──▶ aborting ◀───abort─────┘ (with rollback)
                      └──▶ aborted ──▶ (cleaned: nothing remains)

The loser of a race reads the winner's state and acts on it. The state says where a job is, for those that go
on with it; whether a job is committed or abandoned, its entry in the log decides. Beside a ``commit`` entry
the state may stay ``committing`` until it is removed.
"""

from __future__ import annotations

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
from airflow_s3commit.protocol.metadata import records
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.manifests import find_manifest
from airflow_s3commit.protocol.metadata.records import Stored
from airflow_s3commit.protocol.model.codec import KIB, PROSE, encode
from airflow_s3commit.protocol.model.destination import join_uri
from airflow_s3commit.protocol.model.job import AbortedRecord, JobRecord, State, StateRecord
from airflow_s3commit.protocol.model.log import LogEntry, PlanName
from airflow_s3commit.protocol.model.manifest import ManifestRecord
from airflow_s3commit.protocol.model.ownership import check_ending, check_place

#: Bytes of a job's record beyond which its state does not hold it: it is written at each move.
_JOB_BYTES = 16 * KIB

#: States in which a job has its record. Afterwards it goes first, and whether it is there matters.
_RUNNING = ("open", "sealed", "committing")


def first_state(context: JobContext, job: JobRecord | None = None) -> StateRecord:
    """Return the initial state of a job.

    Args:
        context: The job.
        job: Its record. The state holds it if it is short.

    """
    if job is not None and len(encode(job)) > _JOB_BYTES:
        job = None
    return StateRecord(
        **context.layout.place,
        state="open",
        owner=context.owner,
        attempt=0,
        since=context.now_ms(),
        nonce=context.new_id(),
        job=job,
    )


def read_state(context: JobContext) -> Stored[StateRecord] | None:
    """Read a job's state; None if it was never set up, or ended and was cleaned up.

    Raises:
        InvalidRecord: The record is damaged, another job's, or a copy.

    """
    try:
        stored = records.find(context.store, context.staging_bucket, context.layout.state, StateRecord)
    except InvalidRecord as error:
        error.add_note(
            "s3commit recover rebuilds the state from the job's other records;"
            " s3commit abort --force aborts the job without it"
        )
        raise
    if stored is None:
        context.known.forget(context.layout.state)
        return None
    check_place(stored.record, context.layout, context.staging_uri(context.layout.state))
    return context.known.keep(context.layout.state, stored)


def is_same_state(before: Stored[StateRecord] | None, now: Stored[StateRecord] | None) -> bool:
    """Return whether a job's state has not changed between two reads."""
    return (before and before.etag) == (now and now.etag)


def known_state(context: JobContext, *allowed: State) -> Stored[StateRecord] | None:
    """Return a job's state as this process last saw it, if it was one of ``allowed``; else None.

    Another process may have moved it since. The caller's next compare-and-swap shows that.
    """
    stored = context.known.get(context.layout.state, StateRecord)
    return stored if stored is not None and stored.record.state in allowed else None


def last_state(context: JobContext, state: State) -> Stored[StateRecord] | None:
    """Return what `known_state` does, or else read the job's state. Raises as `read_state` does."""
    return known_state(context, state) or read_state(context)


def move(
    context: JobContext, current: Stored[StateRecord], to: State, **changes: Any
) -> Stored[StateRecord] | None:
    """Move a job on from the state that was read; None if another process moved it first.

    Args:
        context: The job.
        current: The state as it was read.
        to: The new state; the same state again fences off processes that read the old record.
        **changes: Further fields to set.

    Raises:
        OutcomeUnknown: The response was lost; read the state again.

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
    context.known.forget(context.layout.state)
    stored = records.swap(
        context.store,
        context.staging_bucket,
        context.layout.state,
        record,
        current.etag,
    )
    return context.known.keep(context.layout.state, stored) if stored is not None else None


def follow(context: JobContext, current: Stored[StateRecord], entry: LogEntry) -> Stored[StateRecord] | None:
    """Move a job whose ``commit`` is in the log to ``committed``; None if another process moved it first.

    Raises as `move` does.
    """
    return move(context, current, "committed", generation=entry.number)


def replace_state(context: JobContext, state: State, **fields: Any) -> Stored[StateRecord] | None:
    """Overwrite a damaged state; None if another process changed it meanwhile.

    Args:
        context: The job.
        state: The state that the job's other records prove.
        **fields: Further fields to set.

    Raises:
        OutcomeUnknown: The response was lost; read the state again.

    """
    damaged = context.store.head(context.staging_bucket, context.layout.state)
    record = msgspec.structs.replace(first_state(context), state=state, **fields)
    etag = damaged.etag
    context.known.forget(context.layout.state)
    try:
        written = context.store.put(
            context.staging_bucket, context.layout.state, encode(record), if_match=etag
        )
    except (PreconditionFailed, NoSuchKey):
        return None
    return Stored(record, written.etag, written.date, written.date)


def require_state(context: JobContext, *allowed: State) -> Stored[StateRecord]:
    """Read a job's state, and raise unless it is one of ``allowed``.

    Raises:
        AlreadyCommitted: The job is committed.
        JobClosed: It is in another state.
        NoSuchJob: It was never set up, or was aborted and cleaned up.

    """
    return check_state(context, read_state(context), *allowed)


def check_state(
    context: JobContext, stored: Stored[StateRecord] | None, *allowed: State
) -> Stored[StateRecord]:
    """Return a job's state, or raise as `require_state` does."""
    if stored is None:
        raise gone(context)
    if stored.record.state not in allowed:
        if stored.record.state == "committed":
            raise AlreadyCommitted(f"{context.name} is committed")
        raise JobClosed(f"{context.name} is {stored.record.state}; this step needs it {' or '.join(allowed)}")
    return stored


def pinned(context: JobContext, state: StateRecord) -> tuple[str, PlanName]:
    """Return the ETag of the seal of a running commit, and id and ETag of its plan.

    Raises:
        InvalidRecord: The state has none.

    """
    if state.seal_etag is None or state.plan_etag is None or state.plan_id is None:
        where = context.staging_uri(context.layout.state)
        raise InvalidRecord(f"{where} says that the job is {state.state}, and names no seal or no plan")
    return state.seal_etag, PlanName(plan_id=state.plan_id, etag=state.plan_etag)


def find_aborted(context: JobContext) -> AbortedRecord | None:
    """Return the record of the job's abort at this destination; None if there is none.

    Raises:
        InvalidRecord: It is damaged, another job's, or was copied here with its dataset.

    """
    stored = records.find(context.store, context.bucket, context.layout.aborted, AbortedRecord)
    if stored is None:
        return None
    where = join_uri(context.bucket, context.layout.aborted)
    check_ending(stored.record, context.layout.destination, context.job_id, where)
    return stored.record


def is_spent(context: JobContext) -> bool:
    """Return whether a job with this id was aborted here, so that the id cannot be used again."""
    return find_aborted(context) is not None


def gone(context: JobContext) -> S3CommitError:
    """Return the error for a job without a state."""
    if find_manifest(context) is not None:
        return AlreadyCommitted(f"{context.name} is committed and cleaned up; see its manifest")
    return unknown(context)


def ended_manifest(context: JobContext) -> ManifestRecord:
    """Return the manifest of a job without a state, or raise the error of `gone`."""
    manifest = find_manifest(context)
    if manifest is None:
        raise gone(context)
    return manifest


def unknown(context: JobContext) -> NoSuchJob | JobClosed:
    """Return the error for a job without records, which says if it was aborted."""
    aborted = find_aborted(context)
    if aborted is None:
        return NoSuchJob(
            f"{context.name} is not known: it was never set up, or it ended and was cleaned up, or a program"
            f" deleted its record {context.staging_uri(context.layout.job)}, as an overwrite of a directory"
            " above does. Set up a new job; s3commit sweep aborts the uploads of one whose record was deleted"
        )
    reason = f" ({aborted.reason})" if aborted.reason else ""
    return NoSuchJob(
        f"{context.name} was aborted{reason}: it takes no more output. Set up a new job; in Airflow, clear"
        " the setup task too"
    )


def find_job(context: JobContext) -> JobRecord | None:
    """Read a job's record; None if it does not exist.

    Raises:
        InvalidRecord: It is damaged, another job's or destination's, or was copied here.

    """
    stored = records.find(context.store, context.staging_bucket, context.layout.job, JobRecord)
    if stored is None:
        return None
    check_place(stored.record, context.layout, context.staging_uri(context.layout.job))
    return stored.record


def job_in_state(context: JobContext) -> JobRecord | None:
    """Return a running job's record as its state holds it; None where only `find_job` has it.

    The step need not read the state again (`last_state`). A damaged state is left to the step.

    Raises:
        ForeignRecord: The record in the state is of another job or destination.

    """
    try:
        stored = read_state(context)
    except InvalidRecord:
        return None
    if stored is None or stored.record.state not in _RUNNING or stored.record.job is None:
        return None
    check_place(stored.record.job, context.layout, context.staging_uri(context.layout.state))
    return stored.record.job


def load_job(context: JobContext) -> JobRecord:
    """Return a job's record: the context's own, which never changes, or as it is read.

    Raises:
        NoSuchJob: It does not exist.
        InvalidRecord: It is damaged, another job's or destination's, or was copied here.

    """
    record = context.record or find_job(context)
    if record is None:
        raise unknown(context)
    return record

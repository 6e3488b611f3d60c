"""Recover: look where a job was left, and do what is left to be done."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from airflow_s3commit.causes import noting
from airflow_s3commit.exceptions import (
    AlreadyCommitted,
    ForeignRecord,
    InvalidRecord,
    JobClosed,
    NoSuchJob,
    NoSuchKey,
    S3CommitError,
)
from airflow_s3commit.protocol.abort import abort_job
from airflow_s3commit.protocol.conflicts import find_plan
from airflow_s3commit.protocol.context import JobContext, naming
from airflow_s3commit.protocol.journal import Stored
from airflow_s3commit.protocol.ownership import is_ours
from airflow_s3commit.protocol.progress import Progress
from airflow_s3commit.protocol.publish import commit_job
from airflow_s3commit.protocol.records import AbortReport, ManifestRecord, SealRecord, State, StateRecord
from airflow_s3commit.protocol.sealed import each_pendingset, load_seal, load_stage_seals
from airflow_s3commit.protocol.setup import find_job, load_job
from airflow_s3commit.protocol.state import find_manifest, is_spent, read_state, replace_state
from airflow_s3commit.store.base import Head, ObjectInfo

__all__ = ["recover_job"]

logger = logging.getLogger(__name__)


def recover_job(
    context: JobContext,
    *,
    rollback: bool = False,
    force: bool = False,
    keep_replaced: bool = False,
    reason: str | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> ManifestRecord | AbortReport:
    """Bring a job that was left in the middle of a commit or an abort to its end.

    ==============  ==========================================================================
    left in         what is done
    ==============  ==========================================================================
    ``committing``  the commit goes on; with ``rollback`` it is undone
    ``committed``   what is left of the commit is finished; ``rollback`` is refused
    ``aborting``    the abort goes on
    ``aborted``     the staging is cleaned up
    (cleaned up)    nothing; the manifest of a committed job is returned
    (damaged)       the state is found out from the job's other records and its uploads, and written
                    anew; then as above
    ==============  ==========================================================================

    Before: anything. After: the job is committed or aborted, and cleaned up. Run again: a committed job's
    manifest again; of an aborted job nothing is known any more.

    Args:
        context: The job.
        rollback: Undo a commit that has begun, instead of going on with it.
        force: Undo it although old data was overwritten or deleted and cannot be put back.
        keep_replaced: Finish a commit without deleting what it replaces, because its plan is damaged: the
            old files stay beside the new ones, for somebody to remove.
        reason: Why it is rolled back, for the record.
        progress: Called after each completed upload, where the commit goes on.

    Returns:
        The manifest if the job is committed now, or what the abort did.

    Raises:
        JobClosed: The job is ``open`` or ``sealed``: nothing was begun. Commit or abort it.
        NoSuchJob: It was never set up, or it was aborted and cleaned up.
        AlreadyCommitted: ``rollback`` of a committed job.
        NotReversible: ``rollback`` of a commit that overwrote or deleted old data, without ``force``.
        S3CommitError: What the commit or the abort raises.

    """
    with naming(context, "recover"):
        while True:
            current = _read_or_rebuild(context)
            etag = current.etag if current is not None else None
            try:
                return _recover(
                    context,
                    current.record.state if current is not None else None,
                    rollback=rollback,
                    force=force,
                    keep_replaced=keep_replaced,
                    reason=reason,
                    progress=progress,
                )
            except (AlreadyCommitted, JobClosed, NoSuchJob) as error:
                # Said of a state that another process may have moved on from meanwhile.
                is_moved = False
                with noting(error, "reading the job's state again", "another process may have moved it on"):
                    standing = read_state(context)
                    is_moved = etag != (standing.etag if standing is not None else None)
                if not is_moved:
                    raise
            logger.info("%s: another process moved this job on", context.name)


def _read_or_rebuild(context: JobContext) -> Stored[StateRecord] | None:
    try:
        return read_state(context)
    except ForeignRecord:
        raise
    except InvalidRecord as error:
        logger.warning("%s: its state is found out anew: %s", context.name, error)
    state, fields = _state_by_other_records(context)
    # Where somebody else wrote meanwhile, theirs is read.
    return replace_state(context, state, **fields) or read_state(context)


def _state_by_other_records(context: JobContext) -> tuple[State, dict[str, Any]]:
    """Find out how far a job came whose state is damaged: never further than its records show.

    Raises:
        NoSuchJob: Not even the job's own record is there.
        InvalidRecord: That, or the seal, is damaged too: abort the job with ``force``.

    """
    if is_spent(context):
        return "aborted", {}
    job = load_job(context)
    try:
        seal = load_seal(context, None)
    except InvalidRecord:
        if _is_sealed(context):
            raise
        return "open", {}
    fields: dict[str, Any] = {"seal_etag": seal.etag}
    if find_manifest(context) is None and not _has_published(context, seal.record):
        return "sealed", fields
    options = job.options
    reversible = options.unique_filenames and options.replace_order == "publish-then-delete"
    try:
        plan = find_plan(context, None)
    except InvalidRecord as error:
        logger.warning("%s: its plan is damaged too: %s", context.name, error)
    else:
        fields["plan_etag"] = plan.etag if plan is not None else None
    committed = find_manifest(context) is not None
    return "committed" if committed else "committing", {**fields, "begun": True, "reversible": reversible}


def _is_sealed(context: JobContext) -> bool:
    try:
        context.store.head(context.staging_bucket, context.layout.seal)
    except NoSuchKey:
        return False
    return True


def _has_published(context: JobContext, seal: SealRecord) -> bool:
    """Tell whether any sealed upload is complete; looks until it finds one."""
    stages = load_stage_seals(context, seal)
    for _, _, pendingset in each_pendingset(context, stages):
        calls = [(upload, Head(upload.bucket, upload.destinationKey)) for upload in pendingset.commits]
        for upload, outcome in context.store.perform(calls):
            if isinstance(outcome, ObjectInfo) and is_ours(upload, outcome):
                return True
            if isinstance(outcome, S3CommitError) and not isinstance(outcome, NoSuchKey):
                raise outcome
    return False


def _recover(
    context: JobContext,
    state: State | None,
    *,
    rollback: bool,
    force: bool,
    keep_replaced: bool,
    reason: str | None,
    progress: Callable[[Progress], None] | None,
) -> ManifestRecord | AbortReport:
    match state:
        case None:
            return _ended(context, rollback=rollback)
        case "open":
            raise JobClosed(
                f"{context.name} is open: no commit of it was begun, there is nothing to recover. If its"
                " writers are done, seal and commit it; if they died, abort it with: s3commit abort"
            )
        case "sealed":
            raise JobClosed(
                f"{context.name} is sealed: no commit of it was begun, there is nothing to recover. Commit it"
                " with: s3commit commit, or abort it with: s3commit abort"
            )
        case "committing" | "committed" if not rollback:
            return commit_job(context, keep_replaced=keep_replaced, progress=progress)
        case _:
            return abort_job(context, force=force, reason=reason or "rolled back by recover")


def _ended(context: JobContext, *, rollback: bool) -> ManifestRecord | AbortReport:
    manifest = find_manifest(context)
    if manifest is not None:
        if rollback:
            raise AlreadyCommitted(f"{context.name} is committed; it cannot be rolled back")
        return manifest
    if is_spent(context):
        return AbortReport(uploads=0, objects=0, state="aborted")
    if find_job(context) is not None:
        raise JobClosed(
            f"{context.name} was never set up to the end: nothing was written. Set it up again with the same"
            " id, or abort it with: s3commit abort"
        )
    raise NoSuchJob(
        f"{context.name} is not known: it was never set up. There is"
        " nothing to recover; s3commit pending shows what may be left of it"
    )

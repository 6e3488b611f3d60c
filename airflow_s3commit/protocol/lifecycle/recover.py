"""Finish an interrupted commit or abort."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from airflow_s3commit._causes import noting
from airflow_s3commit.exceptions import (
    AlreadyCommitted,
    InvalidRecord,
    JobClosed,
    NoSuchJob,
    NoSuchKey,
)
from airflow_s3commit.protocol.lifecycle.abort import abort_job
from airflow_s3commit.protocol.lifecycle.commit import commit_job
from airflow_s3commit.protocol.lifecycle.run import Progress
from airflow_s3commit.protocol.metadata.context import JobContext, naming
from airflow_s3commit.protocol.metadata.log import Log
from airflow_s3commit.protocol.metadata.manifests import find_manifest
from airflow_s3commit.protocol.metadata.records import Stored, exists, unless_damaged
from airflow_s3commit.protocol.metadata.sealed_job import (
    NO_PLAN,
    each_pendingset,
    load_plan,
    load_seal,
    load_stage_seals,
)
from airflow_s3commit.protocol.metadata.state import (
    find_aborted,
    find_job,
    load_job,
    read_state,
    replace_state,
)
from airflow_s3commit.protocol.model.job import AbortReport, State, StateRecord
from airflow_s3commit.protocol.model.manifest import ManifestRecord
from airflow_s3commit.protocol.model.ownership import is_ours
from airflow_s3commit.protocol.model.sealed_job import SealRecord
from airflow_s3commit.store.base import Head, ObjectInfo
from airflow_s3commit.store.execute import outcomes

logger = logging.getLogger(__name__)


def recover_job(
    context: JobContext,
    *,
    rollback: bool = False,
    keep_replaced: bool = False,
    reason: str | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> ManifestRecord | AbortReport:
    """Finish a commit or an abort that was interrupted.

    ==============  ==========================================================================
    state           action
    ==============  ==========================================================================
    ``committing``  resume the commit; with ``rollback`` undo it
    ``committed``   finish the commit; ``rollback`` is refused
    ``aborting``    resume the abort
    ``aborted``     remove the staging
    (cleaned up)    return the manifest of a committed job
    (damaged)       rebuild the state from the job's other records and its uploads; then as above
    ==============  ==========================================================================

    After: the job is committed or aborted, and cleaned up. Repeatable by any process: returns the manifest
    of a committed job, or an empty report of an aborted one.

    Args:
        context: The job.
        rollback: Undo a commit that has begun.
        keep_replaced: Finish the commit without deleting what it replaces, where its plan is damaged: the old
            files stay beside the new ones, to be removed by hand.
        reason: Why the job is rolled back, for the record.
        progress: Called after each completed upload.

    Returns:
        The manifest if the job is committed, or the report of its abort.

    Raises:
        JobClosed: The job is ``open`` or ``sealed``: no commit was begun. Commit or abort it.
        NoSuchJob: The job was never set up.
        AlreadyCommitted: ``rollback`` of a committed job.
        S3CommitError: What the commit or the abort raises.

    """
    with naming(context, "recover"):
        while True:
            current = read_or_rebuild_state(context)
            etag = current.etag if current is not None else None
            try:
                return _recover(
                    context,
                    current.record.state if current is not None else None,
                    rollback=rollback,
                    keep_replaced=keep_replaced,
                    reason=reason,
                    progress=progress,
                )
            except (AlreadyCommitted, JobClosed, NoSuchJob) as error:
                # Another process may have moved the job on meanwhile.
                is_moved = False
                with noting(error, "reading the job's state again", "another process may have moved it on"):
                    existing = read_state(context)
                    is_moved = etag != (existing.etag if existing is not None else None)
                if not is_moved:
                    raise
            logger.info("%s: another process moved this job on", context.name)


def read_or_rebuild_state(context: JobContext) -> Stored[StateRecord] | None:
    """Read a job's state; rebuild a damaged one from the job's other records and its uploads.

    Raises:
        NoSuchJob: The state is damaged, and the job's own record is missing.
        InvalidRecord: The job's record or its seal is damaged too: abort the job with ``force``.

    """

    def rebuild(error: InvalidRecord) -> Stored[StateRecord] | None:
        logger.warning("%s: rebuilding its state: %s", context.name, error)
        state, fields = _rebuilt_state(context)
        # None if another process wrote meanwhile: read its state.
        return replace_state(context, state, **fields) or read_state(context)

    return unless_damaged(lambda: read_state(context), rebuild)


def _rebuilt_state(context: JobContext) -> tuple[State, dict[str, Any]]:
    """Return the state that a job's other records prove, and further fields of it.

    Raises:
        NoSuchJob: The job's own record is missing too.
        InvalidRecord: The job's record or the seal is damaged too: abort the job with ``force``.

    """
    if find_aborted(context) is not None:
        return "aborted", {}
    load_job(context)
    entry = Log(context).ending()
    if entry is not None and entry.kind != "commit":
        reason = entry.aborted.reason if entry.aborted is not None else None
        return "aborting", {"begun": True, "reason": reason}
    try:
        seal = load_seal(context, None)
    except InvalidRecord:
        if exists(context.store, context.staging_bucket, context.layout.seal):
            raise
        return "open", {}
    fields: dict[str, Any] = {"seal_etag": seal.etag}
    if not (entry or find_manifest(context) or _has_published(context, seal.record)):
        return "sealed", fields
    fields["begun"] = True
    if entry is not None:
        return "committed", {**fields, "generation": entry.number}
    fields |= _newest_plan(context, seal.etag)
    committed = find_manifest(context) is not None
    return "committed" if committed else "committing", fields


def _newest_plan(context: JobContext, seal_etag: str) -> dict[str, Any]:
    """Return the fields of a state that name the newest plan of a seal; none if there is none."""
    if load_job(context).options.only_adds:
        return {"plan_etag": NO_PLAN, "plan_id": NO_PLAN}
    summaries = [
        info
        for info in context.store.list_objects(context.staging_bucket, context.layout.plans)
        if info.key.endswith("/summary.json")
    ]
    for info in sorted(summaries, key=lambda info: info.modified, reverse=True):
        plan_id = info.key.removeprefix(context.layout.plans).rpartition("/")[0]
        try:
            plan = load_plan(context, plan_id, info.etag, seal_etag)
        except InvalidRecord as error:
            logger.warning("%s: skipping a damaged plan: %s", context.name, error)
            continue
        if plan.record.seal_etag == seal_etag:
            return {"plan_etag": plan.etag, "plan_id": plan_id}
    return {}


def _has_published(context: JobContext, seal: SealRecord) -> bool:
    """Return whether any sealed upload is completed; stops at the first."""
    stages = load_stage_seals(context, seal)
    for _, _, pendingset in each_pendingset(context, stages):
        calls = [(upload, Head(upload.bucket, upload.destinationKey)) for upload in pendingset.commits]
        for upload, outcome in outcomes(context.store, calls, NoSuchKey):
            if isinstance(outcome, ObjectInfo) and is_ours(upload, outcome):
                return True
    return False


def _recover(
    context: JobContext,
    state: State | None,
    *,
    rollback: bool,
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
            return abort_job(context, reason=reason or "rolled back by recover")


def _ended(context: JobContext, *, rollback: bool) -> ManifestRecord | AbortReport:
    manifest = find_manifest(context)
    if manifest is not None:
        if rollback:
            raise AlreadyCommitted(f"{context.name} is committed; it cannot be rolled back")
        return manifest
    if find_aborted(context) is not None:
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

"""Begin a commit: check what was sealed and planned; nothing visible changes."""

from __future__ import annotations

import logging

from airflow_s3commit.exceptions import (
    DestinationChanged,
    InvalidRecord,
    JobClosed,
)
from airflow_s3commit.protocol.lifecycle.abort import abort_job
from airflow_s3commit.protocol.lifecycle.adopted import refuse_occupied, sealed_uploads
from airflow_s3commit.protocol.lifecycle.baseline import open_history
from airflow_s3commit.protocol.lifecycle.plan import check_unchanged, make_plan, verify_plan
from airflow_s3commit.protocol.lifecycle.run import CommitRun, Overtaken, Verdict
from airflow_s3commit.protocol.lifecycle.success import existing_success
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.records import Stored
from airflow_s3commit.protocol.metadata.sealed_job import NO_PLAN, find_plan, load_seal, verify_pendingsets
from airflow_s3commit.protocol.metadata.state import load_job, move
from airflow_s3commit.protocol.model.job import JobRecord, StateRecord
from airflow_s3commit.protocol.model.log import LogEntry
from airflow_s3commit.protocol.model.sealed_job import PlanRecord, SealRecord

logger = logging.getLogger(__name__)


def begin_commit(run: CommitRun, current: Stored[StateRecord]) -> None:
    """Check everything, then move to ``committing``: from ``sealed``, or from ``open``. No visible change.

    From ``open`` only what this process has just sealed: the move closes the job to further output too.

    Raises:
        Overtaken: Another process moved the job.
        Verdict: The log says that the job is abandoned.
        Refused: The destination or the plan does not allow the commit, or a sealed record was changed.
            Nothing was changed.

    """
    context = run.context
    _refuse_if_set_up_again(context, current.record)
    if current.record.state == "open" and context.is_own:
        # It read the log when it set the job up. An abort by another process moves the state.
        run.log.assume_read()
    job = load_job(context)
    seal = load_seal(context, run.seal_etag or current.record.seal_etag)
    if current.record.state != "open" and seal.etag != current.record.seal_etag:
        raise InvalidRecord(
            f"{context.staging_uri(context.layout.seal)} is not the seal the job was closed with"
        )
    verify_pendingsets(context, run.stage_seals(seal.record))
    plan = _existing_plan(run, current.record)
    ending = run.log.ending()
    if ending is not None and ending.kind == "abandon":
        abort_job(context)
        raise Verdict(abandoned(context, ending))
    if job.adopted:
        refuse_occupied(context, sealed_uploads(run, seal.record))
    open_history(run)
    # A process that wrote the newest marker goes by that. To delete it shows whether it is still there.
    run.is_marker_assumed = run.marker is not None
    success = run.marker if run.is_marker_assumed else existing_success(context)
    run.marker = None
    plan = _valid_plan(run, job, seal, plan)
    begun = move(
        context,
        current,
        "committing",
        seal_etag=seal.etag,
        plan_etag=plan.etag,
        plan_id=plan.record.plan_id,
        begun=True,
        shards=run.shards,
        saved_success=success,
    )
    if begun is None:
        raise Overtaken
    run.moved = begun
    run.knows(seal, plan)
    logger.info("%s: commit begins, %d files", context.name, seal.record.counts.files)


def _refuse_if_set_up_again(context: JobContext, state: StateRecord) -> None:
    """Raise if an own job has ended, and a later set-up wrote records of its id again.

    That set-up withdraws them once it has looked. Its part of the log begins after the job's end.
    """
    if not context.is_own or context.record is None or state.job is None:
        return
    if state.job.nonce != context.record.nonce:
        raise JobClosed(
            f"{context.name} was ended by another process, and set up again since: this process goes on with"
            " none of it; write the data again, as a new job"
        )


def note_marker(run: CommitRun, current: Stored[StateRecord]) -> None:
    """Name the marker that is there in the state, in place of one that this process remembered. Repeatable.

    Before: another marker is there, and nothing of the job is published.

    Args:
        run: The commit.
        current: The state as it was read: ``committing``.

    Raises:
        Overtaken: Always: go on from the state.

    """
    run.is_marker_assumed = False
    run.log.read()
    run.moved = move(run.context, current, "committing", saved_success=existing_success(run.context))
    raise Overtaken


def abandoned(context: JobContext, entry: LogEntry) -> JobClosed:
    """Return the error of a commit whose job the log says is abandoned."""
    reason = entry.aborted.reason if entry.aborted is not None else None
    why = f" ({reason})" if reason else ""
    return JobClosed(f"{context.name} is aborted{why}: nothing of it is or will become visible")


def _valid_plan(
    run: CommitRun, job: JobRecord, seal: Stored[SealRecord], plan: Stored[PlanRecord] | None
) -> Stored[PlanRecord]:
    """Return the plan if the destination is as it says, or a new one unless the caller named this one."""
    context = run.context
    if plan is None or plan.record.seal_etag != seal.etag:
        return make_plan(context, job, seal, run.log)
    verify_plan(context, job, seal.record, plan.record)
    run.log.record_newest()
    try:
        check_unchanged(context, job, seal.record, plan.record, run.log)
    except DestinationChanged:
        if run.plan_etag is not None:
            raise
        logger.info("%s: its partitions have changed; planning again", context.name)
        run.log.read()
        return make_plan(context, job, seal, run.log)
    return plan


def _existing_plan(run: CommitRun, state: StateRecord) -> Stored[PlanRecord] | None:
    """Read the plan that the state names; a damaged one counts as absent, unless the caller pinned one."""
    context = run.context
    try:
        plan = find_plan(context, state)
        if plan is None and run.plan_etag == NO_PLAN and load_job(context).options.only_adds:
            return None
        if run.plan_etag is not None and (plan is None or plan.etag != run.plan_etag.strip('"')):
            raise InvalidRecord(f"{context.name} has another plan than the one handed over; plan again")
    except InvalidRecord as error:
        if run.plan_etag is not None:
            raise
        logger.warning("%s: planning again: %s", context.name, error)
        return None
    return plan

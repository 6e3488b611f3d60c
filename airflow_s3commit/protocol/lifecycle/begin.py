"""Begin a commit: check what was sealed and planned; nothing visible changes."""

from __future__ import annotations

import logging

from airflow_s3commit._causes import add_failure
from airflow_s3commit.exceptions import (
    DestinationChanged,
    InvalidRecord,
    JobClosed,
    Refused,
    S3CommitError,
)
from airflow_s3commit.protocol.lifecycle.abort import abort_job
from airflow_s3commit.protocol.lifecycle.history import import_older_commits, open_history
from airflow_s3commit.protocol.lifecycle.plan import check_unchanged, make_plan, verify_plan
from airflow_s3commit.protocol.lifecycle.rollback import is_same_state
from airflow_s3commit.protocol.lifecycle.run import CommitRun, Overtaken, Verdict
from airflow_s3commit.protocol.lifecycle.success import existing_success
from airflow_s3commit.protocol.metadata.cleanup import clean_if_ended
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.job_record import load_job
from airflow_s3commit.protocol.metadata.lock import release_lock
from airflow_s3commit.protocol.metadata.plans import find_plan
from airflow_s3commit.protocol.metadata.records import Stored
from airflow_s3commit.protocol.metadata.seals import load_seal, load_stage_seals, verify_pendingsets
from airflow_s3commit.protocol.metadata.state import move, read_state
from airflow_s3commit.protocol.model.job import JobRecord, StateRecord
from airflow_s3commit.protocol.model.log import LogEntry
from airflow_s3commit.protocol.model.plan import PlanRecord
from airflow_s3commit.protocol.model.seal import SealRecord

logger = logging.getLogger(__name__)


def begin_commit(run: CommitRun, current: Stored[StateRecord]) -> None:
    """Check everything, then move from ``sealed`` to ``committing``. No visible change.

    Raises:
        Overtaken: Another process moved the job.
        Verdict: The destination or the plan does not allow the commit; the lock is released.
        Refused: A sealed record was changed.

    """
    context = run.context
    job = load_job(context)
    seal = load_seal(context, run.seal_etag or current.record.seal_etag)
    if seal.etag != current.record.seal_etag:
        raise InvalidRecord(
            f"{context.staging_uri(context.layout.seal)} is not the seal the job was closed with"
        )
    verify_pendingsets(context, load_stage_seals(context, seal.record))
    plan = _existing_plan(run, current.record)
    ending = run.log.ending()
    if ending is not None and ending.kind == "abandon":
        abort_job(context)
        raise Verdict(abandoned(context, ending))
    open_history(run)
    if job.options.needs_lock:
        run.take_lock()
        _check_same_state(run, current)
    success = existing_success(context)
    import_older_commits(run, success)
    try:
        plan = _valid_plan(run, job, seal, plan)
        if run.lock_if_unnamed(plan.record):
            _check_same_state(run, current)
            plan = _valid_plan(run, job, seal, plan)
    except Refused as error:
        # Another process of this job shares the lock and may have begun. A move to the same state fences it
        # off; if the move fails, that process has begun, and this one saw the effects of its commit.
        try:
            if move(context, current, "sealed") is None:
                raise Overtaken from error
            release_lock(context)
        except S3CommitError as second:
            add_failure(error, second, "releasing the commit lock", "it may be held until its lease lapses")
        raise Verdict(error) from error
    begun = move(
        context,
        current,
        "committing",
        plan_etag=plan.etag,
        plan_id=plan.record.plan_id,
        begun=True,
        shards=run.shards,
        reversible=_is_reversible(job, plan.record),
        saved_success=success,
    )
    if begun is None:
        clean_if_ended(context)
        raise Overtaken
    run.moved = begun
    logger.info("%s: commit begins, %d files", context.name, seal.record.counts.files)


def abandoned(context: JobContext, entry: LogEntry) -> JobClosed:
    """Return the error of a commit whose job the log says is abandoned."""
    reason = entry.aborted.reason if entry.aborted is not None else None
    why = f" ({reason})" if reason else ""
    return JobClosed(f"{context.name} is aborted{why}: nothing of it is or will become visible")


def _check_same_state(run: CommitRun, current: Stored[StateRecord]) -> None:
    """Check that the job's state is the same as before the wait for the lock."""
    if not is_same_state(current, read_state(run.context)):
        raise Overtaken


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
        if run.plan_etag is not None and (plan is None or plan.etag != run.plan_etag.strip('"')):
            raise InvalidRecord(f"{context.name} has another plan than the one handed over; plan again")
    except InvalidRecord as error:
        if run.plan_etag is not None:
            raise
        logger.warning("%s: planning again: %s", context.name, error)
        return None
    return plan


def _is_reversible(job: JobRecord, plan: PlanRecord) -> bool:
    deletes_first = job.options.replace_order == "delete-then-publish" and plan.objects > 0
    return not deletes_first and plan.overwritten == 0

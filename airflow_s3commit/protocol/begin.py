"""The first part of a job's commit: checking everything, then moving from ``sealed`` to ``committing``."""

from __future__ import annotations

import logging
from collections.abc import Callable

from airflow_s3commit.causes import add_failure
from airflow_s3commit.exceptions import InvalidRecord, NoSuchKey, Refused, S3CommitError
from airflow_s3commit.protocol.cleanup import clean_if_ended
from airflow_s3commit.protocol.commit_run import CommitRun, Overtaken, Verdict
from airflow_s3commit.protocol.conflicts import check_unchanged, find_plan, make_plan, verify_plan
from airflow_s3commit.protocol.context import JobContext
from airflow_s3commit.protocol.journal import Stored
from airflow_s3commit.protocol.lock import release_lock, take_lock
from airflow_s3commit.protocol.records import JobRecord, PlanRecord, SavedSuccess, StateRecord, largest
from airflow_s3commit.protocol.sealed import load_seal, load_stage_seals, verify_pendingsets
from airflow_s3commit.protocol.setup import load_job
from airflow_s3commit.protocol.state import move, read_state
from airflow_s3commit.protocol.success import SuccessData

__all__ = ["begin"]

logger = logging.getLogger(__name__)


def begin(run: CommitRun, current: Stored[StateRecord], settle: Callable[[JobContext], None]) -> None:
    """Check everything, then move from ``sealed`` to ``committing``; nothing visible changes.

    Args:
        run: The commit.
        current: The state as it was read.
        settle: Brings the job of a lapsed lock to an end, or fences it off.

    Raises:
        Overtaken: Another process moved the job.
        Verdict: The destination, or the plan, is not what the commit needs; the lock was given back.
        Refused: What was sealed is not what is there.

    """
    context = run.context
    job = load_job(context)
    seal = load_seal(context, run.seal_etag or current.record.seal_etag)
    if seal.etag != current.record.seal_etag:
        raise InvalidRecord(
            f"{context.staging_uri(context.layout.seal)} is not the seal the job was closed with"
        )
    verify_pendingsets(context, load_stage_seals(context, seal.record))
    plan = _standing_plan(context, run.plan_etag)
    if job.options.needs_lock:
        run.lock = take_lock(context, settle)
        fresh = read_state(context)
        if fresh is None or fresh.etag != current.etag:
            raise Overtaken
    try:
        if plan is None or plan.record.seal_etag != seal.etag:
            plan = make_plan(context, job, seal)
        else:
            verify_plan(context, job, seal.record, plan.record)
            check_unchanged(context, job, seal.record, plan.record)
    except Refused as error:
        # Moving the state, to the same one, fences off a process that began meanwhile with the lock it shares
        # with this one; where that fails, it has begun, and what this one saw was its work.
        try:
            if move(context, current, "sealed") is None:
                raise Overtaken from error
            release_lock(context)
        except S3CommitError as second:
            add_failure(error, second, "giving the commit lock back", "it may be held until its lease lapses")
        raise Verdict(error) from error
    begun = move(
        context,
        current,
        "committing",
        plan_etag=plan.etag,
        begun=True,
        shards=run.shards,
        reversible=_is_reversible(job, plan.record),
        saved_success=_standing_success(context),
    )
    if begun is None:
        clean_if_ended(context)
        raise Overtaken
    logger.info("%s: commit begins, %d files", context.name, seal.record.counts.files)


def _standing_plan(context: JobContext, etag: str | None) -> Stored[PlanRecord] | None:
    """Read the plan; where the caller pinned none, a damaged one is as good as none."""
    try:
        return find_plan(context, etag)
    except InvalidRecord as error:
        if etag is not None:
            raise
        logger.warning("%s: planning again: %s", context.name, error)
        return None


def _is_reversible(job: JobRecord, plan: PlanRecord) -> bool:
    deletes_first = job.options.replace_order == "delete-then-publish" and plan.objects > 0
    return not deletes_first and plan.overwritten == 0


def _standing_success(context: JobContext) -> SavedSuccess | None:
    try:
        fetched = context.store.get(context.bucket, context.layout.success, limit=largest(SuccessData))
    except NoSuchKey:
        return None
    return SavedSuccess(etag=fetched.info.etag, body=fetched.body)

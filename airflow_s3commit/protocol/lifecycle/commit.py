"""Job commit: from a sealed job to a manifest, restartable at every line; rolled back if it cannot finish.

1. *begin* (`begin`): check what was sealed and planned, list again, move the state to ``committing``.
2. *publish* (`publish`): remove ``_SUCCESS``, complete every upload.
3. *enter* (`enter`): create the job's entry in the log, the point of no return. The state stays, except of a
   job whose state does not hold its record.
4. *finish* (`finish`): write the manifest, delete what was replaced, write ``_SUCCESS``, clean up.

A process that finds the job moved on by another one reads the state again and resumes from there.

In shards, several workers complete the uploads of one job, in any process and any order: `begin_shards`, then
`complete_shard` for each of them, then `finish_shards`.

`rolling_back` takes back what a commit that cannot finish has published. Not to be confused with
`table_rollback`, which returns a table to an earlier commit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from airflow_s3commit._causes import add_failure, noting
from airflow_s3commit.exceptions import (
    AlreadyCommitted,
    DestinationChanged,
    DestinationNotEmpty,
    InvalidRecord,
    JobClosed,
    JobFailed,
    OutcomeUnknown,
    S3CommitError,
)
from airflow_s3commit.protocol.lifecycle.abort import abort_job
from airflow_s3commit.protocol.lifecycle.begin import abandoned, begin_commit, note_marker
from airflow_s3commit.protocol.lifecycle.enter import enter_commit
from airflow_s3commit.protocol.lifecycle.finish import finish_commit
from airflow_s3commit.protocol.lifecycle.publish import (
    complete_all,
    complete_one_shard,
    complete_shards,
)
from airflow_s3commit.protocol.lifecycle.run import CommitRun, Overtaken, Progress, Verdict, drive
from airflow_s3commit.protocol.lifecycle.seal import seal_job
from airflow_s3commit.protocol.lifecycle.success import remove_success
from airflow_s3commit.protocol.metadata.context import JobContext, naming
from airflow_s3commit.protocol.metadata.log_end import LogEnd, remember_end, remembered_marker
from airflow_s3commit.protocol.metadata.records import Stored
from airflow_s3commit.protocol.metadata.state import (
    ended_manifest,
    follow,
    is_same_state,
    is_spent,
    known_state,
    load_job,
    read_state,
)
from airflow_s3commit.protocol.model.codec import MAX_SHARDS
from airflow_s3commit.protocol.model.job import BEFORE_COMMIT, JobRecord, StateRecord
from airflow_s3commit.protocol.model.log import LogEntry
from airflow_s3commit.protocol.model.manifest import ManifestRecord
from airflow_s3commit.protocol.model.sealed_job import PlanRecord, SealRecord
from airflow_s3commit.store.forwarding import CountingStore

logger = logging.getLogger(__name__)


def commit_job(
    context: JobContext,
    *,
    seal_etag: str | None = None,
    plan_etag: str | None = None,
    stages: Sequence[tuple[str, str]] | None = None,
    keep_replaced: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> ManifestRecord:
    """Make a sealed job's output visible, and return its manifest.

    Before: the job is sealed; without a plan it is planned first. After: it is committed, replaced objects
    are deleted, ``_SUCCESS`` is written, and no upload of the job is pending. Repeatable by any process: it
    resumes an interrupted commit, and returns the manifest of a finished one.

    Args:
        context: The job.
        seal_etag: Expected ETag of the job's seal; any other seal is refused.
        plan_etag: Expected ETag of the plan; any other plan is refused.
        stages: Seal the job with these stage attempts first.
        keep_replaced: Skip the damaged plan of a commit that has begun, and delete nothing: old files stay
            beside the new ones.
        progress: Called after each completed upload.

    Raises:
        DestinationChanged: The partitions of the plan that ``plan_etag`` names changed before the commit
            began: plan again. Or other jobs kept adding files to them: the job has been rolled back.
        DestinationNotEmpty: Conflict mode ``fail``, and there is data. If another job committed first, while
            this one was publishing, this one has been rolled back; otherwise nothing was changed.
        InvalidRecord: A seal, plan or pendingset was changed after it was written; what was published has
            been rolled back.
        JobFailed: An upload is gone; what was published has been rolled back.
        JobClosed: The job is not sealed, or is aborted; the message says why, and whether files of it may
            still be visible.
        OutcomeUnknown: A response was lost: commit again. Or the job could be neither finished nor rolled
            back completely: the message says why, what may be visible, and how to end it.

    """
    counted = CountingStore(context.store)
    run = CommitRun(
        replace(context, store=counted),
        seal_etag,
        plan_etag,
        progress,
        keep_replaced=keep_replaced,
        requests=lambda: counted.counters,
    )
    if stages is not None:
        seal_job(context, stages, closes=False)
        run.begins_from = BEFORE_COMMIT
    if context.is_own and context.record is not None:
        run.marker = remembered_marker(context.store, context.layout.destination, context.record.log)
    run.moved = known_state(context, *run.begins_from)
    with naming(context, "commit"):
        manifest = drive(run, commit_step)
    if (last := run.log.created_last()) is not None:
        remember_end(context.store, LogEnd(*last, run.marker))
    return manifest


def commit_step(run: CommitRun, current: Stored[StateRecord] | None) -> ManifestRecord | None:
    """Take the step that a job's state asks for; return the manifest after the last one, or else None.

    Raises:
        Overtaken: Another process moved the job.
        Verdict: The job cannot be committed.
        S3CommitError: As `commit_job`.

    """
    if current is None:
        return ended_manifest(run.context)
    match current.record.state:
        case state if state in run.begins_from:
            begin_commit(run, current)
        case "committing":
            return _after(run, current, run.log.ending() or _publish(run, current))
        case "committed":
            return finish_commit(run, current)
        case "aborting" if (entry := run.log.ending()) and entry.kind != "abandon":
            # An abort moved the state too late.
            follow(run.context, current, entry)
        case _:
            raise not_committing(run.context, current.record)
    return None


def _after(run: CommitRun, current: Stored[StateRecord], entry: LogEntry) -> ManifestRecord | None:
    """Go on after the job's entry; return the manifest if the commit is finished."""
    context = run.context
    if entry.kind == "abandon":
        abort_job(context)
        raise Verdict(abandoned(context, entry))
    logger.info("%s: entry %d ends it: %s", context.name, entry.number, entry.kind)
    if current.record.job is not None:
        # The entry tells every process. A process that finds only the state left has the job's record in it.
        return finish_commit(run, current)
    run.moved = follow(context, current, entry)
    if run.moved is None:
        raise Overtaken
    return None


def _publish(run: CommitRun, current: Stored[StateRecord]) -> LogEntry:
    """Publish the job's files, and return the entry that ended it."""
    with rolling_back(run, current) as (job, seal, plan):
        _remove_success(run, current.record)
        if run.is_marker_assumed:
            note_marker(run, current)
        complete_all(run, current.record, seal)
        return enter_commit(run, current.record, job, seal, plan)


def _remove_success(run: CommitRun, state: StateRecord) -> None:
    """Delete the marker that the state names, before the first upload is completed. Repeatable."""
    if remove_success(run.context, state.saved_success):
        run.is_marker_assumed = False


def not_committing(context: JobContext, state: StateRecord) -> JobClosed:
    """Return the error of a commit of a job that is not committing, and never will by this commit."""
    if state.state in BEFORE_COMMIT:
        return JobClosed(f"{context.name} is {state.state}; seal it, and begin its commit, first")
    why = f" ({state.reason})" if state.reason else ""
    if state.state == "aborted" or not state.begun:
        return JobClosed(f"{context.name} is {state.state}{why}: nothing of it is or will become visible")
    return JobClosed(
        f"{context.name} is aborting{why}: its commit had begun, and files of it may be visible until they"
        " are taken back; finish that with: s3commit recover"
    )


def begin_shards(
    context: JobContext, shards: int, *, seal_etag: str | None = None, plan_etag: str | None = None
) -> list[int]:
    """Begin the commit of a sealed job in shards, and return their numbers; none if it is committed.

    Before: the job is sealed. After: it is ``committing``. Repeatable: returns the shards of the first call.

    Args:
        context: The job.
        shards: How many, from 1 to 4,096; tasks are assigned to them round-robin.
        seal_etag: See `commit_job`.
        plan_etag: See `commit_job`.

    Raises:
        ValueError: More than 4,096 shards.
        S3CommitError: As `commit_job`.

    """
    if shards > MAX_SHARDS:
        raise ValueError(f"a commit is cut into at most {MAX_SHARDS} shards, not {shards}")
    run = CommitRun(context, seal_etag, plan_etag, shards=max(shards, 1))
    with naming(context, "begin"):
        return drive(run, _begin_step)


def complete_shard(
    context: JobContext, shard: int, *, progress: Callable[[Progress], None] | None = None
) -> None:
    """Complete the uploads of one shard. Repeatable by any process, also concurrently.

    Before: `begin_shards` returned this number. After: its objects exist, and a record says so.

    Raises:
        S3CommitError: As `commit_job`; a roll-back takes back the whole job.

    """
    run = CommitRun(context, progress=progress)
    with naming(context, f"complete of shard {shard}"):
        drive(run, lambda run, current: _shard_step(run, current, shard))


def finish_shards(context: JobContext) -> ManifestRecord:
    """Finish a commit whose shards are all complete, and return the manifest. Repeatable.

    Raises:
        JobClosed: A shard is not complete.
        S3CommitError: As `commit_job`.

    """
    state = read_state(context)
    if state is not None and state.record.state == "committing":
        missing = sorted(set(range(state.record.shards)) - complete_shards(context, state.record))
        if missing and is_same_state(state, read_state(context)):
            raise JobClosed(f"{context.name}: shards {missing} are not complete; complete them first")
    return commit_job(context)


def _begin_step(run: CommitRun, current: Stored[StateRecord] | None) -> list[int] | None:
    if current is None:
        ended_manifest(run.context)
        return []
    match current.record.state:
        case "sealed":
            begin_commit(run, current)
        case "committing":
            if run.log.ending() is None:
                with rolling_back(run, current):
                    _remove_success(run, current.record)
            return list(range(current.record.shards))
        case "committed":
            return []
        case _:
            raise not_committing(run.context, current.record)
    return None


def _shard_step(run: CommitRun, current: Stored[StateRecord] | None, shard: int) -> bool | None:
    if current is None:
        return ended_manifest(run.context) is not None
    if current.record.state == "committed":
        return True
    if current.record.state != "committing":
        raise not_committing(run.context, current.record)
    if not 0 <= shard < current.record.shards:
        raise JobClosed(f"{run.context.name} has no shard {shard}; it was cut into {current.record.shards}")
    if run.log.has_ended(run.context.job_id):
        return commit_step(run, current) is not None
    with rolling_back(run, current) as (_, seal, _plan):
        complete_one_shard(run, current.record, seal, shard)
    return True


@contextmanager
def rolling_back(
    run: CommitRun, current: Stored[StateRecord]
) -> Iterator[tuple[JobRecord, SealRecord, PlanRecord]]:
    """Roll the job back if the block, which publishes, fails for good.

    Args:
        run: The commit.
        current: The state as it was read: ``committing``.

    Raises:
        Overtaken: Another process moved the job.
        Verdict: The job cannot be published and was rolled back, or its roll-back did not finish.

    """
    context, files = run.context, None
    # Outside of the try: a damaged state or plan says nothing about the uploads. An operator decides;
    # nothing is rolled back because of it.
    job, plan = load_job(context), run.pinned_plan(current.record)
    try:
        seal = run.pinned_seal(current.record)
        files = seal.counts.files
        yield job, seal, plan
    except (JobFailed, InvalidRecord, DestinationChanged, DestinationNotEmpty) as error:
        reason: S3CommitError | None = error
        try:
            if is_same_state(current, read_state(context)):
                logger.warning("%s: rolling back: %s", context.name, error)
                abort_job(context, reason=str(error))
            else:
                reason = None
        except AlreadyCommitted:
            # By another process, which leaves the state as it is.
            run.log.read()
            reason = None
        except S3CommitError as second:
            reason = _half_undone(context, files, error, second)
        if reason is None:
            raise Overtaken from error
        raise Verdict(reason) from error


def _half_undone(
    context: JobContext, files: int | None, error: S3CommitError, second: S3CommitError
) -> S3CommitError | None:
    """Return the error of a roll-back that failed, by the state it left; None if the job was moved on.

    Args:
        context: The job.
        files: How many files it has, if known.
        error: Why it cannot be committed.
        second: Why the roll-back failed.

    """
    state = "not known"
    with noting(second, "reading the job's state", "it is not known"):
        existing = read_state(context)
        if existing is not None:
            state = existing.record.state
        else:
            state = "aborted" if is_spent(context) else "committed"
    if state == "committed":
        return None
    if state == "aborted":
        left = "nothing of the job is visible or pending; records of it may be left until: s3commit recover"
        add_failure(error, second, "cleaning up after the roll-back", left)
        return error
    unfinished = OutcomeUnknown(
        f"{context.name} cannot be committed ({error}), and its roll-back did not end: its state is {state},"
        f" and {'files' if files is None else f'up to {files} files'} of it may be visible; end it with:"
        " s3commit recover"
    )
    unfinished.__cause__ = error
    add_failure(unfinished, second, "rolling back", f"the job's state is {state}")
    return unfinished

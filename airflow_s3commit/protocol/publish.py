"""Job commit: the steps from a sealed job to a manifest, restartable at every line.

1. *begin*: check what was sealed and planned, take the lock, list again, move the state to ``committing``.
2. *publish*: remove a stale ``_SUCCESS``, complete every upload, move the state to ``committed``.
3. *finish*: write the manifest, delete what was replaced, write ``_SUCCESS``, clean up.

Whoever runs this for a job that somebody else has moved on reads the state again and goes on from there.
A commit may be cut into shards, so that several workers complete uploads: `begin_shards`, `complete_shard`
for each of them, anywhere and as often as need be, then `finish_shards`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeAlias, TypeVar

from airflow_s3commit.causes import add_failure, noting
from airflow_s3commit.exceptions import (
    InvalidRecord,
    JobClosed,
    JobFailed,
    NotReversible,
    OutcomeUnknown,
    PreconditionFailed,
    S3CommitError,
)
from airflow_s3commit.protocol.abort import abort_job
from airflow_s3commit.protocol.begin import begin
from airflow_s3commit.protocol.commit_run import CommitRun, Overtaken, Verdict
from airflow_s3commit.protocol.completion import complete_all, complete_one_shard, complete_shards
from airflow_s3commit.protocol.context import JobContext, naming
from airflow_s3commit.protocol.finish import finish
from airflow_s3commit.protocol.journal import Stored
from airflow_s3commit.protocol.limits import MAX_SHARDS
from airflow_s3commit.protocol.lock import take_lock
from airflow_s3commit.protocol.progress import Progress
from airflow_s3commit.protocol.records import (
    JobRecord,
    ManifestRecord,
    PlanRecord,
    SavedSuccess,
    SealRecord,
    StateRecord,
)
from airflow_s3commit.protocol.removal import delete_record
from airflow_s3commit.protocol.setup import load_job
from airflow_s3commit.protocol.state import find_manifest, gone, is_spent, move, read_state
from airflow_s3commit.store.counting import counting

__all__ = ["Progress", "begin_shards", "commit_job", "complete_shard", "finish_shards", "settle"]

logger = logging.getLogger(__name__)

T = TypeVar("T")


def commit_job(
    context: JobContext,
    *,
    seal_etag: str | None = None,
    plan_etag: str | None = None,
    keep_replaced: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> ManifestRecord:
    """Make a sealed job's output visible, and return its manifest.

    Before: the job is sealed; if it was not planned, it is planned here. After: it is committed, what it
    replaced is gone, ``_SUCCESS`` is written, and nothing of the job stays pending. Run again, at any time
    and by anybody: goes on where it was left; on a committed job it returns the same manifest.

    Args:
        context: The job.
        seal_etag: ETag of the job's seal, if the caller was told it: any other seal is refused.
        plan_etag: The same for the plan.
        keep_replaced: Do not read the plan of a commit that has begun, and delete nothing by it: it is
            damaged. Old files stay beside the new ones.
        progress: Called after each completed upload.

    Raises:
        DestinationChanged: The planned partitions changed; plan again. Nothing was changed.
        DestinationNotEmpty: Conflict mode ``fail``, and there is data. Nothing was changed.
        LockHeld: Another living job is committing. Nothing was changed.
        InvalidRecord: A seal, plan or pendingset was changed after it was written; what was published has
            been rolled back.
        JobFailed: An upload is gone; what was published has been rolled back.
        NotReversible: The same, but the destination cannot be put back.
        JobClosed: The job is not sealed, or is aborted; the message says why, and whether files of it may
            still be visible.
        OutcomeUnknown: An answer was lost: commit again. Or the job could neither be finished nor wholly
            rolled back: the message says why, what may be visible, and what ends it.

    """
    store, counted = counting(context.store)
    run = CommitRun(
        replace(context, store=store),
        seal_etag,
        plan_etag,
        progress,
        keep_replaced=keep_replaced,
        requests=lambda: counted.counters,
    )
    with naming(context, "commit"):
        return _drive(run, _commit_step)


def begin_shards(
    context: JobContext, shards: int, *, seal_etag: str | None = None, plan_etag: str | None = None
) -> list[int]:
    """Begin a sealed job's commit, cut into shards, and return their numbers; none if it is committed.

    Before: the job is sealed. After: it is ``committing``. Run again: the shards it was cut into.

    Args:
        context: The job.
        shards: How many, from 1 to 4,096; the tasks are dealt out to them in turn.
        seal_etag: See `commit_job`.
        plan_etag: See `commit_job`.

    Raises:
        ValueError: More shards than a commit can be cut into.
        S3CommitError: As `commit_job`.

    """
    if shards > MAX_SHARDS:
        raise ValueError(f"a commit is cut into at most {MAX_SHARDS} shards, not {shards}")
    run = CommitRun(context, seal_etag, plan_etag, shards=max(shards, 1))
    with naming(context, "begin"):
        return _drive(run, _begin_step)


def complete_shard(
    context: JobContext, shard: int, *, progress: Callable[[Progress], None] | None = None
) -> None:
    """Complete the uploads of one shard. Twice, anywhere, at the same time: the same.

    Before: `begin_shards` returned this number. After: its objects are there, and a record says so.

    Raises:
        S3CommitError: As `commit_job`; where that rolls back, the whole job is rolled back.

    """
    run = CommitRun(context, progress=progress)
    with naming(context, f"complete of shard {shard}"):
        _drive(run, lambda run, current: _shard_step(run, current, shard))


def finish_shards(context: JobContext) -> ManifestRecord:
    """Finish a commit whose shards are all complete, and return the manifest. Repeatable.

    Raises:
        JobClosed: A shard is not complete.
        S3CommitError: As `commit_job`.

    """
    state = read_state(context)
    if state is not None and state.record.state == "committing":
        missing = sorted(set(range(state.record.shards)) - complete_shards(context, state.record))
        if missing and _same_state(state, read_state(context)):
            raise JobClosed(f"{context.name}: shards {missing} are not complete; complete them first")
    return commit_job(context)


def settle(context: JobContext) -> None:
    """Bring a job whose lock lapsed to an end, or fence it off, so that its lock may be taken.

    A job that was publishing is finished, or rolled back if it cannot be; one that was aborting is aborted;
    one that had not begun is fenced off: its own process finds its state changed and starts over, by
    asking for the lock.
    """
    current = read_state(context)
    if current is None:
        return
    if current.record.state in ("open", "sealed"):
        if move(context, current, current.record.state) is None:
            settle(context)
    elif current.record.state in ("committing", "committed"):
        try:
            commit_job(context)
        except (JobFailed, InvalidRecord, JobClosed):
            logger.warning("%s: could not be finished", context.name, exc_info=True)
            left = read_state(context)
            if left is not None and left.record.state in ("committing", "committed"):
                raise
            if left is not None and left.record.state == "aborting":
                abort_job(context)
    else:
        abort_job(context)


_Step: TypeAlias = Callable[[CommitRun, Stored[StateRecord] | None], T | None]


def _drive(run: CommitRun, step: _Step[T]) -> T:
    """Take steps until one returns something, reading the job's state before each."""
    context = run.context
    current: Stored[StateRecord] | None = None
    while True:
        try:
            current = read_state(context)
        except S3CommitError as error:
            _add_what_is_visible(error, current)
            raise
        if current is None or current.record.state == "aborted":
            run.drop_lock()
        try:
            result = step(run, current)
        except Verdict as outcome:
            raise outcome.reason from outcome.reason.__cause__
        except Overtaken:
            logger.info("%s: another process moved this job on", context.name)
            # It may have been the lock that was lost: what is left to do takes it anew.
            run.lock, run.lock_in_doubt = None, True
        except S3CommitError as error:
            # Whoever moves a job on also removes what this process may be reading: look again first.
            is_moved = False
            with noting(error, "reading the job's state again", "another process may have moved it on"):
                is_moved = not _same_state(current, read_state(context))
            if not is_moved:
                _add_what_is_visible(error, current)
                raise
        else:
            if result is not None:
                return result


def _same_state(before: Stored[StateRecord] | None, now: Stored[StateRecord] | None) -> bool:
    return (before and before.etag) == (now and now.etag)


def _commit_step(run: CommitRun, current: Stored[StateRecord] | None) -> ManifestRecord | None:
    if current is None:
        return _manifest_of_ended(run.context)
    match current.record.state:
        case "sealed":
            begin(run, current, settle)
        case "committing":
            with _rolling_back(run, current) as (job, seal, plan):
                _prepare(run, current.record, job, seal, plan)
                complete_all(run, current.record, seal)
                if move(run.context, current, "committed") is None:
                    raise Overtaken
                logger.info("%s: committed", run.context.name)
        case "committed":
            return finish(run, current)
        case _:
            raise _not_committing(run.context, current.record)
    return None


def _begin_step(run: CommitRun, current: Stored[StateRecord] | None) -> list[int] | None:
    if current is None:
        _manifest_of_ended(run.context)
        return []
    match current.record.state:
        case "sealed":
            begin(run, current, settle)
        case "committing":
            with _rolling_back(run, current) as (job, seal, plan):
                _prepare(run, current.record, job, seal, plan)
            return list(range(current.record.shards))
        case "committed":
            return []
        case _:
            raise _not_committing(run.context, current.record)
    return None


def _shard_step(run: CommitRun, current: Stored[StateRecord] | None, shard: int) -> bool:
    if current is None:
        return _manifest_of_ended(run.context) is not None
    if current.record.state == "committed":
        return True
    if current.record.state != "committing":
        raise _not_committing(run.context, current.record)
    if not 0 <= shard < current.record.shards:
        raise JobClosed(f"{run.context.name} has no shard {shard}; it was cut into {current.record.shards}")
    with _rolling_back(run, current) as (_, seal, _plan):
        complete_one_shard(run, current.record, seal, shard)
    return True


def _manifest_of_ended(context: JobContext) -> ManifestRecord:
    manifest = find_manifest(context)
    if manifest is None:
        raise gone(context)
    return manifest


def _not_committing(context: JobContext, state: StateRecord) -> JobClosed:
    if state.state in ("open", "sealed"):
        return JobClosed(f"{context.name} is {state.state}; seal it, and begin its commit, first")
    why = f" ({state.reason})" if state.reason else ""
    if state.state == "aborted" or not state.begun:
        return JobClosed(f"{context.name} is {state.state}{why}: nothing of it is or will become visible")
    return JobClosed(
        f"{context.name} is aborting{why}: its commit had begun, and files of it may be visible until they"
        " are taken back; finish that with: s3commit recover"
    )


def _add_what_is_visible(error: S3CommitError, current: Stored[StateRecord] | None) -> None:
    """Note on an error what a reader of the destination sees now, by the state that was read last."""
    if current is None or isinstance(error, NotReversible):
        return
    if current.record.state == "committing":
        error.add_note(
            "the job is committing: files of it may be visible; commit it again, or: s3commit recover"
        )
    elif current.record.state == "committed":
        error.add_note(
            "the job is committed: all files of it are visible; commit it again to finish what is left"
        )


@contextmanager
def _rolling_back(
    run: CommitRun, current: Stored[StateRecord]
) -> Iterator[tuple[JobRecord, SealRecord, PlanRecord]]:
    """Hold the lock while the block publishes, and roll the job back if the block finds it cannot be."""
    context, files = run.context, None
    # A state or plan that is damaged says nothing about the records that the commit goes by, and hinders no
    # upload: it is for somebody to decide, and nothing is undone because of it.
    job, plan = load_job(context), run.pinned_plan(current.record)
    if run.lock is None and job.options.needs_lock:
        run.lock = take_lock(context, settle)
    try:
        seal = run.pinned_seal(current.record)
        files = seal.counts.files
        yield job, seal, plan
    except (JobFailed, InvalidRecord) as error:
        reason: S3CommitError | None = error
        try:
            if _same_state(current, read_state(context)):
                _roll_back(context, current, error)
            else:
                reason = None
        except NotReversible:
            raise
        except S3CommitError as second:
            reason = _half_undone(context, files, error, second)
        if reason is None:
            raise Overtaken from error
        raise Verdict(reason) from error


def _roll_back(context: JobContext, current: Stored[StateRecord], error: S3CommitError) -> None:
    if not current.record.reversible:
        raise NotReversible(
            f"{context.name} can neither be finished ({error}) nor undone: old data is overwritten or"
            " deleted. Put back what is missing and commit again, or give up with: s3commit abort --force"
        ) from error
    logger.warning("%s: rolling back: %s", context.name, error)
    abort_job(context, reason=str(error))


def _half_undone(
    context: JobContext, files: int | None, error: S3CommitError, second: S3CommitError
) -> S3CommitError | None:
    """Return the outcome of a roll-back that failed, by the state it left; None if the job was moved on.

    Args:
        context: The job.
        files: How many files it has, if that is known.
        error: Why it cannot be committed.
        second: Why the roll-back did not end.

    """
    state = "not known"
    with noting(second, "reading the job's state", "it is not known"):
        standing = read_state(context)
        if standing is not None:
            state = standing.record.state
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


def _prepare(run: CommitRun, state: StateRecord, job: JobRecord, seal: SealRecord, plan: PlanRecord) -> None:
    _remove_stale_success(run.context, state.saved_success)
    if job.options.replace_order == "delete-then-publish":
        run.delete_planned(job, seal, plan)


def _remove_stale_success(context: JobContext, saved: SavedSuccess | None) -> None:
    if saved is None:
        return
    try:
        delete_record(
            context,
            context.bucket,
            context.layout.success,
            if_match=saved.etag if context.conditional else None,
        )
    except PreconditionFailed:
        logger.info("%s: _SUCCESS was written anew by another job", context.name)

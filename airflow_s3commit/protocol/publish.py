"""Job commit: the steps from a sealed job to a manifest, restartable at every line.

1. *begin*: check what was sealed and planned, take the lock, list again, move the state to ``committing``.
2. *publish*: remove a stale ``_SUCCESS``, complete every upload, move the state to ``committed``.
3. *finish*: write the manifest, delete what was replaced, write ``_SUCCESS``, clean up.

Whoever runs this for a job that somebody else has moved on reads the state again and goes on from there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from airflow_s3commit.exceptions import (
    DestinationChanged,
    DestinationNotEmpty,
    InvalidRecord,
    JobClosed,
    JobFailed,
    NoSuchKey,
    NotReversible,
    PreconditionFailed,
    S3CommitError,
)
from airflow_s3commit.protocol.abort import abort_job
from airflow_s3commit.protocol.cleanup import clean_staging
from airflow_s3commit.protocol.conflicts import (
    check_unchanged,
    find_plan,
    make_plan,
    planned_objects,
    verify_plan,
)
from airflow_s3commit.protocol.context import JobContext, naming
from airflow_s3commit.protocol.destination import join_uri
from airflow_s3commit.protocol.journal import Stored
from airflow_s3commit.protocol.lock import CommitLock, release_lock, take_lock
from airflow_s3commit.protocol.manifest import write_manifest, write_success
from airflow_s3commit.protocol.pendingset import PendingUpload
from airflow_s3commit.protocol.records import (
    JobRecord,
    ManifestRecord,
    PlanRecord,
    SavedSuccess,
    SealRecord,
    StateRecord,
)
from airflow_s3commit.protocol.sealed import (
    each_pendingset,
    load_seal,
    load_stage_seals,
    pendingset_key,
    verify_pendingsets,
)
from airflow_s3commit.protocol.setup import find_job, load_job
from airflow_s3commit.protocol.state import find_manifest, gone, move, read_state
from airflow_s3commit.protocol.tracking import tracked_uploads, untracked_uploads
from airflow_s3commit.protocol.uploads import (
    PendingId,
    abort_uploads,
    complete_uploads,
    delete_objects,
)
from airflow_s3commit.store.base import Doomed
from airflow_s3commit.store.calls import in_batches

__all__ = ["Progress", "commit_job", "settle"]

logger = logging.getLogger(__name__)

_DELETE_BATCH = 1_000


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the completion of uploads is."""

    files_done: int
    files_total: int
    bytes_done: int
    seconds: float


class _Overtaken(Exception):
    """Another process moved the job on."""


class _RolledBack(Exception):
    """The job failed and its destination was put back; carries the reason."""

    def __init__(self, reason: S3CommitError) -> None:
        super().__init__(str(reason))
        self.reason = reason


@dataclass
class _Commit:
    """One process's run of a job's commit."""

    context: JobContext
    seal_etag: str | None = None
    plan_etag: str | None = None
    progress: Callable[[Progress], None] = lambda _: None
    lock: CommitLock | None = None
    metrics: dict[str, int] = field(default_factory=dict)


def commit_job(
    context: JobContext,
    *,
    seal_etag: str | None = None,
    plan_etag: str | None = None,
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
        progress: Called after each completed upload.

    Raises:
        DestinationChanged: The planned partitions changed; plan again. Nothing was changed.
        DestinationNotEmpty: Conflict mode ``fail``, and there is data. Nothing was changed.
        LockHeld: Another living job is committing. Nothing was changed.
        InvalidRecord: A seal, plan or pendingset was changed after it was written; what was published has
            been rolled back.
        JobFailed: An upload is gone; what was published has been rolled back.
        NotReversible: The same, but the destination cannot be put back.
        JobClosed: The job is not sealed, or is aborted.
        OutcomeUnknown: An answer was lost; commit again.

    """
    run = _Commit(context, seal_etag, plan_etag, progress or (lambda _: None))
    with naming(context, "commit"):
        while True:
            current = read_state(context)
            try:
                manifest = _take_next_step(run, current)
            except _RolledBack as outcome:
                raise outcome.reason from None
            except _Overtaken:
                logger.info("%s: another process moved this job on", context.name)
            except S3CommitError:
                # Whoever moves a job on also removes what this process may be reading: look again first.
                if _same_state(current, read_state(context)):
                    raise
            else:
                if manifest is not None:
                    return manifest


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
            logger.warning("%s: could not be finished and was rolled back", context.name, exc_info=True)
    else:
        abort_job(context)


def _same_state(before: Stored[StateRecord] | None, now: Stored[StateRecord] | None) -> bool:
    return (before and before.etag) == (now and now.etag)


def _take_next_step(run: _Commit, current: Stored[StateRecord] | None) -> ManifestRecord | None:
    context = run.context
    if current is None:
        manifest = find_manifest(context)
        if manifest is None:
            raise gone(context)
        return manifest
    state = current.record.state
    if state == "sealed":
        _begin(run, current)
        return None
    if state == "committing":
        _publish_or_roll_back(run, current)
        return None
    if state == "committed":
        return _finish(run, current)
    if state == "open":
        raise JobClosed(f"{context.name} is not sealed; seal it first")
    raise JobClosed(f"{context.name} is {state}: nothing of it will become visible")


def _begin(run: _Commit, current: Stored[StateRecord]) -> None:
    """Check everything, then move from ``sealed`` to ``committing``; nothing visible changes."""
    context = run.context
    job = load_job(context)
    seal = load_seal(context, run.seal_etag or current.record.seal_etag)
    if seal.etag != current.record.seal_etag:
        raise InvalidRecord(
            f"{context.staging_uri(context.layout.seal)} is not the seal the job was closed with"
        )
    verify_pendingsets(context, load_stage_seals(context, seal.record))
    plan = find_plan(context, run.plan_etag)
    if job.options.needs_lock:
        run.lock = take_lock(context, settle)
        fresh = read_state(context)
        if fresh is None or fresh.etag != current.etag:
            raise _Overtaken
    try:
        if plan is None or plan.record.seal_etag != seal.etag:
            plan = make_plan(context, job, seal)
        else:
            verify_plan(context, plan.record)
            check_unchanged(context, job, seal.record, plan.record)
    except (DestinationChanged, DestinationNotEmpty):
        release_lock(context)
        raise
    begun = move(
        context,
        current,
        "committing",
        plan_etag=plan.etag,
        begun=True,
        reversible=_is_reversible(job, plan.record),
        saved_success=_standing_success(context),
    )
    if begun is None:
        raise _Overtaken
    logger.info("%s: commit begins, %d files", context.name, seal.record.counts.files)


def _publish_or_roll_back(run: _Commit, current: Stored[StateRecord]) -> None:
    context = run.context
    job = load_job(context)
    if run.lock is None and job.options.needs_lock:
        run.lock = take_lock(context, settle)
    try:
        seal, plan = _pinned(run, current.record)
        _publish(run, current, job, seal, plan)
    except (JobFailed, InvalidRecord) as error:
        _roll_back(context, current, error)
        raise _RolledBack(error) from error


def _publish(
    run: _Commit, current: Stored[StateRecord], job: JobRecord, seal: SealRecord, plan: PlanRecord
) -> None:
    """Complete every upload and pass the point of no return."""
    context = run.context
    _remove_stale_success(context, current.record.saved_success)
    if job.options.replace_order == "delete-then-publish":
        _delete_planned(run, plan)
    _complete(run, seal)
    committed = move(context, current, "committed")
    if committed is None:
        raise _Overtaken
    logger.info("%s: committed", context.name)


def _complete(run: _Commit, seal: SealRecord) -> None:
    context = run.context
    began, files, size = context.clock.monotonic(), 0, 0
    uploads = _sealed_uploads(context, seal)
    for upload in complete_uploads(context, _while_leased(run, uploads)):
        files, size = files + 1, size + upload.length
        seconds = context.clock.monotonic() - began
        run.progress(Progress(files, seal.counts.files, size, seconds))
    run.metrics["complete_ms"] = int((context.clock.monotonic() - began) * 1000)


def _finish(run: _Commit, current: Stored[StateRecord]) -> ManifestRecord:
    """Do what is left after the point of no return; every line may be run by several processes."""
    context = run.context
    job = find_job(context)
    if job is not None:
        seal, plan = _pinned(run, current.record)
        written = find_manifest(context) or write_manifest(context, job, seal, plan, run.metrics)
        if job.options.replace_order == "publish-then-delete":
            _delete_planned(run, plan)
        _discard_the_rest(context, seal)
        write_success(context, written, seal)
        release_lock(context)
    # Cleaning up removes the job's record first: where it is gone, all of the above has been done.
    clean_staging(context)
    manifest = find_manifest(context)
    if manifest is None:
        where = join_uri(context.bucket, context.layout.manifest)
        raise InvalidRecord(f"{context.name} was committed, but its manifest {where} has been removed")
    return manifest


def _roll_back(context: JobContext, current: Stored[StateRecord], error: S3CommitError) -> None:
    if not current.record.reversible:
        raise NotReversible(
            f"{context.name} can neither be finished ({error}) nor undone: old data is overwritten or"
            f" deleted."
            " Put back what is missing and commit again, or give up with: s3commit abort --force"
        ) from error
    logger.warning("%s: rolling back: %s", context.name, error)
    abort_job(context, reason=str(error))


def _is_reversible(job: JobRecord, plan: PlanRecord) -> bool:
    deletes_first = job.options.replace_order == "delete-then-publish" and plan.objects > 0
    return not deletes_first and plan.overwritten == 0


def _pinned(run: _Commit, state: StateRecord) -> tuple[SealRecord, PlanRecord]:
    """Read the seal and plan that the state names; a caller's own expectation must agree."""
    context = run.context
    for told, pinned, what in (
        (run.seal_etag, state.seal_etag, "seal"),
        (run.plan_etag, state.plan_etag, "plan"),
    ):
        if told is not None and told.strip('"') != pinned:
            raise JobClosed(f"{context.name} is being committed with another {what} than the one handed over")
    plan = find_plan(context, state.plan_etag)
    assert plan is not None
    return load_seal(context, state.seal_etag).record, plan.record


def _standing_success(context: JobContext) -> SavedSuccess | None:
    try:
        fetched = context.store.get(context.bucket, context.layout.success)
    except NoSuchKey:
        return None
    return SavedSuccess(etag=fetched.info.etag, body=fetched.body)


def _remove_stale_success(context: JobContext, saved: SavedSuccess | None) -> None:
    if saved is None:
        return
    try:
        context.store.delete(
            context.bucket, context.layout.success, if_match=saved.etag if context.conditional else None
        )
    except PreconditionFailed:
        logger.info("%s: _SUCCESS was written anew by another job", context.name)


def _sealed_uploads(context: JobContext, seal: SealRecord) -> Iterator[PendingUpload]:
    for _, _, pendingset in each_pendingset(context, load_stage_seals(context, seal)):
        yield from pendingset.commits


def _while_leased(run: _Commit, uploads: Iterable[PendingUpload]) -> Iterator[PendingUpload]:
    """Pass uploads on for as long as the lock is this job's."""
    for upload in uploads:
        if run.lock is not None and not run.lock.renew_if_due():
            raise _Overtaken
        yield upload


def _delete_planned(run: _Commit, plan: PlanRecord) -> None:
    """Delete what the plan replaces, each object only as it was planned; what the job overwrote is gone."""
    context = run.context
    doomed = (item for item in planned_objects(context, plan) if not item.overwritten)
    for batch in in_batches(doomed, _DELETE_BATCH):
        if run.lock is not None and not run.lock.renew_if_due():
            raise _Overtaken
        delete_objects(context, [Doomed(item.key, item.etag) for item in batch])


def _discard_the_rest(context: JobContext, seal: SealRecord) -> None:
    """Abort what task attempts that do not count left pending."""
    sealed = {
        pendingset_key(context, stage, task)
        for stage in load_stage_seals(context, seal)
        for task in stage.tasks
    }
    late = (PendingId.of(upload) for upload in tracked_uploads(context, skip=sealed) if upload is not None)
    discarded = abort_uploads(context, late) + abort_uploads(context, untracked_uploads(context))
    if discarded:
        logger.info("%s: discarded %d uploads of attempts that do not count", context.name, discarded)

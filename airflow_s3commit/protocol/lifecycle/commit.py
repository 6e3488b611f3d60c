"""Job commit: from a sealed job to a manifest, restartable at every line.

1. *begin*: check what was sealed and planned, list again, move the state to ``committing``.
2. *publish*: remove ``_SUCCESS``, complete every upload. A job that destroys old data before its last entry
   first creates ``begin``, its point of no return.
3. *enter*: create the job's last entry in the log, for other jobs the point of no return; the state follows:
   ``committed``, or ``lost`` if a file of a begun job is missing.
4. *finish*: write the manifest, delete what was replaced, write ``_SUCCESS``, clean up.

A process that finds the job moved on by another one reads the state again and resumes from there.
Shards let several workers complete uploads: `begin_shards`, then `complete_shard` for each of them in any
process, then `finish_shards`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias, TypeVar

from airflow_s3commit._causes import noting
from airflow_s3commit.exceptions import (
    AlreadyCommitted,
    InvalidRecord,
    JobClosed,
    JobFailed,
    NotReversible,
    S3CommitError,
)
from airflow_s3commit.protocol.lifecycle.abort import abort_job
from airflow_s3commit.protocol.lifecycle.begin import abandoned, begin_commit
from airflow_s3commit.protocol.lifecycle.enter import enter_begin, enter_commit, enter_lost, lost_files
from airflow_s3commit.protocol.lifecycle.manifest import FileList
from airflow_s3commit.protocol.lifecycle.partition_success import remove_older_markers, write_markers
from airflow_s3commit.protocol.lifecycle.publish import (
    complete_all,
    complete_one_shard,
    complete_shards,
    refuse_if_gone,
)
from airflow_s3commit.protocol.lifecycle.rollback import is_same_state, rolling_back
from airflow_s3commit.protocol.lifecycle.run import CommitRun, Overtaken, Verdict
from airflow_s3commit.protocol.lifecycle.seal import seal_job
from airflow_s3commit.protocol.lifecycle.success import (
    listed_keys,
    remove_older_success,
    remove_success,
    write_success,
)
from airflow_s3commit.protocol.metadata.cleanup import clean_staging
from airflow_s3commit.protocol.metadata.context import JobContext, naming
from airflow_s3commit.protocol.metadata.endings import record_ending
from airflow_s3commit.protocol.metadata.job_record import find_job, load_job
from airflow_s3commit.protocol.metadata.log_end import remember_end
from airflow_s3commit.protocol.metadata.manifests import find_manifest
from airflow_s3commit.protocol.metadata.pending_index import tracked_uploads, untracked_uploads
from airflow_s3commit.protocol.metadata.records import Stored
from airflow_s3commit.protocol.metadata.removal import PendingId, abort_uploads, delete_record
from airflow_s3commit.protocol.metadata.seals import pendingset_key
from airflow_s3commit.protocol.metadata.snapshot import write_checkpoint
from airflow_s3commit.protocol.metadata.state import (
    find_aborted,
    follow,
    gone,
    job_lost,
    known_state,
    move,
    read_state,
)
from airflow_s3commit.protocol.model.destination import join_uri
from airflow_s3commit.protocol.model.job import JobRecord, StateRecord
from airflow_s3commit.protocol.model.limits import MAX_SHARDS
from airflow_s3commit.protocol.model.log import LogEntry
from airflow_s3commit.protocol.model.manifest import ManifestRecord
from airflow_s3commit.protocol.model.plan import PlanRecord
from airflow_s3commit.protocol.model.progress import Progress
from airflow_s3commit.protocol.model.seal import SealRecord
from airflow_s3commit.protocol.model.success import MAX_FILENAMES
from airflow_s3commit.store.counting import CountingStore

logger = logging.getLogger(__name__)

T = TypeVar("T")


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
        LockHeld: A live job of a version without a log is committing. Nothing was changed.
        InvalidRecord: A seal, plan or pendingset was changed after it was written; what was published has
            been rolled back.
        JobFailed: An upload is gone; what was published has been rolled back.
        NotReversible: The same, but the destination cannot be restored.
        JobClosed: The job is not sealed, or is aborted; the message says why, and whether files of it may
            still be visible. Or it is lost: with fixed names or ``delete-then-publish`` uploads were gone
            after it had begun; the message names them.
        OutcomeUnknown: A response was lost: commit again. Or the job could be neither finished nor rolled
            back completely: the message says why, what may be visible, and how to end it.

    """
    counted = CountingStore(context.store)
    run = CommitRun(
        replace(context, store=counted), settle, seal_etag, plan_etag, progress,
        keep_replaced=keep_replaced, requests=lambda: counted.counters,
    )  # fmt: skip
    if stages is not None:
        seal_job(context, stages, closes=False)
        run.begins_from = ("open", "sealed")
    run.moved = known_state(context, *run.begins_from)
    with naming(context, "commit"):
        manifest = _drive(run, _commit_step)
    if (last := run.log.created_last()) is not None:
        remember_end(context.store, *last)
    return manifest


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
    run = CommitRun(context, settle, seal_etag, plan_etag, shards=max(shards, 1))
    with naming(context, "begin"):
        return _drive(run, _begin_step)


def complete_shard(
    context: JobContext, shard: int, *, progress: Callable[[Progress], None] | None = None
) -> None:
    """Complete the uploads of one shard. Repeatable by any process, also concurrently.

    Before: `begin_shards` returned this number. After: its objects exist, and a record says so.

    Raises:
        S3CommitError: As `commit_job`; a roll-back takes back the whole job.

    """
    run = CommitRun(context, settle, progress=progress)
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
        if missing and is_same_state(state, read_state(context)):
            raise JobClosed(f"{context.name}: shards {missing} are not complete; complete them first")
    return commit_job(context)


def settle(context: JobContext) -> None:
    """Drive another job to its end, so that this process may commit.

    A job that was publishing is finished, or rolled back if it cannot be; one that was aborting is aborted.
    One that had not begun is fenced off: its own process finds its state changed, and checks everything anew.
    """
    current = read_state(context)
    if current is None:
        return
    if current.record.state in ("open", "sealed"):
        if move(context, current, current.record.state) is None:
            settle(context)
    elif current.record.state in ("committing", "committed", "lost"):
        try:
            commit_job(context)
        except (JobFailed, InvalidRecord, JobClosed) as error:
            left = read_state(context)
            if left is not None and left.record.state in ("committing", "committed", "lost"):
                raise
            logger.warning("%s: could not be committed: %s", context.name, error)
            if left is not None and left.record.state == "aborting":
                abort_job(context)
    else:
        try:
            abort_job(context)
        except (AlreadyCommitted, NotReversible):
            # An abort that came too late had moved the state.
            settle(context)


_Step: TypeAlias = Callable[[CommitRun, Stored[StateRecord] | None], T | None]


def _drive(run: CommitRun, step: _Step[T]) -> T:
    """Take steps until one returns something; read the state before each, unless this process moved it."""
    context = run.context
    current: Stored[StateRecord] | None = None
    while True:
        try:
            current, run.moved = run.moved or read_state(context), None
        except S3CommitError as error:
            _add_what_is_visible(error, current)
            raise
        try:
            result = step(run, current)
        except Verdict as outcome:
            raise outcome.reason from outcome.reason.__cause__
        except Overtaken:
            logger.info("%s: another process moved this job on", context.name)
            run.log.is_read = False
        except S3CommitError as error:
            # A process that moves the job on also removes what this one may be reading: compare the states
            # first.
            is_moved = False
            with noting(error, "reading the job's state again", "another process may have moved it on"):
                is_moved = not is_same_state(current, read_state(context))
            if not is_moved:
                _add_what_is_visible(error, current)
                raise
            run.log.is_read = False
        else:
            if result is not None:
                return result


def _commit_step(run: CommitRun, current: Stored[StateRecord] | None) -> ManifestRecord | None:
    if current is None:
        return _manifest_of_ended(run.context)
    match current.record.state:
        case state if state in run.begins_from:
            begin_commit(run, current)
        case "committing":
            entry = run.log.ending()
            if entry is None:
                entry = _publish(run, current)
            if entry.kind == "abandon":
                abort_job(run.context)
                raise Verdict(abandoned(run.context, entry))
            run.moved = follow(run.context, current, entry)
            if run.moved is None:
                raise Overtaken
            logger.info("%s: %s, entry %d", run.context.name, run.moved.record.state, entry.number)
        case "committed":
            return _finish(run, current)
        case "lost":
            raise Verdict(_finish_lost(run))
        case "aborting" if (entry := run.log.ending() or run.log.begun()) and entry.kind != "abandon":
            # An abort moved the state too late.
            follow(run.context, current, entry)
        case _:
            raise _not_committing(run.context, current.record)
    return None


def _publish(run: CommitRun, current: Stored[StateRecord]) -> LogEntry:
    """Publish the job's files, and return the entry that ended it."""
    with rolling_back(run, current) as (job, seal, named):
        plan = _prepare(run, current.record, job, seal, named)
        complete_all(run, current.record, seal)
        if run.lost:
            return enter_lost(run, job, seal, plan, lost_files(run.lost))
        return enter_commit(run, current.record, job, seal, plan)


def _begin_step(run: CommitRun, current: Stored[StateRecord] | None) -> list[int] | None:
    if current is None:
        _manifest_of_ended(run.context)
        return []
    match current.record.state:
        case "sealed":
            begin_commit(run, current)
        case "committing":
            if run.log.ending() is None:
                with rolling_back(run, current) as (job, seal, plan):
                    _prepare(run, current.record, job, seal, plan)
            return list(range(current.record.shards))
        case "committed":
            return []
        case "lost":
            raise Verdict(_finish_lost(run))
        case _:
            raise _not_committing(run.context, current.record)
    return None


def _shard_step(run: CommitRun, current: Stored[StateRecord] | None, shard: int) -> bool | None:
    if current is None:
        return _manifest_of_ended(run.context) is not None
    if current.record.state == "committed":
        return True
    if current.record.state == "lost":
        raise Verdict(_finish_lost(run))
    if current.record.state != "committing":
        raise _not_committing(run.context, current.record)
    if not 0 <= shard < current.record.shards:
        raise JobClosed(f"{run.context.name} has no shard {shard}; it was cut into {current.record.shards}")
    with rolling_back(run, current) as (_, seal, _plan):
        complete_one_shard(run, current.record, seal, shard)
    if run.lost:
        # The other shards are completed too: the job can only end as lost.
        _commit_step(run, current)
        return None
    return True


def _prepare(
    run: CommitRun, state: StateRecord, job: JobRecord, seal: SealRecord, plan: PlanRecord
) -> PlanRecord:
    """Do what comes before publishing, and return the plan that counts."""
    if job.options.needs_begin:
        if run.log.begun() is None and job.options.track_pending == "task":
            # Stores that do not list pending uploads need ``track_pending="s3"``.
            refuse_if_gone(run, seal)
        plan = enter_begin(run, state, job, seal, plan)
    remove_success(run.context, state.saved_success)
    if (begun := run.log.begun()) is not None:
        remove_older_success(run.context, begun.number)
        if begun.marking:
            remove_older_markers(run.context, run.planned_partitions(job, seal, plan), begun.number)
    if job.options.replace_order == "delete-then-publish":
        run.delete_planned(job, seal, plan)
    return plan


def _finish(run: CommitRun, current: Stored[StateRecord]) -> ManifestRecord:
    """Run the steps after the point of no return; several processes may run each of them at once.

    Before: the job is ``committed``. After: the manifest and ``_SUCCESS`` exist; replaced objects, pending
    uploads and the staging are gone.

    Raises:
        InvalidRecord: A record was changed after the commit, or the manifest removed.

    """
    context = run.context
    try:
        manifest, keys = _account_for(run, current)
    except S3CommitError as error:
        # The job's record goes after all of this: if it is gone, another process has done it and is removing
        # what this one reads.
        is_ended = False
        with noting(error, "checking whether another process has finished the job", "it is committed"):
            is_ended = find_job(context) is None
        if not is_ended:
            raise
        found = find_manifest(context)
        if found is None:
            clean_staging(context)
            where = join_uri(context.bucket, context.layout.manifest)
            raise InvalidRecord(
                f"{context.name} was committed, but its manifest {where} has been removed"
            ) from error
        manifest, keys = found, partial(listed_keys, context, found)
    # Before the marker is written: see the module `success`.
    delete_record(context, context.staging_bucket, context.layout.job)
    # A process that has published removed the marker itself.
    write_success(context, manifest, keys, is_removed=run.files is not None)
    write_checkpoint(context.store, context.layout.destination, manifest.generation)
    clean_staging(context, has_record=False)
    return manifest


def _account_for(
    run: CommitRun, current: Stored[StateRecord]
) -> tuple[ManifestRecord, Callable[[], list[str]]]:
    """Write the manifest and delete what the job replaces; return the manifest, and its first files' keys."""
    context, job = run.context, load_job(run.context)
    seal = run.pinned_seal(current.record)
    entry = run.log.ending()
    if entry is None:
        # An older version committed the job and wrote no entry.
        entry = enter_commit(run, current.record, job, seal, run.pinned_plan(current.record))
    if entry.manifest is None:
        raise InvalidRecord(
            f"{context.name} is committed by its state, and abandoned by entry {entry.number} of the log: one"
            " of the two was changed"
        )
    record_ending(context, entry)
    plan = run.entered_plan(entry, current.record)
    if plan is not None and job.options.replace_order == "publish-then-delete":
        if entry.marking:
            remove_older_markers(context, run.planned_partitions(job, seal, plan), entry.number)
        run.delete_planned(job, seal, plan)
    if entry.marking:
        write_markers(context, entry.manifest)
    _discard_the_rest(run, seal)
    files = run.files or FileList.of_sealed(context, seal)
    return entry.manifest, lambda: files.first_keys(MAX_FILENAMES)


def _finish_lost(run: CommitRun) -> JobClosed:
    """Run the steps after a ``lost`` entry; return the error that says so.

    No marker is written: one that names an older commit would vouch for files that the job has overwritten.
    """
    context = run.context
    if run.log.ending() is None:
        # This process read the log before another one ended the job.
        run.log.read()
    entry = run.log.ending()
    if entry is not None:
        record_ending(context, entry)
    # Another process may have removed the job's record, which says where to read the log.
    ended = find_aborted(context)
    if ended is None or ended.lost is None:
        raise InvalidRecord(f"{context.name} is lost by its state, and no entry of the log says so")
    tracked = tracked_uploads(context, context.layout.staging.prefix)
    abort_uploads(context, (PendingId.of(upload) for upload in tracked if upload is not None))
    abort_uploads(context, untracked_uploads(context))
    clean_staging(context)
    return job_lost(context, ended.lost)


def _discard_the_rest(run: CommitRun, seal: SealRecord) -> None:
    """Abort the pending uploads of task attempts that do not count."""
    context = run.context
    discarded = abort_uploads(context, untracked_uploads(context))
    # Other programs' writers may give their files names without the job's id.
    if not (context.is_own and load_job(context).options.are_uploads_listed):
        sealed = {
            pendingset_key(context, stage, task) for stage in run.stage_seals(seal) for task in stage.tasks
        }
        late = tracked_uploads(context, skip=sealed)
        discarded += abort_uploads(context, (PendingId.of(one) for one in late if one is not None))
    if discarded:
        logger.info("%s: discarded %d uploads of attempts that do not count", context.name, discarded)


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
    """Add a note of what a reader of the destination sees, by the last known state."""
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

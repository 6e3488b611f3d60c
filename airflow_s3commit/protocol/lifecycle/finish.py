"""What follows the last entry of a job: its finish, and later the release of the files that it retains.

Several processes may run each step at once, and any process may run it again. A release is an entry of the
log too: after it no later one brings the files back. A process that dies after it leaves their deletion to
the next sweep.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from msgspec import UNSET

from airflow_s3commit._causes import noting
from airflow_s3commit.exceptions import InvalidRecord, PreconditionFailed, S3CommitError
from airflow_s3commit.protocol.lifecycle.manifest import FileList
from airflow_s3commit.protocol.lifecycle.run import CommitRun
from airflow_s3commit.protocol.lifecycle.success import (
    listed_keys,
    remove_older_markers,
    restore_success,
    write_markers,
    write_success,
)
from airflow_s3commit.protocol.metadata.context import JobContext, new_uuid
from airflow_s3commit.protocol.metadata.endings import record_ending
from airflow_s3commit.protocol.metadata.listing import data_objects
from airflow_s3commit.protocol.metadata.log import Log
from airflow_s3commit.protocol.metadata.manifests import find_manifest
from airflow_s3commit.protocol.metadata.pending_uploads import tracked_uploads, untracked_uploads
from airflow_s3commit.protocol.metadata.records import Stored
from airflow_s3commit.protocol.metadata.removal import (
    PendingId,
    abort_uploads,
    clean_staging,
    delete_objects,
    delete_record,
)
from airflow_s3commit.protocol.metadata.sealed_job import pendingset_key
from airflow_s3commit.protocol.metadata.snapshot import read_snapshot, write_checkpoint
from airflow_s3commit.protocol.metadata.state import find_job, load_job
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.job import StateRecord
from airflow_s3commit.protocol.model.layout import Layout, owner_of, partition_of
from airflow_s3commit.protocol.model.log import LogEntry, Release, RetainedCommit
from airflow_s3commit.protocol.model.manifest import MAX_FILENAMES, ManifestRecord
from airflow_s3commit.protocol.model.sealed_job import PlanRecord, SealRecord, StageSealRecord
from airflow_s3commit.store.base import ObjectInfo, ObjectStore, ObjectToDelete

logger = logging.getLogger(__name__)

#: Objects of a page of a listing: with fewer, all of a staging is known from one request.
_SHORT = 1_000


def finish_commit(run: CommitRun, current: Stored[StateRecord]) -> ManifestRecord:
    """Finish a committed job, and return its manifest.

    Before: the job is ``committed``. After: the manifest and ``_SUCCESS`` exist; replaced objects, pending
    uploads and the staging are gone. Repeatable by any process, also concurrently.

    Raises:
        InvalidRecord: A record was changed after the commit, or the manifest removed.

    """
    context = run.context
    left = None
    try:
        manifest, keys, left = _account_for(run, current)
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
    # A process that has published removed the marker itself.
    run.marker = write_success(context, manifest, keys, is_removed=run.files is not None)
    write_checkpoint(context.store, context.layout.destination, manifest.generation)
    # After the marker is written: see the module `success`.
    _clean(context, left, in_shards=current.record.shards > 1)
    return manifest


@dataclass(frozen=True, slots=True)
class _Left:
    """What is in the staging of a job whose uploads that do not count were aborted by their names.

    Attributes:
        counted: Keys of the pendingsets that count.
        unknown: Others may name uploads that are left.
        keys: Keys of all records but the job's record and state; None if there may be others.

    """

    counted: Collection[str]
    unknown: bool = True
    keys: list[str] | None = None


def _account_for(
    run: CommitRun, current: Stored[StateRecord]
) -> tuple[ManifestRecord, Callable[[], list[str]], _Left]:
    """Write the manifest, delete what the job replaces, and abort uploads that do not count, by their names.

    Returns:
        The manifest; the keys of its first files; and what is left in the staging.

    """
    context, job = run.context, load_job(run.context)
    entry = run.log.ending()
    if entry is None:
        # Another process created it; by its key, because a listing may lack it.
        run.log.read_on()
        entry = run.log.ending()
    if entry is None or entry.manifest is None:
        found = "has no entry in" if entry is None else f"is abandoned by entry {entry.number} of"
        raise InvalidRecord(
            f"{context.name} is committed by its state, and {found} the log: one of the two was changed"
        )
    # First: all else is in the staging, which another process may be removing.
    record_ending(context, entry)
    seal = run.pinned_seal(current.record)
    plan = run.entered_plan(entry, current.record)
    if plan is not None:
        if entry.marking:
            remove_older_markers(context, run.planned_partitions(job, seal, plan), entry.number)
        run.delete_planned(job, seal, plan)
    if entry.marking:
        write_markers(context, entry.manifest)
    discarded = abort_uploads(context, untracked_uploads(context))
    _log_discarded(context, discarded)
    files = run.files or FileList.of_sealed(context, seal)
    stages = run.stage_seals(seal)
    counted = {pendingset_key(context, stage, task): task for stage in stages for task in stage.tasks}
    unknown = not (context.is_own and job.options.track_pending == "task")
    keys = None
    if not unknown and not discarded and _is_all_sealed(context, stages):
        keys = [context.layout.seal, *counted, *_stage_seal_keys(context, seal), *_plan_keys(context)]
    return entry.manifest, lambda: files.first_keys(MAX_FILENAMES), _Left(counted, unknown, keys)


def _is_all_sealed(context: JobContext, stages: list[StageSealRecord]) -> bool:
    """Return whether no other task attempt can have left a pendingset in an own job without pending uploads.

    One of the same task has files too, and an attempt that withdraws aborts its uploads and then deletes its
    pendingset.
    """
    if not context.known.are_all or not stages or len(stages) != len(context.known.of(StageSealRecord)):
        return False
    return all(task.counts.files for stage in stages for task in stage.tasks)


def _stage_seal_keys(context: JobContext, seal: SealRecord) -> list[str]:
    return [
        context.layout.stage_seal(stage.stage, stage.stage_attempt)
        for stage in seal.stages
        if stage.within is UNSET
    ]


def _plan_keys(context: JobContext) -> Iterator[str]:
    """Yield the keys of all plans of an own job, and of their parts."""
    for stored in context.known.of(PlanRecord):
        plan = stored.record
        yield context.layout.plan(plan.plan_id)
        for part in plan.parts:
            if part.within is None:
                yield context.layout.plan_part(plan.plan_id, part.number)


def _clean(context: JobContext, left: _Left | None, *, in_shards: bool) -> None:
    """Remove the staging, after aborting the uploads that it names of task attempts that do not count.

    Other programs' writers may give their files names without the job's id. A short staging is listed once.

    Args:
        context: The job.
        left: What is in its staging; None if another process is removing it.
        in_shards: Slow workers may still record that their shards are complete.

    """
    if left is None:
        clean_staging(context)
        return
    if not left.unknown and not in_shards:
        clean_staging(context, keys=left.keys)
        return
    layout = context.layout
    listed = list(islice(context.store.list_objects(context.staging_bucket, layout.staging.prefix), _SHORT))
    is_whole = len(listed) < _SHORT
    recorded = [info for info in listed if info.key.startswith(layout.stages)] if is_whole else None
    late = tracked_uploads(context, skip=left.counted, listed=recorded)
    _log_discarded(context, abort_uploads(context, (PendingId.of(one) for one in late if one is not None)))
    keys = [info.key for info in listed] if is_whole else None
    if in_shards:
        # Before another listing: a worker that records its shard from here on removes that again.
        delete_record(context, context.staging_bucket, layout.job)
        keys = None
    clean_staging(context, keys=keys)


def _log_discarded(context: JobContext, uploads: int) -> None:
    if uploads:
        logger.info("%s: discarded %d uploads of attempts that do not count", context.name, uploads)


#: Tries to enter a release among the entries of jobs, before it gives up.
_RELEASES = 100


def release_files(context: JobContext, generations: Collection[int]) -> int:
    """Release what commits have removed and retained, delete it, and return how many files. Repeatable.

    Deletes first what earlier releases have left. Files that the table has again are kept.

    Args:
        context: What `context_of` returned: the id names the entry.
        generations: The commits; their retention has passed.

    Raises:
        PreconditionFailed: Other jobs' entries came first a hundred times in a row; sweep again.
        InvalidRecord: An entry of the log is damaged or missing.
        S3CommitError: A file could not be deleted; sweep again.

    """
    log, home = Log(context), context.layout.destination
    log.read()
    # A rollback that died may have left the marker of the commit whose files go now.
    restore_success(context, None, at_least=log.position)
    earlier = [commit for commit in _retained(context, log) if commit.released]
    deleted = _delete(context, log, earlier)
    finished = max((commit.released for commit in earlier), default=0)
    for _ in range(_RELEASES):
        # Decided again after each entry of another job: it may be a rollback to these files.
        due = sorted(
            {
                commit.removed
                for commit in _retained(context, log)
                if not commit.released and commit.removed in generations
            }
        )
        if not due:
            return deleted
        entry = LogEntry(
            **context.layout.place,
            number=log.position + 1,
            kind="release",
            epoch=log.epoch,
            release=Release(commits=due, finished=finished, since=context.now_ms()),
            nonce=context.new_id(),
        )
        if log.add(entry):
            logger.info("%s: entry %d releases what %s replaced", home.uri, entry.number, due)
            released = [one for one in _retained(context, log) if one.released == entry.number]
            return deleted + _delete(context, log, released)
    raise PreconditionFailed(
        f"{home.uri}: entries of jobs came first {_RELEASES} times in a row, so the retained files are not"
        " released yet; sweep again"
    )


def context_of(store: ObjectStore, destination: Destination, **settings: Any) -> JobContext:
    """Return a context for requests of a process that is no job, under an id of its own."""
    return JobContext(store, Layout.of(destination, new_uuid()), **settings)


def _retained(context: JobContext, log: Log) -> list[RetainedCommit]:
    snapshot = read_snapshot(context.store, context.layout.destination, at_least=log.position)
    return snapshot.retained() if snapshot is not None else []


def files_in_place(
    context: JobContext, retained: Collection[RetainedCommit]
) -> Iterator[tuple[int, ObjectInfo]]:
    """Yield the retained files that are there, each with the generation that replaced it."""
    home = context.layout.destination
    removed = {
        (partition, commit.job_id): commit.removed for commit in retained for partition in commit.partitions
    }
    for info in data_objects(context, {partition for partition, _ in removed}) if removed else ():
        held = (partition_of(info.key[len(home.prefix) :]), owner_of(info.key))
        if held in removed:
            yield removed[held], info


def _delete(context: JobContext, log: Log, released: Collection[RetainedCommit]) -> int:
    # Likewise.
    for commit in released if log.marking else ():
        remove_older_markers(context, commit.partitions, commit.removed)
    doomed = (ObjectToDelete(info.key, info.etag) for _, info in files_in_place(context, released))
    return delete_objects(context, doomed, "release")

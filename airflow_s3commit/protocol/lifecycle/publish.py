"""Publish a job's files: complete its uploads, all of them or those of one shard, and record the shard."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from airflow_s3commit.exceptions import InvalidRecord, JobFailed
from airflow_s3commit.protocol.lifecycle.enter import enter_begin
from airflow_s3commit.protocol.lifecycle.manifest import FileList
from airflow_s3commit.protocol.lifecycle.run import CommitRun, Progress
from airflow_s3commit.protocol.lifecycle.success import (
    remove_older_markers,
    remove_older_success,
    remove_success,
)
from airflow_s3commit.protocol.metadata import records
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.pending_uploads import complete_uploads, find_gone
from airflow_s3commit.protocol.metadata.removal import clean_if_ended
from airflow_s3commit.protocol.metadata.sealed_job import each_pendingset
from airflow_s3commit.protocol.metadata.state import pinned
from airflow_s3commit.protocol.model.codec import decode, encode, largest
from airflow_s3commit.protocol.model.destination import join_uri
from airflow_s3commit.protocol.model.job import JobRecord, StateRecord
from airflow_s3commit.protocol.model.pendingset import PendingUpload
from airflow_s3commit.protocol.model.sealed_job import Counts, PlanRecord, SealRecord, ShardRecord


def prepare(
    run: CommitRun, state: StateRecord, job: JobRecord, seal: SealRecord, plan: PlanRecord
) -> PlanRecord:
    """Do what comes before the first upload is completed, and return the plan that counts. Repeatable.

    After: the ``_SUCCESS`` that the state names is gone. A job that destroys old data before its last entry
    has created its ``begin``.

    Raises:
        JobFailed: An upload of a job that has not begun is gone. Nothing was changed.
        S3CommitError: As `enter_begin`.

    """
    if job.options.needs_begin:
        if run.log.begun() is None and job.options.track_pending == "task":
            # Stores that do not list pending uploads need ``track_pending="s3"``.
            _refuse_if_gone(run, seal)
        plan = enter_begin(run, state, job, seal, plan)
    if remove_success(run.context, state.saved_success):
        run.is_marker_assumed = False
    if (begun := run.log.begun()) is not None:
        remove_older_success(run.context, begun.number)
        if begun.marking:
            remove_older_markers(run.context, run.planned_partitions(job, seal, plan), begun.number)
    return plan


def complete_all(run: CommitRun, state: StateRecord, seal: SealRecord) -> None:
    """Complete every upload, except those of shards that are recorded as complete.

    Raises:
        JobFailed: An upload can never be completed.
        InvalidRecord: A pendingset is missing or was changed.

    """
    done = complete_shards(run.context, state) if state.shards > 1 else set()
    files = FileList(run.context) if not done else None
    _complete(run, seal, lambda number: number % state.shards not in done, files)
    run.files = files


def _refuse_if_gone(run: CommitRun, seal: SealRecord) -> None:
    """Raise if an upload of a job that has not begun is gone: after its ``begin`` it could only be lost.

    Raises:
        JobFailed: An upload is gone, and the job has not begun. Nothing was changed.
        InvalidRecord: A pendingset is missing or was changed.

    """
    gone = find_gone(run.context, _uploads_of(run, seal, lambda _: True, None))
    if gone is None:
        return
    # Another process may have begun, and completed it, or have ended the job.
    run.log.read()
    if run.log.begun() is None and run.log.ending() is None:
        raise JobFailed(
            f"{run.context.name}: the upload of {join_uri(gone.bucket, gone.destinationKey)} is gone: it was"
            " aborted, or a lifecycle rule removed it. Nothing was overwritten or deleted: write the job"
            " again"
        )


def complete_one_shard(run: CommitRun, state: StateRecord, seal: SealRecord, shard: int) -> None:
    """Complete the uploads of one shard, and write its record unless files of it are lost (``run.lost``).

    Raises:
        JobFailed: An upload can never be completed.
        InvalidRecord: A pendingset is missing or was changed.

    """
    counts = _complete(run, seal, lambda number: number % state.shards == shard, None)
    context = run.context
    if run.lost:
        return
    seal_etag, _ = pinned(context, state)
    record = ShardRecord(**context.layout.place, shard=shard, seal_etag=seal_etag, counts=counts)
    context.store.put(context.staging_bucket, context.layout.shard(shard), encode(record))
    clean_if_ended(context)


def complete_shards(context: JobContext, state: StateRecord) -> set[int]:
    """Return the numbers of the shards that are recorded as complete."""
    store, bucket = context.store, context.staging_bucket
    keys = {context.layout.shard(shard): shard for shard in range(state.shards)}
    listed = [info for info in store.list_objects(bucket, context.layout.shards) if info.key in keys]
    shards: set[int] = set()
    for info, outcome in records.fetch_listed(store, bucket, listed, lambda _: largest(ShardRecord)):
        if isinstance(outcome, InvalidRecord):
            raise outcome
        record = decode(ShardRecord, outcome.body, context.staging_uri(info.key))
        if (record.job_id, record.seal_etag) == (context.job_id, state.seal_etag):
            shards.add(keys[info.key])
    return shards


def _complete(
    run: CommitRun, seal: SealRecord, selected: Callable[[int], bool], files: FileList | None
) -> Counts:
    """Complete the uploads of the selected tasks, and list them in ``files``."""
    context, store = run.context, run.context.store
    clock, total = context.clock, seal.counts.files
    began, before = clock.monotonic(), store.load.retries
    done = size = 0
    # After a ``begin`` there is no way back: the others are completed, and the job ends as lost.
    lost = run.lost if run.log.begun() is not None else None
    for upload in complete_uploads(context, _uploads_of(run, seal, selected, files), lost):
        done += 1
        size += upload.length
        if run.progress is not None:
            load = store.load
            seconds = clock.monotonic() - began
            run.progress(Progress(done, total, size, seconds, load.concurrency, load.retries - before))
    load = store.load
    end = Progress(done, total, size, clock.monotonic() - began, load.concurrency, load.retries - before)
    run.metrics.update(
        complete_ms=int(end.seconds * 1000),
        complete_files=end.files_done,
        complete_bytes=end.bytes_done,
        complete_files_per_second=round(end.files_per_second),
        complete_concurrency=end.concurrency,
        complete_retries=end.retries,
    )
    return Counts(files=done, bytes=size, rows=None)


def _uploads_of(
    run: CommitRun, seal: SealRecord, selected: Callable[[int], bool], files: FileList | None
) -> Iterator[PendingUpload]:
    """Yield the uploads of the selected tasks."""
    for _, _, pendingset in each_pendingset(run.context, run.stage_seals(seal), selected):
        for upload in pendingset.commits:
            if files is not None:
                files.add(upload)
            yield upload

"""Publish a job's files: complete its uploads, all of them or those of one shard, and record the shard."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from airflow_s3commit.exceptions import InvalidRecord
from airflow_s3commit.protocol.lifecycle.manifest import FileList
from airflow_s3commit.protocol.lifecycle.run import CommitRun, Progress
from airflow_s3commit.protocol.metadata import records
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.pending_uploads import complete_uploads
from airflow_s3commit.protocol.metadata.removal import clean_if_ended
from airflow_s3commit.protocol.metadata.sealed_job import each_pendingset
from airflow_s3commit.protocol.metadata.state import pinned
from airflow_s3commit.protocol.model.codec import decode, encode, largest
from airflow_s3commit.protocol.model.job import StateRecord
from airflow_s3commit.protocol.model.pendingset import PendingUpload
from airflow_s3commit.protocol.model.sealed_job import Counts, SealRecord, ShardRecord


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


def complete_one_shard(run: CommitRun, state: StateRecord, seal: SealRecord, shard: int) -> None:
    """Complete the uploads of one shard, and write its record.

    Raises:
        JobFailed: An upload can never be completed.
        InvalidRecord: A pendingset is missing or was changed.

    """
    counts = _complete(run, seal, lambda number: number % state.shards == shard, None)
    context = run.context
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
    for upload in complete_uploads(context, _uploads_of(run, seal, selected, files)):
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

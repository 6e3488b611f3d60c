"""Completing a job's uploads: all of them, or one shard's, with a record of each shard that is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from airflow_s3commit.exceptions import InvalidRecord
from airflow_s3commit.protocol import journal
from airflow_s3commit.protocol.cleanup import clean_if_ended
from airflow_s3commit.protocol.commit_run import CommitRun
from airflow_s3commit.protocol.context import JobContext
from airflow_s3commit.protocol.file_list import FileList
from airflow_s3commit.protocol.pendingset import PendingUpload
from airflow_s3commit.protocol.progress import Progress
from airflow_s3commit.protocol.records import (
    Counts,
    SealRecord,
    ShardRecord,
    StateRecord,
    decode,
    encode,
    largest,
)
from airflow_s3commit.protocol.sealed import each_pendingset, load_stage_seals
from airflow_s3commit.protocol.state import pinned_etags
from airflow_s3commit.protocol.uploads import complete_uploads

__all__ = ["complete_all", "complete_one_shard", "complete_shards"]


def complete_all(run: CommitRun, state: StateRecord, seal: SealRecord) -> None:
    """Complete every upload, but for those of shards that are known to be complete.

    Raises:
        JobFailed: An upload cannot be completed and never will be.
        InvalidRecord: A pendingset is missing or was changed.
        Overtaken: Another job took the lock.

    """
    done = complete_shards(run.context, state) if state.shards > 1 else set()
    files = FileList(run.context) if not done else None
    _complete(run, seal, lambda number: number % state.shards not in done, files)
    run.files = files


def complete_one_shard(run: CommitRun, state: StateRecord, seal: SealRecord, shard: int) -> None:
    """Complete the uploads of one shard, and write down that they are.

    Raises:
        JobFailed: An upload cannot be completed and never will be.
        InvalidRecord: A pendingset is missing or was changed.
        Overtaken: Another job took the lock.

    """
    counts = _complete(run, seal, lambda number: number % state.shards == shard, None)
    context = run.context
    seal_etag, _ = pinned_etags(context, state)
    record = ShardRecord(**context.layout.place, shard=shard, seal_etag=seal_etag, counts=counts)
    context.store.put(context.staging_bucket, context.layout.shard(shard), encode(record))
    clean_if_ended(context)


def complete_shards(context: JobContext, state: StateRecord) -> set[int]:
    """Return the numbers of the shards that are known to be complete."""
    store, bucket = context.store, context.staging_bucket
    keys = {context.layout.shard(shard): shard for shard in range(state.shards)}
    listed = [info for info in store.list_objects(bucket, context.layout.shards) if info.key in keys]
    shards: set[int] = set()
    for info, outcome in journal.fetch_listed(store, bucket, listed, lambda _: largest(ShardRecord)):
        if isinstance(outcome, InvalidRecord):
            raise outcome
        record = decode(ShardRecord, outcome.body, context.staging_uri(info.key))
        if (record.job_id, record.seal_etag) == (context.job_id, state.seal_etag):
            shards.add(keys[info.key])
    return shards


def _complete(
    run: CommitRun, seal: SealRecord, wanted: Callable[[int], bool], files: FileList | None
) -> Counts:
    """Complete the uploads of the wanted tasks, numbered in the seals' order, and list them in ``files``."""
    context, store = run.context, run.context.store
    clock, total = context.clock, seal.counts.files
    began, before = clock.monotonic(), store.effort.retries
    done = size = 0
    for upload in complete_uploads(context, _uploads_of(run, seal, wanted, files)):
        done += 1
        size += upload.length
        if run.progress is not None:
            effort = store.effort
            seconds = clock.monotonic() - began
            run.progress(Progress(done, total, size, seconds, effort.concurrency, effort.retries - before))
    effort = store.effort
    end = Progress(done, total, size, clock.monotonic() - began, effort.concurrency, effort.retries - before)
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
    run: CommitRun, seal: SealRecord, wanted: Callable[[int], bool], files: FileList | None
) -> Iterator[PendingUpload]:
    """Yield the uploads of the wanted tasks for as long as the lock is this job's."""
    stages = load_stage_seals(run.context, seal)
    for _, _, pendingset in each_pendingset(run.context, stages, wanted):
        for upload in pendingset.commits:
            run.keep_lease()
            if files is not None:
                files.add(upload)
            yield upload

"""Seal: record, once, which task attempts of a stage count, and which stage attempts of a job."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from airflow_s3commit.exceptions import InvalidRecord, JobClosed
from airflow_s3commit.protocol.lifecycle.seal import make_seal, make_stage_seal, sealed_tasks
from airflow_s3commit.protocol.metadata import records
from airflow_s3commit.protocol.metadata.context import JobContext, naming
from airflow_s3commit.protocol.metadata.records import Stored
from airflow_s3commit.protocol.metadata.removal import delete_record
from airflow_s3commit.protocol.metadata.sealed_job import each_pendingset, load_stage_seals
from airflow_s3commit.protocol.model.destination import join_uri
from airflow_s3commit.protocol.model.job import Removal
from airflow_s3commit.protocol.model.layout import owner_of
from airflow_s3commit.protocol.model.ownership import check_place
from airflow_s3commit.protocol.model.pendingset import PendingUpload
from airflow_s3commit.protocol.model.places import seal_key
from airflow_s3commit.protocol.model.sealed_job import CommittedTask, SealRecord, StageSealRecord
from airflow_s3commit.protocol.steps.setup import find_end, load_job, refuse_ended

logger = logging.getLogger(__name__)

R = TypeVar("R", StageSealRecord, SealRecord)


def seal_stage(
    context: JobContext,
    stage: str,
    stage_attempt: str,
    tasks: Iterable[CommittedTask],
    *,
    removes: Removal | None = None,
    emptied: Iterable[str] = (),
) -> StageSealRecord:
    """Record which task attempts of a stage count. Repeatable by any process with the same tasks.

    Before: every task attempt was committed. After: the seal names their pendingsets by their digests. Each
    of them is read once, so that a damaged one fails here and not at the commit.

    Args:
        context: The job.
        stage: Name of the stage.
        stage_attempt: Id of the stage attempt.
        tasks: One committed attempt of each task.
        removes: What the writer asked to remove, for conflict mode ``as-written``.
        emptied: Partitions among those that get no files.

    Raises:
        DuplicateOutput: A task occurs twice, or a key is written twice.
        InvalidRecord: A pendingset is damaged, another job's, or not the one that was committed.
        AlreadyCommitted: The job is committed.
        JobClosed: The job is aborted, or the stage attempt was sealed with other tasks.
        NoSuchJob: The job was never set up.

    """
    with naming(context, f"seal of stage {stage}-{stage_attempt}"):
        load_job(context)
        sealed = sealed_tasks(context, stage, stage_attempt, tasks)
        record = make_stage_seal(context, stage, stage_attempt, sealed, removes=removes, emptied=emptied)
        key = context.layout.stage_seal(stage, stage_attempt)
        stored = records.create(context.store, context.staging_bucket, key, record)
        _refuse_if_late(context, stored, record, context.staging_bucket, key)
        if stored.record.tasks != sealed:
            raise JobClosed(f"{context.staging_uri(key)} was sealed before, with other task attempts")
    return stored.record


def seal(context: JobContext, stages: Sequence[tuple[str, str]]) -> SealRecord:
    """Create the job's seal, from the seals of its stages. Repeatable by any process with the same stages.

    Before: each stage attempt is sealed. After: the job's seal names them by their digests.

    Args:
        context: The job.
        stages: Pairs of stage and stage attempt; none commits no files.

    Raises:
        DuplicateOutput: Two attempts of one stage, or two stages that write one key.
        InvalidRecord: A stage's seal is missing, damaged, or another job's.
        AlreadyCommitted: The job is committed.
        JobClosed: The job is aborted, or was sealed with other stages.
        NoSuchJob: The job was never set up.

    """
    with naming(context, "seal"):
        load_job(context)
        record = make_seal(context, sorted(stages), {})
        key = seal_key(context.layout.destination, context.job_id)
        stored = records.create(context.store, context.bucket, key, record)
        _refuse_if_late(context, stored, record, context.bucket, key)
        if stored.record.stages != record.stages:
            raise JobClosed(f"{context.name} was sealed before, with other stages or stage attempts")
    logger.info("%s: sealed, %d files", context.name, stored.record.counts.files)
    return stored.record


def _refuse_if_late(context: JobContext, stored: Stored[R], record: R, bucket: str, key: str) -> None:
    """Raise if the job has ended, after deleting the seal if this process wrote it: write, then look."""
    end = find_end(context)
    if end is not None and stored.record.nonce == record.nonce:
        delete_record(context, bucket, key)
    refuse_ended(context, end)


def find_seal(context: JobContext) -> Stored[SealRecord] | None:
    """Read the job's seal; None if it is not sealed.

    Raises:
        InvalidRecord: It is damaged, or of another job or place.

    """
    key = seal_key(context.layout.destination, context.job_id)
    stored = records.find(context.store, context.bucket, key, SealRecord)
    if stored is not None:
        check_place(stored.record, context.layout, join_uri(context.bucket, key))
    return stored


def sealed_uploads(
    context: JobContext, record: SealRecord, selected: Callable[[int], bool] = lambda _: True
) -> Iterator[PendingUpload]:
    """Yield the sealed uploads in the seals' order, each checked to be the job's own.

    Args:
        context: The job.
        record: Its seal.
        selected: Returns whether to read the task attempt with a number, in the seals' order.

    Raises:
        InvalidRecord: A record was changed, or a file lies outside the destination or does not have the job's
            id in its name: to complete it could overwrite another job's file.

    """
    for _, _, pendingset in each_pendingset(context, load_stage_seals(context, record), selected):
        for upload in pendingset.commits:
            if owner_of(upload.destinationKey) != context.job_id:
                raise InvalidRecord(
                    f"{context.name}: the sealed file {upload.destinationKey} does not have the job's id in"
                    " its name"
                )
            yield upload


def load_seal(context: JobContext, sha256: str | None = None) -> SealRecord:
    """Read the job's seal, and compare its SHA-256 with the one that the caller was given, if any.

    Raises:
        JobClosed: The job is not sealed.
        InvalidRecord: The seal is damaged, another job's, or not the one that the caller expects.

    """
    stored = find_seal(context)
    if stored is None:
        raise JobClosed(f"{context.name} is not sealed: seal it first, or abort it")
    if sha256 is not None and stored.sha256 != sha256:
        where = join_uri(context.bucket, seal_key(context.layout.destination, context.job_id))
        raise InvalidRecord(f"{where} is not the seal that was handed over: its SHA-256 is {stored.sha256}")
    return stored.record

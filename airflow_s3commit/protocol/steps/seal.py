"""Seal: record, once, which task attempts of a stage count, and which stage attempts of a job."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from airflow_s3commit.exceptions import JobClosed
from airflow_s3commit.protocol.lifecycle.seal import make_seal, make_stage_seal, sealed_tasks
from airflow_s3commit.protocol.metadata import records
from airflow_s3commit.protocol.metadata.context import JobContext, naming
from airflow_s3commit.protocol.metadata.removal import delete_record
from airflow_s3commit.protocol.model.job import Removal
from airflow_s3commit.protocol.model.places import seal_key
from airflow_s3commit.protocol.model.sealed_job import CommittedTask, SealRecord, StageSealRecord
from airflow_s3commit.protocol.steps.abort import undo
from airflow_s3commit.protocol.steps.entry import Entry
from airflow_s3commit.protocol.steps.finish import finish
from airflow_s3commit.protocol.steps.setup import find_end, load_job, refuse_ended

logger = logging.getLogger(__name__)


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
        if (end := find_end(context)) is not None:
            if stored.record.nonce == record.nonce:
                delete_record(context, context.staging_bucket, key)
            refuse_ended(context, end)
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
        # Write, then look: another process may have ended the job since the first look.
        if (end := find_end(context)) is not None:
            if stored.record.nonce == record.nonce:
                _end_again(context, end)
            refuse_ended(context, end)
        if stored.record.stages != record.stages:
            raise JobClosed(f"{context.name} was sealed before, with other stages or stage attempts")
    logger.info("%s: sealed, %d files", context.name, stored.record.counts.files)
    return stored.record


def _end_again(context: JobContext, end: Entry) -> None:
    """Do again what follows the end of a job.

    A commit may have gone by the seal that came late. Who undoes that commit needs the seal to find its
    objects, and looks only once; so the seal is not taken back, but goes with the rest.
    """
    if end.kind == "commit":
        finish(context, end)
    else:
        undo(context, end)

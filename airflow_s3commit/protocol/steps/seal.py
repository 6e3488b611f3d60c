"""Seal a job: record, once, which stage attempts count. It closes the job to further output."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial

from airflow_s3commit.exceptions import DuplicateOutput, InvalidOption, JobClosed
from airflow_s3commit.protocol.metadata.context import JobContext, create_record, naming
from airflow_s3commit.protocol.metadata.sealed_job import each_pendingset, load_stage_seal, sealed_attempts
from airflow_s3commit.protocol.model.destination import join_uri
from airflow_s3commit.protocol.model.job import Removal
from airflow_s3commit.protocol.model.layout import seal_key
from airflow_s3commit.protocol.model.sealed_job import (
    Counts,
    SealedStage,
    SealRecord,
    SealReference,
    StageSealRecord,
)
from airflow_s3commit.protocol.model.table import Entry
from airflow_s3commit.protocol.steps.abort import undo
from airflow_s3commit.protocol.steps.finish import finish
from airflow_s3commit.protocol.steps.publish import refuse_output
from airflow_s3commit.protocol.steps.setup import (
    job_record,
    refuse_ended_since,
    refusing_ended,
)
from airflow_s3commit.protocol.steps.stage import Keys, Schemas, slim

logger = logging.getLogger(__name__)


def seal(
    context: JobContext,
    stages: Sequence[tuple[str, str]] | None = None,
    *,
    digests: Mapping[tuple[str, str], str] | None = None,
) -> SealReference:
    """Create the job's seal, from the seals of its stages. Repeatable by any process with the same stages.

    Before: each stage attempt is sealed. After: the job's seal names them by their digests.

    For the arguments and errors see `Job.seal`.
    """
    with naming(context, "seal"), refusing_ended(context):
        job = job_record(context)
        chosen = sorted(stages) if stages is not None else sealed_attempts(context)
        if stages is None and not chosen:
            raise JobClosed(f"{context.name} has no sealed stage; to commit it empty, seal it with stages=[]")
        record = _make_seal(context, chosen, digests or {})
        if job.publishes:
            refuse_output(context, record.schemas, record.partitions)
        key = seal_key(context.layout.destination, context.job_id)
        stored = create_record(context.store, context.bucket, key, record)
        refuse_ended_since(
            context,
            is_own=stored.record.nonce == record.nonce,
            withdraw=partial(_end_again, context),
            doing=f"clearing away the late seal of {context.name}",
            left="a sweep does it",
        )
        if stored.record.stages != record.stages:
            raise JobClosed(f"{context.name} was sealed before, with other stages or stage attempts")
    logger.info("%s: sealed, %d files", context.name, stored.record.counts.files)
    return SealReference(
        location=join_uri(context.bucket, key),
        sha256=stored.sha256,
        tasks=sum(stage.tasks for stage in stored.record.stages),
        counts=stored.record.counts,
        partitions=stored.record.partitions,
    )


def _end_again(context: JobContext, end: Entry) -> None:
    """Do again what follows the end of a job.

    A commit may have gone by the seal that came late. Who undoes that commit needs the seal to find its
    objects, and looks only once; so the seal is not taken back, but goes with the rest.
    """
    if end.kind == "commit":
        finish(context, end)
    else:
        undo(context, end)


def _make_seal(
    context: JobContext, chosen: Sequence[tuple[str, str]], digests: Mapping[tuple[str, str], str]
) -> SealRecord:
    """Return the seal of a job, made from the seals of its stages."""
    names = [stage for stage, _ in chosen]
    doubled = {stage for stage in names if names.count(stage) > 1}
    if doubled:
        raise DuplicateOutput(
            f"{context.name}: several sealed attempts of stage {min(doubled)}; say which one counts"
        )
    loaded = [
        load_stage_seal(context, stage, attempt, digests.get((stage, attempt))) for stage, attempt in chosen
    ]
    if len(loaded) > 1:
        _refuse_shared_keys(context, [stored.record for stored in loaded])
    partitions: dict[str, Counts] = {}
    schemas = Schemas()
    for stored in loaded:
        schemas.add(stored.record.schemas, has_files=stored.record.counts.files > 0)
        for name, counts in stored.record.partitions.items():
            partitions[name] = partitions.get(name, Counts()).plus(counts)
    return SealRecord(
        **context.layout.place,
        stages=[
            SealedStage(
                stage=stored.record.stage,
                stage_attempt=stored.record.stage_attempt,
                tasks=len(stored.record.tasks),
                counts=stored.record.counts,
                sha256=stored.sha256,
            )
            for stored in loaded
        ],
        counts=Counts.total(stored.record.counts for stored in loaded),
        partitions=slim(dict(sorted(partitions.items()))),
        removes=_removal(context, [stored.record for stored in loaded]),
        schemas=schemas.known(),
        created=context.now_ms(),
        nonce=context.new_id(),
    )


def _removal(context: JobContext, stages: list[StageSealRecord]) -> Removal | None:
    """Return what all stages together asked to remove.

    Raises:
        InvalidOption: Some stages overwrite partitions, others add to other ones.
    """
    asked = {stage.removes or "nothing" for stage in stages}
    if all(stage.removes is None for stage in stages):
        return None
    if "everything" in asked or len(asked) == 1:
        return "everything" if "everything" in asked else asked.pop()
    overwritten = {name for stage in stages if stage.removes == "partitions" for name in stage.partitions}
    for stage in stages:
        added = stage.partitions.keys() - overwritten
        if added:
            raise InvalidOption(
                f"{context.name}: stage {stage.stage} adds to partition {min(added)!r}, and other stages"
                " overwrite partitions, which one commit cannot do: name the job's conflict mode, or use two"
                " jobs"
            )
    return "partitions"


def _refuse_shared_keys(context: JobContext, stages: list[StageSealRecord]) -> None:
    keys = Keys()
    for _, task, pendingset in each_pendingset(context, stages):
        for upload in pendingset.commits:
            keys.add(upload.destinationKey, task)

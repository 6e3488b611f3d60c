"""Sealing: record, once, which task attempts of a stage and which stages of a job count."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from airflow_s3commit.exceptions import DuplicateOutput, InvalidOption, InvalidRecord, JobClosed
from airflow_s3commit.protocol.metadata import records
from airflow_s3commit.protocol.metadata.context import JobContext, naming
from airflow_s3commit.protocol.metadata.records import Stored
from airflow_s3commit.protocol.metadata.removal import clean_if_ended
from airflow_s3commit.protocol.metadata.sealed_job import (
    each_pendingset,
    held,
    held_stage_seal,
    load_stage_seal,
    sealed_attempts,
    stage_reference,
)
from airflow_s3commit.protocol.metadata.state import check_state, gone, last_state, move, read_state
from airflow_s3commit.protocol.model.codec import KIB, MAX_SCHEMAS, encode, text_digest
from airflow_s3commit.protocol.model.job import Removal, StateRecord
from airflow_s3commit.protocol.model.layout import partition_of
from airflow_s3commit.protocol.model.pendingset import PendingUpload
from airflow_s3commit.protocol.model.sealed_job import (
    WITHIN,
    CommittedTask,
    Counts,
    SealedStage,
    SealedTask,
    SealRecord,
    SealReference,
    StageSealRecord,
)

logger = logging.getLogger(__name__)


#: Maximum number of partitions that a seal keeps column statistics for.
_PARTITIONS_WITH_COLUMNS = 1_000

#: Bytes of a stage's seal beyond which it is an object: some thousand tasks, or a hundred partitions with
#: statistics. The seal of the job is read whole, also where its stages do not matter.
_WITHIN_BYTES = 256 * KIB


def seal_stage(
    context: JobContext,
    stage: str,
    stage_attempt: str,
    tasks: Iterable[CommittedTask],
    *,
    removes: Removal | None = None,
    emptied: Iterable[str] = (),
) -> SealReference:
    """Record which task attempts of a stage count. Output of any other attempt never becomes visible.

    Before: every task attempt was committed. After: the stage is sealed. Repeatable: the same tasks give the
    same seal. Reads every pendingset once, so that a damaged one fails here and not at the commit.

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
        JobClosed: The job is not open, or the stage attempt was sealed with other tasks.

    """
    with naming(context, f"seal of stage {stage}-{stage_attempt}"):
        sealed = sealed_tasks(context, stage, stage_attempt, tasks)
        key = context.layout.stage_seal(stage, stage_attempt)
        state = last_state(context, "open")
        stored = held_stage_seal(context, stage, stage_attempt)
        if stored is None and (state is None or state.record.state != "open"):
            stored = records.find(context.store, context.staging_bucket, key, StageSealRecord)
        if stored is None:
            check_state(context, state, "open")
            stored = _write_stage_seal(
                context, stage, stage_attempt, sealed, removes=removes, emptied=emptied
            )
        if stored.record.tasks != sealed or stored.record.job_id != context.job_id:
            raise JobClosed(
                f"{context.staging_uri(key)} was sealed before, with other task attempts: a stage attempt is"
                " one write. Write all rows at once, give each write a stage of its own, or run the stage"
                " again as a new attempt"
            )
        context.known.keep(key, stored)
    logger.info(
        "%s: sealed stage %s-%s, %d tasks, %d files",
        context.name,
        stage,
        stage_attempt,
        len(sealed),
        stored.record.counts.files,
    )
    return stage_reference(context, stored)


def seal_job(
    context: JobContext,
    stages: Sequence[tuple[str, str]] | None = None,
    *,
    etags: Mapping[tuple[str, str], str] | None = None,
    closes: bool = True,
) -> SealReference:
    """Record which stage attempts count, and close the job to further output.

    Before: the job is open and its stages are sealed. After: the job is ``sealed``. Repeatable: the same
    stages give the same seal.

    Args:
        context: The job.
        stages: Pairs of stage and stage attempt; None takes every sealed one, and requires at least one.
        etags: Expected ETags of the stages' seals; any other seal is refused.
        closes: Move the job to ``sealed``. False leaves that to a commit, which moves it further at once.

    Raises:
        DuplicateOutput: Two sealed attempts of one stage, or two stages that write one key.
        JobClosed: The job is not open, or was sealed with other stages.
        InvalidRecord: A seal is missing, damaged, or another job's.

    """
    with naming(context, "seal"):
        current = check_state(context, last_state(context, "open"), "open", "sealed", "committing")
        chosen = sorted(stages) if stages is not None else sealed_attempts(context)
        if stages is None and not chosen:
            raise JobClosed(f"{context.name} has no sealed stage; to commit it empty, seal it with stages=[]")
        record = make_seal(context, chosen, etags or {})
        stored = records.create(
            context.store,
            context.staging_bucket,
            context.layout.seal,
            record,
        )
        if stored.record.stages != record.stages:
            raise JobClosed(f"{context.name} was sealed before, with other stages or stage attempts")
        context.known.keep(context.layout.seal, stored)
        if closes or current.record.state != "open":
            _close(context, current, stored.etag)
    logger.info(
        "%s: sealed, %d files in %d partitions", context.name, record.counts.files, len(record.partitions)
    )
    return SealReference(
        location=context.staging_uri(context.layout.seal),
        etag=stored.etag,
        tasks=sum(stage.tasks for stage in record.stages),
        counts=record.counts,
        partitions=record.partitions,
    )


def _write_stage_seal(
    context: JobContext,
    stage: str,
    stage_attempt: str,
    sealed: list[SealedTask],
    *,
    removes: Removal | None,
    emptied: Iterable[str],
) -> Stored[StageSealRecord]:
    record = make_stage_seal(context, stage, stage_attempt, sealed, removes=removes, emptied=emptied)
    if context.is_own and len(body := encode(record)) <= _WITHIN_BYTES:
        # No other process seals the job, so its own seal is the first that must be on the store.
        return held(record, body)
    key = context.layout.stage_seal(stage, stage_attempt)
    stored = records.create(context.store, context.staging_bucket, key, record)
    if clean_if_ended(context):
        raise gone(context)
    return stored


def make_stage_seal(
    context: JobContext,
    stage: str,
    stage_attempt: str,
    sealed: list[SealedTask],
    *,
    removes: Removal | None,
    emptied: Iterable[str],
) -> StageSealRecord:
    """Return the seal of a stage attempt, after reading every pendingset of the tasks that count.

    Args:
        context: The job.
        stage: Name of the stage.
        stage_attempt: Id of the stage attempt.
        sealed: The tasks, as `sealed_tasks` returned them.
        removes: What the writer asked to remove, for conflict mode ``as-written``.
        emptied: Partitions among those that get no files.

    Raises:
        DuplicateOutput: A key is written twice.
        InvalidRecord: A pendingset is missing, damaged, another job's, or not the one that was committed.

    """
    counted, schemas = _read_output(context, stage, stage_attempt, sealed)
    partitions = dict(sorted({**dict.fromkeys(emptied, Counts()), **counted}.items()))
    counts = Counts.total(partitions.values())
    if counts.rows is None:
        counts = msgspec.structs.replace(counts, rows=Counts.total(task.counts for task in sealed).rows)
    return StageSealRecord(
        **context.layout.place,
        stage=stage,
        stage_attempt=stage_attempt,
        tasks=sealed,
        counts=counts,
        partitions=_slim(partitions),
        removes=removes,
        schemas=schemas,
        created=context.now_ms(),
        nonce=context.new_id(),
    )


def sealed_tasks(
    context: JobContext, stage: str, stage_attempt: str, tasks: Iterable[CommittedTask]
) -> list[SealedTask]:
    """Return the tasks of a stage attempt as its seal names them, in the order of their names.

    Raises:
        DuplicateOutput: A task occurs twice.
        InvalidRecord: A task was committed in another stage attempt, or its pendingset is elsewhere.

    """
    by_task: dict[str, CommittedTask] = {}
    for task in tasks:
        if (task.stage, task.stage_attempt) != (stage, stage_attempt):
            raise InvalidRecord(f"task {task.task} was committed in stage {task.stage}-{task.stage_attempt}")
        expected = context.staging_uri(
            context.layout.pendingset(stage, stage_attempt, task.task, task.attempt)
        )
        if task.location != expected:
            raise InvalidRecord(
                f"the pendingset of task {task.task} is at {task.location}, not at {expected}"
            )
        if by_task.setdefault(task.task, task) != task:
            raise DuplicateOutput(
                f"task {task.task} of stage {stage}-{stage_attempt} occurs twice: attempts"
                f" {by_task[task.task].attempt} and {task.attempt}"
            )
    return [
        SealedTask(
            task=task.task,
            attempt=task.attempt,
            etag=task.etag,
            counts=Counts(files=task.files, bytes=task.bytes, rows=task.rows),
            sha256=task.sha256,
        )
        for _, task in sorted(by_task.items())
    ]


def _read_output(
    context: JobContext, stage: str, stage_attempt: str, tasks: list[SealedTask]
) -> tuple[dict[str, Counts], list[str]]:
    """Return the totals of each partition, and the schemas of the files."""
    draft = StageSealRecord(
        **context.layout.place,
        stage=stage,
        stage_attempt=stage_attempt,
        tasks=tasks,
        counts=Counts(),
        partitions={},
        created=0,
        nonce="draft",
    )
    partitions: dict[str, Counts] = {}
    keys, schemas = _Keys(), _Schemas()
    for _, task, pendingset in each_pendingset(context, [draft]):
        extra = pendingset.s3commit
        schemas.add(extra.schemas if extra is not None else [], has_files=bool(pendingset.commits))
        added = Counts()
        for upload in pendingset.commits:
            keys.add(upload.destinationKey, task)
            relative = context.layout.destination.check_data_key(upload.bucket, upload.destinationKey)
            name, counts = partition_of(relative), _counts(upload)
            partitions[name] = partitions.get(name, Counts()).plus(counts)
            added = added.plus(counts)
        if added.rows is None:
            # Spark counts the rows of its own tasks, not those of each file.
            added = msgspec.structs.replace(added, rows=task.counts.rows)
        if added.without_columns() != task.counts:
            raise InvalidRecord(f"task {task.task} committed {task.counts}, its pendingset has {added}")
    return dict(sorted(partitions.items())), schemas.known()


class _Schemas:
    """The different schemas of the parts of a job."""

    def __init__(self) -> None:
        self._known: dict[str, None] = {}
        self._are_known = True

    def add(self, schemas: list[str], *, has_files: bool) -> None:
        self._known.update(dict.fromkeys(schemas))
        if has_files and not schemas:
            self._are_known = False

    def known(self) -> list[str]:
        """Return the schemas in their order; none if that of a file is unknown, or there are too many."""
        return list(self._known) if self._are_known and len(self._known) <= MAX_SCHEMAS else []


def _slim(partitions: dict[str, Counts]) -> dict[str, Counts]:
    """Drop the column statistics of many partitions: a seal is read into memory as a whole."""
    if len(partitions) <= _PARTITIONS_WITH_COLUMNS:
        return partitions
    return {name: counts.without_columns() for name, counts in partitions.items()}


def _counts(upload: PendingUpload) -> Counts:
    extra = upload.s3commit
    return Counts(
        files=1,
        bytes=upload.length,
        rows=extra.rows if extra is not None else None,
        columns=extra.statistics if extra is not None else None,
    )


class _Keys:
    """Set of keys, as 16-byte digests: a million of them take about 100 MiB."""

    def __init__(self) -> None:
        self._seen: set[bytes] = set()

    def add(self, key: str, task: SealedTask) -> None:
        digest = text_digest(key)
        if digest in self._seen:
            raise DuplicateOutput(f"{key} is written twice; the second time by task {task.task}")
        self._seen.add(digest)


def make_seal(
    context: JobContext, chosen: Sequence[tuple[str, str]], etags: Mapping[tuple[str, str], str]
) -> SealRecord:
    """Return the seal of a job, made from the seals of its stages.

    Args:
        context: The job.
        chosen: Pairs of stage and stage attempt.
        etags: Expected ETags of the stages' seals; any other seal is refused.

    Raises:
        DuplicateOutput: Two sealed attempts of one stage, or two stages that write one key.
        InvalidRecord: A seal is missing, damaged, or another job's.
        InvalidOption: Some stages overwrite partitions, others add to other ones.

    """
    names = [stage for stage, _ in chosen]
    doubled = {stage for stage in names if names.count(stage) > 1}
    if doubled:
        raise DuplicateOutput(
            f"{context.name}: several sealed attempts of stage {min(doubled)}; say which one counts"
        )
    loaded = [
        load_stage_seal(context, stage, attempt, etags.get((stage, attempt))) for stage, attempt in chosen
    ]
    if len(loaded) > 1:
        _refuse_shared_keys(context, [stored.record for stored in loaded])
    partitions: dict[str, Counts] = {}
    schemas = _Schemas()
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
                etag=stored.etag,
                tasks=len(stored.record.tasks),
                counts=stored.record.counts,
                sha256=stored.sha256,
                within=stored.record if stored.etag == WITHIN else msgspec.UNSET,
            )
            for stored in loaded
        ],
        counts=Counts.total(stored.record.counts for stored in loaded),
        partitions=_slim(dict(sorted(partitions.items()))),
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
    keys = _Keys()
    for _, task, pendingset in each_pendingset(context, stages):
        for upload in pendingset.commits:
            keys.add(upload.destinationKey, task)


def _close(context: JobContext, current: Stored[StateRecord], seal_etag: str) -> None:
    """Move the job to ``sealed``, unless another process has moved it there or further."""
    if current.record.state == "open" and move(context, current, "sealed", seal_etag=seal_etag) is not None:
        return
    existing = read_state(context)
    clean_if_ended(context)
    if existing is None or existing.record.state not in ("sealed", "committing", "committed"):
        state = existing.record.state if existing is not None else "gone"
        raise JobClosed(f"{context.name} is {state}: it was aborted while it was being sealed")
    if existing.record.seal_etag != seal_etag:
        raise InvalidRecord(
            f"{context.staging_uri(context.layout.seal)} is not the seal the job was closed with"
        )

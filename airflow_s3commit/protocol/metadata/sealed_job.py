"""Read a job's seals and pendingsets; each is checked against the record or key that names it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from airflow_s3commit.exceptions import InvalidRecord, JobClosed, NoSuchKey, S3CommitError
from airflow_s3commit.protocol.metadata.context import (
    JobContext,
    Stored,
    check_digest,
    check_place,
    find_record,
    in_small_batches,
    load_record,
)
from airflow_s3commit.protocol.model.codec import decode, largest, sha256
from airflow_s3commit.protocol.model.layout import PENDINGSET_SUFFIX, owner_of, seal_key
from airflow_s3commit.protocol.model.pendingset import PendingSet, PendingUpload, TaskExtra
from airflow_s3commit.protocol.model.sealed_job import (
    CommittedTask,
    Counts,
    SealedTask,
    SealRecord,
    SealReference,
    StageSealRecord,
)
from airflow_s3commit.store.base import Fetched, Get

#: Pendingsets to prefetch and hold in memory.
_AHEAD = 32

#: Total number of files in prefetched pendingsets, unless one pendingset alone has more.
_AHEAD_FILES = 10_000


def committed_task(extra: TaskExtra, stored: Stored[PendingSet]) -> CommittedTask:
    """Return the result of a task attempt's commit, as its stored pendingset shows it."""
    total = Counts.total(upload.counts.without_columns() for upload in stored.record.commits)
    return CommittedTask(
        stage=extra.stage,
        stage_attempt=extra.stage_attempt,
        task=extra.task,
        attempt=extra.attempt,
        location=stored.uri,
        files=total.files,
        bytes=total.bytes,
        rows=total.rows,
        sha256=stored.sha256,
    )


def sealed_tasks(context: JobContext, seal: SealRecord) -> Iterator[tuple[str, SealedTask]]:
    """Yield the task attempts that count, with the keys of their pendingsets, in the seals' order.

    First reads the seals of all stages; raises `InvalidRecord` if one is missing or was changed.
    """
    stages = [
        load_stage_seal(context, one.stage, one.stage_attempt, one.sha256).record for one in seal.stages
    ]
    for stage in stages:
        yield from tasks_of(context, stage)


def tasks_of(context: JobContext, stage: StageSealRecord) -> Iterator[tuple[str, SealedTask]]:
    """Yield the task attempts of a stage's seal, with the keys of their pendingsets."""
    for task in stage.tasks:
        yield context.layout.pendingset(stage.stage, stage.stage_attempt, task.task, task.attempt), task


def each_pendingset(
    context: JobContext, tasks: Iterable[tuple[str, SealedTask]], damaged: list[str] | None = None
) -> Iterator[tuple[SealedTask, PendingSet]]:
    """Yield the pendingset of each sealed task, given with its key, in their order; prefetched and checked.

    The checks: its SHA-256 against the seal, its job and task, and that each upload's key is below the
    destination. A pendingset that fails them, or is missing, raises `InvalidRecord`. With ``damaged`` it is
    skipped instead, and that list gets what is wrong with it.
    """
    bucket, limit = context.staging_bucket, largest(PendingSet)
    for batch in in_small_batches(tasks, _AHEAD, lambda pair: pair[1].counts.files, _AHEAD_FILES):
        outcomes = dict(context.store.perform([(key, Get(bucket, key, limit)) for key, _ in batch]))
        for key, task in batch:
            try:
                pendingset = _checked(context, key, task, outcomes.pop(key))
            except InvalidRecord as error:
                if damaged is None:
                    raise
                damaged.append(str(error))
            else:
                yield task, pendingset


def load_stage_seal(
    context: JobContext, stage: str, stage_attempt: str, expected: str | None
) -> Stored[StageSealRecord]:
    """Read the seal of a stage attempt, and compare its SHA-256 with the expected one, if there is one.

    Raises `InvalidRecord` if it is missing, was changed, or belongs to another stage attempt.
    """
    key = context.layout.stage_seal(stage, stage_attempt)
    stored = find_record(context.store, context.staging_bucket, key, StageSealRecord)
    if stored is None:
        where = context.staging_uri(key)
        raise InvalidRecord(f"{where} is missing: stage {stage}-{stage_attempt} was not sealed")
    check_place(stored.record, context.layout, stored.uri)
    if (stored.record.stage, stored.record.stage_attempt) != (stage, stage_attempt):
        raise InvalidRecord(f"{stored.uri} is the seal of another stage attempt")
    if expected is not None:
        check_digest(stored.sha256, expected, stored.uri)
    return stored


def _checked(context: JobContext, key: str, task: SealedTask, outcome: object) -> PendingSet:
    layout, where = context.layout, context.staging_uri(key)
    if isinstance(outcome, NoSuchKey):
        raise InvalidRecord(f"{where} is missing, but task {task.task} counts")
    if isinstance(outcome, S3CommitError):
        raise outcome
    assert isinstance(outcome, Fetched)
    check_digest(sha256(outcome.body), task.sha256, where)
    pendingset = decode(PendingSet, outcome.body, where)
    ours = pendingset.s3commit
    of_task = ours is not None and key == layout.pendingset(
        ours.stage, ours.stage_attempt, ours.task, ours.attempt
    )
    if pendingset.jobId != layout.job_id or not of_task:
        raise InvalidRecord(f"{where} is not the pendingset of task {task.task} of job {layout.job_id}")
    for upload in pendingset.commits:
        layout.destination.check_data_key(upload.bucket, upload.destinationKey)
    return pendingset


def find_stage_seal(context: JobContext, stage: str, stage_attempt: str) -> SealReference | None:
    """Return a reference to the seal of a stage attempt; None if it is not sealed."""
    key = context.layout.stage_seal(stage, stage_attempt)
    stored = find_record(context.store, context.staging_bucket, key, StageSealRecord)
    return stage_reference(stored) if stored is not None else None


def committed_attempts(
    context: JobContext, stage: str, stage_attempt: str, task: str | None = None
) -> list[CommittedTask]:
    """Return the task attempts of a stage attempt that were committed, read from their pendingsets.

    For writers that keep no results of their own. Several attempts of one task may be among them. Raises
    `InvalidRecord` if a pendingset is damaged, or of another stage attempt.
    """
    found = []
    prefix = context.layout.tasks(stage, stage_attempt) + (f"{task}_" if task is not None else "")
    for info in context.store.list_objects(context.staging_bucket, prefix):
        if not info.key.endswith(PENDINGSET_SUFFIX):
            continue
        stored = load_record(context.store, context.staging_bucket, info.key, PendingSet)
        extra = stored.record.s3commit
        if extra is None or info.key != context.layout.pendingset(
            extra.stage, extra.stage_attempt, extra.task, extra.attempt
        ):
            raise InvalidRecord(f"{stored.uri} is not a pendingset of stage {stage}-{stage_attempt}")
        found.append(committed_task(extra, stored))
    return found


def stage_attempts(context: JobContext) -> Iterator[tuple[str, str, bool]]:
    """Yield every stage attempt that has records in the staging: stage, attempt, and whether it is sealed."""
    prefix, sealed = context.layout.stages, set()
    seen: dict[str, None] = {}
    for info in context.store.list_objects(context.staging_bucket, prefix):
        name, _, rest = info.key[len(prefix) :].partition("/")
        seen[name] = None
        if rest == "sealed.json":
            sealed.add(name)
    for name in seen:
        stage, _, attempt = name.rpartition("-")
        yield stage, attempt, name in sealed


def sealed_attempts(context: JobContext) -> list[tuple[str, str]]:
    """Return the sealed stage attempts, in order of their names."""
    return sorted((stage, attempt) for stage, attempt, is_sealed in stage_attempts(context) if is_sealed)


def stage_reference(stored: Stored[StageSealRecord]) -> SealReference:
    """Return a reference to a stage's seal."""
    record = stored.record
    return SealReference(
        location=stored.uri,
        sha256=stored.sha256,
        tasks=len(record.tasks),
        counts=record.counts,
        partitions=record.partitions,
    )


def find_seal(context: JobContext) -> Stored[SealRecord] | None:
    """Read the job's seal; None without one. `InvalidRecord` if it is damaged, or of another job or place."""
    key = seal_key(context.layout.destination, context.job_id)
    stored = find_record(context.store, context.bucket, key, SealRecord)
    if stored is not None:
        check_place(stored.record, context.layout, stored.uri)
    return stored


def sealed_uploads(context: JobContext, tasks: Iterable[tuple[str, SealedTask]]) -> Iterator[PendingUpload]:
    """Yield the uploads of sealed tasks, in their order. Raises as `each_pendingset` and `check_name`."""
    for _, pendingset in each_pendingset(context, tasks):
        for upload in pendingset.commits:
            check_name(context, upload.destinationKey)
            yield upload


def check_name(context: JobContext, key: str) -> None:
    """Raise `InvalidRecord` for a file without the job's id in its name: it could overwrite another job's.

    Files of an adopted job are exempt, as Hadoop named them. Before: the job's record was read.
    """
    is_adopted = context.record is not None and context.record.adopted
    if not is_adopted and owner_of(key) != context.job_id:
        raise InvalidRecord(f"{context.name}: the file {key} does not have the job's id in its name")


def bare_keys(context: JobContext, seal: SealRecord) -> set[str]:
    """Return the keys of an adopted job's files, whose names do not show their job; none for other jobs."""
    if context.record is None or not context.record.adopted:
        return set()
    return {upload.destinationKey for upload in sealed_uploads(context, sealed_tasks(context, seal))}


def load_seal(context: JobContext, sha256: str | None = None) -> SealRecord:
    """Read the job's seal, and compare its SHA-256 with the one that the caller was given, if any.

    Raises `JobClosed` if the job is not sealed; `InvalidRecord` as `find_seal`, and if the SHA-256 differs.
    """
    stored = find_seal(context)
    if stored is None:
        raise JobClosed(f"{context.name} is not sealed: seal it first, or abort it")
    if sha256 is not None and stored.sha256 != sha256:
        why = f"is not the seal that was handed over: its SHA-256 is {stored.sha256}"
        raise InvalidRecord(f"{stored.uri} {why}")
    return stored.record

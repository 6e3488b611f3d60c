"""Read what a job consists of: its record, seals and pendingsets; each is checked by what names it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from airflow_s3commit.exceptions import ForeignRecord, InvalidRecord, JobClosed, NoSuchKey, S3CommitError
from airflow_s3commit.protocol.metadata.context import (
    JobContext,
    Stored,
    find_record,
    in_small_batches,
    load_record,
)
from airflow_s3commit.protocol.metadata.removal import check_place
from airflow_s3commit.protocol.model.codec import decode, largest, sha256
from airflow_s3commit.protocol.model.destination import join_uri
from airflow_s3commit.protocol.model.job import JobRecord
from airflow_s3commit.protocol.model.layout import PENDINGSET_SUFFIX, job_key, owner_of, seal_key
from airflow_s3commit.protocol.model.pendingset import PendingSet, PendingUpload, TaskExtra
from airflow_s3commit.protocol.model.sealed_job import (
    CommittedTask,
    SealedTask,
    SealRecord,
    SealReference,
    StageSealRecord,
)
from airflow_s3commit.store.base import Fetched, Get

#: Pendingsets to prefetch and hold in memory.
_AHEAD = 32

#: Their total number of files, unless one pendingset alone has more.
_AHEAD_FILES = 10_000


def recorded(context: JobContext) -> JobContext:
    """Return the context with the job's record, and with the staging that it names; unchanged without one.

    A record never changes, so one that was read before is as good as one that is read now. Errors are those
    of `find_job`.
    """
    if context.record is None and (stored := find_job(context)) is not None:
        return context.as_recorded(stored.record, stored.sha256)
    return context


def find_job(context: JobContext) -> Stored[JobRecord] | None:
    """Read a job's record; None if the job was never set up, or has ended and is cleaned up.

    Raises:
        InvalidRecord: It is damaged, was copied here, or is not the one that the job's reference names.
    """
    key = job_key(context.layout.destination, context.job_id)
    stored = find_record(context.store, context.bucket, key, JobRecord)
    if stored is not None:
        check_job(context, stored.record)
        if context.record_sha256:
            check_digest(stored.sha256, context.record_sha256, join_uri(context.bucket, key))
    return stored


def check_job(context: JobContext, record: JobRecord) -> JobRecord:
    """Return the record of a job, which names its staging; `ForeignRecord` if it was copied here."""
    layout = context.layout
    if (record.job_id, record.destination) != (layout.job_id, layout.destination.uri):
        where = join_uri(context.bucket, job_key(layout.destination, layout.job_id))
        raise ForeignRecord(f"{where} is of job {record.job_id} on {record.destination}: it was copied here")
    return record


def committed_task(
    context: JobContext, key: str, extra: TaskExtra, stored: Stored[PendingSet], uploads: list[PendingUpload]
) -> CommittedTask:
    """Return the result of a task attempt's commit, by its pendingset."""
    rows = [upload.s3commit.rows if upload.s3commit is not None else None for upload in uploads]
    known = [count for count in rows if count is not None]
    return CommittedTask(
        stage=extra.stage,
        stage_attempt=extra.stage_attempt,
        task=extra.task,
        attempt=extra.attempt,
        location=context.staging_uri(key),
        files=len(uploads),
        bytes=sum(upload.length for upload in uploads),
        rows=sum(known) if len(known) == len(rows) else None,
        sha256=stored.sha256,
    )


def load_stage_seals(context: JobContext, seal: SealRecord) -> list[StageSealRecord]:
    """Read the seals of all sealed stages, each checked against the job's seal.

    Raises:
        InvalidRecord: One is missing or was changed.
    """
    return [
        load_stage_seal(context, stage.stage, stage.stage_attempt, stage.sha256).record
        for stage in seal.stages
    ]


def check_digest(digest: str, expected: str | None, where: str) -> None:
    """Raise `InvalidRecord` if an object does not have the SHA-256 in the record that names it."""
    if digest != expected:
        raise InvalidRecord(f"{where} was changed after it was written: its SHA-256 is not {expected}")


def sealed_tasks(context: JobContext, stages: Iterable[StageSealRecord]) -> Iterator[tuple[str, SealedTask]]:
    """Yield the task attempts that count, with the keys of their pendingsets, in the seals' order."""
    for stage in stages:
        for task in stage.tasks:
            yield context.layout.pendingset(stage.stage, stage.stage_attempt, task.task, task.attempt), task


def each_pendingset(
    context: JobContext, tasks: Iterable[tuple[str, SealedTask]], damaged: list[str] | None = None
) -> Iterator[tuple[SealedTask, PendingSet]]:
    """Yield the pendingset of each sealed task, given with its key, in their order; prefetched and checked.

    The checks: its SHA-256 against the seal, its job and task, and that each upload's key is below the
    destination.

    Args:
        damaged: Gets what is wrong with a pendingset, which is left out then; None to raise it.

    Raises:
        InvalidRecord: A pendingset is missing, was changed, or names a key outside the destination.
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

    Raises:
        InvalidRecord: It is missing, was changed, or is of another stage attempt.
    """
    key = context.layout.stage_seal(stage, stage_attempt)
    where = context.staging_uri(key)
    try:
        stored = load_record(context.store, context.staging_bucket, key, StageSealRecord)
    except NoSuchKey:
        raise InvalidRecord(f"{where} is missing: stage {stage}-{stage_attempt} was not sealed") from None
    check_place(stored.record, context.layout, where)
    if (stored.record.stage, stored.record.stage_attempt) != (stage, stage_attempt):
        raise InvalidRecord(f"{where} is the seal of another stage attempt")
    if expected is not None:
        check_digest(stored.sha256, expected, where)
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
    """Return the seal of a stage attempt; None if it is not sealed."""
    key = context.layout.stage_seal(stage, stage_attempt)
    stored = find_record(context.store, context.staging_bucket, key, StageSealRecord)
    return stage_reference(context, stored) if stored is not None else None


def committed_attempts(
    context: JobContext, stage: str, stage_attempt: str, task: str | None = None
) -> list[CommittedTask]:
    """Return the task attempts of a stage attempt that were committed, read from their pendingsets.

    For writers that keep no results of their own. Several attempts of one task may be among them.

    Raises:
        InvalidRecord: A pendingset is damaged, or of another stage attempt.
    """
    found = []
    prefix = context.layout.tasks(stage, stage_attempt) + (f"{task}_" if task is not None else "")
    for info in context.store.list_objects(context.staging_bucket, prefix):
        if not info.key.endswith(PENDINGSET_SUFFIX):
            continue
        stored = load_record(context.store, context.staging_bucket, info.key, PendingSet)
        extra, where = stored.record.s3commit, context.staging_uri(info.key)
        if extra is None or info.key != context.layout.pendingset(
            stage, stage_attempt, extra.task, extra.attempt
        ):
            raise InvalidRecord(f"{where} is not a pendingset of stage {stage}-{stage_attempt}")
        found.append(committed_task(context, info.key, extra, stored, stored.record.commits))
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


def stage_reference(context: JobContext, stored: Stored[StageSealRecord]) -> SealReference:
    """Return the reference of a stage's seal."""
    record = stored.record
    return SealReference(
        location=context.staging_uri(context.layout.stage_seal(record.stage, record.stage_attempt)),
        sha256=stored.sha256,
        tasks=len(record.tasks),
        counts=record.counts,
        partitions=record.partitions,
    )


def find_seal(context: JobContext) -> Stored[SealRecord] | None:
    """Read the job's seal; None if it is not sealed.

    Raises:
        InvalidRecord: It is damaged, or of another job or place.
    """
    key = seal_key(context.layout.destination, context.job_id)
    stored = find_record(context.store, context.bucket, key, SealRecord)
    if stored is not None:
        check_place(stored.record, context.layout, join_uri(context.bucket, key))
    return stored


def sealed_uploads(context: JobContext, tasks: Iterable[tuple[str, SealedTask]]) -> Iterator[PendingUpload]:
    """Yield the sealed uploads as `each_pendingset` does, each checked to be the job's own.

    Raises:
        InvalidRecord: A record was changed, or a file lies outside the destination; or it does not have the
            job's id in its name, and could overwrite another job's file. Hadoop's adopted files may.
    """
    for _, pendingset in each_pendingset(context, tasks):
        for upload in pendingset.commits:
            check_name(context, upload.destinationKey)
            yield upload


def check_name(context: JobContext, key: str) -> None:
    """Raise `InvalidRecord` for a file without the job's id in its name: it could overwrite another job's.

    Hadoop named those of an adopted job. Before: the job's record was read.
    """
    is_adopted = context.record is not None and context.record.adopted
    if not is_adopted and owner_of(key) != context.job_id:
        raise InvalidRecord(f"{context.name}: the file {key} does not have the job's id in its name")


def bare_keys(context: JobContext, seal: SealRecord) -> set[str]:
    """Return the keys of the files of an adopted job, whose names do not show whose they are; else none."""
    if context.record is None or not context.record.adopted:
        return set()
    tasks = sealed_tasks(context, load_stage_seals(context, seal))
    return {upload.destinationKey for upload in sealed_uploads(context, tasks)}


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

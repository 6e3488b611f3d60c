"""Read what a sealed job consists of: seals, pendingsets, plan; each checked by the record that names it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from io import BytesIO

from msgspec import UNSET

from airflow_s3commit.exceptions import InvalidRecord, NoSuchKey, S3CommitError
from airflow_s3commit.protocol.metadata import records
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.records import Stored
from airflow_s3commit.protocol.model.codec import (
    PLAN_PART_BYTES,
    decode,
    decode_lines,
    encode,
    largest,
    sha256,
)
from airflow_s3commit.protocol.model.job import StateRecord
from airflow_s3commit.protocol.model.layout import PENDINGSET_SUFFIX
from airflow_s3commit.protocol.model.ownership import check_place
from airflow_s3commit.protocol.model.pendingset import PendingSet, PendingUpload, TaskExtra
from airflow_s3commit.protocol.model.sealed_job import (
    WITHIN,
    CommittedTask,
    PlannedObject,
    PlanRecord,
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


def committed_task(
    context: JobContext, key: str, extra: TaskExtra, stored: Stored[PendingSet], uploads: list[PendingUpload]
) -> CommittedTask:
    """Return the result of a task attempt's commit.

    Args:
        context: The job.
        key: Key of the pendingset.
        extra: The task attempt.
        stored: The pendingset as it is stored.
        uploads: Its uploads.

    """
    rows = [upload.s3commit.rows if upload.s3commit is not None else None for upload in uploads]
    known = [count for count in rows if count is not None]
    return CommittedTask(
        stage=extra.stage,
        stage_attempt=extra.stage_attempt,
        task=extra.task,
        attempt=extra.attempt,
        location=context.staging_uri(key),
        etag=stored.etag,
        files=len(uploads),
        bytes=sum(upload.length for upload in uploads),
        rows=sum(known) if len(known) == len(rows) else None,
        sha256=stored.sha256,
    )


def load_seal(context: JobContext, etag: str | None) -> Stored[SealRecord]:
    """Read the job's seal, and check its ETag if one is given.

    Raises:
        InvalidRecord: It is missing, was changed, or is another job's.

    """
    key = context.layout.seal
    where = context.staging_uri(key)
    try:
        stored = context.known.get(key, SealRecord) or records.load(
            context.store, context.staging_bucket, key, SealRecord
        )
    except NoSuchKey:
        raise InvalidRecord(f"{where} is missing: seal the job first") from None
    check_place(stored.record, context.layout, where)
    if etag is not None and stored.etag != etag.strip('"'):
        raise InvalidRecord(f"{where} was changed after it was written: ETag {stored.etag}, expected {etag}")
    return stored


def load_stage_seals(context: JobContext, seal: SealRecord) -> list[StageSealRecord]:
    """Read the seals of all sealed stages, each checked against the job's seal.

    Raises:
        InvalidRecord: One is missing or was changed.

    """
    seals = []
    for stage in seal.stages:
        if stage.within is not UNSET:
            where = context.staging_uri(context.layout.seal)
            seals.append(_checked_stage(context, stage.within, stage.stage, stage.stage_attempt, where))
            continue
        stored = load_stage_seal(context, stage.stage, stage.stage_attempt, stage.etag)
        where = context.staging_uri(context.layout.stage_seal(stage.stage, stage.stage_attempt))
        check_digest(stored.sha256, stage.sha256, where)
        seals.append(stored.record)
    return seals


def check_digest(digest: str, expected: str | None, where: str) -> None:
    """Compare the SHA-256 of an object with the one in the record that names it.

    Args:
        digest: SHA-256 of the object.
        expected: SHA-256 in the record.
        where: URI of the object.

    Raises:
        InvalidRecord: They differ.

    """
    if digest != expected:
        raise InvalidRecord(f"{where} was changed after it was written: its SHA-256 is not {expected}")


def each_pendingset(
    context: JobContext,
    stages: Iterable[StageSealRecord],
    selected: Callable[[int], bool] = lambda _: True,
) -> Iterator[tuple[StageSealRecord, SealedTask, PendingSet]]:
    """Yield every sealed pendingset in the seals' order, prefetched and checked.

    The checks: its ETag against the seal, its job and task, and that each upload's key is below the
    destination.

    Args:
        context: The job.
        stages: The seals.
        selected: Returns whether to read the task with a number, in the seals' order.

    Raises:
        InvalidRecord: A pendingset is missing, was changed, or names a key outside the destination.

    """
    numbered = enumerate((stage, task) for stage in stages for task in stage.tasks)
    for tasks in _in_groups(pair for number, pair in numbered if selected(number)):
        known = {number: _known_pendingset(context, *pair) for number, pair in enumerate(tasks)}
        calls = [
            (number, Get(context.staging_bucket, pendingset_key(context, stage, task), largest(PendingSet)))
            for number, (stage, task) in enumerate(tasks)
            if known[number] is None
        ]
        outcomes = dict(context.store.perform(calls))
        for number, (stage, task) in enumerate(tasks):
            pendingset = known[number] or _checked(context, stage, task, outcomes.pop(number))
            yield stage, task, pendingset


def _known_pendingset(context: JobContext, stage: StageSealRecord, task: SealedTask) -> PendingSet | None:
    stored = context.known.get(pendingset_key(context, stage, task), PendingSet)
    return stored.record if stored is not None and stored.etag == task.etag else None


def _in_groups(
    tasks: Iterable[tuple[StageSealRecord, SealedTask]],
) -> Iterator[list[tuple[StageSealRecord, SealedTask]]]:
    """Yield tasks in groups whose pendingsets fit in memory together."""
    group: list[tuple[StageSealRecord, SealedTask]] = []
    files = 0
    for stage, task in tasks:
        if group and (len(group) == _AHEAD or files + task.counts.files > _AHEAD_FILES):
            yield group
            group, files = [], 0
        group.append((stage, task))
        files += task.counts.files
    if group:
        yield group


def verify_pendingsets(context: JobContext, stages: Iterable[StageSealRecord]) -> None:
    """Compare every sealed pendingset's ETag with a listing, before anything is published.

    Those that this process knows are published as it knows them, and need no listing.

    Raises:
        InvalidRecord: One is missing or was changed.

    """
    for stage in stages:
        unknown = [task for task in stage.tasks if _known_pendingset(context, stage, task) is None]
        if not unknown:
            continue
        prefix = context.layout.tasks(stage.stage, stage.stage_attempt)
        existing = {
            info.key: info.etag for info in context.store.list_objects(context.staging_bucket, prefix)
        }
        for task in unknown:
            key = pendingset_key(context, stage, task)
            if existing.get(key) != task.etag:
                what = "was changed after it was written" if key in existing else "is missing"
                raise InvalidRecord(f"{context.staging_uri(key)} {what}, but task {task.task} counts")


def load_stage_seal(
    context: JobContext, stage: str, stage_attempt: str, etag: str | None
) -> Stored[StageSealRecord]:
    """Read the seal of a stage attempt, and check its ETag if one is given.

    Raises:
        InvalidRecord: It is missing, was changed, or is of another stage attempt.

    """
    key = context.layout.stage_seal(stage, stage_attempt)
    where = context.staging_uri(key)
    try:
        stored = context.known.get(key, StageSealRecord) or records.load(
            context.store, context.staging_bucket, key, StageSealRecord
        )
    except NoSuchKey:
        within = _within_seal(context).get((stage, stage_attempt))
        if within is None:
            raise InvalidRecord(f"{where} is missing: stage {stage}-{stage_attempt} was not sealed") from None
        stored = held(within, encode(within))
    _checked_stage(context, stored.record, stage, stage_attempt, where)
    if etag is not None and stored.etag != etag:
        raise InvalidRecord(f"{where} was changed after it was written: ETag {stored.etag}, expected {etag}")
    return stored


def _checked_stage(
    context: JobContext, record: StageSealRecord, stage: str, stage_attempt: str, where: str
) -> StageSealRecord:
    check_place(record, context.layout, where)
    if (record.stage, record.stage_attempt) != (stage, stage_attempt):
        raise InvalidRecord(f"{where} is the seal of another stage attempt")
    return record


def pendingset_key(context: JobContext, stage: StageSealRecord, task: SealedTask) -> str:
    """Return the key of a sealed task attempt's pendingset."""
    return context.layout.pendingset(stage.stage, stage.stage_attempt, task.task, task.attempt)


def _checked(context: JobContext, stage: StageSealRecord, task: SealedTask, outcome: object) -> PendingSet:
    key = pendingset_key(context, stage, task)
    where = context.staging_uri(key)
    if isinstance(outcome, NoSuchKey):
        raise InvalidRecord(f"{where} is missing, but task {task.task} counts")
    if isinstance(outcome, S3CommitError):
        raise outcome
    assert isinstance(outcome, Fetched)
    if outcome.info.etag != task.etag:
        raise InvalidRecord(
            f"{where} was changed after it was written: ETag {outcome.info.etag}, sealed as {task.etag}"
        )
    check_digest(sha256(outcome.body), task.sha256, where)
    pendingset = decode(PendingSet, outcome.body, where)
    extra = TaskExtra(
        stage=stage.stage, stage_attempt=stage.stage_attempt, task=task.task, attempt=task.attempt, nonce="-"
    )
    pendingset.check_task(context.job_id, extra, where)
    for upload in pendingset.commits:
        context.layout.destination.check_data_key(upload.bucket, upload.destinationKey)
    info = outcome.info
    stored = Stored(pendingset, info.etag, info.modified, outcome.date, sha256(outcome.body))
    context.known.keep_large(info.key, stored, 1 + len(pendingset.commits))
    return pendingset


def find_stage_seal(context: JobContext, stage: str, stage_attempt: str) -> SealReference | None:
    """Return the seal of a stage attempt, this process's or an object; None if there is neither."""
    key = context.layout.stage_seal(stage, stage_attempt)
    stored = held_stage_seal(context, stage, stage_attempt)
    if stored is None:
        stored = records.find(context.store, context.staging_bucket, key, StageSealRecord)
    return stage_reference(context, stored) if stored is not None else None


def held(record: StageSealRecord, body: bytes) -> Stored[StageSealRecord]:
    """Return the seal of a stage attempt that is no object, but lies, or is to lie, within the job's seal.

    Args:
        record: The seal.
        body: Its bytes.

    """
    return Stored(record, WITHIN, 0.0, 0.0, sha256(body))


def held_stage_seal(context: JobContext, stage: str, stage_attempt: str) -> Stored[StageSealRecord] | None:
    """Return the seal of a stage attempt that this process keeps for the job's seal; None without one."""
    stored = context.known.get(context.layout.stage_seal(stage, stage_attempt), StageSealRecord)
    return stored if stored is not None and stored.etag == WITHIN else None


def is_stage_sealed(context: JobContext, stage: str, stage_attempt: str) -> bool:
    """Return whether a stage attempt is sealed, by its own seal or by the job's."""
    if find_stage_seal(context, stage, stage_attempt) is not None:
        return True
    return (stage, stage_attempt) in _within_seal(context)


def _within_seal(context: JobContext) -> dict[tuple[str, str], StageSealRecord]:
    """Return the seals of stage attempts that lie within the job's seal."""
    seal = records.find(context.store, context.staging_bucket, context.layout.seal, SealRecord)
    named = seal.record.stages if seal is not None else []
    return {(one.stage, one.stage_attempt): one.within for one in named if one.within is not UNSET}


def committed_attempts(
    context: JobContext, stage: str, stage_attempt: str, task: str | None = None
) -> list[CommittedTask]:
    """Return the task attempts of a stage attempt that were committed, read from their pendingsets.

    For writers that keep no results of their own. Several attempts of one task may be among them.

    Args:
        context: The job.
        stage: Name of the stage.
        stage_attempt: Id of the stage attempt.
        task: Name of the task; None for all.

    Raises:
        InvalidRecord: A pendingset is damaged, or of another stage attempt.

    """
    found = []
    prefix = context.layout.tasks(stage, stage_attempt) + (f"{task}_" if task is not None else "")
    for info in context.store.list_objects(context.staging_bucket, prefix):
        if not info.key.endswith(PENDINGSET_SUFFIX):
            continue
        stored = records.load(context.store, context.staging_bucket, info.key, PendingSet)
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
    kept = (stored.record for stored in context.known.of(StageSealRecord) if stored.etag == WITHIN)
    found = {(record.stage, record.stage_attempt) for record in kept}
    found |= {(stage, attempt) for stage, attempt, sealed in stage_attempts(context) if sealed}
    return sorted(found or _within_seal(context))


def stage_reference(context: JobContext, stored: Stored[StageSealRecord]) -> SealReference:
    """Return the reference of a stage's seal. One that is no object is to lie within the job's seal."""
    record, layout = stored.record, context.layout
    key = layout.seal if stored.etag == WITHIN else layout.stage_seal(record.stage, record.stage_attempt)
    return SealReference(
        location=context.staging_uri(key),
        etag=stored.etag,
        tasks=len(record.tasks),
        counts=record.counts,
        partitions=record.partitions,
    )


#: Id and ETag of the plan of a job that can replace nothing; it is no object.
NO_PLAN = "none"


def nothing_planned(context: JobContext, seal_etag: str) -> PlanRecord:
    """Return the plan of a job that replaces nothing, without writing it."""
    return PlanRecord(
        **context.layout.place,
        plan_id=NO_PLAN,
        seal_etag=seal_etag,
        parts=[],
        objects=0,
        bytes=0,
        digest=f"{0:032x}",
    )


def find_plan(context: JobContext, state: StateRecord) -> Stored[PlanRecord] | None:
    """Read the plan that a job's state names; None if it names none.

    Raises:
        InvalidRecord: It was changed, is another job's, or is missing.

    """
    if state.plan_etag is None or state.plan_id is None or state.seal_etag is None:
        return None
    return load_plan(context, state.plan_id, state.plan_etag, state.seal_etag)


def load_plan(context: JobContext, plan_id: str, etag: str, seal_etag: str) -> Stored[PlanRecord]:
    """Read a plan.

    Args:
        context: The job.
        plan_id: Its id.
        etag: Its ETag.
        seal_etag: ETag of the job's seal.

    Raises:
        InvalidRecord: It was changed, is another job's, or is missing.

    """
    key = context.layout.plan(plan_id)
    where = context.staging_uri(key)
    if plan_id == NO_PLAN:
        if context.record is not None and not context.record.options.only_adds:
            raise InvalidRecord(f"{context.name}: its state names no plan, and the job may replace files")
        return Stored(nothing_planned(context, seal_etag), NO_PLAN, 0.0, 0.0)
    stored = records.find(context.store, context.staging_bucket, key, PlanRecord)
    if stored is None:
        raise InvalidRecord(f"{where} is missing; plan again")
    check_place(stored.record, context.layout, where)
    if stored.etag != etag:
        raise InvalidRecord(f"{where} was changed after it was written: ETag {stored.etag}, expected {etag}")
    return stored


def planned_objects(context: JobContext, plan: PlanRecord) -> Iterator[PlannedObject]:
    """Yield the objects of a plan; reads one part at a time, unless it lies within the plan, and checks it.

    Raises:
        InvalidRecord: A part is missing or was changed.

    """
    for part in plan.parts:
        if part.within is not None:
            yield from part.within
            continue
        key = context.layout.plan_part(plan.plan_id, part.number)
        try:
            fetched = context.store.get(context.staging_bucket, key, limit=PLAN_PART_BYTES)
        except NoSuchKey:
            raise InvalidRecord(f"{context.staging_uri(key)} is missing; plan again") from None
        if fetched.info.etag != part.etag:
            raise InvalidRecord(f"{context.staging_uri(key)} was changed after it was written; plan again")
        digest = sha256(fetched.body)
        check_digest(digest, part.sha256, context.staging_uri(key))
        yield from decode_lines(PlannedObject, BytesIO(fetched.body), context.staging_uri(key))

"""Record a task attempt's uploads, then check whether the job has ended; seal stages, then the job.

A seal records, once, which task attempts of a stage attempt count, or which stage attempts of a job. Attempts
that do not count may be aborted. The seal of the job closes it to further output.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import msgspec

from airflow_s3commit._causes import undoing
from airflow_s3commit.exceptions import DuplicateOutput, InvalidOption, InvalidRecord, JobClosed
from airflow_s3commit.protocol.metadata.context import JobContext, create_record, naming
from airflow_s3commit.protocol.metadata.pending_uploads import tracked_uploads
from airflow_s3commit.protocol.metadata.removal import PendingId, abort_uploads, delete_record, delete_records
from airflow_s3commit.protocol.metadata.sealed_job import (
    check_name,
    committed_task,
    each_pendingset,
    find_stage_seal,
    load_stage_seal,
    sealed_attempts,
    stage_reference,
    tasks_of,
)
from airflow_s3commit.protocol.model.codec import MAX_SCHEMAS, text_digest
from airflow_s3commit.protocol.model.job import ObjectOptions, Removal
from airflow_s3commit.protocol.model.layout import PENDINGSET_SUFFIX, is_below, partition_of, seal_key
from airflow_s3commit.protocol.model.pendingset import PendingSet, PendingUpload, TaskExtra
from airflow_s3commit.protocol.model.sealed_job import (
    CommittedTask,
    Counts,
    SealedStage,
    SealedTask,
    SealRecord,
    SealReference,
    StageSealRecord,
)
from airflow_s3commit.protocol.model.table import Entry
from airflow_s3commit.protocol.steps.abort import undo
from airflow_s3commit.protocol.steps.finish import finish
from airflow_s3commit.protocol.steps.log import find_end
from airflow_s3commit.protocol.steps.setup import (
    create_unless_ended,
    job_record,
    refuse_ended,
    refusing_ended,
)

logger = logging.getLogger(__name__)

#: Maximum number of partitions that a seal keeps column statistics for.
_PARTITIONS_WITH_COLUMNS = 1_000


def seal_stage(
    context: JobContext,
    stage: str,
    stage_attempt: str,
    tasks: Iterable[CommittedTask],
    *,
    removes: Removal = "nothing",
    replaced: Iterable[str] = (),
) -> SealReference:
    """Record which task attempts of a stage count; as `Job.seal_stage`.

    ``removes`` is what the writer asked to remove, for conflict mode ``as-written``; ``replaced`` are the
    directories that it overwrites with all below them.
    """
    with naming(context, f"seal of stage {stage}-{stage_attempt}"), refusing_ended(context):
        context = context if context.record is not None else context.as_recorded(job_record(context))
        if not context.alone:
            _refuse_late(context, stage, stage_attempt)
        sealed = _sealed_tasks(context, stage, stage_attempt, tasks)
        record = _make_stage_seal(context, stage, stage_attempt, sealed, removes=removes, replaced=replaced)
        key = context.layout.stage_seal(stage, stage_attempt)
        stored = create_unless_ended(context, context.staging_bucket, key, record)
        if stored.record.tasks != record.tasks:
            raise JobClosed(
                f"{stored.uri} was sealed before, with other task attempts: a stage attempt is"
                " one write. Write all rows at once, give each write a stage of its own, or run the stage"
                " again as a new attempt"
            )
    logger.info(
        "%s: sealed stage %s-%s, %d tasks, %d files",
        context.name,
        stage,
        stage_attempt,
        len(record.tasks),
        stored.record.counts.files,
    )
    return stage_reference(stored)


def _refuse_late(context: JobContext, stage: str, stage_attempt: str) -> None:
    """Raise `JobClosed` if the job is sealed, and a stage attempt is not: the commit would leave it out."""
    # Listed, because executors may not read the seal of a job.
    listed = context.store.list_objects(context.bucket, seal_key(context.layout.destination, context.job_id))
    if any(True for _ in listed) and find_stage_seal(context, stage, stage_attempt) is None:
        raise JobClosed(
            f"{context.name} was sealed before stage {stage}-{stage_attempt}, whose output it leaves out:"
            " write the stage again in a new job; in Airflow clear setup, with all tasks that are downstream"
        )


def _make_stage_seal(
    context: JobContext,
    stage: str,
    stage_attempt: str,
    sealed: list[tuple[str, SealedTask]],
    *,
    removes: Removal,
    replaced: Iterable[str],
) -> StageSealRecord:
    """Return the seal of a stage attempt, after reading every pendingset of the tasks that count."""
    partitions, schemas = _read_output(context, sealed)
    tasks = [task for _, task in sealed]
    counts = Counts.total(partitions.values())
    if counts.rows is None:
        counts = msgspec.structs.replace(counts, rows=Counts.total(task.counts for task in tasks).rows)
    return StageSealRecord(
        **context.layout.place,
        stage=stage,
        stage_attempt=stage_attempt,
        tasks=tasks,
        counts=counts,
        partitions=slim(partitions),
        removes=removes,
        replaced=sorted(replaced),
        schemas=schemas,
        created=context.now_ms(),
        nonce=context.new_id(),
    )


def _sealed_tasks(
    context: JobContext, stage: str, stage_attempt: str, tasks: Iterable[CommittedTask]
) -> list[tuple[str, SealedTask]]:
    """Return the tasks of a stage attempt as its seal names them, with the keys of their pendingsets.

    They are in the order of their names.
    """
    by_task: dict[str, tuple[str, CommittedTask]] = {}
    for task in tasks:
        if (task.stage, task.stage_attempt) != (stage, stage_attempt):
            raise InvalidRecord(f"task {task.task} was committed in stage {task.stage}-{task.stage_attempt}")
        key = context.layout.pendingset(stage, stage_attempt, task.task, task.attempt)
        if task.location != (expected := context.staging_uri(key)):
            raise InvalidRecord(
                f"the pendingset of task {task.task} is at {task.location}, not at {expected}"
            )
        if (first := by_task.setdefault(task.task, (key, task))[1]) != task:
            raise DuplicateOutput(
                f"task {task.task} of stage {stage}-{stage_attempt} occurs twice: attempts"
                f" {first.attempt} and {task.attempt}"
            )
    return [
        (
            key,
            SealedTask(
                task=name,
                attempt=task.attempt,
                counts=Counts(files=task.files, bytes=task.bytes, rows=task.rows),
                sha256=task.sha256,
            ),
        )
        for name, (key, task) in sorted(by_task.items())
    ]


def _read_output(
    context: JobContext, tasks: list[tuple[str, SealedTask]]
) -> tuple[dict[str, Counts], list[str]]:
    """Return the totals of each partition, and the schemas of the files."""
    partitions: dict[str, Counts] = {}
    seen, schemas = set[bytes](), Schemas()
    for task, pendingset in each_pendingset(context, tasks):
        extra = pendingset.s3commit
        if extra is not None:
            _check_object_options(context, task, extra.object_options)
        schemas.add(extra.schemas if extra is not None else [], has_files=bool(pendingset.commits))
        added = Counts()
        for upload in pendingset.commits:
            _add_key(seen, upload.destinationKey, task)
            check_name(context, upload.destinationKey)
            relative = context.layout.destination.check_data_key(upload.bucket, upload.destinationKey)
            name, counts = partition_of(relative), upload.counts
            partitions[name] = partitions.get(name, Counts()).plus(counts)
            added = added.plus(counts)
        if added.rows is None:
            # Spark counts the rows of its own tasks, not those of each file.
            added = msgspec.structs.replace(added, rows=task.counts.rows)
        if added.without_columns() != task.counts:
            raise InvalidRecord(f"task {task.task} committed {task.counts}, its pendingset has {added}")
    return dict(sorted(partitions.items())), schemas.known()


def _check_object_options(context: JobContext, task: SealedTask, applied: ObjectOptions | None) -> None:
    """Refuse a task whose uploads were started with other options than the job's, if they are known."""
    if applied is None or context.record is None or applied == context.record.options.object_options:
        return
    raise InvalidRecord(
        f"{context.name}: task {task.task} attempt {task.attempt} has written with {applied}, and the job has"
        f" {context.record.options.object_options}: its record was changed meanwhile; set up a new job"
    )


class Schemas:
    """The different schemas of the parts of a job."""

    def __init__(self) -> None:
        self._known: dict[str, None] = {}
        self._are_known = True

    def add(self, schemas: list[str], *, has_files: bool) -> None:
        """Add the schemas of a part; none means that they are unknown."""
        self._known.update(dict.fromkeys(schemas))
        if has_files and not schemas:
            self._are_known = False

    def known(self) -> list[str]:
        """Return the schemas in their order; none if that of a file is unknown, or there are too many."""
        return list(self._known) if self._are_known and len(self._known) <= MAX_SCHEMAS else []


def slim(partitions: dict[str, Counts]) -> dict[str, Counts]:
    """Drop column statistics if there are many partitions: a seal is read into memory as a whole."""
    if len(partitions) <= _PARTITIONS_WITH_COLUMNS:
        return partitions
    return {name: counts.without_columns() for name, counts in partitions.items()}


def _add_key(seen: set[bytes], key: str, task: SealedTask) -> None:
    """Add a key to a set of 16-byte digests, of which a million take about 100 MiB; refuse a repeated key."""
    digest = text_digest(key)
    if digest in seen:
        raise DuplicateOutput(f"{key} is written twice; the second time by task {task.task}")
    seen.add(digest)


def commit_attempt(
    context: JobContext, extra: TaskExtra, uploads: list[PendingUpload], *, undo: Callable[[], object]
) -> CommittedTask:
    """Write the pendingset of a task attempt. Repeatable with the same nonce.

    Before: the parts of every upload are there. After: the pendingset exists, and the job had not ended when
    this process looked, after the write. A process that ends the job writes its receipt before it lists
    uploads, so of the two at least one sees the other. If it has ended, ``undo`` withdraws the attempt: it
    aborts its uploads, then deletes its pendingset. For the errors see `TaskAttempt.commit`.
    """
    key = context.layout.pendingset(extra.stage, extra.stage_attempt, extra.task, extra.attempt)
    record = PendingSet(jobId=context.job_id, commits=uploads, s3commit=extra)
    stored = create_record(context.store, context.staging_bucket, key, record)
    if stored.record.s3commit is None or stored.record.s3commit.nonce != extra.nonce:
        raise DuplicateOutput(
            f"another process has committed task {extra.task} attempt {extra.attempt} of {context.name}; give"
            " each attempt an id of its own"
        )
    with undoing(undo, f"withdrawing task {extra.task} of {context.name}", "a sweep removes what is left"):
        refuse_ended(context, find_end(context))
    return committed_task(extra, stored)


def abort_stage(context: JobContext, stage: str, stage_attempt: str) -> int:
    """Abort the recorded uploads of a stage attempt that another attempt replaces; as `Job.abort_stage`."""
    _refuse_if_sealed(context, stage, stage_attempt)
    tracked = tracked_uploads(context, context.layout.stage(stage, stage_attempt))
    return abort_uploads(context, (PendingId.of(upload) for upload in tracked if upload is not None))


def abort_attempt(context: JobContext, stage: str, stage_attempt: str, task: str, attempt: str) -> int:
    """Abort the recorded uploads of a task attempt whose process is gone; as `Job.abort_attempt`.

    The uploads and their records go, so the attempt cannot be sealed. With ``track_pending="task"`` an
    attempt records nothing before it commits: the job's commit or abort, or a sweep, finds its uploads.
    """
    pendingset = context.layout.pendingset(stage, stage_attempt, task, attempt)
    with naming(context, f"abort of task {task} attempt {attempt} of stage {stage}-{stage_attempt}"):
        _refuse_if_sealed(context, stage, stage_attempt)
        directory = pendingset.removesuffix(PENDINGSET_SUFFIX) + "/"
        recorded = [*tracked_uploads(context, pendingset), *tracked_uploads(context, directory)]
        if None in recorded:
            raise InvalidRecord(f"{context.staging_uri(pendingset)}, or a record beside it, cannot be read")
        aborted = abort_uploads(context, {PendingId.of(upload) for upload in recorded if upload is not None})
        # Last: a pending upload must always have a record.
        delete_record(context, context.staging_bucket, pendingset)
        listed = context.store.list_objects(context.staging_bucket, directory)
        delete_records(context, (info.key for info in listed))
    return aborted


def _refuse_if_sealed(context: JobContext, stage: str, stage_attempt: str) -> None:
    if find_stage_seal(context, stage, stage_attempt) is not None:
        raise JobClosed(
            f"{context.name}: stage {stage}-{stage_attempt} is sealed; its uploads may be committed"
        )


def seal(
    context: JobContext,
    stages: Sequence[tuple[str, str]] | None = None,
    *,
    digests: Mapping[tuple[str, str], str] | None = None,
) -> SealReference:
    """Create the job's seal, which names the seals of its stages by their digests; as `Job.seal`."""
    with naming(context, "seal"), refusing_ended(context):
        job_record(context)
        chosen = sorted({*stages}) if stages is not None else sealed_attempts(context)
        if stages is None and not chosen:
            raise JobClosed(
                f"{context.name} has no sealed stage: each stage has to seal its output, also if that is"
                " empty (Job.seal_stage, s3commit seal --empty); a task without output may raise"
                " AirflowSkipException"
            )
        record = _make_seal(context, chosen, digests or {})
        key = seal_key(context.layout.destination, context.job_id)
        stored = create_unless_ended(context, context.bucket, key, record, partial(_end_again, context))
        if stored.record.stages != record.stages:
            raise JobClosed(f"{context.name} was sealed before, with other stages or stage attempts")
    logger.info("%s: sealed, %d files", context.name, stored.record.counts.files)
    return SealReference(
        location=stored.uri,
        sha256=stored.sha256,
        tasks=sum(stage.tasks for stage in stored.record.stages),
        counts=stored.record.counts,
        partitions=stored.record.partitions,
    )


def _end_again(context: JobContext, end: Entry) -> None:
    """Do again what follows the end of a job.

    A commit may have used the seal although it came late. A process that undoes it needs the seal to find
    the commit's objects, and looks only once; so the seal is not withdrawn, but removed with the rest.
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
        replaced=sorted({name for stored in loaded for name in stored.record.replaced}),
        schemas=schemas.known(),
        created=context.now_ms(),
        nonce=context.new_id(),
    )


def _removal(context: JobContext, stages: list[StageSealRecord]) -> Removal:
    """Return what all stages together asked to remove; refuse a mix of overwriting and adding partitions."""
    asked = {stage.removes for stage in stages} or {"nothing"}
    if "everything" in asked or len(asked) == 1:
        return "everything" if "everything" in asked else asked.pop()
    overwritten = {name for stage in stages if stage.removes == "partitions" for name in stage.partitions}
    replaced = [name for stage in stages for name in stage.replaced]
    for stage in stages:
        added = {name for name in stage.partitions.keys() - overwritten if not is_below(name, replaced)}
        if added:
            raise InvalidOption(
                f"{context.name}: stage {stage.stage} adds to partition {min(added)!r}, and other stages"
                " overwrite partitions, which one commit cannot do: name the job's conflict mode, or use two"
                " jobs"
            )
    return "partitions"


def _refuse_shared_keys(context: JobContext, stages: list[StageSealRecord]) -> None:
    seen = set[bytes]()
    tasks = (pair for stage in stages for pair in tasks_of(context, stage))
    for task, pendingset in each_pendingset(context, tasks):
        for upload in pendingset.commits:
            _add_key(seen, upload.destinationKey, task)

"""The common case in one call: a job of one stage and one task, set up, written, sealed and committed."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from airflow_s3commit._causes import noting, undoing, whole_text
from airflow_s3commit.exceptions import AlreadyCommitted, DidNotHappen, JobFailed, OutcomeUnknown, Refused
from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.model.job import MADE_FROM, JobOptions
from airflow_s3commit.protocol.model.manifest import Manifest
from airflow_s3commit.store.s3.config import S3Config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from airflow_s3commit._clock import Clock
    from airflow_s3commit.protocol.metadata.pending_uploads import Progress
    from airflow_s3commit.protocol.model.destination import Destination
    from airflow_s3commit.protocol.model.job import ConflictMode
    from airflow_s3commit.protocol.steps.task_attempt import TaskAttempt
    from airflow_s3commit.store.base import ObjectStore

_STAGE, _STAGE_ATTEMPT, _TASK, _ATTEMPT = "write", "1", "00000", "1"


class JobWriter:
    """Takes the output of a job of one task; `write_job` yields it, and commits the job afterwards.

    Attributes:
        open: Starts a file, as `TaskAttempt.open`; close it before the block ends.
        write_table: Writes a table to files, as `TaskAttempt.write_table`; another call goes to more files.
        describe: Records the schema of files that were written with ``open``, as `TaskAttempt.describe`.
        check_schema: Refuses columns that a published table cannot have, as `TaskAttempt.check_schema`.
        manifest: The manifest of the job, once it is committed; None before.
    """

    def __init__(self, job: Job, attempt: TaskAttempt) -> None:
        self.job = job
        self.open, self.write_table = attempt.open, attempt.write_table
        self.describe, self.check_schema = attempt.describe, attempt.check_schema
        self.manifest: Manifest | None = None


@contextmanager
def write_job(
    destination: str | Destination,
    *,
    store: ObjectStore | S3Config | None = None,
    conflict_mode: ConflictMode | None = None,
    job_options: JobOptions | None = None,
    name: str | None = None,
    context: Mapping[str, str] | None = None,
    generation: int | None = None,
    progress: Callable[[Progress], None] | None = None,
    clock: Clock | None = None,
) -> Iterator[JobWriter]:
    """Set up a job, take its output in a ``with`` block, and commit it when the block ends.

    Nothing is visible before the end of the block. An exception in the block, or before the commit has begun,
    aborts the job: nothing becomes visible and nothing stays pending. Once the commit has begun the job is
    never aborted from here: the error says what is known, and ``s3commit commit`` finishes the job.

    Not repeatable: each call is a job of its own. To resume a write after a crash, use `Job` and its id.

    Args:
        destination: URI of the dataset's directory, or a `Destination`.
        store: The store, or how to reach it; by default S3 by boto3's default chain.
        conflict_mode: What happens where there is data already: ``fail``, ``append`` or ``replace`` (the
            partitions that the job writes); by default that of ``job_options``.
        job_options: Further options of the job.
        name: A display name for the job.
        context: Facts to keep with the job.
        generation: The one the output was made from; a later commit to the same partitions aborts the job.
        progress: Called after each completed upload.
        clock: Source of time.

    Yields:
        The writer; it has the ``manifest`` after the block.

    Raises:
        DestinationNotEmpty: Conflict mode ``fail``, and there is data.
        DidNotHappen: The store refused a step before the commit, or that was rolled back: nothing is visible.
        OutcomeUnknown: The commit may have begun and did not finish: run ``s3commit commit`` for the job.
        Refused: A rule of the protocol forbids the job. Nothing of it is visible.
    """
    options, facts = job_options or JobOptions(), dict(context or {})
    if conflict_mode is not None:
        options = JobOptions(**{**asdict(options), "conflict_mode": conflict_mode})
    if generation is not None:
        # Kept with the job, so that a process that finishes the commit goes by it too.
        facts[MADE_FROM] = str(generation)
    job = Job.setup(
        _reached(store), destination, options=options, name=name, context=facts, clock=clock, alone="writer"
    )
    with undoing(lambda: job.abort(reason="the write failed"), *_of_abort(job)):
        with job.task_attempt(_STAGE, _STAGE_ATTEMPT, _TASK, _ATTEMPT) as attempt:
            writer = JobWriter(job, attempt)
            yield writer
            written = attempt.commit()
        job.seal_stage(_STAGE, _STAGE_ATTEMPT, [written])
    writer.manifest = _commit(job, progress)


def write_table(
    data: Any,
    destination: str | Destination,
    *,
    store: ObjectStore | S3Config | None = None,
    conflict_mode: ConflictMode | None = None,
    partition_by: Sequence[str] = (),
    format: str | None = None,  # noqa: A002 - as Spark calls it
    options: Mapping[str, str] | None = None,
    job_options: JobOptions | None = None,
    name: str | None = None,
    context: Mapping[str, str] | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Manifest:
    """Write a table to a destination and commit it: all of its files become visible, or none. Needs pyarrow.

    Failures are those of `write_job` and `TaskAttempt.write_table`. Not repeatable: each call is a new job.

    Args:
        data: A table of pyarrow, pandas or polars, a DuckDB relation, or a reader of Arrow batches.
        destination: URI of the dataset's directory, or a `Destination`.
        store: The store, or how to reach it; by default S3 by boto3's default chain.
        conflict_mode: As for `write_job`.
        partition_by: Partition columns, outermost first.
        format: ``parquet`` (the default), ``orc``, ``csv`` or ``json``.
        options: Options of the files, by Spark's names.
        job_options: Further options of the job.
        name: A display name for the job.
        context: Facts to keep with the job.
        progress: Called after each completed upload.
    """
    with write_job(
        destination,
        store=store,
        conflict_mode=conflict_mode,
        job_options=job_options,
        name=name,
        context=context,
        progress=progress,
    ) as writer:
        writer.write_table(data, partition_by=partition_by, format=format, options=options)
    assert writer.manifest is not None
    return writer.manifest


def _reached(store: ObjectStore | S3Config | None) -> ObjectStore:
    if store is not None and not isinstance(store, S3Config):
        return store
    from airflow_s3commit.store.s3.store import S3Store  # noqa: PLC0415 - boto3 is slow to import

    return S3Store.connect(store or S3Config())


def _commit(job: Job, progress: Callable[[Progress], None] | None) -> Manifest:
    """Commit the job. After an error it is aborted, unless its commit may have begun."""
    try:
        sealed = job.seal([(_STAGE, _STAGE_ATTEMPT)])
    except BaseException as error:
        with noting(error, *_of_abort(job)):
            job.abort(reason="the commit did not begin")
        raise
    try:
        return job.commit(seal_sha256=sealed.sha256, progress=progress)
    except (JobFailed, Refused) as error:
        # Before the first upload is completed a refusal leaves the job as it is; later ones abort it.
        with noting(error, *_of_abort(job)), suppress(AlreadyCommitted):
            job.abort(reason=str(error))
        raise
    except BaseException as error:
        left = (
            f"{_named(job)} was not aborted, because its commit may have begun; finish it with: s3commit"
            f" commit {job.reference.destination} {job.reference.job_id}"
        )
        if not isinstance(error, DidNotHappen):
            error.add_note(left)
            raise
        # The error is about one request: of the commit as a whole the outcome is not known.
        raise OutcomeUnknown(f"{whole_text(error)}; {left}") from error


def _of_abort(job: Job) -> tuple[str, str]:
    """Return the note for an abort that fails after another error."""
    return f"aborting {_named(job)}", "uploads of it may stay pending; run: s3commit abort"


def _named(job: Job) -> str:
    return f"job {job.reference.job_id} on {job.reference.destination}"

"""The output of a job: what its task attempts write, and which of them count."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Self

from airflow_s3commit._clock import Clock, SystemClock
from airflow_s3commit.protocol.metadata.context import JobContext, new_uuid
from airflow_s3commit.protocol.metadata.sealed_job import find_stage_seal, sealed_attempts
from airflow_s3commit.protocol.model.codec import MIB
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.job import JobRecord, JobReference, JobState
from airflow_s3commit.protocol.model.layout import Layout, check_attempt_id, check_id
from airflow_s3commit.protocol.model.manifest import Manifest
from airflow_s3commit.protocol.model.pendingset import TaskExtra
from airflow_s3commit.protocol.model.sealed_job import CommittedTask, SealReference
from airflow_s3commit.protocol.steps.collect import collect_stage
from airflow_s3commit.protocol.steps.manifests import find_manifest
from airflow_s3commit.protocol.steps.setup import load_job, recorded
from airflow_s3commit.protocol.steps.stage import seal_stage
from airflow_s3commit.protocol.steps.state import find_state
from airflow_s3commit.protocol.steps.task import abort_attempt, abort_stage
from airflow_s3commit.protocol.writer.files import UPLOAD_THREADS, AttemptFiles
from airflow_s3commit.protocol.writer.task_attempt import TaskAttempt
from airflow_s3commit.store.base import MIN_PART_BYTES, ObjectStore


class JobOutput:
    """An existing job, and the steps of the processes that write its output; `Job` adds all others.

    Args:
        context: The job.

    """

    def __init__(self, context: JobContext) -> None:
        self._context = context

    @classmethod
    def at(
        cls,
        store: ObjectStore,
        reference: JobReference,
        *,
        clock: Clock | None = None,
        new_id: Callable[[], str] = new_uuid,
    ) -> Self:
        """Open an existing job. Sends no request; the first method call does.

        Args:
            store: The store of the destination and the staging.
            reference: The job, as `reference` returned it.
            clock: Source of time.
            new_id: Source of ids.

        Raises:
            InvalidDestination: The reference holds no S3 URI.
            InvalidRecord: The reference's staging is not that of its job.

        """
        layout = Layout(
            Destination.parse(reference.destination), Destination.parse(reference.staging), reference.job_id
        )
        return cls(JobContext(store, layout, clock=clock or SystemClock(), new_id=new_id))

    @property
    def reference(self) -> JobReference:
        """The id and URIs that open this job in another process."""
        return JobReference(**self._context.layout.place)

    def record(self) -> JobRecord:
        """Return the job's own record: options, context, creation time. Read once, then cached."""
        record = self._recorded().record
        return record if record is not None else load_job(self._context)

    def state(self) -> JobState | None:
        """Return how far the job is; None if it was never set up."""
        return find_state(self._context)

    def manifest(self) -> Manifest | None:
        """Return what the job has committed; None if it has not."""
        return find_manifest(self._context)

    def task_attempt(
        self,
        stage: str,
        stage_attempt: str,
        task: str,
        attempt: str,
        *,
        part_bytes: int = 32 * MIB,
        buffered_bytes: int = 128 * MIB,
        threads: int = UPLOAD_THREADS,
        min_part_bytes: int = MIN_PART_BYTES,
        local_dir: str | None = None,
        streamed: bool = False,
    ) -> TaskAttempt:
        """Start one attempt of one task, which writes files, then commits or aborts.

        Before: the job is ``open``. Pass the result of its ``commit`` to `seal_stage`. Not repeatable: each
        attempt needs an id of its own.

        Args:
            stage: Name of the writing application, the same for all its attempts.
            stage_attempt: Id of the stage attempt; letters and digits.
            task: Name of the task, the same for all its attempts.
            attempt: Id of the task attempt; letters and digits.
            part_bytes: Bytes of the first parts of a file; later parts of a large file grow.
            buffered_bytes: Bytes of parts in flight before a write blocks.
            threads: Parts and uploads sent concurrently; 0 sends in the writer's thread.
            min_part_bytes: The store's minimum size of a part, in bytes.
            local_dir: Directory of the files of the staging committers; by default the temporary directory.
            streamed: Upload files while they are written, whatever the job's committer.

        Raises:
            InvalidRecord: An id cannot be part of a key.

        """
        self._context.layout.pendingset(stage, stage_attempt, task, attempt)
        extra = TaskExtra(
            stage=check_id(stage, "stage"),
            stage_attempt=check_attempt_id(stage_attempt, "stage attempt"),
            task=task,
            attempt=attempt,
            nonce=self._context.new_id(),
        )
        options = self.record().options
        context = self._context
        files = AttemptFiles(
            context,
            options,
            extra,
            part_bytes=part_bytes,
            buffered_bytes=buffered_bytes,
            threads=threads,
            min_part_bytes=min_part_bytes,
            local_dir=local_dir,
            streamed=streamed,
        )
        return TaskAttempt(context, options, extra, files)

    def seal_stage(
        self, stage: str, stage_attempt: str, tasks: Iterable[CommittedTask] | None = None
    ) -> SealReference:
        """Record which task attempts of a stage count. Output of any other attempt never becomes visible.

        Before: the job is ``open``, and each task attempt was committed. Reads every pendingset once, so
        that a damaged one fails here. Repeatable by any process: the same tasks give the same seal.

        Args:
            stage: Name of the stage.
            stage_attempt: Id of the stage attempt.
            tasks: One committed attempt of each task, as ``TaskAttempt.commit`` returned it. None takes what
                Spark's own writers left, after their application has succeeded.

        Raises:
            DuplicateOutput: A task occurs twice, or a key is written twice.
            InvalidRecord: A pendingset is damaged, another job's, or not the one that was committed.
            JobClosed: The job is not open, the stage attempt is sealed with other tasks, or has none.

        """
        if tasks is None:
            return collect_stage(self._recorded(), stage, stage_attempt)
        return seal_stage(self._recorded(), stage, stage_attempt, tasks)

    def stage_seal(self, stage: str, stage_attempt: str) -> SealReference | None:
        """Return the seal of a stage attempt; None if it is not sealed.

        Args:
            stage: Name of the stage.
            stage_attempt: Id of the stage attempt.

        """
        return find_stage_seal(self._context, stage, stage_attempt)

    def sealed_stages(self) -> list[tuple[str, str]]:
        """Return the sealed stage attempts, as pairs of stage and stage attempt."""
        return sealed_attempts(self._context)

    def abort_stage(self, stage: str, stage_attempt: str) -> int:
        """Abort the recorded uploads of a stage attempt that another attempt replaces; return how many.

        Before: the stage attempt is not sealed. Repeatable by any process.

        Args:
            stage: Name of the stage.
            stage_attempt: Id of the stage attempt.

        Raises:
            JobClosed: The stage attempt is sealed: its uploads may be committed.
            S3CommitError: An upload could not be aborted; call it again.

        """
        return abort_stage(self._recorded(), stage, stage_attempt)

    def abort_attempt(self, stage: str, stage_attempt: str, task: str, attempt: str) -> int:
        """Abort the recorded uploads of a task attempt whose process is gone; return how many.

        Before: the stage attempt is not sealed. After: the task attempt cannot be sealed any more. Repeatable
        by any process. Uploads that the attempt has not recorded yet (see ``JobOptions.track_pending``) are
        left to the job's commit or abort, or to a sweep.

        Args:
            stage: Name of the stage.
            stage_attempt: Id of the stage attempt.
            task: Name of the task.
            attempt: Id of the task attempt.

        Raises:
            JobClosed: The stage attempt is sealed: its uploads may be committed.
            S3CommitError: An upload could not be aborted; call it again.

        """
        return abort_attempt(self._recorded(), stage, stage_attempt, task, attempt)

    def _recorded(self) -> JobContext:
        """Return the job's context with its record, which is read once; without one if the job has none."""
        self._context = recorded(self._context)
        return self._context

"""The facade of a job: one method for each step of the protocol.

Any process with the `JobReference` may call any method, and repeat it after a crash: all state is on S3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Self

from airflow_s3commit._clock import Clock, SystemClock
from airflow_s3commit.exceptions import InvalidOption, JobClosed, NoSuchJob
from airflow_s3commit.protocol.hadoop.adopt import refuse_end
from airflow_s3commit.protocol.hadoop.jobs import find_hadoop_job
from airflow_s3commit.protocol.metadata.context import Alone, JobContext, has_object, new_uuid, recorded
from airflow_s3commit.protocol.metadata.pending_uploads import Progress, untracked_uploads
from airflow_s3commit.protocol.metadata.sealed_job import find_stage_seal, sealed_attempts
from airflow_s3commit.protocol.model.codec import MIB
from airflow_s3commit.protocol.model.delta import COMPACTION, SAME_ROWS
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.job import AbortReport, JobOptions, JobRecord, JobReference, JobState
from airflow_s3commit.protocol.model.layout import RECORD, Layout, check_new_id, job_key
from airflow_s3commit.protocol.model.manifest import Manifest
from airflow_s3commit.protocol.model.pendingset import TaskExtra
from airflow_s3commit.protocol.model.sealed_job import CommittedTask, SealReference
from airflow_s3commit.protocol.steps.abort import abort, aborting_unbegun, undo, with_readable_record
from airflow_s3commit.protocol.steps.collect import collect_stage
from airflow_s3commit.protocol.steps.commit import Preview, commit, complete_part, preview
from airflow_s3commit.protocol.steps.finish import has_leftovers
from airflow_s3commit.protocol.steps.fold import find_manifest
from airflow_s3commit.protocol.steps.log import look_up_end
from airflow_s3commit.protocol.steps.seal import abort_attempt, abort_stage, seal, seal_stage
from airflow_s3commit.protocol.steps.setup import (
    find_state,
    is_publishing,
    job_record,
    never_set_up,
    open_job,
    other_home,
)
from airflow_s3commit.protocol.steps.task_attempt import UPLOAD_THREADS, TaskAttempt
from airflow_s3commit.store.base import MIN_PART_BYTES, ObjectStore
from airflow_s3commit.store.remembering import RememberingStore

#: The entry of a job's context that holds its display name.
NAME = "name"


class Job:
    """One refresh of a destination: many task attempts write, one commit publishes.

    Create one with `setup`, or open an existing one with `at`.

    Besides the errors that a method lists, any method raises `NoSuchJob` for a job that was never set up;
    `AlreadyCommitted` or `JobClosed` for one that has ended; `InvalidRecord` for a record that is damaged,
    another job's, or was copied here; and the errors of the store.
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
        """Open a job by its `reference`. Sends no request; the first method call does.

        Raises:
            InvalidDestination: The reference holds no S3 URI.
            InvalidRecord: The reference's staging is not that of its job.
        """
        layout = Layout(
            Destination.parse(reference.destination), Destination.parse(reference.staging), reference.job_id
        )
        used = clock or SystemClock()
        return cls(JobContext(store, layout, used, new_id, record_sha256=reference.sha256))

    @classmethod
    def setup(
        cls,
        store: ObjectStore,
        destination: str | Destination,
        *,
        options: JobOptions | None = None,
        job_id: str | None = None,
        name: str | None = None,
        context: Mapping[str, str] | None = None,
        clock: Clock | None = None,
        new_id: Callable[[], str] = new_uuid,
        alone: Alone = "",
    ) -> Job:
        """Set up a job: check the bucket, then write the job's record. Begins the log if there is none.

        Repeatable by any process: with the same id and options it returns the same job, open or sealed.

        Args:
            destination: URI of the dataset's directory, ``s3://bucket/prefix/``, or a `Destination`.
            options: How the job commits; by default ``partitioned`` with conflict mode ``fail``.
            job_id: The job's id: a UUID in lower case with hyphens; random by default. No two jobs may share
                one, on different destinations either: their stagings could be the same.
            name: A display name. It is kept in the context, and shown wherever the job is.
            context: Facts of the orchestrator to keep with the job, such as DAG and run.
            alone: ``driver`` if this process starts all writers of the job, and ends the job itself: then it
                need not check after each step whether others have ended the job, nor read what it wrote.
                ``writer`` if it is the only writer too: nor need it list what others left. Saves requests.

        Raises:
            InvalidDestination: It is no S3 URI, is an object, or lies in another table or around one.
            InvalidRecord: The id is no UUID.
            InvalidOption: The table has what the options exclude, or the context a key of compactions alone.
            JobMismatch: A job with this id exists with other options.
            AlreadyCommitted: A job with this id is committed.
            JobClosed: A job with this id was aborted; its id cannot be used again.
            DestinationNotEmpty: Committer ``directory`` with conflict mode ``fail``, and there is data.
            AccessDenied: The credentials may not do what a commit needs.
            StoreUnsuitable: The store does not do what a job relies on.
            OutcomeUnknown: The job may be set up: repeat or abort. Without a ``job_id`` it is aborted.
        """
        options = options or JobOptions()
        root = Destination.parse(options.staging) if options.staging is not None else None
        used = new_id() if job_id is None else check_new_id(job_id)
        layout = Layout.of(Destination.of(destination), used, root)
        plain = JobContext(
            # Not the job's record: conditional writes are tried on it, and the store itself must answer them.
            RememberingStore(store, but=(RECORD,)) if alone else store,
            layout,
            clock=clock or SystemClock(),
            new_id=new_id,
            # Nobody can have ended a job whose id this call has made.
            alone="driver" if job_id is None else "",
        )
        facts = {**(context or {}), **({} if name is None else {NAME: name})}
        if name != COMPACTION and not SAME_ROWS.keys().isdisjoint(facts):
            raise InvalidOption(
                f"context has {min(SAME_ROWS)}, for which readers of a Delta table skip rows: leave it out"
            )
        with aborting_unbegun(plain) if job_id is None else nullcontext():
            stored = open_job(plain, options, facts)
        return cls(replace(plain.as_recorded(stored.record, stored.sha256), alone=alone))

    @property
    def reference(self) -> JobReference:
        """By this another process opens the job; it pins the job's record, once that was written or read."""
        return JobReference(**self._context.layout.place, sha256=self._context.record_sha256)

    def record(self) -> JobRecord:
        """Return the job's own record: options, context, creation time. Read once, then cached."""
        return job_record(self._recorded())

    def state(self) -> JobState | None:
        """Return how far the job has got; None if it was never set up."""
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
        record = self.record()
        extra = TaskExtra(
            stage=stage,
            stage_attempt=stage_attempt,
            task=task,
            attempt=attempt,
            nonce=self._context.new_id(),
            object_options=record.options.object_options,
        )
        return TaskAttempt(
            self._context,
            record,
            extra,
            part_bytes=part_bytes,
            buffered_bytes=buffered_bytes,
            threads=threads,
            min_part_bytes=min_part_bytes,
            local_dir=local_dir,
            streamed=streamed,
        )

    def seal_stage(
        self, stage: str, stage_attempt: str, tasks: Iterable[CommittedTask] | None = None
    ) -> SealReference:
        """Record which task attempts of a stage count. Output of any other attempt never becomes visible.

        Before: the job is ``open``, and each task attempt was committed. Reads every pendingset once, so
        that a damaged one fails here. Repeatable by any process: the same tasks give the same seal.

        Args:
            tasks: One committed attempt of each task, as ``TaskAttempt.commit`` returned it. None takes what
                Spark's own writers left, after their application has succeeded.

        Raises:
            DuplicateOutput: A task occurs twice, or a key is written twice.
            InvalidRecord: A pendingset is damaged, another job's, or not the one that was committed.
            JobClosed: The job is not open; the stage attempt is sealed with other tasks, or Spark wrote none.
        """
        if tasks is None:
            return collect_stage(self._recorded(), stage, stage_attempt)
        return seal_stage(self._recorded(), stage, stage_attempt, tasks)

    def stage_seal(self, stage: str, stage_attempt: str) -> SealReference | None:
        """Return the seal of a stage attempt; None if it is not sealed."""
        return find_stage_seal(self._context, stage, stage_attempt)

    def sealed_stages(self) -> list[tuple[str, str]]:
        """Return the sealed stage attempts, as pairs of stage and stage attempt."""
        return sealed_attempts(self._context)

    def abort_stage(self, stage: str, stage_attempt: str) -> int:
        """Abort the recorded uploads of a stage attempt that another attempt replaces; return how many.

        Before: the stage attempt is not sealed. Repeatable by any process.

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

        Raises:
            JobClosed: The stage attempt is sealed: its uploads may be committed.
            S3CommitError: An upload could not be aborted; call it again.
        """
        return abort_attempt(self._recorded(), stage, stage_attempt, task, attempt)

    def seal(
        self,
        stages: Sequence[tuple[str, str]] | None = None,
        *,
        digests: Mapping[tuple[str, str], str] | None = None,
    ) -> SealReference:
        """Record which stage attempts count, and close the job to further output.

        Before: the stages are sealed. Repeatable by any process: the same stages give the same seal.

        Args:
            stages: Pairs of stage and stage attempt; an empty list commits no files. None takes every sealed
                stage attempt, and requires one.
            digests: Expected SHA-256 of the stages' seals; any other seal is refused.

        Raises:
            DuplicateOutput: Two attempts of one stage are sealed, or two stages write one key.
            JobClosed: The job has no sealed stage, or is sealed with other stages.
        """
        return seal(self._recorded(), stages, digests=digests)

    def preview(self) -> Preview:
        """Return what the commit would take from the table now. Changes nothing.

        Before: the job is sealed. Optional; a `commit` that is given its ``generation`` is refused if a later
        one touched the same partitions.

        Raises:
            JobClosed: The job is not sealed.
            DestinationNotEmpty: Conflict mode ``fail``, and there is data.
        """
        return preview(self._recorded())

    def commit(
        self,
        *,
        stages: Sequence[tuple[str, str]] | None = None,
        seal_sha256: str | None = None,
        generation: int | None = None,
        progress: Callable[[Progress], object] | None = None,
    ) -> Manifest:
        """Make the sealed output visible, and return the manifest.

        Before: the job is sealed. After: it is committed, what it replaces is deleted, ``_SUCCESS`` is
        written, and no upload of the job is pending. Repeatable by any process: it finishes an interrupted
        commit, and returns the manifest of a finished one.

        Args:
            stages: Seal the job first, as `seal` does, with these pairs of stage and stage attempt.
            seal_sha256: Expected SHA-256 of the seal; any other seal is refused.
            generation: That of a preview; the commit is refused if a later one touched the same partitions.
            progress: Called after each completed upload.

        Raises:
            DestinationChanged: Partitions changed after ``generation``, or the log lacks it: preview again.
            InvalidDestination: It would take files of a table above or below its own; the job is aborted.
            DestinationNotEmpty: Conflict mode ``fail``, and there is data. Nothing was changed; or, if
                another job committed while this one was publishing, this one is aborted.
            InvalidRecord: A record of the job was changed after it was written; a job that had begun to
                publish is aborted. Or a record of the table is damaged; the job stays as it is.
            InvalidOption: The table has what the job's options exclude, or its partition columns under names
                of another case; a job that had begun to publish is aborted.
            JobFailed: An upload is gone; the job is aborted.
            JobClosed: The job is not sealed, or is aborted.
            OutcomeUnknown: A response was lost, or a request failed after the commit: commit again.
            Unavailable: Other jobs' entries came first a hundred times: commit again.
        """
        if stages is not None:
            self.seal(stages)
        entry = commit(self._recorded(), seen=generation, seal_sha256=seal_sha256, progress=progress)
        return Manifest.of(entry)

    def complete_part(
        self,
        part: int,
        parts: int,
        *,
        seal_sha256: str | None = None,
        progress: Callable[[Progress], object] | None = None,
    ) -> int:
        """Complete a part of the sealed uploads, so that several processes share the work of one commit.

        Before: the job is sealed. After: the objects of that part exist; they may be visible before the job
        is committed. `commit` completes whatever is not complete, so it does not matter which parts ran.
        Repeatable by any process, also concurrently.

        Args:
            part: Number of the part, from 0.
            seal_sha256: Expected SHA-256 of the seal; any other seal is refused.
            progress: Called after each completed upload.

        Returns:
            How many files the part has.

        Raises:
            InvalidOption: There is no such part.
            JobClosed: The job is not sealed, or is aborted.
            JobFailed: An upload is gone. The commit will abort the job.
        """
        return complete_part(self._recorded(), part, parts, seal_sha256=seal_sha256, progress=progress)

    def has_leftovers(self) -> bool:
        """Return whether tasks that outlived the finished job have left uploads, or records of uploads.

        A repeated `commit`, or `abort`, removes them. Reads only, with two listings.
        """
        return has_leftovers(self._context)

    def abort(self, *, reason: str | None = None) -> AbortReport:
        """Abort the job's uploads, and take back what its commit has published; return how many of each.

        Before: the job is not committed. After: nothing of the job is visible or pending, and its id is
        spent. Damaged records do not prevent it. Repeatable by any process.

        Args:
            reason: Why, for the record.

        Raises:
            AlreadyCommitted: The job is committed, or is a successful job of Hadoop.
            JobClosed: It is a job of Hadoop, which has published some of its output: adopt it.
            ForeignRecord: The job's record was copied here.
            NoSuchJob: It is a job on a directory above or below.
            OutcomeUnknown: A response was lost; abort again.
        """
        # Read the record anew: if it was deleted with all of the destination, the log is gone too.
        context = with_readable_record(replace(self._context, record=None))
        if context.record is None:
            _refuse_others(context)
        return abort(context, reason or "")

    def recover(self, *, progress: Callable[[Progress], object] | None = None) -> Manifest | AbortReport:
        """Finish a commit or an abort that was interrupted, as `commit` or `abort` would.

        A sealed job is committed if some of its files are objects already. Repeatable by any process.

        Raises:
            JobClosed: Neither was begun: the job is open or sealed. Commit or abort it.
            NoSuchJob: The job was never set up.
            S3CommitError: As for `commit`.
        """
        context = self._recorded()
        end = look_up_end(context, context.record)
        if end is not None and end.kind == "abandon":
            return undo(context, end)
        if end is None and context.record is None:
            raise NoSuchJob(never_set_up(context))
        if end is None and not is_publishing(context):
            raise JobClosed(f"{context.name} has neither begun to commit nor to abort: commit or abort it")
        return self.commit(progress=progress)

    def _recorded(self) -> JobContext:
        """Return the job's context with its record, which is read once; without one if the job has none."""
        self._context = recorded(self._context)
        return self._context


def _refuse_others(context: JobContext) -> None:
    """Raise if a job without a record here is Hadoop's and must not be aborted, or of another destination."""
    store, home, job_id = context.store, context.layout.destination, context.job_id
    if has_object(store, home.bucket, job_key(home, job_id)):
        # It is damaged, and the job is ours: adopted, if it was Hadoop's.
        return
    if (theirs := find_hadoop_job(store, home, job_id)) is not None:
        refuse_end(theirs)
    elif look_up_end(context, None) is None and (
        place := other_home(context, [one.key for one in untracked_uploads(context)])
    ):
        raise NoSuchJob(f"job {job_id} is not on {home.uri}, but on {place.uri}: abort it there")

"""The facade of a job: one method for each step of the protocol.

Any process with the `JobReference` may call any method, and repeat it after a crash: all state is on S3.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from airflow_s3commit._clock import Clock, SystemClock
from airflow_s3commit._deprecated import ignored
from airflow_s3commit.exceptions import InvalidRecord
from airflow_s3commit.protocol.lifecycle.abort import abort_attempt, abort_late, abort_stage
from airflow_s3commit.protocol.lifecycle.collect import collect_stage
from airflow_s3commit.protocol.lifecycle.commit import begin_shards, commit_job, complete_shard, finish_shards
from airflow_s3commit.protocol.lifecycle.lose import abort_or_lose
from airflow_s3commit.protocol.lifecycle.plan import plan_job, plan_reference
from airflow_s3commit.protocol.lifecycle.recover import recover_job
from airflow_s3commit.protocol.lifecycle.seal import seal_job, seal_stage
from airflow_s3commit.protocol.lifecycle.setup import Look, set_up_job
from airflow_s3commit.protocol.metadata.context import JobContext, new_uuid
from airflow_s3commit.protocol.metadata.job_record import find_job, load_job
from airflow_s3commit.protocol.metadata.manifests import find_manifest
from airflow_s3commit.protocol.metadata.records import unless_damaged
from airflow_s3commit.protocol.metadata.seals import find_stage_seal, load_seal, sealed_attempts
from airflow_s3commit.protocol.metadata.state import check_state, last_state, read_state
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.job import AbortReport, JobOptions, JobRecord, JobReference, StateRecord
from airflow_s3commit.protocol.model.layout import Layout, check_attempt_id, check_id
from airflow_s3commit.protocol.model.limits import MIB
from airflow_s3commit.protocol.model.manifest import ManifestRecord
from airflow_s3commit.protocol.model.pendingset import TaskExtra
from airflow_s3commit.protocol.model.plan import PlanReference
from airflow_s3commit.protocol.model.progress import Progress
from airflow_s3commit.protocol.model.seal import CommittedTask, SealReference
from airflow_s3commit.protocol.model.signing import Signer
from airflow_s3commit.protocol.writer.files import UPLOAD_THREADS, AttemptFiles
from airflow_s3commit.protocol.writer.task_attempt import TaskAttempt
from airflow_s3commit.store.base import MIN_PART_BYTES, ObjectStore

logger = logging.getLogger(__name__)

#: The entry of a job's context that holds its display name.
NAME = "name"


class Job:
    """One refresh of a destination: many task attempts write, one commit publishes.

    Create one with `setup`, or open one with `at`. Besides the errors that a method lists, any raises
    `NoSuchJob` for a job that was never set up, or was aborted and cleaned up; `InvalidRecord` for a record
    that is damaged, another job's, or was copied here; `SignatureRefused` where it needs the signer of a
    signed job; and the errors of the store.
    """

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._record: JobRecord | None = None

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
        lock_wait: float | None = None,
        signer: Signer | None = None,
        is_new: bool = False,
        own: bool = False,
    ) -> Job:
        """Set up a job: check the bucket, then write the job's record and its first state.

        Repeatable by any process: with the same id and options it returns the same job, in whatever state.

        Args:
            store: The store of the destination and the staging.
            destination: URI of the dataset's directory, ``s3://bucket/prefix/``, or a `Destination`.
            options: How the job commits; by default ``partitioned`` with conflict mode ``fail``.
            job_id: The job's id: a UUID in lower case with hyphens; random by default.
            name: A display name. It is kept in the context, and shown wherever the job is.
            context: Facts of the orchestrator to keep with the job, such as DAG and run.
            clock: Source of time.
            new_id: Source of ids.
            lock_wait: Has no effect any more, and will be removed.
            signer: Signs the records that a commit depends on. Then every process that commits or aborts the
                job needs the key; processes that only write its output do not.
            is_new: The id is very likely new: look for an earlier job after writing only. Saves requests.
            own: This process also seals and commits the job, and only writers of this package that it starts
                write to it. Saves requests.

        Raises:
            InvalidDestination: The destination is no S3 URI, or is an object.
            InvalidRecord: The id is no UUID.
            JobMismatch: A job with this id exists with other options.
            JobClosed: A job with this id was aborted; its id cannot be used again.
            DestinationNotEmpty: Committer ``directory`` with conflict mode ``fail``, and there is data.
            AccessDenied: The credentials may not do what a commit needs.
            StoreUnsuitable: The store ignores conditional writes, and ``fencing`` is ``required``.

        """
        options = options or JobOptions()
        root = Destination.parse(options.staging) if options.staging is not None else None
        layout = Layout.of(Destination.of(destination), new_id() if job_id is None else job_id, root)
        ignored("lock_wait", lock_wait)
        clock = clock or SystemClock()
        own_id = layout.job_id if own else None
        job = cls(JobContext(store, layout, clock=clock, new_id=new_id, signer=signer, own_id=own_id))
        facts = {**(context or {}), **({} if name is None else {NAME: name})}
        look: Look = "never" if job_id is None else "after" if is_new else "first"
        job._record = set_up_job(job._context, options, facts, look=look)
        return job

    @classmethod
    def at(
        cls,
        store: ObjectStore,
        reference: JobReference,
        *,
        clock: Clock | None = None,
        new_id: Callable[[], str] = new_uuid,
        lock_wait: float | None = None,
        signer: Signer | None = None,
    ) -> Job:
        """Open an existing job. Sends no request; the first method call does.

        Args:
            store: The store of the destination and the staging.
            reference: The job, as `reference` returned it.
            clock: Source of time.
            new_id: Source of ids.
            lock_wait: Has no effect any more, and will be removed.
            signer: The signer that the job was set up with; only needed to commit or abort.

        Raises:
            InvalidDestination: The reference holds no S3 URI.
            InvalidRecord: The reference's staging is not that of its job.

        """
        destination, staging = map(Destination.parse, (reference.destination, reference.staging))
        layout = Layout(destination, staging, reference.job_id)
        ignored("lock_wait", lock_wait)
        return cls(JobContext(store, layout, clock=clock or SystemClock(), new_id=new_id, signer=signer))

    @property
    def reference(self) -> JobReference:
        """The id and URIs that open this job in another process."""
        return JobReference(**self._context.layout.place)

    def record(self) -> JobRecord:
        """Return the job's own record: options, context, creation time. Read once, then cached."""
        if self._record is None:
            self._record = load_job(self._context)
        return self._record

    def state(self) -> StateRecord | None:
        """Return the job's current state; None if it was never set up, or ended and was cleaned up."""
        stored = read_state(self._context)
        return stored.record if stored is not None else None

    def manifest(self) -> ManifestRecord | None:
        """Return the job's manifest, the proof of its commit; None if it has not committed."""
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
            stage=check_id(stage, "stage"), stage_attempt=check_attempt_id(stage_attempt, "stage attempt"),
            task=task, attempt=attempt, nonce=self._context.new_id(),
        )  # fmt: skip
        context, options = self._live(acting=False), self.record().options
        files = AttemptFiles(
            context, options, extra, part_bytes=part_bytes, buffered_bytes=buffered_bytes, threads=threads,
            min_part_bytes=min_part_bytes, local_dir=local_dir, streamed=streamed,
        )  # fmt: skip
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
            return collect_stage(self._live(acting=False), stage, stage_attempt)
        return seal_stage(self._live(acting=False), stage, stage_attempt, tasks)

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
        return abort_stage(self._live_or_ended(acting=False), stage, stage_attempt)

    def abort_attempt(self, stage: str, stage_attempt: str, task: str, attempt: str) -> int:
        """Abort the recorded uploads of a task attempt whose process is gone; return how many.

        Before: the stage attempt is not sealed. After: the task attempt cannot be sealed. Repeatable by any
        process. Uploads not recorded yet (``JobOptions.track_pending``) are left to the job's end or a sweep.

        Args:
            stage: Name of the stage.
            stage_attempt: Id of the stage attempt.
            task: Name of the task.
            attempt: Id of the task attempt.

        Raises:
            JobClosed: The stage attempt is sealed: its uploads may be committed.
            S3CommitError: An upload could not be aborted; call it again.

        """
        return abort_attempt(self._live_or_ended(acting=False), stage, stage_attempt, task, attempt)

    def seal(
        self,
        stages: Sequence[tuple[str, str]] | None = None,
        *,
        etags: Mapping[tuple[str, str], str] | None = None,
    ) -> SealReference:
        """Record which stage attempts count, and close the job to further output.

        Before: the job is ``open`` and its stages are sealed. After: it is ``sealed``. Repeatable by any
        process: the same stages give the same seal.

        Args:
            stages: Pairs of stage and stage attempt; an empty list commits no files. None takes every sealed
                stage attempt, and requires one.
            etags: Expected ETags of the stages' seals; any other seal is refused.

        Raises:
            DuplicateOutput: Two attempts of one stage are sealed, or two stages write one key.
            JobClosed: The job is not open, has no sealed stage, or is sealed with other stages.
            AlreadyCommitted: The job is committed.

        """
        return seal_job(self._live(), stages, etags=etags)

    def plan(self) -> PlanReference:
        """List the objects that the commit will replace, and store that list as the job's plan.

        Before: the job is ``sealed``. Optional: `commit` makes a plan if there is none. Repeatable by any
        process; the newest plan counts.

        Raises:
            JobClosed: The job is not sealed, or its commit has begun.
            AlreadyCommitted: The job is committed.
            DestinationNotEmpty: Conflict mode ``fail``, and there is data.

        """
        context = self._live()
        state = check_state(context, last_state(context, "sealed"), "sealed")
        seal = load_seal(context, state.record.seal_etag)
        planned = plan_job(context, self.record(), state, seal)
        return plan_reference(context, planned, seal.record)

    def commit(
        self,
        *,
        seal_etag: str | None = None,
        plan_etag: str | None = None,
        stages: Sequence[tuple[str, str]] | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> ManifestRecord:
        """Make the sealed output visible, and return the manifest.

        Before: the job is ``sealed``; without a plan it is planned first. After: it is committed and cleaned
        up. Repeatable by any process: it resumes an interrupted commit, and returns the manifest of a
        finished one.

        Args:
            seal_etag: Expected ETag of the seal; any other seal is refused.
            plan_etag: Expected ETag of the plan; any other plan is refused.
            stages: Seal the job first, as `seal` does, with these pairs of stage and stage attempt.
            progress: Called after each completed upload.

        Raises:
            DestinationChanged: The partitions of the named plan changed before the commit began: plan again.
                Or other jobs kept adding files to them: the job is rolled back.
            DestinationNotEmpty: Mode ``fail``, and there is data, or another job commits first: rolled back.
            LockHeld: A live job of a version without a log is committing. Nothing was changed.
            InvalidRecord: A record was changed after it was written; what was published is rolled back.
            JobFailed: An upload is gone; the commit is rolled back.
            NotReversible: The commit can neither finish nor be rolled back.
            JobClosed: The job is not sealed, or is aborted or lost.
            OutcomeUnknown: A response was lost, or the roll-back did not finish; commit again, or recover.

        """
        context = self._live_or_ended() if stages is None else self._live()
        return commit_job(context, seal_etag=seal_etag, plan_etag=plan_etag, stages=stages, progress=progress)

    def begin(self, shards: int, *, seal_etag: str | None = None, plan_etag: str | None = None) -> list[int]:
        """Begin a commit that several workers share, each completing a shard of the uploads.

        Before: the job is ``sealed``. After: it is ``committing``. Call `complete` for each number, then
        `finish`. Repeatable by any process: it returns the shards of the first call.

        Args:
            shards: How many shards, from 1 to 4,096.
            seal_etag: Expected ETag of the seal; any other seal is refused.
            plan_etag: Expected ETag of the plan; any other plan is refused.

        Returns:
            The numbers of the shards; empty if the job is committed.

        Raises:
            ValueError: More than 4,096 shards.
            S3CommitError: As for `commit`.

        """
        return begin_shards(self._live_or_ended(), shards, seal_etag=seal_etag, plan_etag=plan_etag)

    def complete(self, shard: int, *, progress: Callable[[Progress], None] | None = None) -> None:
        """Complete the uploads of one shard.

        Before: `begin` returned this number. Repeatable by any process, also concurrently.

        Args:
            shard: Number of the shard.
            progress: Called after each completed upload.

        Raises:
            JobClosed: The job is not committing, or has no such shard.
            S3CommitError: As for `commit`; a roll-back takes back the whole job.

        """
        complete_shard(self._live_or_ended(), shard, progress=progress)

    def finish(self) -> ManifestRecord:
        """Finish a commit after all of its shards are complete, and return the manifest.

        Repeatable by any process.

        Raises:
            JobClosed: A shard is not complete; the message names it.
            S3CommitError: As for `commit`.

        """
        return finish_shards(self._live_or_ended())

    def abort(self, *, force: bool = False, reason: str | None = None) -> AbortReport:
        """Abort the job's uploads, and take back what its commit has published; return how many of each.

        Before: any state but committed. After: nothing of it is visible or pending. Repeatable.

        Args:
            force: Abort although replaced data cannot be restored, or although the job's records are damaged.
            reason: Why, for the record.

        Raises:
            AlreadyCommitted: The job is committed.
            NotReversible: The job has begun to overwrite or delete old data, and ``force`` is False.
            JobClosed: The job is Hadoop's, and partly published: adopt it. Or it is lost.
            InvalidRecord: A record was copied here, or is damaged and ``force`` is False.
            OutcomeUnknown: A response was lost; abort again.

        """
        context = self._live_or_ended(damaged_too=force)
        return abort_or_lose(context, force=force, reason=reason)

    def abort_late(self) -> int:
        """Abort uploads that task attempts left after their job was cleaned up; return how many.

        Such an attempt does not count: another attempt of its task does. Repeatable by any process.

        Raises:
            JobClosed: The job is not committed, or its commit has not finished.
            S3CommitError: An upload could not be aborted; call it again.

        """
        return abort_late(self._live_or_ended())

    def recover(
        self,
        *,
        rollback: bool = False,
        force: bool = False,
        keep_replaced: bool = False,
        reason: str | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> ManifestRecord | AbortReport:
        """Finish a commit or an abort that was interrupted.

        A commit that has begun is finished, or with ``rollback`` undone; an abort is finished. A damaged
        state is rebuilt from the job's other records first. Repeatable by any process.

        Args:
            rollback: Undo a commit that has begun.
            force: Undo it although replaced data is lost.
            keep_replaced: Finish without deleting what the commit replaces, where the plan is damaged.
            reason: Why the job is rolled back, for the record.
            progress: Called after each completed upload.

        Returns:
            The manifest if the job is committed, or the report of its abort.

        Raises:
            JobClosed: No commit was begun: the job is ``open`` or ``sealed``. Commit or abort it.
            NoSuchJob: The job was never set up.
            AlreadyCommitted: ``rollback`` of a committed job.
            S3CommitError: As for `commit` or `abort`.

        """
        return recover_job(
            self._live_or_ended(), rollback=rollback, force=force, keep_replaced=keep_replaced, reason=reason,
            progress=progress,
        )  # fmt: skip

    def _live(self, *, acting: bool = True) -> JobContext:
        """Return the context of a job that has its record; see `JobContext.as_recorded`."""
        return self._context.as_recorded(self.record(), acting=acting)

    def _live_or_ended(self, *, damaged_too: bool = False, acting: bool = True) -> JobContext:
        """Return the context of a job whose record may have been cleaned up, or may even be damaged."""

        def without_record(error: InvalidRecord) -> None:
            if not damaged_too:
                raise error
            logger.warning("%s: going on without its record", self._context.name, exc_info=error)

        if self._record is None:
            # Kept: a second abort writes as the first did, which has removed the record.
            self._record = unless_damaged(lambda: find_job(self._context), without_record)
        return self._context if self._record is None else self._live(acting=acting)

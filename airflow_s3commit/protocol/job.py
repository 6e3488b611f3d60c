"""The facade of a job: one method for each step of the protocol.

Any process with the `JobReference` may call any method, and repeat it after a crash: all state is on S3. The
methods of the processes that write are inherited from `JobOutput`; those here set up a job and end it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

from airflow_s3commit._clock import Clock, SystemClock
from airflow_s3commit.protocol.job_output import JobOutput
from airflow_s3commit.protocol.lifecycle.abort import abort_job, abort_late
from airflow_s3commit.protocol.lifecycle.commit import begin_shards, commit_job, complete_shard, finish_shards
from airflow_s3commit.protocol.lifecycle.plan import plan_job
from airflow_s3commit.protocol.lifecycle.recover import recover_job
from airflow_s3commit.protocol.lifecycle.run import Progress
from airflow_s3commit.protocol.lifecycle.seal import seal_job
from airflow_s3commit.protocol.lifecycle.setup import Look, set_up_job
from airflow_s3commit.protocol.metadata.context import JobContext, new_uuid
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.job import AbortReport, JobOptions
from airflow_s3commit.protocol.model.layout import Layout
from airflow_s3commit.protocol.model.manifest import ManifestRecord
from airflow_s3commit.protocol.model.sealed_job import PlanReference, SealReference
from airflow_s3commit.store.base import ObjectStore

#: The entry of a job's context that holds its display name.
NAME = "name"

#: What a caller of `Job.setup` may assume.
Assumption: TypeAlias = Literal["nothing", "new", "own", "next"]


class Job(JobOutput):
    """One refresh of a destination: many task attempts write, one commit publishes.

    Create one with `setup`, or open an existing one with `at`.

    Besides the errors that a method lists, any method raises `NoSuchJob` for a job that was never set up, or
    was aborted and cleaned up; `InvalidRecord` for a record that is damaged, another job's, or was copied
    here; and the errors of the store.

    Args:
        context: The job.

    """

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
        assume: Assumption = "nothing",
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
            assume: What setup may assume, to save requests. By default ``nothing``: it first looks for an
                earlier job with this id. ``new``: one is unlikely, so it looks after it has written.
                ``own``: the same, and this process alone seals and commits the job, with output of this
                package's writers that it starts. ``next``: the same, and no job with this id has ended before
                the entry that this process created last in the log: it looks only if that is no longer the
                newest one.

        Raises:
            InvalidDestination: The destination is no S3 URI, or is an object.
            InvalidRecord: The id is no UUID.
            JobMismatch: A job with this id exists with other options.
            JobClosed: A job with this id was aborted; its id cannot be used again.
            DestinationNotEmpty: Committer ``directory`` with conflict mode ``fail``, and there is data.
            AccessDenied: The credentials may not do what a commit needs.
            StoreUnsuitable: The store ignores conditional writes.

        """
        options = options or JobOptions()
        root = Destination.parse(options.staging) if options.staging is not None else None
        layout = Layout.of(Destination.of(destination), new_id() if job_id is None else job_id, root)
        job = cls(
            JobContext(
                store,
                layout,
                clock=clock or SystemClock(),
                new_id=new_id,
                own_id=layout.job_id if assume in ("own", "next") else None,
            )
        )
        facts = {**(context or {}), **({} if name is None else {NAME: name})}
        looks: dict[Assumption, Look] = {"nothing": "first", "new": "after", "own": "after", "next": "moved"}
        look = looks[assume] if job_id is not None else "never"
        job._record = set_up_job(job._context, options, facts, look=look)
        return job

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
        return plan_job(self._live())

    def commit(
        self,
        *,
        seal_etag: str | None = None,
        plan_etag: str | None = None,
        stages: Sequence[tuple[str, str]] | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> ManifestRecord:
        """Make the sealed output visible, and return the manifest.

        Before: the job is ``sealed``; without a plan it is planned first. After: it is committed, what it
        replaces is deleted, ``_SUCCESS`` is written, and no upload of the job is pending. Repeatable by any
        process: it resumes an interrupted commit, and returns the manifest of a finished one.

        Args:
            seal_etag: Expected ETag of the seal; any other seal is refused.
            plan_etag: Expected ETag of the plan; any other plan is refused.
            stages: Seal the job first, as `seal` does, with these pairs of stage and stage attempt.
            progress: Called after each completed upload.

        Raises:
            DestinationChanged: The partitions of the named plan changed before the commit began: plan again.
                Or other jobs kept adding files to them: the job is rolled back.
            DestinationNotEmpty: Conflict mode ``fail``, and there is data. Nothing was changed; if another
                job committed while this one was publishing, this one is rolled back.
            InvalidRecord: A record was changed after it was written; what was published is rolled back.
            JobFailed: An upload is gone; the commit is rolled back.
            JobClosed: The job is not sealed, or is aborted.
            OutcomeUnknown: A response was lost: commit again. Or the job could neither be finished nor be
                rolled back completely: recover it.

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

        Before: `begin` returned this number. After: its objects exist, and a record says so; they may be
        visible before the job is committed. Repeatable by any process, also concurrently.

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

        Before: `complete` has returned for every shard. After: the job is committed and cleaned up, as after
        `commit`. Repeatable by any process.

        Raises:
            JobClosed: A shard is not complete; the message names it.
            S3CommitError: As for `commit`.

        """
        return finish_shards(self._live_or_ended())

    def abort(self, *, force: bool = False, reason: str | None = None) -> AbortReport:
        """Abort the job's uploads, and take back what its commit has published; return how many of each.

        Before: any state but committed. After: nothing of the job is visible or pending, and ``_SUCCESS`` is
        as it was before its commit. Repeatable by any process.

        Args:
            force: Abort although the job's records are damaged.
            reason: Why, for the record.

        Raises:
            AlreadyCommitted: The job is committed.
            JobClosed: The job is Hadoop's, and Hadoop has published some of its output: adopt it.
            InvalidRecord: A record was copied here, or is damaged and ``force`` is False.
            OutcomeUnknown: A response was lost; abort again.

        """
        context = self._live_or_ended(damaged_too=force)
        return abort_job(context, force=force, reason=reason)

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
        keep_replaced: bool = False,
        reason: str | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> ManifestRecord | AbortReport:
        """Finish a commit or an abort that was interrupted.

        A commit that has begun is finished, or with ``rollback`` undone; an abort is finished. A damaged
        state is rebuilt from the job's other records first. Repeatable by any process.

        Args:
            rollback: Undo a commit that has begun.
            keep_replaced: Finish a commit whose plan is damaged, without deleting what it replaces.
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
            self._live_or_ended(),
            rollback=rollback,
            keep_replaced=keep_replaced,
            reason=reason,
            progress=progress,
        )

"""A job, as its callers see it: one object, one method a step.

Every method may be called by any process that knows the `JobReference`, again and again, after a crash at
any point. What a step needs is on the store.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from airflow_s3commit.clock import Clock, SystemClock
from airflow_s3commit.exceptions import ForeignRecord, InvalidRecord
from airflow_s3commit.protocol.abort import abort_attempt, abort_job, abort_late, abort_stage
from airflow_s3commit.protocol.attempt_files import UPLOAD_THREADS, AttemptFiles
from airflow_s3commit.protocol.cleanup import clean_if_ended
from airflow_s3commit.protocol.conflicts import make_plan, plan_reference
from airflow_s3commit.protocol.context import JobContext, new_uuid
from airflow_s3commit.protocol.destination import Destination
from airflow_s3commit.protocol.layout import Layout, check_attempt_id, check_id
from airflow_s3commit.protocol.pendingset import TaskExtra
from airflow_s3commit.protocol.publish import (
    Progress,
    begin_shards,
    commit_job,
    complete_shard,
    finish_shards,
)
from airflow_s3commit.protocol.records import (
    AbortReport,
    CommittedTask,
    JobOptions,
    JobRecord,
    JobReference,
    ManifestRecord,
    PlanReference,
    SealReference,
    StateRecord,
)
from airflow_s3commit.protocol.recover import recover_job
from airflow_s3commit.protocol.sealed import load_seal
from airflow_s3commit.protocol.setup import find_job, load_job, set_up_job
from airflow_s3commit.protocol.signing import Signer
from airflow_s3commit.protocol.stage import find_stage_seal, seal_job, seal_stage
from airflow_s3commit.protocol.state import find_manifest, gone, read_state, require_state
from airflow_s3commit.protocol.task_attempt import TaskAttempt
from airflow_s3commit.store.base import MIN_PART_BYTES, ObjectStore

__all__ = ["Job"]

logger = logging.getLogger(__name__)

#: The entry of a job's context that says what people call it.
NAME = "name"

_MIB = 1024 * 1024


class Job:
    """One refresh of a destination: many task attempts, one commit.

    Make one with `setup`, or find it again with `at`.
    """

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._record: JobRecord | None = None

    @classmethod
    def setup(
        cls,
        store: ObjectStore,
        destination: str,
        *,
        options: JobOptions | None = None,
        job_id: str | None = None,
        name: str | None = None,
        context: Mapping[str, str] | None = None,
        clock: Clock | None = None,
        new_id: Callable[[], str] = new_uuid,
        lock_wait: float = 600.0,
        signer: Signer | None = None,
    ) -> Job:
        """Set a job up. Again with the same id and options: the same job.

        Args:
            store: Where everything is.
            destination: URI of the dataset's directory, ``s3://bucket/prefix/``.
            options: How the job commits; by default ``partitioned`` with conflict mode ``fail``.
            job_id: Its id: a UUID in lower case with hyphens; a random one by default.
            name: What people call it. It is kept in the context, and shown wherever the job is.
            context: What the orchestrator wants to be remembered with the job.
            clock: Where time comes from.
            new_id: Where ids come from.
            lock_wait: Seconds that the commit waits for another living job's lock.
            signer: Signs the records that the commit goes by; each process that commits or ends the job needs
                the key then, those that only write its output do not.

        Raises:
            Refused: See `airflow_s3commit.protocol.setup.set_up_job`.

        """
        options = options or JobOptions()
        root = Destination.parse(options.staging) if options.staging is not None else None
        layout = Layout.of(Destination.parse(destination), new_id() if job_id is None else job_id, root)
        clock = clock or SystemClock()
        job = cls(JobContext(store, layout, clock=clock, new_id=new_id, lock_wait=lock_wait, signer=signer))
        said = {**(context or {}), **({} if name is None else {NAME: name})}
        job._record = set_up_job(job._context, options, said)
        return job

    @classmethod
    def at(
        cls,
        store: ObjectStore,
        reference: JobReference,
        *,
        clock: Clock | None = None,
        new_id: Callable[[], str] = new_uuid,
        lock_wait: float = 600.0,
        signer: Signer | None = None,
    ) -> Job:
        """Find a job again, without asking the store yet.

        Raises:
            InvalidRecord: The reference's staging is not that of its job.

        """
        layout = Layout(
            Destination.parse(reference.destination), Destination.parse(reference.staging), reference.job_id
        )
        clock = clock or SystemClock()
        return cls(JobContext(store, layout, clock=clock, new_id=new_id, lock_wait=lock_wait, signer=signer))

    @property
    def reference(self) -> JobReference:
        """What it takes to find this job again."""
        layout = self._context.layout
        return JobReference(
            job_id=layout.job_id, destination=layout.destination.uri, staging=layout.staging.uri
        )

    def record(self) -> JobRecord:
        """Return what the job is, read once.

        Raises:
            NoSuchJob: It was never set up, or it ended and was cleaned up.

        """
        if self._record is None:
            self._record = load_job(self._context)
        return self._record

    def state(self) -> StateRecord | None:
        """Return where the job is now; None if it is not known, or ended and was cleaned up."""
        stored = read_state(self._context)
        return stored.record if stored is not None else None

    def manifest(self) -> ManifestRecord | None:
        """Return the manifest that proves the job committed, or None."""
        return find_manifest(self._context)

    def task_attempt(
        self,
        stage: str,
        stage_attempt: str,
        task: str,
        attempt: str,
        *,
        part_bytes: int = 32 * _MIB,
        buffered_bytes: int = 128 * _MIB,
        threads: int = UPLOAD_THREADS,
        min_part_bytes: int = MIN_PART_BYTES,
        local_dir: str | None = None,
    ) -> TaskAttempt:
        """Begin one attempt of one task.

        Args:
            stage: The writing application, by a name that is the same for all its attempts.
            stage_attempt: Which run of it; letters and digits.
            task: The task, by a name that is the same for all its attempts.
            attempt: Which attempt of it; letters and digits.
            part_bytes: Size of the first parts of a file.
            buffered_bytes: Bytes of parts that may be on their way before a writer waits.
            threads: Uploads begun and parts sent at once; 0 does so in the writer's own thread.
            min_part_bytes: The store's least size of a part.
            local_dir: Where the staging committers write; the machine's temporary directory by default.

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
        context, options = self._live(acting=False), self.record().options
        files = AttemptFiles(
            context,
            options,
            extra,
            part_bytes=part_bytes,
            buffered_bytes=buffered_bytes,
            threads=threads,
            min_part_bytes=min_part_bytes,
            local_dir=local_dir,
        )
        return TaskAttempt(context, options, extra, files)

    def seal_stage(self, stage: str, stage_attempt: str, tasks: Iterable[CommittedTask]) -> SealReference:
        """See `airflow_s3commit.protocol.stage.seal_stage`."""
        return seal_stage(self._live(acting=False), stage, stage_attempt, tasks)

    def stage_seal(self, stage: str, stage_attempt: str) -> SealReference | None:
        """Return a stage attempt's seal, or None if it has not sealed."""
        return find_stage_seal(self._context, stage, stage_attempt)

    def abort_stage(self, stage: str, stage_attempt: str) -> int:
        """See `airflow_s3commit.protocol.abort.abort_stage`."""
        return abort_stage(self._live_or_ended(acting=False), stage, stage_attempt)

    def abort_attempt(self, stage: str, stage_attempt: str, task: str, attempt: str) -> int:
        """Abort what one task attempt recorded of its uploads, from any process; return how many uploads.

        Repeatable. What an attempt has not recorded yet (see ``JobOptions.track_pending``) is found by the
        job's own commit or abort, or by a sweep.

        Raises:
            JobClosed: Its stage attempt is sealed: its uploads may be committed.
            InvalidRecord: An id cannot be part of a key, or a record of the attempt is damaged.
            S3CommitError: An upload could not be aborted; run it again.

        """
        return abort_attempt(self._live_or_ended(acting=False), stage, stage_attempt, task, attempt)

    def seal(
        self,
        stages: Sequence[tuple[str, str]] | None = None,
        *,
        etags: Mapping[tuple[str, str], str] | None = None,
    ) -> SealReference:
        """See `airflow_s3commit.protocol.stage.seal_job`."""
        return seal_job(self._live(), stages, etags=etags)

    def plan(self) -> PlanReference:
        """Resolve the sealed job's conflicts; see `airflow_s3commit.protocol.conflicts.make_plan`.

        Raises:
            JobClosed: The job is not sealed, or its commit has begun.
            DestinationNotEmpty: Conflict mode ``fail``, and there is data.

        """
        context = self._live()
        state = require_state(context, "sealed").record
        seal = load_seal(context, state.seal_etag)
        planned = make_plan(context, self.record(), seal)
        if clean_if_ended(context):
            raise gone(context)
        return plan_reference(context, planned, seal.record)

    def commit(
        self,
        *,
        seal_etag: str | None = None,
        plan_etag: str | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> ManifestRecord:
        """See `airflow_s3commit.protocol.publish.commit_job`."""
        return commit_job(self._live_or_ended(), seal_etag=seal_etag, plan_etag=plan_etag, progress=progress)

    def begin(self, shards: int, *, seal_etag: str | None = None, plan_etag: str | None = None) -> list[int]:
        """See `airflow_s3commit.protocol.publish.begin_shards`."""
        return begin_shards(self._live_or_ended(), shards, seal_etag=seal_etag, plan_etag=plan_etag)

    def complete(self, shard: int, *, progress: Callable[[Progress], None] | None = None) -> None:
        """See `airflow_s3commit.protocol.publish.complete_shard`."""
        complete_shard(self._live_or_ended(), shard, progress=progress)

    def finish(self) -> ManifestRecord:
        """See `airflow_s3commit.protocol.publish.finish_shards`."""
        return finish_shards(self._live_or_ended())

    def abort(self, *, force: bool = False, reason: str | None = None) -> AbortReport:
        """See `airflow_s3commit.protocol.abort.abort_job`."""
        return abort_job(self._live_or_ended(damaged_too=force), force=force, reason=reason)

    def abort_late(self) -> int:
        """See `airflow_s3commit.protocol.abort.abort_late`."""
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
        """See `airflow_s3commit.protocol.recover.recover_job`."""
        return recover_job(
            self._live_or_ended(),
            rollback=rollback,
            force=force,
            keep_replaced=keep_replaced,
            reason=reason,
            progress=progress,
        )

    def _live(self, *, acting: bool = True) -> JobContext:
        """Return the context of a job whose record is there; see `JobContext.as_recorded`."""
        return self._context.as_recorded(self.record(), acting=acting)

    def _live_or_ended(self, *, damaged_too: bool = False, acting: bool = True) -> JobContext:
        """Return the context of a job whose record may have been cleaned up, or may even be damaged."""
        if self._record is None:
            try:
                # Kept: a second abort writes as the first did, which has removed the record.
                self._record = find_job(self._context)
            except ForeignRecord:
                raise
            except InvalidRecord:
                if not damaged_too:
                    raise
                logger.warning("%s: going on without its record", self._context.name, exc_info=True)
        return self._context if self._record is None else self._live(acting=acting)

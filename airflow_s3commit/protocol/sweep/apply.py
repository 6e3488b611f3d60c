"""Apply a sweep: remove what a plan lists, after another check of each item.

The plan may be old. So a job is ended only if its state record has not changed since. Its state is moved
first, by a conditional write: if the job's processes resume, they notice. An orphaned upload is aborted only
if no job claims it by now.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
from msgspec import Struct

from airflow_s3commit._causes import described
from airflow_s3commit._clock import Clock, SystemClock
from airflow_s3commit.exceptions import (
    NoSuchUpload,
    PreconditionFailed,
    S3CommitError,
)
from airflow_s3commit.protocol.adoption.adopt import clean_up
from airflow_s3commit.protocol.hadoop.status import classify
from airflow_s3commit.protocol.inspect.staging import (
    JobFacts,
    claims_by_key,
    folder_of,
    job_facts,
    left_by_hadoop,
)
from airflow_s3commit.protocol.lifecycle.abort import abort_job
from airflow_s3commit.protocol.lifecycle.finish import context_of, release_files
from airflow_s3commit.protocol.lifecycle.recover import recover_job
from airflow_s3commit.protocol.metadata import records
from airflow_s3commit.protocol.metadata.context import JobContext, new_uuid
from airflow_s3commit.protocol.metadata.manifests import find_manifest
from airflow_s3commit.protocol.metadata.pending_uploads import tracked_uploads, untracked_uploads
from airflow_s3commit.protocol.metadata.removal import PendingId, abort_uploads, clean_staging
from airflow_s3commit.protocol.metadata.state import first_state, move
from airflow_s3commit.protocol.model.codec import Plain
from airflow_s3commit.protocol.model.destination import Destination, join_uri, split_uri
from airflow_s3commit.protocol.model.layout import Layout, aborted_prefix, check_id
from airflow_s3commit.protocol.sweep.history import plan_lists
from airflow_s3commit.protocol.sweep.plan import (
    Action,
    DeadJob,
    LeftAlone,
    OrphanList,
    OrphanUpload,
    ReplacedFiles,
    SpentId,
    SweepPlan,
)
from airflow_s3commit.protocol.sweep.planner import (
    SweepScope,
    is_on_destination,
    judge,
    plan_sweep,
)
from airflow_s3commit.store.base import Abort, ObjectStore, Upload
from airflow_s3commit.store.execute import in_batches

logger = logging.getLogger(__name__)

T = TypeVar("T")

_BATCH = 1_000


class SweptJob(Struct, frozen=True, kw_only=True):
    """A job that the sweep ended.

    Attributes:
        job_id: The job.
        staging: URI of its staging, which has been removed.
        action: How it was ended.
        uploads: Number of its pending uploads that were aborted.
        objects: Number of its published objects that were deleted.

    """

    job_id: str
    staging: str
    action: Action
    uploads: int = 0
    objects: int = 0


class SweepReport(Plain, Struct, frozen=True, kw_only=True):
    """Result of a sweep, or of a dry run.

    Attributes:
        plan: The plan.
        dry_run: Whether this was a dry run; then the following fields are empty.
        jobs: Jobs that were ended.
        uploads: Number of orphaned uploads that were aborted.
        bytes: Size of their parts in bytes, by the plan.
        spent: Number of records of aborts that were removed.
        replaced: Number of retained files that were deleted.
        lists: Number of lists of files that were removed.
        skipped: Planned items that were left because they had changed.
        failures: Planned items that could not be removed, each with its error; sweep again.

    """

    plan: SweepPlan
    dry_run: bool
    jobs: list[SweptJob] = []
    uploads: int = 0
    bytes: int = 0
    spent: int = 0
    replaced: int = 0
    lists: int = 0
    skipped: list[LeftAlone] = []
    failures: list[LeftAlone] = []


def sweep(
    store: ObjectStore,
    destination: str | Destination,
    *,
    older_than: float,
    dry_run: bool = True,
    staging_root: str | Destination | None = None,
    clock: Clock | None = None,
    new_id: Callable[[], str] = new_uuid,
    threads: int = 16,
) -> SweepReport:
    """Remove what dead jobs left at a destination: pending uploads, records, lists of files.

    Also releases and deletes the files that commits replaced, once their jobs' ``retain`` has passed. A job
    is dead after ``older_than`` seconds without activity. Each item is checked again right before its
    removal. Repeatable. Even a dry run may write and delete a small hidden object, and start and abort an
    upload, to read the store's clock.

    Args:
        store: The store of the destination.
        destination: URI of the dataset's directory, or a `Destination`.
        older_than: Seconds without activity after which a job is dead: longer than any task runs, and than
            any job waits for its commit.
        dry_run: Plan only, and remove nothing.
        staging_root: The jobs' staging (``JobOptions.staging``), if not below the destination: a URI or a
            `Destination`. Without it their uploads count as orphans at that age.
        clock: Source of time for records.
        new_id: Source of nonces for records.
        threads: Concurrent requests; 0 sends them in the caller's thread.

    Raises:
        ValueError: ``older_than`` is negative.
        S3CommitError: The destination could not be read. Errors of removals are in the report instead.

    """
    place = Destination.of(destination)
    root = None if staging_root is None else Destination.of(staging_root)
    plan = plan_sweep(store, place, older_than=older_than, staging_root=root, threads=threads)
    if dry_run:
        return SweepReport(plan=plan, dry_run=True)
    return apply_sweep(store, plan, clock=clock, new_id=new_id, threads=threads)


def apply_sweep(
    store: ObjectStore,
    plan: SweepPlan,
    *,
    clock: Clock | None = None,
    new_id: Callable[[], str] = new_uuid,
    threads: int = 16,
) -> SweepReport:
    """Remove the items of a plan that have not changed since. Repeatable with the same plan.

    Errors of the store are not raised but added to the report, so that one failure does not stop the rest.

    Args:
        store: The store of the destination.
        plan: The plan.
        clock: Source of time for records.
        new_id: Source of nonces for records.
        threads: Concurrent requests; 0 sends them in the caller's thread.

    """
    root = Destination.parse(plan.staging_root) if plan.staging_root is not None else None
    scope = SweepScope(store, Destination.parse(plan.destination), root, threads)
    run = _Sweep(scope, plan, clock or SystemClock(), new_id)
    for job in plan.jobs:
        run.guard(f"job {job.job_id} ({job.staging})", run.end_job, job)
    for batch in in_batches(plan.uploads, _BATCH):
        run.guard(f"{len(batch)} uploads", run.abort_orphans, batch)
    for spent in plan.spent:
        run.guard(spent.uri, run.remove_spent, spent)
    if plan.replaced:
        run.guard("retained files", run.release, plan.replaced)
    if plan.lists:
        run.guard("lists of files", run.remove_lists, plan.lists)
    return SweepReport(
        plan=plan,
        dry_run=False,
        jobs=run.jobs,
        uploads=run.uploads,
        bytes=run.bytes,
        spent=run.spent,
        replaced=run.replaced,
        lists=run.lists,
        skipped=run.skipped,
        failures=run.failures,
    )


@dataclass
class _Sweep:
    """The application of a plan, with its results so far."""

    scope: SweepScope
    plan: SweepPlan
    clock: Clock
    new_id: Callable[[], str]
    jobs: list[SweptJob] = field(default_factory=list)
    uploads: int = 0
    bytes: int = 0
    spent: int = 0
    replaced: int = 0
    lists: int = 0
    skipped: list[LeftAlone] = field(default_factory=list)
    failures: list[LeftAlone] = field(default_factory=list)

    def guard(self, what: str, remove: Callable[[T], None], item: T) -> None:
        """Run a removal, and add its error to `failures` instead of raising it."""
        try:
            remove(item)
        except S3CommitError as error:
            reason = described(error)
            logger.warning("sweep of %s: %s: %s", self.plan.destination, what, reason)
            self.failures.append(LeftAlone(what=what, reason=reason))

    def end_job(self, job: DeadJob) -> None:
        """End a job, if it has not changed since the plan."""
        destination = self.scope.destination
        layout = Layout(destination, Destination.parse(job.staging), job.job_id)
        context = self._context(layout)
        facts = job_facts(context)
        if facts.job is not None:
            context = context.as_recorded(facts.job)
        changed = self._changed(context, facts, job)
        if changed is None:
            ended = _end(context, facts, job)
            if ended is not None:
                self.jobs.append(ended)
                return
            changed = "another process changed its state at the same time"
        self.skipped.append(LeftAlone(what=f"job {job.job_id} ({job.staging})", reason=changed))

    def abort_orphans(self, orphans: list[OrphanUpload]) -> None:
        """Abort the orphans that no job claims by now."""
        bucket = self.scope.destination.bucket
        uploads = [Upload(orphan.key, orphan.upload_id, orphan.initiated) for orphan in orphans]
        claims = self.scope.claims(self.scope.folders(), uploads)
        calls = []
        for orphan in orphans:
            if orphan.upload_id in claims:
                job_id = claims[orphan.upload_id][0].job_id
                self.skipped.append(
                    LeftAlone(what=_name(bucket, orphan), reason=f"job {job_id} claims it now")
                )
            elif self.scope.destination.relative(orphan.key) is None:
                outside = f"it is outside {self.scope.destination.uri}"
                self.skipped.append(LeftAlone(what=_name(bucket, orphan), reason=outside))
            else:
                calls.append((orphan, Abort(bucket, orphan.key, orphan.upload_id)))
        for orphan, outcome in self.scope.store.perform(calls):
            if isinstance(outcome, S3CommitError) and not isinstance(outcome, NoSuchUpload):
                self.failures.append(LeftAlone(what=_name(bucket, orphan), reason=described(outcome)))
            else:
                self.uploads, self.bytes = self.uploads + 1, self.bytes + orphan.bytes

    def remove_spent(self, spent: SpentId) -> None:
        """Remove the record of an abort, if it has not changed since the plan."""
        key = f"{aborted_prefix(self.scope.destination)}{check_id(spent.job_id)}.json"
        self.spent += self._removed(key, spent.etag)

    def release(self, replaced: list[ReplacedFiles]) -> None:
        """Release the retained files that no rollback has brought back, and delete them."""
        context = context_of(
            self.scope.store,
            self.scope.destination,
            clock=self.clock,
            new_id=self.new_id,
            threads=self.scope.threads,
        )
        self.replaced = release_files(context, [one.generation for one in replaced])

    def remove_lists(self, orphans: list[OrphanList]) -> None:
        """Remove the lists that no entry of the log names by now, after their jobs have ended."""
        scope, now = self.scope, self.plan.now or 0.0
        known = {folder.job_id for folder in scope.folders()}
        found = plan_lists(scope.store, scope.destination, now, older_than=self.plan.older_than, known=known)
        # The store's time only grows, so the time of the plan gives a lower bound.
        still = {one.uri: one for one in found if isinstance(one, OrphanList)}
        for orphan in orphans:
            if orphan.uri in still and still[orphan.uri].etag == orphan.etag:
                self.guard(orphan.uri, self._remove_list, still[orphan.uri])
            else:
                self.skipped.append(LeftAlone(what=orphan.uri, reason="it is gone, changed, or in use now"))

    def _remove_list(self, orphan: OrphanList) -> None:
        if orphan.ended:
            self.lists += self._removed(split_uri(orphan.uri)[1], orphan.etag)
            return
        # After its entry nobody can commit under this id, so nothing can name the list, which it deletes.
        layout = Layout.of(self.scope.destination, orphan.job_id)
        context = self._context(layout)
        abort_job(context, reason=f"swept: {orphan.reason}")
        self.lists += 1

    def _context(self, layout: Layout) -> JobContext:
        return JobContext(
            self.scope.store,
            layout,
            clock=self.clock,
            new_id=self.new_id,
            threads=self.scope.threads,
        )

    def _removed(self, key: str, etag: str) -> bool:
        bucket = self.scope.destination.bucket
        uri = join_uri(bucket, key)
        try:
            self.scope.store.delete(bucket, key, if_match=etag)
        except PreconditionFailed:
            self.skipped.append(LeftAlone(what=uri, reason="it was rewritten at the same time"))
        else:
            return True
        return False

    def _changed(self, context: JobContext, facts: JobFacts, job: DeadJob) -> str | None:
        """Return why a job cannot be ended as planned; None if it can."""
        store, destination = self.scope.store, self.scope.destination
        folder = folder_of(store, context.layout)
        if not folder.objects:
            return "it is gone"
        if (facts.state.etag if facts.state is not None else None) != job.state_etag:
            return "its state has changed"
        if not is_on_destination(context, folder, facts):
            return "no record shows that it is a job on this destination"
        latest = folder.newest
        if job.action != "finish":
            uploads = list(store.list_uploads(destination.bucket, destination.prefix))
            claimed = claims_by_key([folder], uploads)
            latest = max([latest, *(u.initiated for u in uploads if u.upload_id in claimed)])
        # The store's time only grows, so the time of the plan gives a lower bound.
        silent = (self.plan.now or latest) - latest
        hadoop = left_by_hadoop(context, facts) if job.action != "finish" else None
        verdict = judge(facts, silent, self.plan.older_than, hadoop)
        return None if verdict.action == job.action else verdict.reason


def _end(context: JobContext, facts: JobFacts, job: DeadJob) -> SweptJob | None:
    """End a job; return None if another process changes its state first."""
    swept = SweptJob(job_id=job.job_id, staging=job.staging, action=job.action)
    if job.action == "finish":
        recover_job(context)
        return swept
    reason = f"swept: {job.reason}"
    if job.action == "discard" and find_manifest(context) is not None:
        # Late task attempts left these after the job was committed and cleaned up.
        tracked = tracked_uploads(context, context.layout.staging.prefix)
        uploads = abort_uploads(context, (PendingId.of(upload) for upload in tracked if upload is not None))
        uploads += abort_uploads(context, untracked_uploads(context))
        clean_staging(context)
        return msgspec.structs.replace(swept, uploads=uploads)
    hadoop = left_by_hadoop(context, facts)
    if hadoop is not None and classify(hadoop).status == "successful":
        return msgspec.structs.replace(swept, uploads=clean_up(context))
    if not _move_to_aborting(context, facts, reason):
        return None
    report = abort_job(context, reason=reason)
    return msgspec.structs.replace(swept, uploads=report.uploads, objects=report.objects)


def _move_to_aborting(context: JobContext, facts: JobFacts, reason: str) -> bool:
    """Move a job to ``aborting``, if needed; return False if another process changes its state first."""
    if facts.state is None:
        aborting = msgspec.structs.replace(first_state(context), state="aborting", reason=reason)
        existing = records.create(
            context.store,
            context.staging_bucket,
            context.layout.state,
            aborting,
        )
        return existing.record.nonce == aborting.nonce
    if facts.state.record.state in ("aborting", "aborted"):
        return True
    return move(context, facts.state, "aborting", reason=reason) is not None


def _name(bucket: str, orphan: OrphanUpload) -> str:
    return f"upload {orphan.upload_id} of {join_uri(bucket, orphan.key)}"

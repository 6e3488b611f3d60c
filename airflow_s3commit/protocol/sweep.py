"""Sweep: remove what dead jobs left behind, as planned, each thing looked at once more right before.

The plan may be old when it is applied. So a job is brought to an end only if its records are still the ones
it was judged by, and the first thing done to it is to move its state by compare-and-swap: from then on its
own processes, should they wake up, find out. An upload is aborted only if still nobody claims it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from airflow_s3commit.clock import Clock, SystemClock
from airflow_s3commit.exceptions import (
    NoSuchUpload,
    PreconditionFailed,
    S3CommitError,
    StoreRejected,
)
from airflow_s3commit.protocol import journal
from airflow_s3commit.protocol.abort import abort_job
from airflow_s3commit.protocol.cleanup import clean_staging
from airflow_s3commit.protocol.context import JobContext, new_uuid
from airflow_s3commit.protocol.destination import Destination, join_uri
from airflow_s3commit.protocol.hadoop_abort import clean_up
from airflow_s3commit.protocol.hadoop_status import classify
from airflow_s3commit.protocol.layout import Layout, aborted_prefix, check_id, lock_key
from airflow_s3commit.protocol.orphans import (
    Surroundings,
    is_here,
    judge,
    lapsed_lock,
    plan_sweep,
)
from airflow_s3commit.protocol.recover import recover_job
from airflow_s3commit.protocol.removal import PendingId, abort_uploads
from airflow_s3commit.protocol.signing import Signer
from airflow_s3commit.protocol.staging import (
    JobFacts,
    claims_by_key,
    folder_of,
    job_facts,
    left_by_hadoop,
)
from airflow_s3commit.protocol.state import find_manifest, first_state, move
from airflow_s3commit.protocol.sweep_plan import (
    Action,
    DeadJob,
    LapsedLock,
    LeftAlone,
    OrphanUpload,
    SpentId,
    SweepPlan,
)
from airflow_s3commit.protocol.tracking import tracked_uploads, untracked_uploads
from airflow_s3commit.store.base import Abort, ObjectStore, Upload
from airflow_s3commit.store.calls import in_batches

__all__ = ["SweepReport", "SweptJob", "apply_sweep", "plan_sweep", "sweep"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

_BATCH = 1_000


class SweptJob(Struct, frozen=True, kw_only=True):
    """A job that was brought to an end.

    Attributes:
        job_id: The job.
        staging: URI of its staging, which is gone.
        action: What was done.
        uploads: Pending uploads that were aborted with it.
        objects: Published objects that were taken back with it.

    """

    job_id: str
    staging: str
    action: Action
    uploads: int = 0
    objects: int = 0


class SweepReport(Struct, frozen=True, kw_only=True):
    """What a sweep did, or would do.

    Attributes:
        plan: What it went by.
        dry_run: Whether it only planned: then nothing of what follows was done.
        jobs: Jobs that were brought to an end.
        uploads: Orphaned uploads that were aborted.
        bytes: Bytes of these orphans, as planned.
        lock: Whether the lapsed lock was removed.
        spent: Records of aborted jobs that were removed.
        skipped: What was planned and left after all, because it changed meanwhile, and how.
        failures: What was tried and failed, with the error; sweep again.

    """

    plan: SweepPlan
    dry_run: bool
    jobs: list[SweptJob] = []
    uploads: int = 0
    bytes: int = 0
    lock: bool = False
    spent: int = 0
    skipped: list[LeftAlone] = []
    failures: list[LeftAlone] = []

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, the plan with its totals."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain | {"plan": self.plan.to_dict()}


def sweep(
    store: ObjectStore,
    destination: Destination,
    *,
    older_than: float,
    dry_run: bool = True,
    staging_root: Destination | None = None,
    clock: Clock | None = None,
    new_id: Callable[[], str] = new_uuid,
    threads: int = 16,
    signer: Signer | None = None,
) -> SweepReport:
    """Plan a sweep of a destination and, unless it is a dry run, apply it.

    Run again: finds less. See `plan_sweep` for what it takes, and `apply_sweep` for how.
    """
    plan = plan_sweep(store, destination, older_than=older_than, staging_root=staging_root, threads=threads)
    if dry_run:
        return SweepReport(plan=plan, dry_run=True)
    return apply_sweep(store, plan, clock=clock, new_id=new_id, threads=threads, signer=signer)


def apply_sweep(
    store: ObjectStore,
    plan: SweepPlan,
    *,
    clock: Clock | None = None,
    new_id: Callable[[], str] = new_uuid,
    threads: int = 16,
    signer: Signer | None = None,
) -> SweepReport:
    """Remove what a plan names, as far as it is still dead.

    Errors are collected in the report, so that one job that cannot be ended does not keep the rest. Run
    again with a new plan: does what is left. With the same plan: leaves what was changed meanwhile, be it by
    the first run.

    Args:
        store: Where everything is.
        plan: What to remove.
        clock: Where time for records comes from.
        new_id: Where nonces come from.
        threads: How many requests are made at once; 0 makes them in the caller's thread.
        signer: The key of signed jobs; a job whose record it did not sign is not ended.

    """
    root = Destination.parse(plan.staging_root) if plan.staging_root is not None else None
    place = Surroundings(store, Destination.parse(plan.destination), root, threads)
    run = _Sweep(place, plan, clock or SystemClock(), new_id, signer)
    for job in plan.jobs:
        run.guard(f"job {job.job_id} ({job.staging})", run.end_job, job)
    for batch in in_batches(plan.uploads, _BATCH):
        run.guard(f"{len(batch)} uploads", run.abort_orphans, batch)
    if plan.lock is not None:
        run.guard(plan.lock.uri, run.remove_lock, plan.lock)
    for spent in plan.spent:
        run.guard(spent.uri, run.remove_spent, spent)
    return SweepReport(
        plan=plan,
        dry_run=False,
        jobs=run.jobs,
        uploads=run.uploads,
        bytes=run.bytes,
        lock=run.lock,
        spent=run.spent,
        skipped=run.skipped,
        failures=run.failures,
    )


@dataclass
class _Sweep:
    """One application of a plan, and what came of it so far."""

    place: Surroundings
    plan: SweepPlan
    clock: Clock
    new_id: Callable[[], str]
    signer: Signer | None = None
    jobs: list[SweptJob] = field(default_factory=list)
    uploads: int = 0
    bytes: int = 0
    lock: bool = False
    spent: int = 0
    skipped: list[LeftAlone] = field(default_factory=list)
    failures: list[LeftAlone] = field(default_factory=list)

    def guard(self, what: str, act: Callable[[T], None], to: T) -> None:
        """Do something, and write an error down instead of raising it."""
        try:
            act(to)
        except S3CommitError as error:
            logger.warning("sweep of %s: %s: %s", self.plan.destination, what, error)
            self.failures.append(LeftAlone(what=what, reason=f"{type(error).__name__}: {error}"))

    def end_job(self, job: DeadJob) -> None:
        """Bring a job to its end, if it still is what it was when it was judged."""
        destination = self.place.destination
        layout = Layout(destination, Destination.parse(job.staging), job.job_id)
        context = JobContext(
            self.place.store, layout, clock=self.clock, new_id=self.new_id, threads=self.place.threads,
            signer=self.signer,
        )  # fmt: skip
        facts = job_facts(context)
        if facts.job is not None:
            context = context.as_recorded(facts.job)
        changed = self._changed(context, facts, job)
        if changed is None:
            done = _end(context, facts, job)
            if done is not None:
                self.jobs.append(done)
                return
            changed = "somebody moved it on at that moment"
        self.skipped.append(LeftAlone(what=f"job {job.job_id} ({job.staging})", reason=changed))

    def abort_orphans(self, orphans: list[OrphanUpload]) -> None:
        """Abort uploads that still nobody claims."""
        bucket = self.place.destination.bucket
        uploads = [Upload(orphan.key, orphan.upload_id, orphan.initiated) for orphan in orphans]
        claims = self.place.claims(self.place.folders(), uploads)
        calls = []
        for orphan in orphans:
            if orphan.upload_id in claims:
                job_id = claims[orphan.upload_id][0].job_id
                self.skipped.append(
                    LeftAlone(what=_name(bucket, orphan), reason=f"job {job_id} claims it now")
                )
            elif self.place.destination.relative(orphan.key) is None:
                outside = f"it lies outside {self.place.destination.uri}"
                self.skipped.append(LeftAlone(what=_name(bucket, orphan), reason=outside))
            else:
                calls.append((orphan, Abort(bucket, orphan.key, orphan.upload_id)))
        for orphan, outcome in self.place.store.perform(calls):
            if isinstance(outcome, S3CommitError) and not isinstance(outcome, NoSuchUpload):
                reason = f"{type(outcome).__name__}: {outcome}"
                self.failures.append(LeftAlone(what=_name(bucket, orphan), reason=reason))
            else:
                self.uploads, self.bytes = self.uploads + 1, self.bytes + orphan.bytes

    def remove_lock(self, lock: LapsedLock) -> None:
        """Remove a lock that is still the lapsed one of a job that is gone."""
        standing = lapsed_lock(self.place.store, self.place.destination)
        if standing is None or standing.etag != lock.etag:
            self.skipped.append(LeftAlone(what=lock.uri, reason="it is gone, or taken anew"))
            return
        self.lock = self._removed(lock_key(self.place.destination), lock.etag)

    def remove_spent(self, spent: SpentId) -> None:
        """Remove the record of an aborted job, if it was not written anew."""
        key = f"{aborted_prefix(self.place.destination)}{check_id(spent.job_id)}.json"
        self.spent += self._removed(key, spent.etag)

    def _removed(self, key: str, etag: str) -> bool:
        bucket = self.place.destination.bucket
        uri = join_uri(bucket, key)
        try:
            self.place.store.delete(bucket, key, if_match=etag)
        except PreconditionFailed:
            self.skipped.append(LeftAlone(what=uri, reason="it was written anew at that moment"))
        except StoreRejected as error:
            # An unconditional delete could meet what somebody writes at this moment.
            self.skipped.append(LeftAlone(what=uri, reason=f"the store deletes unseen only: {error}"))
        else:
            return True
        return False

    def _changed(self, context: JobContext, facts: JobFacts, job: DeadJob) -> str | None:
        """Say why a job is no longer to be ended as planned; None if it is."""
        store, destination = self.place.store, self.place.destination
        folder = folder_of(store, context.layout)
        if not folder.objects:
            return "it is gone"
        if (facts.state.etag if facts.state is not None else None) != job.state_etag:
            return "its state was changed"
        if not is_here(context, folder, facts):
            return "it is not known to be a job on this destination"
        latest = folder.newest
        if job.action != "finish":
            uploads = list(store.list_uploads(destination.bucket, destination.prefix))
            claimed = claims_by_key([folder], uploads)
            latest = max([latest, *(u.initiated for u in uploads if u.upload_id in claimed)])
        # The store's time only grows: by the plan's, a job is at most as silent as it is now.
        silent = (self.plan.now or latest) - latest
        hadoop = left_by_hadoop(context, facts) if job.action != "finish" else None
        verdict = judge(facts, silent, self.plan.older_than, hadoop)
        return None if verdict.action == job.action else verdict.reason


def _end(context: JobContext, facts: JobFacts, job: DeadJob) -> SweptJob | None:
    """End a job; None if somebody else moved it at that moment."""
    swept = SweptJob(job_id=job.job_id, staging=job.staging, action=job.action)
    if job.action == "finish":
        recover_job(context)
        return swept
    reason = f"swept: {job.reason}"
    if job.action == "discard" and find_manifest(context) is not None:
        # The remains of late task attempts: the job is committed, cleaned up, and cannot come back.
        tracked = tracked_uploads(context, context.layout.staging.prefix)
        uploads = abort_uploads(context, (PendingId.of(upload) for upload in tracked if upload is not None))
        uploads += abort_uploads(context, untracked_uploads(context))
        clean_staging(context)
        return msgspec.structs.replace(swept, uploads=uploads)
    hadoop = left_by_hadoop(context, facts)
    if hadoop is not None and classify(hadoop).status == "successful":
        return msgspec.structs.replace(swept, uploads=clean_up(context))
    if not _fence(context, facts, reason):
        return None
    report = abort_job(context, reason=reason)
    return msgspec.structs.replace(swept, uploads=report.uploads, objects=report.objects)


def _fence(context: JobContext, facts: JobFacts, reason: str) -> bool:
    """Move a job to ``aborting``, unless it is being aborted already; False if somebody was faster."""
    if facts.state is None:
        fence = msgspec.structs.replace(first_state(context), state="aborting", reason=reason)
        standing = journal.create(
            context.store,
            context.staging_bucket,
            context.layout.state,
            fence,
            conditional=context.conditional,
        )
        return standing.record.nonce == fence.nonce
    if facts.state.record.state in ("aborting", "aborted"):
        return True
    return move(context, facts.state, "aborting", reason=reason) is not None


def _name(bucket: str, orphan: OrphanUpload) -> str:
    return f"upload {orphan.upload_id} of {join_uri(bucket, orphan.key)}"

"""Sweep a destination: plan what to remove, and remove it after deciding about each item anew.

The plan may be old. So everything is checked again, and what has changed since is left alone. A job is ended
by an entry of the log: if its processes resume, they notice, and a commit that came first wins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from airflow_s3commit._causes import described
from airflow_s3commit._clock import Clock, SystemClock
from airflow_s3commit.exceptions import AlreadyCommitted, NoSuchJob, NoSuchUpload, S3CommitError
from airflow_s3commit.protocol.hadoop.adopt import Adoption
from airflow_s3commit.protocol.metadata.context import JobContext, new_uuid
from airflow_s3commit.protocol.metadata.registry import Registered, has_records, is_gone
from airflow_s3commit.protocol.model.codec import Plain
from airflow_s3commit.protocol.model.destination import Destination, RegisteredDestination
from airflow_s3commit.protocol.model.job import AbortReport
from airflow_s3commit.protocol.model.layout import Layout
from airflow_s3commit.protocol.steps.sweep import carry_out, release
from airflow_s3commit.protocol.sweep_plan import (
    DeadJob,
    LeftAlone,
    Planner,
    SweepPlan,
    decide,
    name_of_job,
    name_of_upload,
    plan_sweep,
)
from airflow_s3commit.store.base import Abort, ObjectStore
from airflow_s3commit.store.execute import until_outage


class SweepReport(Plain, Struct, kw_only=True):
    """Result of a sweep.

    Attributes:
        plan: The plan.
        dry_run: Whether this is only a plan, and nothing was removed.
        jobs: Jobs that were ended, with how many uploads were aborted and objects deleted.
        uploads: Number of orphaned uploads that were aborted.
        bytes: Size of their parts in bytes, by the plan.
        replaced: Number of retained files that were deleted.
        skipped: Planned items that were left because they had changed.
        failures: Planned items that could not be removed, each with its error; sweep again.
    """

    plan: SweepPlan
    dry_run: bool
    jobs: list[DeadJob] = []
    uploads: int = 0
    bytes: int = 0
    replaced: int = 0
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
    """Remove what dead jobs left at a destination: pending uploads, records, unfinished commits.

    Also releases and deletes the files that commits replaced, once their jobs' ``retain`` has passed. A job
    is dead after ``older_than`` seconds without activity. Repeatable. Even a dry run may write and delete a
    small hidden object, and start and abort an upload, to read the store's clock.

    Args:
        store: The store of the destination.
        destination: URI of the dataset's directory, or a `Destination`.
        older_than: Seconds without activity after which a job is dead: longer than any task runs, and than
            any job waits for its commit.
        dry_run: Plan only, and remove nothing.
        staging_root: The jobs' staging (``JobOptions.staging``), if not below the destination. The jobs'
            records name it too, but what outlived its job's record is found by this alone.
        clock: Source of time for records.
        new_id: Source of nonces for records.
        threads: Concurrent requests; 0 sends them in the caller's thread.

    Raises:
        ValueError: ``older_than`` is negative.
        S3CommitError: The destination could not be read. Errors of removals are in the report instead.
    """
    roots = [] if staging_root is None else [Destination.of(staging_root)]
    place = Destination.of(destination)
    plan = plan_sweep(store, place, older_than=older_than, staging_roots=roots, threads=threads)
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

    Raises `S3CommitError` if the destination cannot be read. Errors of removals are in the report instead.
    """
    layout = Layout.of(Destination.parse(plan.destination), new_uuid())
    context = JobContext(store, layout, clock=clock or SystemClock(), new_id=new_id, threads=threads)
    now = decide(context, plan.older_than, [Destination.parse(uri) for uri in plan.staging_roots])
    report = SweepReport(plan=plan, dry_run=False)
    for job in plan.jobs:
        with _noting(report, name_of_job(job.job_id, job.staging)):
            _end_job(now, job, report)
    _abort_orphans(now, report)
    if plan.replaced:
        with _noting(report, "retained files"):
            report.replaced = release(context, now.time)
    return report


def _end_job(now: Planner, planned: DeadJob, report: SweepReport) -> None:
    """End a job, if it is as the plan says."""
    current = next((one for one in now.plan.jobs if one.job_id == planned.job_id), None)
    if current is None or current.action != planned.action:
        name = name_of_job(planned.job_id, planned.staging)
        left = [one.reason for one in now.plan.left if one.what == name]
        why = current.reason if current else (left or ["it is gone"])[0]
        report.skipped.append(LeftAlone(what=name, reason=why))
        return
    context, found = now.context, now.found[planned.job_id]
    home, clock = context.layout.destination, context.clock
    adoption = Adoption(context.store, home, found.job_id, force=True, clock=clock, new_id=context.new_id)
    if planned.action == "discard":
        ended = AbortReport(uploads=adoption.clean_up(), objects=0)
    elif found.is_hadoops and not found.is_known:
        # By adopting it: then it is a job of ours, which nobody else adopts meanwhile.
        ended = adoption.abort()
    else:
        ended = carry_out(context, found, f"swept: {current.reason}")
    report.jobs.append(replace(planned, uploads=ended.uploads, objects=ended.objects))


def _abort_orphans(now: Planner, report: SweepReport) -> None:
    """Abort the planned orphans that are still orphans."""
    planned, bucket = report.plan.uploads, now.context.bucket
    still = {upload.upload_id for upload in now.plan.uploads}
    names = {one.upload_id: name_of_upload(bucket, one.key, one.upload_id) for one in planned}
    for upload_id in names.keys() - still:
        gone = "it is gone, or a job claims it now"
        report.skipped.append(LeftAlone(what=names.pop(upload_id), reason=gone))
    calls = [(one, Abort(bucket, one.key, one.upload_id)) for one in planned if one.upload_id in still]
    for upload, outcome in until_outage(now.context.store, calls):
        name = names.pop(upload.upload_id)
        if isinstance(outcome, S3CommitError) and not isinstance(outcome, NoSuchUpload):
            report.failures.append(LeftAlone(what=name, reason=described(outcome)))
        else:
            report.uploads += 1
            report.bytes += upload.bytes
    untried = "left, because the store fails"
    report.failures += [LeftAlone(what=name, reason=untried) for name in names.values()]


@contextmanager
def _noting(report: SweepReport, what: str) -> Iterator[None]:
    """Note an error of a removal instead of raising it."""
    try:
        yield
    except (AlreadyCommitted, NoSuchJob) as error:
        report.skipped.append(LeftAlone(what=what, reason=str(error)))
    except S3CommitError as error:
        report.failures.append(LeftAlone(what=what, reason=described(error)))


class RegisteredSweep(NamedTuple):
    """What a sweep finds at one destination of a registry; ``entry`` is its entry there, or one of several.

    Attributes:
        plan: What to remove there, and the store; None without records of jobs.
        gone: Whether nothing is left of the destination, so that its entry may be removed.
        error: Why the destination could not be read; None if it was.
    """

    entry: Registered
    plan: tuple[ObjectStore, SweepPlan] | None = None
    gone: bool = False
    error: S3CommitError | None = None


def plan_registered(
    entries: Iterable[Registered],
    open_store: Callable[[RegisteredDestination], ObjectStore],
    *,
    older_than: float,
) -> Iterator[RegisteredSweep]:
    """Yield what a sweep would remove at each destination of a registry, without removing it.

    A destination that cannot be read or opened does not hold up the others. One without records of jobs is
    not swept: a sweep there would abort the uploads of other programs. One with several entries, which name
    different stagings, is swept once. An entry below ``older_than`` seconds of age is not to be removed.
    """
    places: dict[tuple[str, str | None], list[Registered]] = {}
    for entry in entries:
        places.setdefault((entry.record.destination, entry.record.aws_conn_id), []).append(entry)
    for found in places.values():
        first = found[0]
        try:
            store = open_store(first.record)
            if has_records(store, first.record):
                roots = [root for one in found if (root := one.record.staging_root) is not None]
                plan = plan_sweep(store, first.record.place, older_than=older_than, staging_roots=roots)
                yield RegisteredSweep(first, plan=(store, plan))
                continue
            for entry in found:
                is_old = entry.age >= older_than
                yield RegisteredSweep(entry, gone=is_old and is_gone(store, entry.record))
        except S3CommitError as error:
            yield RegisteredSweep(first, error=error)

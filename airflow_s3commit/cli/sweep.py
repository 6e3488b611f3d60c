"""Sweep: removes leftovers of dead jobs, at one destination or all of a registry."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import RenderableType
from rich.text import Text

from airflow_s3commit._format import age, several, size
from airflow_s3commit.cli.command import (
    Session,
    apply_option,
    as_duration,
    option,
    registry_option,
    store_command,
)
from airflow_s3commit.cli.output import BLANK, NOT_APPLIED, ExitCode, Rows, labelled, line
from airflow_s3commit.exceptions import S3CommitError
from airflow_s3commit.present import cost_per_month
from airflow_s3commit.protocol.metadata.registry import Registered
from airflow_s3commit.protocol.metadata.removal import forget_destination
from airflow_s3commit.protocol.sweep.apply import SweepReport, apply_sweep, plan_registered
from airflow_s3commit.protocol.sweep.plan import SweepPlan, plan_sweep

#: Maximum number of items to show.
_SHOWN = 40


@store_command(
    """
    s3commit sweep s3://lake/flights/ --older-than 7d              preview the removals
    s3commit sweep s3://lake/flights/ --older-than 7d --apply      remove the leftovers
    s3commit sweep s3://lake/flights/ --older-than 7d --apply --json   from a scheduled script
    s3commit sweep --registry s3://lake-ops/s3commit/ --older-than 7d  every destination
    """,
    confirms=True,
    registry=True,
    staging=True,
)
@registry_option("Sweep all destinations that the registry at this prefix names.")
@option(
    "--older-than",
    type=as_duration,
    required=True,
    help="Treat a job as dead after this time without activity: 7d, 36h. It must be longer than any job"
    " takes.",
)
@apply_option("Remove the leftovers")
def sweep(session: Session, *, older_than: float, apply: bool) -> ExitCode:
    """Remove leftovers of dead jobs. A dry run by default.

    Leftovers are pending uploads, published files and records. Aborts jobs that have not ended, also one
    whose commit was interrupted, and finishes what is left to clean up of those that have. Also deletes files
    that commits replaced, after the time that their jobs' option retain says; --older-than does not apply to
    these files. Exit code 1 if a removal failed.

    With --registry each destination is swept by its own records; the registry only says where to look.
    Entries of empty destinations are removed from it.
    """
    if session.registry is not None:
        return _sweep_registry(session, older_than=older_than, apply=apply)
    output = session.output
    with output.working("finding dead jobs and orphans"):
        roots = [] if session.staging_root is None else [session.staging_root]
        plan = plan_sweep(session.store, session.destination, older_than=older_than, staging_roots=roots)
    if not apply or plan.is_empty:
        dry_run = [] if apply or plan.is_empty else [NOT_APPLIED]
        report = SweepReport(plan=plan, dry_run=not apply)
        return output.result(report.to_dict(), *dry_run, *_plan_views(plan))
    output.show(*_plan_views(plan))
    output.confirm(f"{_question([plan])}?", yes=session.yes)
    report = _applied(session, plan)
    return output.result(report.to_dict(), *_report_views(report), ok=not report.failures)


def _sweep_registry(session: Session, *, older_than: float, apply: bool) -> ExitCode:
    """Plan all sweeps, show them, ask once, and apply them; a failure does not stop the others."""
    output = session.output
    sweeps = plan_registered(session.registered(), lambda _: session.store, older_than=older_than)
    found = output.reading("finding dead jobs and orphans", sweeps)
    for one in found:
        if not (one.plan or one.gone or one.error):
            output.note(f"left alone: {one.entry.record.destination} has no records of jobs")
    failures = {one.entry.record.destination: str(one.error) for one in found if one.error is not None}
    plans = [one.plan[1] for one in found if one.plan is not None]
    gone = [one.entry for one in found if one.gone]
    due = [plan for plan in plans if not plan.is_empty]
    views = list(_registry_views(plans, due, gone))
    reports = [SweepReport(plan=plan, dry_run=True) for plan in plans]
    forgotten: list[str] = []
    if apply and (due or gone):
        output.show(*views)
        places = f"{several(len(due), 'destination')}, and remove {several(len(gone), 'destination')}"
        output.confirm(f"{_question(due)} at {places} from the registry?", yes=session.yes)
        views, reports = [], []
        for plan in due:
            with _noted(failures, plan.destination):
                reports.append(_applied(session, plan))
                views += [line(plan.destination, "bold"), *_report_views(reports[-1])]
        for entry in gone:
            with _noted(failures, entry.record.destination):
                if forget_destination(session.store, session.destination.bucket, entry.key, entry.etag):
                    forgotten.append(entry.record.destination)
    elif due or gone:
        views.insert(0, NOT_APPLIED)
    value = {
        "registry": session.destination.uri,
        "sweeps": [report.to_dict() for report in reports],
        "gone": [entry.record.destination for entry in gone],
        "forgotten": forgotten,
        "failures": [{"destination": uri, "message": message} for uri, message in failures.items()],
    }
    views += labelled("FAILED", (f"{uri}: {message}" for uri, message in failures.items()))
    ok = not failures and not any(report.failures for report in reports)
    return output.result(value, *views, ok=ok)


@contextmanager
def _noted(failures: dict[str, str], uri: str) -> Iterator[None]:
    """Note an error of the block as a destination's failure."""
    try:
        yield
    except S3CommitError as error:
        failures[uri] = str(error)


def _registry_views(
    plans: list[SweepPlan], due: list[SweepPlan], gone: list[Registered]
) -> Iterator[RenderableType]:
    for plan in due:
        yield from (line(plan.destination, "bold"), *_plan_views(plan), BLANK)
    yield from labelled("nothing is left of", (entry.record.destination for entry in gone), "dim")
    uploads, stored = sum(plan.pending for plan in due), sum(plan.bytes for plan in due)
    yield line(
        f"{several(len(due), 'destination')} of {len(plans):,} to sweep:"
        f" {several(uploads, 'upload')}, {size(stored)}, {cost_per_month(stored)} per month"
    )


def _applied(session: Session, plan: SweepPlan) -> SweepReport:
    with session.output.working("sweeping"):
        return apply_sweep(session.store, plan)


def _plan_views(plan: SweepPlan) -> Iterator[RenderableType]:
    if plan.is_empty:
        yield line(f"nothing to sweep at {plan.destination}", "green")
    else:
        yield Rows(plan.columns, plan.items, most=_SHOWN)
        yield BLANK
        yield line(
            f"total: {several(plan.pending, 'upload')}, {size(plan.bytes)}, {cost_per_month(plan.bytes)}"
            f" per month; the oldest is {age(plan.oldest)} old"
        )
    yield from labelled("left alone", plan.left, "dim")


def _report_views(report: SweepReport) -> Iterator[Text]:
    with_jobs = sum(job.uploads for job in report.jobs)
    taken = sum(job.objects for job in report.jobs)
    replaced = f", {several(report.replaced, 'replaced file')} deleted" if report.replaced else ""
    yield line(
        f"swept: {several(len(report.jobs), 'job')} ended ({several(with_jobs, 'upload')},"
        f" {several(taken, 'object')} taken back),"
        f" {several(report.uploads, 'orphan')} discarded ({size(report.bytes)}){replaced}",
        "green",
    )
    yield from labelled("skipped", report.skipped, "yellow")
    yield from labelled("FAILED", report.failures)


def _question(plans: list[SweepPlan]) -> str:
    jobs, uploads = sum(len(plan.jobs) for plan in plans), sum(plan.pending for plan in plans)
    files = sum(one.files for plan in plans for one in plan.replaced)
    deleted = f", and delete {several(files, 'replaced file')}" if files else ""
    return f"End {several(jobs, 'job')} and discard {several(uploads, 'upload')}{deleted}"

"""Sweep: removes leftovers of dead jobs, at one destination or all of a registry."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import click

from airflow_s3commit._format import age, number, several, size
from airflow_s3commit.cli.command import Session, as_duration, registry_option, store_command
from airflow_s3commit.cli.output import ExitCode
from airflow_s3commit.cli.report import BLANK, NOT_APPLIED, Column, Line, Table, View, labelled, state_cell
from airflow_s3commit.exceptions import S3CommitError
from airflow_s3commit.present import cost_per_month
from airflow_s3commit.protocol.metadata.registry import Registered
from airflow_s3commit.protocol.metadata.removal import forget_destination
from airflow_s3commit.protocol.sweep.apply import SweepReport, apply_sweep
from airflow_s3commit.protocol.sweep.plan import LeftAlone, SweepPlan
from airflow_s3commit.protocol.sweep.planner import plan_sweep
from airflow_s3commit.protocol.sweep.registered import plan_registered

#: Maximum number of uploads to show.
_SHOWN = 40


@store_command(
    "sweep",
    summary="Remove leftovers of dead jobs. A dry run by default.",
    examples="""
    s3commit sweep s3://lake/flights/ --older-than 7d              preview the removals
    s3commit sweep s3://lake/flights/ --older-than 7d --apply      remove the leftovers
    s3commit sweep s3://lake/flights/ --older-than 7d --apply --json   from a scheduled script
    s3commit sweep --registry s3://lake-ops/s3commit/ --older-than 7d  every destination
    """,
    confirms=True,
    registry=True,
    staging=True,
)
@registry_option("Sweep all destinations in the registry at this prefix, instead of one.")
@click.option(
    "--older-than",
    type=as_duration,
    metavar="DURATION",
    required=True,
    help="Treat a job as dead after this time without activity: 7d, 36h. Longer than any job takes.",
)
@click.option(
    "--apply", "apply", is_flag=True, help="Remove the leftovers; without this option it is a dry run."
)
def sweep(session: Session, *, older_than: float, apply: bool) -> ExitCode:
    """Remove leftovers of dead jobs at a destination: pending uploads, published files and records.

    Aborts jobs that have not ended, also one whose commit was interrupted, and finishes what is left to clean
    up of those that have. Also deletes files that commits replaced, after the time that their jobs' option
    retain says; --older-than does not apply to these files. This is a dry run unless --apply is given. Exit
    code 1 if a removal failed.

    With --registry each destination is swept by its own records; the registry only says where to look.
    Entries of empty destinations are removed from it.
    """
    if session.registry is not None:
        return _sweep_registry(session, older_than=older_than, apply=apply)
    with session.output.working("finding dead jobs and orphans"):
        roots = [] if session.staging_root is None else [session.staging_root]
        plan = plan_sweep(session.store, session.destination, older_than=older_than, staging_roots=roots)
    if not apply or plan.is_empty:
        report = SweepReport(plan=plan, dry_run=not apply)
        views = _plan_views(session, plan, dry_run=not apply and not plan.is_empty)
        return session.output.result(report.to_dict(), *views)
    if not session.output.as_json:
        session.output.result({}, *_plan_views(session, plan, dry_run=False))
    session.output.confirm(
        f"End {several(len(plan.jobs), 'job')} and discard {several(plan.pending, 'upload')}"
        f"{_and_delete(plan)}?",
        yes=session.yes,
    )
    report = _applied(session, plan)
    return session.output.result(report.to_dict(), *_report_views(report), ok=not report.failures)


@dataclass
class _Registered:
    """What a sweep finds at the destinations of a registry.

    Attributes:
        plans: The plans, each with the session of its destination.
        gone: The entries of empty destinations.
        failures: Why a destination could not be read or swept, by its URI.

    """

    plans: list[tuple[Session, SweepPlan]] = field(default_factory=list)
    gone: list[Registered] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def due(self) -> list[tuple[Session, SweepPlan]]:
        """The plans that are not empty."""
        return [(one, plan) for one, plan in self.plans if not plan.is_empty]


def _sweep_registry(session: Session, *, older_than: float, apply: bool) -> ExitCode:
    """Plan all sweeps, show them, ask once, and apply them; a failure does not stop the others."""
    found = _planned(session, older_than)
    uploads, stored = (sum(getattr(plan, what) for _, plan in found.due) for what in ("pending", "bytes"))
    nothing = not (found.due or found.gone)
    views: list[View] = [NOT_APPLIED] if not apply and not nothing else []
    for one, plan in found.due:
        views += [Line(plan.destination, "bold"), *_plan_views(one, plan, dry_run=False), BLANK]
    views += labelled("nothing is left of", (entry.record.destination for entry in found.gone), "dim")
    views.append(
        Line(
            f"{several(len(found.due), 'destination')} of {len(found.plans):,} to sweep:"
            f" {several(uploads, 'upload')}, {size(stored)}, {cost_per_month(stored)} per month"
        )
    )
    reports = [SweepReport(plan=plan, dry_run=True) for _, plan in found.plans]
    forgotten: list[str] = []
    if apply and not nothing:
        if not session.output.as_json:
            session.output.result({}, *views)
        jobs, gone = sum(len(plan.jobs) for _, plan in found.due), several(len(found.gone), "destination")
        session.output.confirm(
            f"End {several(jobs, 'job')} and discard {several(uploads, 'upload')} at"
            f" {several(len(found.due), 'destination')}, and remove {gone} from the registry?",
            yes=session.yes,
        )
        reports, forgotten = _applied_all(session, found)
        views = [
            view
            for report in reports
            for view in (Line(report.plan.destination, "bold"), *_report_views(report))
        ]
    value = {
        "registry": session.destination.uri,
        "sweeps": [report.to_dict() for report in reports],
        "gone": [entry.record.destination for entry in found.gone],
        "forgotten": forgotten,
        "failures": [{"destination": uri, "message": message} for uri, message in found.failures.items()],
    }
    views += labelled("FAILED", (f"{uri}: {message}" for uri, message in found.failures.items()), "red")
    ok = not found.failures and not any(report.failures for report in reports)
    return session.output.result(value, *views, ok=ok)


def _planned(session: Session, older_than: float) -> _Registered:
    """Plan the sweep of each destination."""
    found = _Registered()
    sweeps = plan_registered(session.registered(), lambda _: session.store, older_than=older_than)
    with session.output.working("finding dead jobs and orphans") as step:
        for number, one in enumerate(sweeps, start=1):
            uri = one.entry.record.destination
            if one.error is not None:
                found.failures[uri] = str(one.error)
            elif one.plan is not None:
                found.plans.append((session.at(one.entry.record), one.plan[1]))
            elif one.gone:
                found.gone.append(one.entry)
            else:
                session.output.note(f"left alone: {uri} has no records of jobs")
            step(number)
    return found


def _applied_all(session: Session, found: _Registered) -> tuple[list[SweepReport], list[str]]:
    """Apply the plans and remove the entries; return the reports and the URIs of removed entries."""
    reports, forgotten = [], []
    for one, plan in found.due:
        try:
            reports.append(_applied(one, plan))
        except S3CommitError as error:
            found.failures[plan.destination] = str(error)
    for entry in found.gone:
        try:
            if forget_destination(session.store, session.destination.bucket, entry.key, entry.etag):
                forgotten.append(entry.record.destination)
        except S3CommitError as error:
            found.failures[entry.record.destination] = str(error)
    return reports, forgotten


def _applied(session: Session, plan: SweepPlan) -> SweepReport:
    with session.output.working("sweeping"):
        return apply_sweep(session.store, plan)


def _plan_views(session: Session, plan: SweepPlan, *, dry_run: bool) -> Iterator[View]:
    if dry_run:
        yield NOT_APPLIED
    if plan.jobs:
        columns = (
            Column("job"),
            Column("action"),
            Column("inactive", right=True),
            Column("uploads", right=True),
            Column("size", right=True),
            Column("state", room=95),
        )
        rows = [
            [
                job.job_id,
                job.action,
                age(job.silent),
                number(job.uploads),
                size(job.bytes),
                state_cell(job.state),
            ]
            for job in plan.jobs
        ]
        yield Table(columns, rows, "Dead jobs")
        yield BLANK
    if plan.uploads:
        yield Table(
            (Column("path", whole=False), Column("size", right=True), Column("age", right=True)),
            [
                [session.destination.relative(upload.key), size(upload.bytes), age(upload.age)]
                for upload in plan.uploads[:_SHOWN]
            ],
            "Uploads that no job claims",
        )
        if len(plan.uploads) > _SHOWN:
            yield Line(f"… and {len(plan.uploads) - _SHOWN:,} more; --json has them all", "dim")
    if plan.replaced:
        yield Table(
            (
                Column("replaced by generation", right=True),
                Column("files", right=True),
                Column("size", right=True),
                Column("age", right=True),
                Column("retained for", right=True),
            ),
            [
                [one.generation, number(one.files), size(one.bytes), age(one.age), age(one.retain)]
                for one in plan.replaced
            ],
            "Replaced files",
        )
    if not plan.is_empty:
        yield BLANK
        yield Line(
            f"total: {several(plan.pending, 'upload')}, {size(plan.bytes)}, {cost_per_month(plan.bytes)}"
            f" per month; the oldest is {age(plan.oldest)} old"
        )
    else:
        yield Line(f"nothing to sweep at {plan.destination}", "green")
    yield from _list("left alone", plan.left, "dim")


def _report_views(report: SweepReport) -> Iterator[View]:
    with_jobs = sum(job.uploads for job in report.jobs)
    taken = sum(job.objects for job in report.jobs)
    replaced = f", {several(report.replaced, 'replaced file')} deleted" if report.replaced else ""
    yield Line(
        f"swept: {several(len(report.jobs), 'job')} ended ({several(with_jobs, 'upload')},"
        f" {several(taken, 'object')} taken back),"
        f" {several(report.uploads, 'orphan')} discarded ({size(report.bytes)}){replaced}",
        "green",
    )
    yield from _list("skipped", report.skipped, "yellow")
    yield from _list("FAILED", report.failures, "red")


def _and_delete(plan: SweepPlan) -> str:
    files = sum(one.files for one in plan.replaced)
    return f", and delete {several(files, 'replaced file')}" if plan.replaced else ""


def _list(label: str, things: list[LeftAlone], style: str) -> Iterator[Line]:
    return labelled(label, (f"{thing.what}: {thing.reason}" for thing in things), style)

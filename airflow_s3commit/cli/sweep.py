"""Sweep: removing what dead jobs left behind."""

from __future__ import annotations

from collections.abc import Iterator

import click
import msgspec
from rich.console import RenderableType
from rich.text import Text

from airflow_s3commit.cli.command import store_command
from airflow_s3commit.cli.exit_codes import ExitCode
from airflow_s3commit.cli.output import Column, table
from airflow_s3commit.cli.parameters import as_duration
from airflow_s3commit.cli.session import Session
from airflow_s3commit.cli.wording import age, cost, number, plain, several, size, state_cell
from airflow_s3commit.protocol.sweep import SweepReport, apply_sweep, plan_sweep
from airflow_s3commit.protocol.sweep_plan import LeftAlone, SweepPlan
from airflow_s3commit.store.calls import in_batches

__all__ = ["sweep"]

#: So many single uploads are shown.
_SHOWN = 40

#: Uploads that are swept between two steps of the progress bar.
_BATCH = 1_000


@store_command(
    "sweep",
    summary="Remove what dead jobs left. A dry run by default.",
    examples="""
    s3commit sweep s3://lake/flights/ --older-than 7d              what would be removed, and why
    s3commit sweep s3://lake/flights/ --older-than 7d --apply      remove it
    s3commit sweep s3://lake/flights/ --older-than 7d --apply --json   from a scheduled script
    """,
    confirms=True,
)
@click.option(
    "--older-than",
    type=as_duration,
    metavar="DURATION",
    required=True,
    help="Without a sign of life for so long a job is dead: 7d, 36h. Longer than any job takes.",
)
@click.option("--apply", "apply", is_flag=True, help="Do it. Without this it is a dry run.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed; the default.")
def sweep(session: Session, *, older_than: float, apply: bool, dry_run: bool) -> ExitCode:
    """Remove what dead jobs left at a destination: pending uploads, records, a lapsed lock.

    A dry run unless --apply is given. A job that was left in the middle of its commit is never touched, only
    named: recover it. Exit code 1 if something could not be removed.
    """
    if apply and dry_run:
        raise click.UsageError("--apply and --dry-run contradict each other")
    with session.output.working("looking for what is dead"):
        plan = plan_sweep(
            session.store, session.destination, older_than=older_than, staging_root=session.staging_root
        )
    empty = not (plan.jobs or plan.uploads or plan.lock or plan.spent)
    if not apply or empty:
        report = SweepReport(plan=plan, dry_run=not apply)
        session.output.result(report.to_dict(), *_plan_views(session, plan, dry_run=not apply and not empty))
        return ExitCode.OK
    if not session.output.as_json:
        session.output.result({}, *_plan_views(session, plan, dry_run=False))
    session.output.confirm(
        f"End {several(len(plan.jobs), 'job')} and discard {several(plan.pending, 'upload')}?",
        yes=session.yes,
    )
    report = _applied(session, plan)
    session.output.result(report.to_dict(), *_report_views(report))
    return ExitCode.FINDINGS if report.failures else ExitCode.OK


def _applied(session: Session, plan: SweepPlan) -> SweepReport:
    """Apply a plan piece by piece, so that a person sees how far it is."""
    nothing = msgspec.structs.replace(plan, jobs=[], uploads=[], lock=None, spent=[])
    pieces = [msgspec.structs.replace(nothing, jobs=[job]) for job in plan.jobs]
    pieces += [msgspec.structs.replace(nothing, uploads=batch) for batch in in_batches(plan.uploads, _BATCH)]
    if plan.lock is not None:
        pieces.append(msgspec.structs.replace(nothing, lock=plan.lock))
    if plan.spent:
        pieces.append(msgspec.structs.replace(nothing, spent=plan.spent))
    reports = []
    with session.output.working("sweeping", len(pieces)) as step:
        for piece in pieces:
            reports.append(apply_sweep(session.store, piece, signer=session.signer))
            step(len(reports))
    return SweepReport(
        plan=plan,
        dry_run=False,
        jobs=[job for report in reports for job in report.jobs],
        uploads=sum(report.uploads for report in reports),
        bytes=sum(report.bytes for report in reports),
        lock=any(report.lock for report in reports),
        spent=sum(report.spent for report in reports),
        skipped=[left for report in reports for left in report.skipped],
        failures=[left for report in reports for left in report.failures],
    )


def _plan_views(session: Session, plan: SweepPlan, *, dry_run: bool) -> Iterator[RenderableType]:
    if dry_run:
        yield Text("dry run: nothing was changed; --apply does it", style="yellow")
    if plan.jobs:
        columns = (
            Column("job"),
            Column("action"),
            Column("silent", right=True),
            Column("uploads", right=True),
            Column("size", right=True),
            Column("was", room=95),
        )
        rows = (
            [
                job.job_id,
                job.action,
                age(job.silent),
                number(job.uploads),
                size(job.bytes),
                state_cell(job.state),
            ]
            for job in plan.jobs
        )
        yield table(columns, rows, width=session.output.width, title="Dead jobs")
        yield Text()
    if plan.uploads:
        yield table(
            (Column("path", whole=False), Column("size", right=True), Column("age", right=True)),
            (
                [session.destination.relative(upload.key), size(upload.bytes), age(upload.age)]
                for upload in plan.uploads[:_SHOWN]
            ),
            width=session.output.width,
            title="Uploads that no job claims",
        )
        if len(plan.uploads) > _SHOWN:
            yield Text(f"… and {len(plan.uploads) - _SHOWN:,} more; --json has them all", style="dim")
    if plan.lock is not None:
        yield Text(f"Lapsed lock of job {plain(plan.lock.job_id)}, {age(plan.lock.age)} old")
    if plan.spent:
        yield Text(f"{several(len(plan.spent), 'record')} of jobs aborted long ago")
    if plan.jobs or plan.uploads or plan.lock or plan.spent:
        yield Text(
            f"\ntogether {several(plan.pending, 'upload')}, {size(plan.bytes)}, {cost(plan.bytes)[1]}"
            f" a month; the oldest is {age(plan.oldest)} old"
        )
    else:
        yield Text(f"nothing to sweep at {plain(plan.destination)}", style="green")
    yield from _list("left alone", plan.left, "dim")


def _report_views(report: SweepReport) -> Iterator[RenderableType]:
    with_jobs = sum(job.uploads for job in report.jobs)
    taken = sum(job.objects for job in report.jobs)
    old = f", {several(report.spent, 'old record')} removed" if report.spent else ""
    yield Text(
        f"swept: {several(len(report.jobs), 'job')} ended ({several(with_jobs, 'upload')},"
        f" {several(taken, 'object')} taken back),"
        f" {several(report.uploads, 'orphan')} discarded ({size(report.bytes)})"
        f"{', the lock removed' if report.lock else ''}"
        f"{old}",
        style="green",
    )
    yield from _list("skipped", report.skipped, "yellow")
    yield from _list("FAILED", report.failures, "red")


def _list(label: str, things: list[LeftAlone], style: str) -> Iterator[Text]:
    for thing in things:
        yield Text.assemble((f"{label}: ", style), plain(f"{thing.what}: {thing.reason}"), overflow="fold")

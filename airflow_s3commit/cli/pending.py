"""Pending uploads, which are billed and seen by nobody: listing them, and sweeping what the dead left."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import msgspec
from rich.console import RenderableType
from rich.text import Text

from airflow_s3commit.cli.command import store_command
from airflow_s3commit.cli.exit_codes import ExitCode
from airflow_s3commit.cli.output import Column, facts, table
from airflow_s3commit.cli.parameters import as_duration
from airflow_s3commit.cli.session import Session
from airflow_s3commit.cli.wording import age, cost, number, plain, size
from airflow_s3commit.protocol.survey import UploadSummary, pending_uploads
from airflow_s3commit.protocol.sweep import SweepReport, apply_sweep, plan_sweep
from airflow_s3commit.protocol.sweep_plan import LeftAlone, SweepPlan
from airflow_s3commit.store.calls import in_batches

__all__ = ["pending", "sweep"]

#: So many single uploads are shown unless all are asked for.
_SHOWN = 40

#: Uploads that are swept between two steps of the progress bar.
_BATCH = 1_000


@store_command(
    "pending",
    summary="List pending uploads: whose, how old, what they cost.",
    examples="""
    s3commit pending s3://lake/flights/
    s3commit pending s3://lake/flights/ --all
    s3commit pending s3://lake/flights/ --json | jq '.uploads[] | select(.job_id == null)'
    """,
)
@click.option("--all", "everything", is_flag=True, help=f"Show every upload, not the {_SHOWN} oldest.")
@click.option("--no-bytes", is_flag=True, help="Don't ask for sizes: that takes a request for each upload.")
def pending(session: Session, *, everything: bool, no_bytes: bool) -> ExitCode:
    """List the pending uploads below a destination: whose they are, how old, and what they cost.

    Nobody sees a pending upload, but its bytes are stored and billed. An upload without a job is claimed by
    none: what a crash left, or another program's. The cost is that of S3 Standard in us-east-1.
    """
    with session.output.working("asking for uploads and their parts") as step:
        found = []
        for upload in pending_uploads(
            session.store, session.destination, session.staging_root, measure=not no_bytes
        ):
            found.append(upload)
            step(len(found))
    found.sort(key=lambda upload: upload.initiated)
    by_job: dict[str | None, list[UploadSummary]] = {}
    for upload in found:
        by_job.setdefault(upload.job_id, []).append(upload)
    value = {
        "destination": session.destination.uri,
        **_totals(found),
        "jobs": [{"job_id": job_id, **_totals(theirs)} for job_id, theirs in by_job.items()],
        "uploads": [upload.to_dict() for upload in found],
    }
    if found:
        session.output.result(value, *_pending_views(session, found, by_job, everything=everything))
    else:
        session.output.result(value, Text(f"no upload is pending below {plain(session.destination.uri)}"))
    return ExitCode.OK


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
    empty = not (plan.jobs or plan.uploads or plan.lock)
    if not apply or empty:
        report = SweepReport(plan=plan, dry_run=not apply)
        session.output.result(report.to_dict(), *_plan_views(session, plan, dry_run=not apply and not empty))
        return ExitCode.OK
    if not session.output.as_json:
        session.output.result({}, *_plan_views(session, plan, dry_run=False))
    session.output.confirm(f"End {len(plan.jobs)} jobs and discard {plan.pending} uploads?", yes=session.yes)
    report = _applied(session, plan)
    session.output.result(report.to_dict(), *_report_views(report))
    return ExitCode.FINDINGS if report.failures else ExitCode.OK


def _applied(session: Session, plan: SweepPlan) -> SweepReport:
    """Apply a plan piece by piece, so that a person sees how far it is."""
    nothing = msgspec.structs.replace(plan, jobs=[], uploads=[], lock=None)
    pieces = [msgspec.structs.replace(nothing, jobs=[job]) for job in plan.jobs]
    pieces += [msgspec.structs.replace(nothing, uploads=batch) for batch in in_batches(plan.uploads, _BATCH)]
    if plan.lock is not None:
        pieces.append(msgspec.structs.replace(nothing, lock=plan.lock))
    reports = []
    with session.output.working("sweeping", len(pieces)) as step:
        for piece in pieces:
            reports.append(apply_sweep(session.store, piece))
            step(len(reports))
    return SweepReport(
        plan=plan,
        dry_run=False,
        jobs=[job for report in reports for job in report.jobs],
        uploads=sum(report.uploads for report in reports),
        bytes=sum(report.bytes for report in reports),
        lock=any(report.lock for report in reports),
        skipped=[left for report in reports for left in report.skipped],
        failures=[left for report in reports for left in report.failures],
    )


def _totals(uploads: list[UploadSummary]) -> dict[str, Any]:
    stored = sum(upload.bytes or 0 for upload in uploads)
    known = all(upload.bytes is not None for upload in uploads)
    return {
        "count": len(uploads),
        "bytes": stored if known else None,
        "oldest": max((upload.age for upload in uploads if upload.age is not None), default=None),
        "monthly_cost_usd": cost(stored)[0] if known else None,
    }


def _pending_views(
    session: Session,
    found: list[UploadSummary],
    by_job: dict[str | None, list[UploadSummary]],
    *,
    everything: bool,
) -> Iterator[RenderableType]:
    columns = (
        Column("job"),
        Column("uploads", right=True),
        Column("size", right=True),
        Column("oldest", right=True),
        Column("a month", right=True),
    )
    rows = [_total_row(job_id or "claimed by no job", theirs) for job_id, theirs in by_job.items()]
    if len(by_job) > 1:
        rows.append(_total_row("together", found))
    yield table(columns, rows, wide=True)
    shown = found if everything else found[:_SHOWN]
    keyed = (
        Column("key", whole=False),
        Column("size", right=True),
        Column("age", right=True),
        Column("job", wide=True),
    )
    yield table(
        keyed,
        ([upload.key, size(upload.bytes), age(upload.age), upload.job_id or ""] for upload in shown),
        wide=session.output.is_wide,
    )
    if len(shown) < len(found):
        yield Text(f"… and {len(found) - len(shown):,} younger ones; --all shows them", style="dim")
    if None in by_job:
        hint = session.about_all("sweep", "--older-than", "7d")
        yield Text.assemble(("what no job claims can be swept once it is old: ", "dim"), plain(hint))


def _total_row(name: str, uploads: list[UploadSummary]) -> list[object]:
    totals = _totals(uploads)
    said = cost(totals["bytes"])[1] if totals["bytes"] is not None else "?"
    return [name, number(totals["count"]), size(totals["bytes"]), age(totals["oldest"]), said]


def _plan_views(session: Session, plan: SweepPlan, *, dry_run: bool) -> Iterator[RenderableType]:
    if dry_run:
        yield Text("dry run: nothing was changed; --apply does it", style="yellow")
    if plan.jobs:
        columns = (
            Column("job"),
            Column("what to do"),
            Column("uploads", right=True),
            Column("size", right=True),
            Column("why", whole=False, wide=True),
        )
        yield table(
            columns,
            ([job.job_id, job.action, number(job.uploads), size(job.bytes), job.reason] for job in plan.jobs),
            wide=session.output.is_wide,
            title="Dead jobs",
        )
    if plan.uploads:
        yield table(
            (Column("key", whole=False), Column("size", right=True), Column("age", right=True)),
            ([upload.key, size(upload.bytes), age(upload.age)] for upload in plan.uploads[:_SHOWN]),
            wide=True,
            title="Uploads that no job claims",
        )
        if len(plan.uploads) > _SHOWN:
            yield Text(f"… and {len(plan.uploads) - _SHOWN:,} more; --json has them all", style="dim")
    if plan.lock is not None:
        yield Text(f"Lapsed lock of job {plain(plan.lock.job_id)}, {age(plan.lock.age)} old")
    if plan.jobs or plan.uploads or plan.lock:
        yield facts(
            [
                ("uploads", f"{number(plan.pending)}, {size(plan.bytes)}, {cost(plan.bytes)[1]} a month"),
                ("oldest", age(plan.oldest)),
            ]
        )
    else:
        yield Text(f"nothing to sweep at {plain(plan.destination)}", style="green")
    yield from _list("left alone", plan.left, "dim")


def _report_views(report: SweepReport) -> Iterator[RenderableType]:
    with_jobs = sum(job.uploads for job in report.jobs)
    taken = sum(job.objects for job in report.jobs)
    yield Text(
        f"swept: {len(report.jobs):,} jobs ended ({with_jobs:,} uploads, {taken:,} objects taken back),"
        f" {report.uploads:,} orphans discarded ({size(report.bytes)})"
        f"{', the lock removed' if report.lock else ''}",
        style="green",
    )
    yield from _list("skipped", report.skipped, "yellow")
    yield from _list("FAILED", report.failures, "red")


def _list(label: str, things: list[LeftAlone], style: str) -> Iterator[Text]:
    for thing in things:
        yield Text.assemble((f"{label}: ", style), plain(f"{thing.what}: {thing.reason}"), overflow="fold")

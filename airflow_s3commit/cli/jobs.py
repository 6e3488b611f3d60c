"""Jobs, show and pending: the jobs in progress at a destination, and their uploads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from airflow_s3commit._format import age, number, several, size
from airflow_s3commit.cli.command import Session, registry_option, store_command
from airflow_s3commit.cli.output import ExitCode
from airflow_s3commit.cli.report import BLANK, Column, Facts, Line, Table, View, labelled, toned
from airflow_s3commit.exceptions import S3CommitError
from airflow_s3commit.present import NextStep, cost_per_month, for_job, job_facts, state
from airflow_s3commit.protocol.inspect.details import JobDetails, describe_job
from airflow_s3commit.protocol.inspect.jobs import JobSummary, UploadSummary, list_jobs, pending_uploads
from airflow_s3commit.protocol.sweep.plan import monthly_cost

_COLUMNS = (
    Column("job"),
    Column("state"),
    Column("age", right=True),
    Column("files", right=True),
    Column("size", right=True),
    Column("mode", room=95),
    Column("last activity", right=True, room=115),
    Column("context", room=150, whole=False),
)

#: Maximum number of uploads to show without --all.
_SHOWN = 40


@store_command(
    "jobs",
    summary="List the jobs in progress at a destination.",
    examples="""
    s3commit jobs s3://lake/flights/
    s3commit jobs s3://lake/flights/ --committed
    s3commit jobs 's3://lake/team-*' --registry s3://lake-ops/s3commit/
    s3commit jobs s3://lake/flights/ --json | jq -r '.jobs[] | select(.state == "sealed").job_id'
    """,
    registry=True,
    staging=True,
)
@registry_option("Read all destinations in the registry at this prefix, instead of one.")
@click.option("--committed", is_flag=True, help="Also list jobs that are committed and cleaned up.")
def jobs(session: Session, *, committed: bool) -> ExitCode:
    """List the jobs of a destination that are in progress, or have ended and are not cleaned up.

    The age is the time since the job entered its state, by the store's clock. Files and size are those in the
    seal or, before the job is sealed, those of all committed task attempts.
    """
    if session.registry is not None:
        return _jobs_of_registry(session, committed=committed)
    with session.output.working("reading records") as step:
        found = []
        for summary in list_jobs(
            session.store, session.destination, session.staging_root, committed=committed
        ):
            found.append(summary)
            step(len(found))
    value = {"destination": session.destination.uri, "jobs": [summary.to_dict() for summary in found]}
    if not found:
        return session.output.result(value, Line(f"no job is in progress at {session.destination.uri}"))
    problems = (Line(f"{job.job_id}: {job.problem}", "red") for job in found if job.problem is not None)
    return session.output.result(value, Table(_COLUMNS, [_row(job) for job in found]), *problems)


def _jobs_of_registry(session: Session, *, committed: bool) -> ExitCode:
    found: list[tuple[str, list[JobSummary]]] = []
    failures: list[tuple[str, S3CommitError]] = []
    with session.output.working("reading destinations") as step:
        for number, entry in enumerate(session.registered(), start=1):
            one = session.at(entry.record)
            try:
                listed = list_jobs(one.store, one.destination, one.staging_root, committed=committed)
                found.append((one.destination.uri, list(listed)))
            except S3CommitError as error:
                failures.append((one.destination.uri, error))
            step(number)
    every = [job for _, jobs in found for job in jobs]
    pending = [job for job in every if job.staging is not None]
    oldest = max((job.silent for job in pending if job.silent is not None), default=None)
    totals = {"destinations": len(found), "jobs": len(pending), "bytes": sum(j.output.bytes for j in pending)}
    value = {
        "registry": session.destination.uri,
        "destinations": [
            {"destination": uri, "jobs": [job.to_dict() for job in jobs]} for uri, jobs in found
        ],
        "failures": [{"destination": uri, "message": str(error)} for uri, error in failures],
        "pending": {**totals, "idle": oldest},
    }
    rows = [[uri, *_row(job)[:5], age(job.silent)] for uri, jobs in found for job in jobs]
    columns = (Column("destination", whole=False), *_COLUMNS[:5], Column("last activity", right=True))
    views: list[View] = [Table(columns, rows), BLANK] if rows else []
    views.append(
        Line(
            f"{several(totals['jobs'], 'job')} in progress at {several(len(found), 'destination')},"
            f" {size(totals['bytes'])} pending"
        )
    )
    problems = (Line(f"{job.job_id}: {job.problem}", "red") for job in every if job.problem is not None)
    unread = labelled("NOT READ", (f"{uri}: {error}" for uri, error in failures), "red")
    return session.output.result(value, *views, *problems, *unread, ok=not failures)


@store_command(
    "show",
    summary="Show one job in detail, with next steps.",
    examples="""
    s3commit show s3://lake/flights/ 0c9a3b0e-6f0e-4c35-8b0f-3f1f6f6f8a11
    s3commit show s3://lake/flights/ JOB --json | jq .preview
    """,
    job="required",
)
def show(session: Session) -> ExitCode:
    """Show one job in detail, with next steps.

    Shows how far it is, its options and context, its stages and their output, its pending uploads and, while
    its commit runs, how many of its files are visible; and what its commit replaces.
    """
    assert session.job_id is not None
    with session.output.working("reading records"):
        details = describe_job(session.store, session.destination, session.job_id)
    steps = for_job(details, session.commands)
    value = {**details.to_dict(), "next": [step._asdict() for step in steps]}
    code = session.output.result(value, *_job_views(details), BLANK)
    session.output.advise(steps)
    return code


def _row(summary: JobSummary) -> list[object]:
    record = summary.options or summary.manifest
    return [
        summary.job_id,
        toned(state(summary)),
        age(summary.age),
        number(summary.output.files),
        size(summary.output.bytes),
        record.conflict_mode if record is not None else None,
        age(summary.silent) if summary.silent is not None else "",
        ", ".join(f"{name} {value}" for name, value in summary.context.items()),
    ]


def _job_views(details: JobDetails) -> Iterator[View]:
    yield Facts(job_facts(details))
    if details.stages:
        columns = (
            Column("stage", whole=False),
            Column("attempt"),
            Column("sealed"),
            Column("counts"),
            Column("tasks", right=True),
            Column("files", right=True),
            Column("size", right=True),
            Column("rows", right=True),
        )
        rows = [
            [
                stage.stage,
                stage.attempt,
                "yes" if stage.sealed else "no",
                {True: "yes", False: "no", None: "?"}[stage.counts],
                number(stage.tasks),
                number(stage.output.files) if stage.output is not None else "?",
                size(stage.output.bytes) if stage.output is not None else "?",
                number(stage.output.rows) if stage.output is not None else "?",
            ]
            for stage in details.stages
        ]
        yield BLANK
        yield Table(columns, rows)
    for problem in details.problems:
        yield Line(problem, "red")
    if details.summary.manifest is not None and details.summary.staging is None:
        yield Line("committed and cleaned up: only its entry in the log is left", "dim")


@store_command(
    "pending",
    summary="List pending uploads with their jobs, ages and costs.",
    examples="""
    s3commit pending s3://lake/flights/
    s3commit pending s3://lake/flights/ --all
    s3commit pending s3://lake/flights/ --json | jq '.uploads[] | select(.job_id == null)'
    """,
    staging=True,
)
@click.option("--all", "everything", is_flag=True, help=f"Show every upload, not the {_SHOWN} oldest.")
@click.option("--no-bytes", is_flag=True, help="Don't measure uploads, which takes one request per upload.")
def pending(session: Session, *, everything: bool, no_bytes: bool) -> ExitCode:
    """List the pending uploads below a destination, with their jobs, ages and costs.

    A pending upload is not visible, but its bytes are stored and billed. An upload without a job remains from
    a crash, or belongs to another program. The cost is that of S3 Standard in us-east-1.
    """
    with session.output.working("listing uploads and their parts") as step:
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
    if not found:
        return session.output.result(value, Line(f"no upload is pending below {session.destination.uri}"))
    code = session.output.result(value, *_pending_views(session, found, by_job, everything=everything))
    if None in by_job:
        words = "sweep old uploads that no job claims"
        session.output.advise([NextStep(words, session.commands.line("sweep", "--older-than", "7d"))])
    return code


def _totals(uploads: list[UploadSummary]) -> dict[str, Any]:
    stored = sum(upload.bytes or 0 for upload in uploads)
    known = all(upload.bytes is not None for upload in uploads)
    return {
        "count": len(uploads),
        "bytes": stored if known else None,
        "oldest": max((upload.age for upload in uploads if upload.age is not None), default=None),
        "monthly_cost_usd": monthly_cost(stored) if known else None,
    }


def _pending_views(
    session: Session,
    found: list[UploadSummary],
    by_job: dict[str | None, list[UploadSummary]],
    *,
    everything: bool,
) -> Iterator[View]:
    columns = (
        Column("job"),
        Column("uploads", right=True),
        Column("size", right=True),
        Column("oldest", right=True),
        Column("per month", right=True),
    )
    rows = [_total_row(job_id or "claimed by no job", theirs) for job_id, theirs in by_job.items()]
    if len(by_job) > 1:
        rows.append(_total_row("total", found))
    yield Table(columns, rows)
    yield BLANK
    shown = found if everything else found[:_SHOWN]
    below = (Column("path", whole=False), Column("size", right=True), Column("age", right=True))
    yield Table(
        (*below, Column("job", room=118)),
        [[session.destination.relative(u.key), size(u.bytes), age(u.age), u.job_id or ""] for u in shown],
    )
    if len(shown) < len(found):
        yield Line(f"… and {len(found) - len(shown):,} newer uploads; --all shows them", "dim")
    yield BLANK


def _total_row(name: str, uploads: list[UploadSummary]) -> list[object]:
    totals = _totals(uploads)
    stored = totals["bytes"]
    return [name, number(totals["count"]), size(stored), age(totals["oldest"]), cost_per_month(stored)]

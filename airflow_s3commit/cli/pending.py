"""Pending: lists pending uploads, which are billed and invisible."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from airflow_s3commit._format import age, number, size
from airflow_s3commit.cli.command import Session, store_command
from airflow_s3commit.cli.exit_codes import ExitCode
from airflow_s3commit.cli.report import BLANK, Column, Line, Table, View
from airflow_s3commit.present.facts import cost_per_month
from airflow_s3commit.present.next_steps import NextStep
from airflow_s3commit.protocol.inspect.jobs import UploadSummary, pending_uploads
from airflow_s3commit.protocol.sweep.plan import monthly_cost

#: Maximum number of uploads to show without --all.
_SHOWN = 40


@store_command(
    "pending",
    summary="List pending uploads with their jobs, ages and costs.",
    examples="""
    s3commit pending s3://lake/flights/
    s3commit pending s3://lake/flights/ --all
    s3commit pending s3://lake/flights/ --json | jq '.uploads[] | select(.job_id == null)'
    """,
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
    code = session.output.result(value, *_views(session, found, by_job, everything=everything))
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


def _views(
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

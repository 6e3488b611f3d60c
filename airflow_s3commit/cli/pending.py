"""Pending uploads, which are billed and seen by nobody."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
from rich.console import RenderableType
from rich.text import Text

from airflow_s3commit.cli.command import store_command
from airflow_s3commit.cli.exit_codes import ExitCode
from airflow_s3commit.cli.output import Column, NextStep, table
from airflow_s3commit.cli.session import Session
from airflow_s3commit.cli.wording import age, cost, number, plain, size
from airflow_s3commit.protocol.survey import UploadSummary, pending_uploads

__all__ = ["pending"]

#: So many single uploads are shown unless all are asked for.
_SHOWN = 40


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
    if not found:
        session.output.result(value, Text(f"no upload is pending below {plain(session.destination.uri)}"))
        return ExitCode.OK
    session.output.result(value, *_views(session, found, by_job, everything=everything))
    if None in by_job:
        words = "what no job claims can be swept once it is old"
        session.output.advise([NextStep(words, session.about_all("sweep", "--older-than", "7d"))])
    return ExitCode.OK


def _totals(uploads: list[UploadSummary]) -> dict[str, Any]:
    stored = sum(upload.bytes or 0 for upload in uploads)
    known = all(upload.bytes is not None for upload in uploads)
    return {
        "count": len(uploads),
        "bytes": stored if known else None,
        "oldest": max((upload.age for upload in uploads if upload.age is not None), default=None),
        "monthly_cost_usd": cost(stored)[0] if known else None,
    }


def _views(
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
    width = session.output.width
    yield table(columns, rows, width=width)
    yield Text()
    shown = found if everything else found[:_SHOWN]
    below = (Column("path", whole=False), Column("size", right=True), Column("age", right=True))
    yield table(
        (*below, Column("job", room=118)),
        ([session.destination.relative(u.key), size(u.bytes), age(u.age), u.job_id or ""] for u in shown),
        width=width,
    )
    if len(shown) < len(found):
        yield Text(f"… and {len(found) - len(shown):,} younger ones; --all shows them", style="dim")
    yield Text()


def _total_row(name: str, uploads: list[UploadSummary]) -> list[object]:
    totals = _totals(uploads)
    said = cost(totals["bytes"])[1] if totals["bytes"] is not None else "?"
    return [name, number(totals["count"]), size(totals["bytes"]), age(totals["oldest"]), said]

"""Baseline: lists the files that are older than the log."""

from __future__ import annotations

from collections.abc import Iterator

import click

from airflow_s3commit._format import several, size
from airflow_s3commit.cli.command import Session, store_command
from airflow_s3commit.cli.exit_codes import ExitCode
from airflow_s3commit.cli.report import NOT_APPLIED, Line, View, labelled
from airflow_s3commit.protocol.closed_baseline import BaselineReport
from airflow_s3commit.protocol.closed_baseline import baseline as close_baseline


@store_command(
    "baseline",
    summary="List a table's older files in its log. A dry run by default.",
    examples="""
    s3commit baseline s3://lake/flights/            how many files no commit lists
    s3commit baseline s3://lake/flights/ --apply    list them, as a commit that adds nothing
    """,
    staging=False,
)
@click.option(
    "--apply", "apply", is_flag=True, help="Enter the list in the log; without this option it is a dry run."
)
def baseline(session: Session, *, apply: bool) -> ExitCode:
    """List the files that are older than the log, and enter the list as a commit that adds nothing.

    For a table that another program, or an older version, wrote. Readers then open it without listing the
    destination, verify finds what other programs write, and the table can be rolled back. Files of
    unfinished jobs are left out, and named. Run it while no other program writes to the table.
    """
    with session.output.working("listing files") as step:
        report = close_baseline(
            session.store, session.destination, dry_run=not apply, signer=session.signer, step=step
        )
    return session.output.result(report.to_dict(), *_views(report))


def _views(report: BaselineReport) -> Iterator[View]:
    if report.closed:
        yield Line(f"commits list every file of {report.destination}: there is nothing to do", "green")
        return
    if not report.files and not report.unfinished:
        yield Line(f"no file is at {report.destination}: are bucket and prefix right?", "yellow")
        return
    what = (
        f"{several(report.files, 'file')} ({size(report.bytes)}) in {several(report.partitions, 'partition')}"
    )
    yield Line(f"{report.destination} has {what} that no commit lists")
    yield from labelled("left out: unfinished job", report.unfinished, "yellow")
    if report.generation is not None:
        yield Line(f"generation {report.generation} lists them", "green")
    elif report.dry_run:
        yield NOT_APPLIED

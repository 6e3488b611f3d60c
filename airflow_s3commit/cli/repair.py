"""Repair: rebuilds records that are damaged or missing."""

from __future__ import annotations

from collections.abc import Iterator

import click

from airflow_s3commit.cli.command import Session, store_command
from airflow_s3commit.cli.exit_codes import ExitCode
from airflow_s3commit.cli.report import NOT_APPLIED, Line, View, labelled
from airflow_s3commit.protocol.inspect.verify_log import LogFinding
from airflow_s3commit.protocol.repair import RepairReport
from airflow_s3commit.protocol.repair import repair as rebuild


@store_command(
    "repair",
    summary="Rebuild damaged records. A dry run by default.",
    examples="""
    s3commit repair s3://lake/flights/            what is damaged, what can be rebuilt, and what cannot
    s3commit repair s3://lake/flights/ --apply    rebuild it
    """,
    staging=False,
)
@click.option(
    "--apply", "apply", is_flag=True, help="Rebuild the records; without this option it is a dry run."
)
def repair(session: Session, *, apply: bool) -> ExitCode:
    """Rebuild records that follow from others: manifests, records of aborts, checkpoints, _SUCCESS, states.

    A damaged entry of the log, or list of files, cannot be rebuilt: it is named, with what depends on it. No
    data is touched. Exit code 1 if something is left that is wrong.
    """
    with session.output.working("reading the log") as step:
        report = rebuild(
            session.store, session.destination, dry_run=not apply, signer=session.signer, step=step
        )
    return session.output.result(report.to_dict(), *_views(report), ok=report.is_sound)


def _views(report: RepairReport) -> Iterator[View]:
    if report.dry_run and report.repaired:
        yield NOT_APPLIED
    if not (report.repaired or report.left or report.failures):
        yield Line(f"nothing to repair at {report.destination}", "green")
    yield from _lines("would rebuild" if report.dry_run else "rebuilt", report.repaired, "green")
    yield from _lines("CANNOT BE REBUILT", report.left, "red", remedy=True)
    yield from _lines("FAILED", report.failures, "red")


def _lines(label: str, findings: list[LogFinding], style: str, *, remedy: bool = False) -> Iterator[Line]:
    for finding in findings:
        words = f"{finding.where}: {finding.problem}"
        yield from labelled(label, [f"{words}: {finding.remedy}" if remedy else words], style)

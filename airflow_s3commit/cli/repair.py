"""Repair: rebuilds records that are damaged or missing."""

from __future__ import annotations

from collections.abc import Iterator

import click

from airflow_s3commit._format import several
from airflow_s3commit.cli.command import Session, store_command
from airflow_s3commit.cli.exit_codes import ExitCode
from airflow_s3commit.cli.report import NOT_APPLIED, Line, View, labelled
from airflow_s3commit.protocol.inspect.verify_log import LogFinding
from airflow_s3commit.protocol.rebase import RebaseReport, rebase
from airflow_s3commit.protocol.repair import RepairReport
from airflow_s3commit.protocol.repair import repair as rebuild


@store_command(
    "repair",
    summary="Rebuild damaged records. A dry run by default.",
    examples="""
    s3commit repair s3://lake/flights/            what is damaged, what can be rebuilt, and what cannot
    s3commit repair s3://lake/flights/ --apply    rebuild it
    s3commit repair s3://mirror/flights/ --rebase           compare a copied table with its log
    s3commit repair s3://mirror/flights/ --rebase --apply   and take over its history
    """,
    staging=False,
)
@click.option(
    "--apply", "apply", is_flag=True, help="Rebuild the records; without this option it is a dry run."
)
@click.option(
    "--rebase",
    "rebases",
    is_flag=True,
    help="For a copied table, before its first commit: take over the history of the original.",
)
@click.option(
    "--accept-sizes",
    is_flag=True,
    help="With --rebase: accept files of which only the size can be compared.",
)
def repair(session: Session, *, apply: bool, rebases: bool, accept_sizes: bool) -> ExitCode:
    """Rebuild records that follow from others: manifests, records of aborts, checkpoints, _SUCCESS, states.

    A damaged entry of the log, or list of files, cannot be rebuilt: it is named, with what depends on it. No
    data is touched. Exit code 1 if something is left that is wrong.

    With --rebase nothing is rebuilt. The log of a copied table names the original, and counts as no history.
    It sends a HEAD for each file that the table has or retains. If all are there and unchanged, it writes
    their lists anew and a commit that takes over the history. Exit code 1 if files are missing or changed.
    """
    if rebases:
        return _rebase(session, apply=apply, accept_sizes=accept_sizes)
    if accept_sizes:
        raise click.UsageError("--accept-sizes needs --rebase")
    with session.output.working("reading the log") as step:
        report = rebuild(
            session.store, session.destination, dry_run=not apply, signer=session.signer, step=step
        )
    return session.output.result(report.to_dict(), *_views(report), ok=report.is_sound)


def _rebase(session: Session, *, apply: bool, accept_sizes: bool) -> ExitCode:
    with session.output.working("comparing files") as step:
        report = rebase(
            session.store,
            session.destination,
            dry_run=not apply,
            accept_sizes=accept_sizes,
            signer=session.signer,
            step=step,
        )
    return session.output.result(report.to_dict(), *_rebase_views(report), ok=report.acceptable)


def _rebase_views(report: RebaseReport) -> Iterator[View]:
    yield Line(f"{report.destination} is a copy of {report.origin}: {several(report.files, 'file')} compared")
    yield from labelled("MISSING", report.missing, "red")
    yield from labelled("CHANGED", [one.key for one in report.changed], "red")
    yield from labelled(
        "accepted by size" if report.accepts_sizes else "ONLY THE SIZE IS THE SAME", report.unproven, "yellow"
    )
    if not report.acceptable:
        way = "copy them again" if not report.complete else "copy them with metadata, or --accept-sizes"
        yield Line(f"the history is not taken over: {way}", "red")
    elif report.generation is not None:
        yield Line(f"the history is taken over, by generation {report.generation}", "green")
    elif report.dry_run:
        yield NOT_APPLIED
    else:
        yield Line("the history was taken over before", "green")


def _views(report: RepairReport) -> Iterator[View]:
    if report.dry_run and report.repaired:
        yield NOT_APPLIED
    if not (report.repaired or report.left or report.failures):
        if report.original is not None:
            words = f"{report.destination} is a copy of {report.original}, whose log it has: add --rebase"
            yield Line(f"{words} to compare it with that, and to take it over", "yellow")
        elif not report.entries:
            yield Line(f"no log is at {report.destination}: are bucket and prefix right?", "yellow")
        else:
            yield Line(f"nothing to repair at {report.destination}", "green")
    yield from _lines("would rebuild" if report.dry_run else "rebuilt", report.repaired, "green")
    yield from _lines("CANNOT BE REBUILT", report.left, "red", remedy=True)
    yield from _lines("FAILED", report.failures, "red")


def _lines(label: str, findings: list[LogFinding], style: str, *, remedy: bool = False) -> Iterator[Line]:
    for finding in findings:
        words = f"{finding.where}: {finding.problem}"
        yield from labelled(label, [f"{words}: {finding.remedy}" if remedy else words], style)

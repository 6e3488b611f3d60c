"""Rollback and repair: return a table to an older generation, or rebuild its records."""

from __future__ import annotations

from collections.abc import Iterator

import click

from airflow_s3commit._format import number, several
from airflow_s3commit.cli.command import Session, store_command
from airflow_s3commit.cli.output import ExitCode
from airflow_s3commit.cli.report import DRY_RUN, NOT_APPLIED, Facts, Line, View, labelled
from airflow_s3commit.present import Fact
from airflow_s3commit.protocol.inspect.verify_log import LogFinding
from airflow_s3commit.protocol.repair import RepairReport
from airflow_s3commit.protocol.repair import repair as rebuild
from airflow_s3commit.protocol.table_rollback import RollbackReport
from airflow_s3commit.protocol.table_rollback import rollback as roll_back

#: Partitions to name.
_SHOWN = 10


@store_command(
    "rollback",
    summary="Return a table to an older generation.",
    examples="""
    s3commit log s3://lake/flights/                                 list the generations
    s3commit rollback s3://lake/flights/ --to 41 --dry-run          show what would change
    s3commit rollback s3://lake/flights/ --to 41 --retain 7d        roll back; keep what leaves the table
    """,
    confirms=True,
)
@click.option(
    "--to", "to", type=click.IntRange(min=1), required=True, help="The generation, as s3commit log lists it."
)
@click.option(
    "--retain",
    default="0s",
    show_default=True,
    metavar="DURATION",
    help="How long files that leave the table stay in place: 7d, 36h. Without it they are deleted at once.",
)
@click.option("--dry-run", is_flag=True, help="Report what would change; change nothing.")
def rollback(session: Session, *, to: int, retain: str, dry_run: bool) -> ExitCode:
    """Return a table to an older generation, by a new commit. Copies nothing.

    Refused if a file of that generation is deleted or released: older generations exist only if jobs retain
    what they replace (job option retain). The rollback is a new generation, so it can be rolled back too if
    --retain keeps what leaves the table. Refused if another job commits meanwhile.
    """
    with session.output.working("comparing the generations"):
        plan = roll_back(session.store, session.destination, to=to, retain=retain, dry_run=True)
    if dry_run or not plan.partitions:
        return session.output.result(plan.to_dict(), *([DRY_RUN] if dry_run else []), _rollback_facts(plan))
    if not session.output.as_json:
        session.output.result({}, _rollback_facts(plan))
    is_final = plan.removed and retain == "0s"
    lost = f" {several(plan.removed, 'file')} will be deleted for good (--retain 7d keeps them)."
    session.output.confirm(
        f"Roll {session.destination.uri} back to generation {to}, in"
        f" {several(len(plan.partitions), 'partition')}?{lost if is_final else ''}",
        yes=session.yes,
    )
    with session.output.working("rolling back"):
        report = roll_back(
            session.store,
            session.destination,
            to=to,
            retain=retain,
            newest=plan.newest,
        )
    words = f"rolled back to generation {to}; the table is at generation {report.generation} now"
    return session.output.result(report.to_dict(), Line(words, "green"))


def _rollback_facts(plan: RollbackReport) -> Facts:
    if not plan.partitions:
        return Facts(
            [Fact("changes", f"none: generation {plan.newest} has the files of generation {plan.to}")]
        )
    names = ", ".join(partition or "." for partition in plan.partitions[:_SHOWN])
    more = len(plan.partitions) - _SHOWN
    leave = f"{several(plan.removed, 'file')}, deleted at once"
    if plan.retain != "0s":
        leave = f"{several(plan.removed, 'file')}, retained for {plan.retain}"
    return Facts(
        [
            Fact("generation", f"{plan.newest}, back to {plan.to}"),
            Fact("partitions", f"{names}, and {number(more)} more" if more > 0 else names),
            Fact("come back", several(plan.restored, "file")),
            Fact("leave", leave),
        ]
    )


@store_command(
    "repair",
    summary="Rebuild damaged records. A dry run by default.",
    examples="""
    s3commit repair s3://lake/flights/            what is damaged, what can be rebuilt, and what cannot
    s3commit repair s3://lake/flights/ --apply    rebuild it
    """,
)
@click.option(
    "--apply", "apply", is_flag=True, help="Rebuild the records; without this option it is a dry run."
)
def repair(session: Session, *, apply: bool) -> ExitCode:
    """Rebuild records that follow from the log: receipts, checkpoints and _SUCCESS, that of partitions too.

    A damaged entry of the log, or list of files, cannot be rebuilt: it is named, with what depends on it. No
    data is touched. Exit code 1 if problems are left.
    """
    with session.output.working("reading the log") as step:
        report = rebuild(session.store, session.destination, dry_run=not apply, step=step)
    return session.output.result(report.to_dict(), *_repair_views(report), ok=report.is_sound)


def _repair_views(report: RepairReport) -> Iterator[View]:
    if report.dry_run and report.repaired:
        yield NOT_APPLIED
    if not (report.repaired or report.left or report.failures):
        if report.entries:
            yield Line(f"nothing to repair at {report.destination}", "green")
        else:
            yield Line(f"there is no log at {report.destination}: check the bucket and the prefix", "yellow")
    yield from _findings("would rebuild" if report.dry_run else "rebuilt", report.repaired, "green")
    yield from _findings("CANNOT BE REBUILT", report.left, "red", remedy=True)
    yield from _findings("FAILED", report.failures, "red")


def _findings(label: str, findings: list[LogFinding], style: str, *, remedy: bool = False) -> Iterator[Line]:
    for finding in findings:
        words = f"{finding.where}: {finding.problem}"
        yield from labelled(label, [f"{words}: {finding.remedy}" if remedy else words], style)

"""Rollback: makes a table what it was at an older generation."""

from __future__ import annotations

import click

from airflow_s3commit._format import number, several
from airflow_s3commit.cli.command import Session, store_command
from airflow_s3commit.cli.exit_codes import ExitCode
from airflow_s3commit.cli.report import DRY_RUN, Facts, Line
from airflow_s3commit.present.facts import Fact
from airflow_s3commit.protocol.table_rollback import RollbackReport
from airflow_s3commit.protocol.table_rollback import rollback as roll_back

#: Partitions to name.
_SHOWN = 10


@store_command(
    "rollback",
    summary="Make a table what it was at an older generation.",
    examples="""
    s3commit log s3://lake/flights/                                 list the generations
    s3commit rollback s3://lake/flights/ --to 41 --dry-run          show what would change
    s3commit rollback s3://lake/flights/ --to 41 --retain 7d        roll back; keep what leaves the table
    """,
    staging=False,
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
@click.option("--dry-run", is_flag=True, help="Only check, and report what would change.")
def rollback(session: Session, *, to: int, retain: str, dry_run: bool) -> ExitCode:
    """Make a table what it was at an older generation, by a new commit. Copies nothing.

    Refused if a file of that generation is deleted or released: older generations are there only where jobs
    retain what they replace (job option retain). The rollback is a generation of its own, so it can be rolled
    back too, if --retain keeps what leaves the table. Refused if another job commits meanwhile.
    """
    with session.output.working("comparing the generations"):
        plan = roll_back(
            session.store, session.destination, to=to, retain=retain, dry_run=True, signer=session.signer
        )
    if dry_run or not plan.partitions:
        return session.output.result(plan.to_dict(), *([DRY_RUN] if dry_run else []), _facts(plan))
    if not session.output.as_json:
        session.output.result({}, _facts(plan))
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
            signer=session.signer,
        )
    words = f"rolled back to generation {to}; the table is at generation {report.generation} now"
    return session.output.result(report.to_dict(), Line(words, "green"))


def _facts(plan: RollbackReport) -> Facts:
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

"""Rollback and repair: return a table to an older generation, or rebuild its records."""

from __future__ import annotations

import click

from airflow_s3commit._format import several
from airflow_s3commit.cli.command import Session, apply_option, flag, option, store_command
from airflow_s3commit.cli.output import ExitCode
from airflow_s3commit.cli.report import DRY_RUN, NOT_APPLIED, described, labelled, line
from airflow_s3commit.protocol.repair import repair as rebuild
from airflow_s3commit.protocol.table_rollback import rollback as roll_back


@store_command(
    """
    s3commit log s3://lake/flights/                                 list the generations
    s3commit rollback s3://lake/flights/ --to 41 --dry-run          show what would change
    s3commit rollback s3://lake/flights/ --to 41 --retain 7d        roll back; keep what leaves the table
    """,
    confirms=True,
)
@option(
    "--to",
    type=click.IntRange(min=1),
    required=True,
    metavar="N",
    help="The generation, as s3commit log lists it.",
)
@option(
    "--retain",
    default="0s",
    metavar="DURATION",
    help="How long files that leave the table stay in place: 7d, 36h. Without it they are deleted at once.",
)
@flag("--dry-run", "Report what would change; change nothing.")
def rollback(session: Session, *, to: int, retain: str, dry_run: bool) -> ExitCode:
    """Return a table to an older generation.

    A rollback is a new commit, and copies nothing. Refused if a file of that generation is deleted or
    released: older generations exist only if jobs retain what they replace (job option retain). As a new
    generation it can be rolled back too if --retain keeps what leaves the table. Refused if
    another job commits meanwhile.
    """
    store, place, output = session.store, session.destination, session.output
    with output.working("comparing the generations"):
        plan = roll_back(store, place, to=to, retain=retain, dry_run=True)
    shown = described(plan.columns, plan)
    if not plan.partitions:
        words = f"none: generation {plan.newest} has the files of generation {plan.to}"
        return output.result(plan.to_dict(), line(words, "", "changes"))
    if dry_run:
        return output.result(plan.to_dict(), DRY_RUN, shown)
    output.show(shown)
    is_final = plan.removed and retain == "0s"
    lost = f" {several(plan.removed, 'file')} will be deleted for good (--retain 7d keeps them)."
    where = several(len(plan.partitions), "partition")
    output.confirm(
        f"Roll {place.uri} back to generation {to}, in {where}?{lost if is_final else ''}", yes=session.yes
    )
    with output.working("rolling back"):
        report = roll_back(store, place, to=to, retain=retain, newest=plan.newest)
    words = f"rolled back to generation {to}; the table is at generation {report.generation} now"
    return output.result(report.to_dict(), line(words, "green"))


@store_command(
    """
    s3commit repair s3://lake/flights/            what is damaged, what can be rebuilt, and what cannot
    s3commit repair s3://lake/flights/ --apply    rebuild it
    """,
)
@apply_option("Rebuild the records")
def repair(session: Session, *, apply: bool) -> ExitCode:
    """Rebuild damaged records. A dry run by default.

    It rebuilds what follows from the log: receipts, checkpoints and _SUCCESS, that of partitions too. A
    damaged entry of the log, or list of files, cannot be rebuilt: it is named, with what depends on it. No
    data is touched. Exit code 1 if problems are left.
    """
    with session.output.working("reading the log") as step:
        report = rebuild(session.store, session.destination, dry_run=not apply, step=step)
    views = [NOT_APPLIED] if report.dry_run and report.repaired else []
    if not report.entries:
        views.append(
            line(f"there is no log at {report.destination}: check the bucket and the prefix", "yellow")
        )
    elif not (report.repaired or report.left or report.failures):
        views.append(line(f"nothing to repair at {report.destination}", "green"))
    views += labelled("would rebuild" if report.dry_run else "rebuilt", report.repaired, "green")
    views += labelled("CANNOT BE REBUILT", report.left)
    views += labelled("FAILED", report.failures)
    return session.output.result(report.to_dict(), *views, ok=report.is_sound)

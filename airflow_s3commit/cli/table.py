"""The commands about a table: doctor, verify, rollback, repair, compact, publish and sweep."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import chain
from typing import Any

import click
from rich.console import RenderableType
from rich.text import Text

from airflow_s3commit._format import age, number, seconds_of, several, size
from airflow_s3commit.cli.command import (
    Parsed,
    Session,
    apply_option,
    as_duration,
    flag,
    registry_option,
    retain_option,
    store_command,
)
from airflow_s3commit.cli.output import BLANK, DRY_RUN, NOT_APPLIED, ExitCode, Rows, described, labelled, line
from airflow_s3commit.cli.reports import report_missing
from airflow_s3commit.cli.steps import track_option
from airflow_s3commit.exceptions import InvalidOption, NoSuchKey, S3CommitError
from airflow_s3commit.present import CommandLines, NextStep, cost_per_month
from airflow_s3commit.protocol.doctor.examine import Diagnosis, examine
from airflow_s3commit.protocol.doctor.policy import iam_policies
from airflow_s3commit.protocol.inspect.verify_job import PendingReport, VerifyReport, verify_job
from airflow_s3commit.protocol.inspect.verify_table import TableReport
from airflow_s3commit.protocol.inspect.verify_table import verify as verify_table
from airflow_s3commit.protocol.metadata.registry import Registered
from airflow_s3commit.protocol.metadata.removal import forget_destination
from airflow_s3commit.protocol.publication import ENGINES, ddl, publish_table
from airflow_s3commit.protocol.repair import repair as rebuild
from airflow_s3commit.protocol.sweep import SweepReport, apply_sweep, plan_registered
from airflow_s3commit.protocol.sweep_plan import SweepPlan, plan_sweep
from airflow_s3commit.protocol.table_rollback import rollback as roll_back
from airflow_s3commit.tables.options import parse_bytes

_STYLES = {"ok": "green", "warning": "yellow", "failed": "bold red", "skipped": "dim"}


@store_command(
    """
    s3commit doctor s3://lake/flights/
    s3commit doctor s3://lake/flights/ --policy | jq .executors > executors.json
    s3commit doctor s3://lake/flights/ --object-option sse=aws:kms --object-option tags.team=flights
    s3commit doctor s3://lake/flights/ --json | jq '.checks[] | select(.verdict == "failed")'
    """,
    staging=True,
)
@flag("--policy", "Print the IAM policies of executors and of the committer; run no checks.")
def doctor(session: Session, *, policy: bool) -> ExitCode:
    """Check that a bucket supports jobs; print policies.

    Problems are reported with their remedies. Creates small hidden objects and uploads below DEST/_s3commit/
    (and --staging), runs whole jobs there, and removes all of it. Takes less than a minute.
    Tests --object-option by an upload with all of them. Exit code 1 if a check failed, but not for warnings.
    """
    place, root, options = session.destination, session.staging_root, session.connection.object_options
    if policy:
        partition = _partition(session.connection.config.region or "")
        policies = iam_policies(place, root, partition=partition, object_options=options)
        # A terminal must not fold what is pasted.
        click.echo(json.dumps({"policy": policies} if session.output.as_json else policies, indent=2))
        return ExitCode.OK
    with session.output.working("checking the bucket"):
        diagnosis = examine(session.store, place, root, object_options=options)
    return session.output.result(diagnosis.to_dict(), *_diagnosis_views(diagnosis), ok=diagnosis.healthy)


def _partition(region: str) -> str:
    names = {"cn-": "aws-cn", "us-gov-": "aws-us-gov", "eusc-": "aws-eusc"}
    return next((name for start, name in names.items() if region.startswith(start)), "aws")


def _diagnosis_views(diagnosis: Diagnosis) -> Iterator[Text]:
    place = ""
    for check in diagnosis.checks:
        if diagnosis.staging_root is not None and check.place != place:
            yield line(check.place, "bold")
        place = check.place
        yield line(f"{check.name}: {check.says}", _STYLES[check.verdict], f"{check.verdict:>7}")
        if check.remedy is not None:
            yield line(check.remedy, "italic", "         remedy")
    warnings, failures = diagnosis.count("warning"), diagnosis.count("failed")
    yield BLANK
    if diagnosis.healthy:
        yield line(f"fit for jobs, with {several(warnings, 'warning')}", "green")
    else:
        words = f"{several(failures, 'check')} failed, {several(warnings, 'warning')}"
        yield line(f"NOT fit for jobs: {words}", "bold red")


@store_command(
    """
    s3commit verify s3://lake/flights/                       the whole table, and its log
    s3commit verify s3://lake/flights/ JOB                   one job, committed or pending
    s3commit verify s3://lake/flights/ --json | jq .sound
    """,
    job="optional",
)
def verify(session: Session) -> ExitCode:
    """Compare a table, or a job's records, with the store.

    Reads only. Table: every file must exist unchanged, without foreign objects and leftovers of ended jobs
    beside them, and the log and what is derived from it must agree. Committed job: every file of its manifest
    must exist unchanged, unless a later commit has replaced it. Pending job: every upload in its records must
    exist. Otherwise the exit code is 1.
    """
    store, place, job_id = session.store, session.destination, session.job_id
    report: TableReport | VerifyReport | PendingReport
    try:
        with session.output.working("comparing files and uploads") as step:
            if job_id is None:
                report = verify_table(store, place, step=step)
            else:
                report = verify_job(store, place, job_id)
    except NoSuchKey as error:
        return report_missing(session, str(error))
    verdict = line(_VERDICTS[report.kind, report.sound], "green" if report.sound else "bold red")
    named = (
        labelled(
            one.title,
            getattr(report, one.field),
            "yellow" if one.harmless else "red",
            total=getattr(report, one.total) if one.total else 0,
        )
        for one in report.lists
    )
    value, facts = {"kind": report.kind, **report.to_dict()}, described(report.columns, report)
    code = session.output.result(value, verdict, facts, *chain.from_iterable(named), ok=report.sound)
    if isinstance(report, TableReport):
        session.output.advise(_next_steps(report, session.commands))
    return code


_VERDICTS = {
    ("table", True): "the table is as it was committed",
    ("table", False): "the table is NOT as it was committed",
    ("committed", True): "matches the manifest",
    ("committed", False): "does NOT match the manifest",
    ("pending", True): "ready: all uploads in its records exist",
    ("pending", False): "NOT ready: the commit would fail",
}


def _next_steps(report: TableReport, commands: CommandLines) -> Iterator[NextStep]:
    if not report.complete:
        words = "restore the files from versions of the objects or a backup, or replace their partitions"
        yield NextStep(f"{words}; which jobs wrote them", commands.line("log"))
    if report.foreign:
        yield NextStep("find out which program wrote the foreign objects before you delete them")
    if any("s3commit repair" in finding.remedy for finding in report.log):
        yield NextStep("see which records can be rebuilt", commands.line("repair"))
    if report.unfinished:
        yield NextStep("see what the unfinished jobs do", commands.line("jobs"))
    if report.leftovers:
        words = "finish the jobs that ended; what a sweep leaves of committed ones, delete by hand"
        yield NextStep(words, commands.line("sweep", "--older-than", "7d"))


@store_command(
    """
    s3commit log s3://lake/flights/                                 list the generations
    s3commit rollback s3://lake/flights/ --to 41 --dry-run          show what would change
    s3commit rollback s3://lake/flights/ --to 41 --retain 7d        roll back; keep what leaves the table
    """,
    confirms=True,
)
@click.option(
    "--to",
    type=click.IntRange(min=1),
    required=True,
    metavar="N",
    help="The generation, as s3commit log lists it.",
)
@retain_option("files that leave the table")
@flag("--dry-run", "Report what would change; change nothing.")
def rollback(session: Session, *, to: int, retain: str, dry_run: bool) -> ExitCode:
    """Return a table to an older generation.

    A rollback is a new commit, and copies nothing. Refused if a file of that generation is deleted or
    released: older generations exist only if jobs retain what they replace (job option retain); with
    --retain, it can be rolled back itself. Refused if another job commits meanwhile.
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
    is_final = plan.removed and not seconds_of(retain)
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
    """
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
    nothing = f"nothing to repair at {report.destination}"
    if not report.entries:
        return session.nothing(report.to_dict(), nothing)
    if not (report.repaired or report.left or report.failures):
        views.append(line(nothing, "green"))
    views += labelled("would rebuild" if report.dry_run else "rebuilt", report.repaired, "green")
    views += labelled("CANNOT BE REBUILT", report.left)
    views += labelled("FAILED", report.failures)
    return session.output.result(report.to_dict(), *views, ok=report.is_sound)


@store_command(
    """
    s3commit compact s3://lake/flights/ --dry-run                    which partitions would gain, and how much
    s3commit compact s3://lake/flights/ --partition dt=2013-01-01    compact one of them
    s3commit compact s3://lake/flights/ --retain 7d                  compact all; keep what leaves the table
    """
)
@click.option(
    "--partition",
    "partitions",
    multiple=True,
    help="A directory below the destination, such as dt=2013-01-01; repeatable. By default all.",
)
@click.option(
    "--target-size",
    "target_bytes",
    type=Parsed("size", parse_bytes),
    default="128m",
    metavar="SIZE",
    help="Size after which a file ends: 64m, 1g.",
)
@retain_option("the old files")
@track_option
@flag("--dry-run", "Report what would be compacted; change nothing.")
def compact(session: Session, *, retain: str, track_pending: str, **asked: Any) -> ExitCode:
    """Write a table's small files anew as fewer, larger ones. No row changes.

    A partition is compacted if that at least halves its files. All are replaced by one commit, which another
    one can be rolled back to with --retain. Refused where another job has uploads, where another program put
    objects, and if another job changes a partition meanwhile. For Parquet files of this package's own
    writers; it needs pyarrow.
    """
    try:
        from airflow_s3commit.compaction import compact as written_anew  # noqa: PLC0415 - pyarrow is slow
    except ModuleNotFoundError as error:
        raise InvalidOption(f'{error}: install "airflow-s3commit[tables]", which compact needs') from error
    options = session.job_options(retain=retain, track_pending=track_pending)
    asked["partitions"] = asked["partitions"] or None
    with session.output.working("compacting"):
        report = written_anew(session.store, session.destination, job_options=options, **asked)
    if not report.seen:
        return session.nothing(report.to_dict(), f"nothing to compact at {session.destination.uri}")
    views: list[RenderableType] = [DRY_RUN] if asked["dry_run"] else []
    if report.partitions:
        views.append(Rows(report.partitions[0].columns, report.partitions))
    words = (
        f"{several(report.files, 'file')} with {number(report.rows)} rows are generation {report.generation}"
    )
    if report.generation is None:
        words = f"{several(len(report.partitions), 'partition')} to compact, {report.left} without a gain"
    return session.output.result(report.to_dict(), *views, line(words, "green"))


@store_command(
    """
    s3commit publish s3://lake/flights/               from now on other engines read it as a Delta table
    s3commit publish s3://lake/flights/ --ddl athena  how an engine gets to know it
    """
)
@click.option(
    "--ddl",
    "engine",
    type=click.Choice(ENGINES),
    help="Only show the statements by which an engine gets to know the table, once.",
)
@click.option("--table", "name", default="", metavar="NAME", help="The name there: lake.flights.")
def publish(session: Session, *, engine: str | None, name: str) -> ExitCode:
    """Let other engines read each commit whole, as a version of a Delta table.

    The first version has all files of the table, which must be Parquet files of this package; from then on
    every commit is one. Of a published table it writes the versions that are missing. May be repeated.
    """
    if engine is not None:
        statements = ddl(engine, session.destination, name)
        return session.output.result({"engine": engine, "statements": statements}, Text(statements))
    with session.output.working("publishing"):
        report = publish_table(session.store, session.destination)
    words = (
        f"{report.destination} is a Delta table: generation {report.generation} is version {report.version}"
        f" ({several(report.written, 'version')} written)"
    )
    return session.output.result(report.to_dict(), line(words, "green"))


#: Maximum number of items of a sweep to show.
_MOST_ITEMS = 40


@store_command(
    """
    s3commit sweep s3://lake/flights/ --older-than 7d              preview the removals
    s3commit sweep s3://lake/flights/ --older-than 7d --apply      remove the leftovers
    s3commit sweep --registry s3://lake-ops/s3commit/ --older-than 7d  every destination
    """,
    confirms=True,
    registry=True,
    staging=True,
)
@registry_option("Sweep all destinations that the registry at this prefix names.")
@click.option(
    "--older-than",
    type=as_duration,
    required=True,
    help="Treat a job as dead after this time without activity: 7d, 36h. It must be longer than any job"
    " takes.",
)
@apply_option("Remove the leftovers")
def sweep(session: Session, *, older_than: float, apply: bool) -> ExitCode:
    """Remove leftovers of dead jobs. A dry run by default.

    Leftovers are pending uploads, published files and records. Aborts jobs that have not ended, also one
    whose commit was interrupted, and cleans up after those that have. Also deletes files that commits
    replaced, after their jobs' option retain, not --older-than. Exit code 1 if a removal failed.

    With --registry each destination is swept by its own records; the registry only says where to look.
    Entries of empty destinations are removed from it.
    """
    output, store, heads = session.output, session.store, session.pattern is not None
    plans, gone, failures = _planned(session, older_than)
    due = [plan for plan in plans if not plan.is_empty]
    views = [view for plan in (due if heads else plans) for view in _plan_views(plan)]
    if heads:
        views += labelled("nothing is left of", (entry.record.destination for entry in gone), "dim")
        views += [line(f"{several(len(due), 'destination')} of {len(plans):,} to sweep: {_totals(due)}")]
    reports = [SweepReport(plan=plan, dry_run=not apply) for plan in plans]
    forgotten: list[str] = []
    if (due or gone) and not apply:
        views.insert(0, NOT_APPLIED)
    elif due or gone:
        output.show(*views)
        places = f" at {several(len(due), 'destination')}, and remove {several(len(gone), 'destination')}"
        where = f"{places} from the registry" if heads else ""
        output.confirm(f"{_question(due)}{where}?", yes=session.yes)
        views, reports = [], []
        for plan in due:
            with _noted(failures, plan.destination) if heads else nullcontext():
                with output.working("sweeping"):
                    reports.append(apply_sweep(store, plan))
                views += _report_views(reports[-1])
        for entry in gone:
            with _noted(failures, entry.record.destination):
                if forget_destination(store, session.destination.bucket, entry.key, entry.etag):
                    forgotten.append(entry.record.destination)
    ok = not failures and not any(report.failures for report in reports)
    if not heads and plans[0].is_empty and not plans[0].left:
        return session.nothing(reports[0].to_dict(), f"nothing to sweep at {plans[0].destination}")
    if not heads:
        return output.result(reports[0].to_dict(), *views, ok=ok)
    value = {
        "registry": session.destination.uri,
        "sweeps": [report.to_dict() for report in reports],
        "gone": [entry.record.destination for entry in gone],
        "forgotten": forgotten,
        "failures": [{"destination": uri, "message": message} for uri, message in failures.items()],
    }
    views += labelled("FAILED", (f"{uri}: {message}" for uri, message in failures.items()))
    return output.result(value, *views, ok=ok)


def _planned(session: Session, older_than: float) -> tuple[list[SweepPlan], list[Registered], dict[str, str]]:
    """Return the plans, the registered destinations that are gone, and why others could not be planned."""
    output, what = session.output, "finding dead jobs and orphans"
    if session.pattern is None:
        with output.working(what):
            roots = [] if session.staging_root is None else [session.staging_root]
            plan = plan_sweep(session.store, session.destination, older_than=older_than, staging_roots=roots)
        return [plan], [], {}
    sweeps = plan_registered(session.registered(), lambda _: session.store, older_than=older_than)
    found = output.reading(what, sweeps)
    for one in found:
        if not (one.plan or one.gone or one.error):
            output.note(f"left alone: {one.entry.record.destination} has no records of jobs")
    failures = {one.entry.record.destination: str(one.error) for one in found if one.error is not None}
    plans = [one.plan[1] for one in found if one.plan is not None]
    return plans, [one.entry for one in found if one.gone], failures


@contextmanager
def _noted(failures: dict[str, str], uri: str) -> Iterator[None]:
    """Note an error of the block as the destination's failure, so that the sweep goes on with the others."""
    try:
        yield
    except S3CommitError as error:
        failures[uri] = str(error)


def _plan_views(plan: SweepPlan) -> Iterator[RenderableType]:
    if plan.is_empty:
        yield line(f"nothing to sweep at {plan.destination}", "green")
    else:
        yield from (line(plan.destination, "bold"), Rows(plan.columns, plan.items, most=_MOST_ITEMS), BLANK)
        yield line(f"total: {_totals([plan])}; the oldest is {age(plan.oldest)} old")
    yield from labelled("left alone", plan.left, "dim")


def _totals(plans: list[SweepPlan]) -> str:
    uploads, stored = sum(plan.pending for plan in plans), sum(plan.bytes for plan in plans)
    return f"{several(uploads, 'upload')}, {size(stored)}, {cost_per_month(stored)} per month"


def _report_views(report: SweepReport) -> Iterator[Text]:
    with_jobs = sum(job.uploads for job in report.jobs)
    taken = sum(job.objects for job in report.jobs)
    replaced = f", {several(report.replaced, 'replaced file')} deleted" if report.replaced else ""
    yield line(report.plan.destination, "bold")
    yield line(
        f"swept: {several(len(report.jobs), 'job')} ended ({several(with_jobs, 'upload')},"
        f" {several(taken, 'object')} taken back),"
        f" {several(report.uploads, 'orphan')} discarded ({size(report.bytes)}){replaced}",
        "green",
    )
    yield from labelled("skipped", report.skipped, "yellow")
    yield from labelled("FAILED", report.failures)


def _question(plans: list[SweepPlan]) -> str:
    jobs, uploads = sum(len(plan.jobs) for plan in plans), sum(plan.pending for plan in plans)
    files = sum(one.files for plan in plans for one in plan.replaced)
    deleted = f", and delete {several(files, 'replaced file')}" if files else ""
    return f"End {several(jobs, 'job')} and discard {several(uploads, 'upload')}{deleted}"

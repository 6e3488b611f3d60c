"""Sweep and adopt: end dead jobs, those of Hadoop's S3A committers too, and remove their leftovers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, get_args

import click
import msgspec
from rich.console import RenderableType
from rich.text import Text

from airflow_s3commit._causes import described as words_of
from airflow_s3commit._format import age, number, several, size
from airflow_s3commit.cli.command import (
    Session,
    apply_option,
    as_duration,
    as_uri,
    flag,
    option,
    registry_option,
    store_command,
)
from airflow_s3commit.cli.output import BLANK, NOT_APPLIED, ExitCode, Rows, labelled, line, pairs
from airflow_s3commit.cli.steps import report_ending
from airflow_s3commit.exceptions import S3CommitError
from airflow_s3commit.present import cost_per_month
from airflow_s3commit.protocol.hadoop.adopt import Adoption
from airflow_s3commit.protocol.hadoop.jobs import (
    HadoopJob,
    classify,
    find_hadoop_job,
    find_hadoop_jobs,
    job_id_of,
)
from airflow_s3commit.protocol.metadata.registry import Registered
from airflow_s3commit.protocol.metadata.removal import forget_destination
from airflow_s3commit.protocol.model.job import ConflictMode, JobOptions
from airflow_s3commit.protocol.sweep.apply import SweepReport, apply_sweep, plan_registered
from airflow_s3commit.protocol.sweep.plan import SweepPlan, plan_sweep

#: Maximum number of items to show.
_SHOWN = 40


@store_command(
    """
    s3commit sweep s3://lake/flights/ --older-than 7d              preview the removals
    s3commit sweep s3://lake/flights/ --older-than 7d --apply      remove the leftovers
    s3commit sweep s3://lake/flights/ --older-than 7d --apply --json   from a scheduled script
    s3commit sweep --registry s3://lake-ops/s3commit/ --older-than 7d  every destination
    """,
    confirms=True,
    registry=True,
    staging=True,
)
@registry_option("Sweep all destinations that the registry at this prefix names.")
@option(
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
    whose commit was interrupted, and finishes what is left to clean up of those that have. Also deletes files
    that commits replaced, after the time that their jobs' option retain says; --older-than does not apply to
    these files. Exit code 1 if a removal failed.

    With --registry each destination is swept by its own records; the registry only says where to look.
    Entries of empty destinations are removed from it.
    """
    if session.registry is not None:
        return _sweep_registry(session, older_than=older_than, apply=apply)
    output = session.output
    with output.working("finding dead jobs and orphans"):
        roots = [] if session.staging_root is None else [session.staging_root]
        plan = plan_sweep(session.store, session.destination, older_than=older_than, staging_roots=roots)
    if not apply or plan.is_empty:
        dry_run = [] if apply or plan.is_empty else [NOT_APPLIED]
        report = SweepReport(plan=plan, dry_run=not apply)
        return output.result(report.to_dict(), *dry_run, *_plan_views(plan))
    output.show(*_plan_views(plan))
    output.confirm(f"{_question([plan])}?", yes=session.yes)
    report = _applied(session, plan)
    return output.result(report.to_dict(), *_report_views(report), ok=not report.failures)


def _sweep_registry(session: Session, *, older_than: float, apply: bool) -> ExitCode:
    """Plan all sweeps, show them, ask once, and apply them; a failure does not stop the others."""
    output = session.output
    sweeps = plan_registered(session.registered(), lambda _: session.store, older_than=older_than)
    found = output.reading("finding dead jobs and orphans", sweeps)
    for one in found:
        if not (one.plan or one.gone or one.error):
            output.note(f"left alone: {one.entry.record.destination} has no records of jobs")
    failures = {one.entry.record.destination: str(one.error) for one in found if one.error is not None}
    plans = [one.plan[1] for one in found if one.plan is not None]
    gone = [one.entry for one in found if one.gone]
    due = [plan for plan in plans if not plan.is_empty]
    views = list(_registry_views(plans, due, gone))
    reports = [SweepReport(plan=plan, dry_run=True) for plan in plans]
    forgotten: list[str] = []
    if apply and (due or gone):
        output.show(*views)
        places = f"{several(len(due), 'destination')}, and remove {several(len(gone), 'destination')}"
        output.confirm(f"{_question(due)} at {places} from the registry?", yes=session.yes)
        views, reports = [], []
        for plan in due:
            with _noted(failures, plan.destination):
                reports.append(_applied(session, plan))
                views += [line(plan.destination, "bold"), *_report_views(reports[-1])]
        for entry in gone:
            with _noted(failures, entry.record.destination):
                if forget_destination(session.store, session.destination.bucket, entry.key, entry.etag):
                    forgotten.append(entry.record.destination)
    elif due or gone:
        views.insert(0, NOT_APPLIED)
    value = {
        "registry": session.destination.uri,
        "sweeps": [report.to_dict() for report in reports],
        "gone": [entry.record.destination for entry in gone],
        "forgotten": forgotten,
        "failures": [{"destination": uri, "message": message} for uri, message in failures.items()],
    }
    views += labelled("FAILED", (f"{uri}: {message}" for uri, message in failures.items()))
    ok = not failures and not any(report.failures for report in reports)
    return output.result(value, *views, ok=ok)


@contextmanager
def _noted(failures: dict[str, str], uri: str) -> Iterator[None]:
    """Note an error of the block as a destination's failure."""
    try:
        yield
    except S3CommitError as error:
        failures[uri] = str(error)


def _registry_views(
    plans: list[SweepPlan], due: list[SweepPlan], gone: list[Registered]
) -> Iterator[RenderableType]:
    for plan in due:
        yield from (line(plan.destination, "bold"), *_plan_views(plan), BLANK)
    yield from labelled("nothing is left of", (entry.record.destination for entry in gone), "dim")
    uploads, stored = sum(plan.pending for plan in due), sum(plan.bytes for plan in due)
    yield line(
        f"{several(len(due), 'destination')} of {len(plans):,} to sweep:"
        f" {several(uploads, 'upload')}, {size(stored)}, {cost_per_month(stored)} per month"
    )


def _applied(session: Session, plan: SweepPlan) -> SweepReport:
    with session.output.working("sweeping"):
        return apply_sweep(session.store, plan)


def _plan_views(plan: SweepPlan) -> Iterator[RenderableType]:
    if plan.is_empty:
        yield line(f"nothing to sweep at {plan.destination}", "green")
    else:
        yield Rows(plan.columns, plan.items, most=_SHOWN)
        yield BLANK
        yield line(
            f"total: {several(plan.pending, 'upload')}, {size(plan.bytes)}, {cost_per_month(plan.bytes)}"
            f" per month; the oldest is {age(plan.oldest)} old"
        )
    yield from labelled("left alone", plan.left, "dim")


def _report_views(report: SweepReport) -> Iterator[Text]:
    with_jobs = sum(job.uploads for job in report.jobs)
    taken = sum(job.objects for job in report.jobs)
    replaced = f", {several(report.replaced, 'replaced file')} deleted" if report.replaced else ""
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


@store_command(
    """
    s3commit adopt s3://lake/sales/                             list Hadoop's jobs
    s3commit adopt s3://lake/sales/ JOB --commit                preview its commit
    s3commit adopt s3://lake/sales/ JOB --commit --apply        commit it
    s3commit adopt s3://lake/sales/ JOB --abort --apply         abort it
    s3commit adopt s3://lake/sales/ --commit --apply \\
        --pendingsets s3://lake/tmp/etl/UUID/staging-uploads/_temporary/0/
    """,
    job="optional",
    confirms=True,
    staging=True,
)
@flag("--commit", "Finish the job: complete the uploads of its committed tasks.", "to_commit")
@flag("--abort", "Discard the job: abort all of its uploads.", "to_abort")
@flag("--clean-up", "Remove the leftovers of a successful job; its published files stay.", "to_clean")
@apply_option("Change the store")
@option(
    "--pendingsets",
    type=as_uri,
    help="Directory of a staging committer's pendingsets, or of a copy.",
)
@option(
    "--conflict-mode",
    type=click.Choice([mode for mode in get_args(ConflictMode) if mode != "as-written"]),
    default="append",
    help="Treatment of existing data.",
)
@option(
    "--expect-tasks", type=int, metavar="N", help="Expected number of tasks; refuse the job if it differs."
)
@flag("--accept-partial", "Commit even if task numbers are missing: publish the tasks that exist.")
@option(
    "--older-than",
    type=as_duration,
    default="0s",
    help="Refuse a job with activity within this time. The default assumes that the job is dead.",
)
@flag("--force", "End a job that may be alive; skip unreadable files if that loses no committed file.")
def adopt(
    session: Session,
    *,
    to_commit: bool,
    to_abort: bool,
    to_clean: bool,
    apply: bool,
    pendingsets: str | None,
    conflict_mode: Any,
    **settings: Any,
) -> ExitCode:
    """Finish or discard a job of Hadoop's S3A committers.

    Without --commit, --abort or --clean-up, lists the jobs of the magic committer. The Hadoop job must be
    dead. This is a dry run unless --apply is given; a dry run makes the same decisions. May be repeated: it
    continues where the last run stopped. A successful job is neither committed nor aborted: --clean-up
    removes its leftovers.
    """
    if to_commit + to_abort + to_clean > 1:
        raise click.UsageError("use only one of --commit, --abort and --clean-up")
    if not (to_commit or to_abort or to_clean):
        if apply:
            raise click.UsageError("--apply needs --commit, --abort or --clean-up")
        return _list_jobs(session, pendingsets)
    job_id = session.job_id = session.job_id or (job_id_of(pendingsets) if pendingsets is not None else None)
    if job_id is None:
        raise click.UsageError("the job's UUID is missing; s3commit adopt DEST lists the jobs")
    if to_clean:
        return _clean_up(session, job_id, apply=apply)
    root = session.staging_root
    options = JobOptions(
        committer="magic" if pendingsets is None else "partitioned",
        conflict_mode=conflict_mode,
        staging=root.uri if root is not None else None,
        object_options=session.connection.object_options,
    )
    where: dict[str, Any] = {"pendingsets_uri": pendingsets, "options": options}
    adoption = Adoption(session.store, session.destination, job_id, **where, **settings)
    if not apply:
        return _dry_run(session, adoption, commit=to_commit)
    verb = "Commit" if to_commit else "Abort"
    session.output.confirm(f"{verb} Hadoop job {job_id} on {session.destination.uri}?", yes=session.yes)
    with session.output.completing("adopting") as progress:
        ended = adoption.commit(progress=progress) if to_commit else adoption.abort()
    return report_ending(session, ended)


def _list_jobs(session: Session, pendingsets: str | None) -> ExitCode:
    store, place = session.store, session.destination
    with session.output.working("listing Hadoop's files"):
        if pendingsets is None:
            found = [job for job in find_hadoop_jobs(store, place) if session.job_id in (None, job.job_id)]
        elif (job_id := session.job_id or job_id_of(pendingsets)) is None:
            raise click.UsageError("the path of the directory has no job id: add the job's UUID")
        else:
            one = find_hadoop_job(store, place, job_id, pendingsets_uri=pendingsets)
            found = [one] if one is not None else []
    value = {"destination": place.uri, "jobs": [_plain(job) for job in found]}
    if not found:
        words = f"no Hadoop job at {place.uri}; for a staging committer, add --pendingsets"
        return session.output.result(value, line(words))
    return session.output.result(value, Rows(HadoopJob.columns, found), *_problems(found))


def _dry_run(session: Session, adoption: Adoption, *, commit: bool) -> ExitCode:
    with session.output.working("reading Hadoop's files"):
        job, refused = adoption.job, adoption.refusal(commit=commit)
    where = {"job_id": session.job_id, "destination": session.destination.uri}
    value: dict[str, Any] = {"dry_run": True, "would": "commit" if commit else "abort", **where}
    value |= {"job": _plain(job), "refused": words_of(refused) if refused is not None else None}
    if job is None:
        words = (
            f"no files of Hadoop job {session.job_id} at {session.destination.uri}; it may be adopted already"
        )
        return session.output.result(value, line(words), ok=False)
    effect = (
        f"complete {several(job.uploads, 'upload')} ({size(job.bytes)})"
        f" of {several(job.pendingsets, 'task')}"
        f", and discard {number(job.others)} of attempts that are not committed"
        if commit
        else f"discard {several(job.uploads + job.others, 'upload')}"
        f", and take back {several(job.published + job.others_published, 'object')}"
    )
    verdict = classify(job, older_than=adoption.older_than)
    facts = [
        ("job", job.job_id),
        ("directory", job.prefix),
        ("status", f"{verdict.status}: {verdict.reason}"),
        ("would", effect if refused is None else "nothing: it would be refused"),
    ]
    why = [line(refused, "red")] if refused is not None else []
    ok = refused is None and not (commit and job.lost)
    return session.output.result(value, NOT_APPLIED, pairs(facts), *why, *_problems([job]), ok=ok)


def _clean_up(session: Session, job_id: str, *, apply: bool) -> ExitCode:
    """Remove the leftovers of a successful job, or preview that."""
    output, store, place = session.output, session.store, session.destination
    value: dict[str, Any] = {"would": "clean up", "job_id": job_id, "destination": place.uri}
    if not apply:
        job = find_hadoop_job(store, place, job_id)
        verdict = classify(job) if job is not None else None
        words = "it has no leftovers" if verdict is None else f"it is {verdict.status}: {verdict.reason}"
        ok = verdict is None or verdict.status == "successful"
        value |= {"dry_run": True, "job": _plain(job)}
        return output.result(value, NOT_APPLIED, line(words), ok=ok)
    output.confirm(f"Remove the leftovers of Hadoop job {job_id} at {place.uri}?", yes=session.yes)
    with output.working("cleaning up"):
        uploads = Adoption(store, place, job_id).clean_up()
    words = f"removed the leftovers of {job_id}: {several(uploads, 'upload')} discarded, no object changed"
    return output.result({**value, "result": "cleaned up", "uploads": uploads}, line(words))


def _problems(found: list[HadoopJob]) -> Iterator[Text]:
    for job in found:
        if job.gaps:
            words = (
                f"{job.job_id}: {job.gaps} task numbers have no pendingset: {job.missing_words};"
                " check that all of its tasks finished"
            )
            yield line(words, "yellow")
        yield from (line(f"{job.job_id}: {damage}", "red") for damage in job.damaged)


def _plain(job: HadoopJob | None) -> dict[str, Any] | None:
    return {**msgspec.to_builtins(job), **classify(job)._asdict()} if job is not None else None

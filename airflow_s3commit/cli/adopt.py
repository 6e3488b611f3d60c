"""Adopt: finishes or discards jobs of Hadoop's S3A committers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import msgspec

from airflow_s3commit._causes import described
from airflow_s3commit._format import moment, number, several, size
from airflow_s3commit.cli.command import Session, as_duration, as_uri, store_command
from airflow_s3commit.cli.lifecycle import report_ending
from airflow_s3commit.cli.output import ExitCode
from airflow_s3commit.cli.report import NOT_APPLIED, Column, Facts, Line, Table
from airflow_s3commit.protocol.adoption.adopt import Adoption
from airflow_s3commit.protocol.hadoop.files import job_id_of
from airflow_s3commit.protocol.hadoop.status import (
    HadoopJob,
    classify,
    find_hadoop_job,
    find_hadoop_jobs,
)
from airflow_s3commit.protocol.model.job import JobOptions


@store_command(
    "adopt",
    summary="Finish or discard a job of Hadoop's S3A committers.",
    examples="""
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
@click.option(
    "--commit", "to_commit", is_flag=True, help="Finish the job: complete the uploads of its committed tasks."
)
@click.option("--abort", "to_abort", is_flag=True, help="Discard the job: abort all of its uploads.")
@click.option(
    "--clean-up",
    "to_clean",
    is_flag=True,
    help="Remove the leftovers of a successful job; its published files stay.",
)
@click.option("--apply", "apply", is_flag=True, help="Change the store; without this option it is a dry run.")
@click.option(
    "--pendingsets",
    type=as_uri,
    metavar="URI",
    help="Directory of a staging committer's pendingsets, or of a copy.",
)
@click.option(
    "--conflict-mode",
    type=click.Choice(["append", "replace", "fail"]),
    default="append",
    show_default=True,
    help="Treatment of existing data.",
)
@click.option("--expect-tasks", type=int, help="Expected number of tasks; refuse the job if it differs.")
@click.option(
    "--accept-partial",
    is_flag=True,
    help="Commit even if task numbers are missing: publish the tasks that exist.",
)
@click.option(
    "--older-than",
    type=as_duration,
    metavar="DURATION",
    default="0s",
    help="Refuse a job with activity within this time. The default assumes that the job is dead.",
)
@click.option(
    "--force",
    is_flag=True,
    help="End a job that may be alive; skip unreadable files if that loses no committed file.",
)
def adopt(
    session: Session,
    *,
    to_commit: bool,
    to_abort: bool,
    to_clean: bool,
    apply: bool,
    pendingsets: str | None,
    conflict_mode: str,
    expect_tasks: int | None,
    accept_partial: bool,
    older_than: float,
    force: bool,
) -> ExitCode:
    """Finish or discard a job of Hadoop's S3A committers whose driver has died.

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
    session.job_id = session.job_id or (job_id_of(pendingsets) if pendingsets is not None else None)
    if session.job_id is None:
        raise click.UsageError("the job's UUID is missing; s3commit adopt DEST lists the jobs")
    if to_clean:
        return _clean_up(session, session.job_id, apply=apply)
    adoption = Adoption(
        session.store,
        session.destination,
        session.job_id,
        pendingsets_uri=pendingsets,
        options=_options(session, pendingsets, conflict_mode),
        expect_tasks=expect_tasks,
        accept_partial=accept_partial,
        older_than=older_than,
        force=force,
    )
    if not apply:
        return _dry_run(session, adoption, commit=to_commit, older_than=older_than)
    verb = "Commit" if to_commit else "Abort"
    session.output.confirm(
        f"{verb} Hadoop job {session.job_id} on {session.destination.uri}?", yes=session.yes
    )
    with session.output.completing("adopting") as progress:
        ended = adoption.commit(progress=progress) if to_commit else adoption.abort()
    return report_ending(session, ended)


def _options(session: Session, pendingsets: str | None, conflict_mode: str) -> JobOptions:
    mode: Any = conflict_mode
    return JobOptions(
        committer="magic" if pendingsets is None else "partitioned",
        conflict_mode=mode,
        staging=session.staging_root.uri if session.staging_root is not None else None,
        object_options=session.connection.object_options,
    )


def _list_jobs(session: Session, pendingsets: str | None) -> ExitCode:
    with session.output.working("listing Hadoop's files"):
        found = _found(session, pendingsets)
    value = {"destination": session.destination.uri, "jobs": [_plain(job) for job in found]}
    if not found:
        words = f"no Hadoop job at {session.destination.uri}; for a staging committer, add --pendingsets"
        return session.output.result(value, Line(words))
    columns = (
        Column("job"),
        Column("status"),
        Column("tasks", right=True),
        Column("uploads", right=True),
        Column("size", right=True),
        Column("problems", right=True),
        Column("last written", room=100),
        Column("directory", room=150, whole=False),
    )
    rows = [
        [
            job.job_id,
            classify(job).status,
            number(job.pendingsets),
            number(job.uploads),
            size(job.bytes),
            number(job.gaps + len(job.damaged)),
            moment(int(job.modified * 1000)),
            job.prefix,
        ]
        for job in found
    ]
    return session.output.result(value, Table(columns, rows), *_problems(found))


def _dry_run(session: Session, adoption: Adoption, *, commit: bool, older_than: float) -> ExitCode:
    with session.output.working("reading Hadoop's files"):
        job, refused = adoption.job, adoption.refusal(commit=commit)
    value: dict[str, Any] = {
        "dry_run": True,
        "would": "commit" if commit else "abort",
        "job_id": session.job_id,
        "destination": session.destination.uri,
        "job": _plain(job) if job is not None else None,
        "refused": described(refused) if refused is not None else None,
    }
    if job is None:
        words = (
            f"no files of Hadoop job {session.job_id} at {session.destination.uri}; it may be adopted already"
        )
        return session.output.result(value, Line(words), ok=False)
    effect = (
        f"complete {several(job.uploads, 'upload')} ({size(job.bytes)})"
        f" of {several(job.pendingsets, 'task')}"
        f", and discard {number(job.others)} of attempts that are not committed"
        if commit
        else f"discard {several(job.uploads + job.others, 'upload')}"
        f", and take back {several(job.published + job.others_published, 'object')}"
    )
    verdict = classify(job, older_than=older_than)
    return session.output.result(
        value,
        NOT_APPLIED,
        Facts(
            [
                ("job", job.job_id),
                ("directory", job.prefix),
                ("status", f"{verdict.status}: {verdict.reason}"),
                ("would", effect if refused is None else "nothing: it would be refused"),
            ]
        ),
        *([Line(refused, "red")] if refused is not None else []),
        *_problems([job]),
        ok=refused is None and not (commit and job.lost),
    )


def _clean_up(session: Session, job_id: str, *, apply: bool) -> ExitCode:
    """Remove the leftovers of a successful job, or preview that."""
    value: dict[str, Any] = {"would": "clean up", "job_id": job_id, "destination": session.destination.uri}
    if not apply:
        job = find_hadoop_job(session.store, session.destination, job_id)
        verdict = classify(job) if job is not None else None
        words = "it has no leftovers" if verdict is None else f"it is {verdict.status}: {verdict.reason}"
        return session.output.result(
            {**value, "dry_run": True, "job": _plain(job) if job is not None else None},
            NOT_APPLIED,
            Line(words),
            ok=verdict is None or verdict.status == "successful",
        )
    session.output.confirm(
        f"Remove the leftovers of Hadoop job {job_id} at {session.destination.uri}?", yes=session.yes
    )
    with session.output.working("cleaning up"):
        uploads = Adoption(session.store, session.destination, job_id).clean_up()
    return session.output.result(
        {**value, "result": "cleaned up", "uploads": uploads},
        Line(f"removed the leftovers of {job_id}: {several(uploads, 'upload')} discarded, no object changed"),
    )


def _problems(found: list[HadoopJob]) -> Iterator[Line]:
    for job in found:
        if job.gaps:
            words = (
                f"{job.job_id}: {job.gaps} task numbers have no pendingset: {job.missing_words};"
                " check that all of its tasks finished"
            )
            yield Line(words, "yellow")
        yield from (Line(f"{job.job_id}: {damage}", "red") for damage in job.damaged)


def _found(session: Session, pendingsets: str | None) -> list[HadoopJob]:
    if pendingsets is None:
        jobs = find_hadoop_jobs(session.store, session.destination)
        return [job for job in jobs if session.job_id in (None, job.job_id)]
    job_id = session.job_id or job_id_of(pendingsets)
    if job_id is None:
        raise click.UsageError("the path of the directory has no job id: add the job's UUID")
    job = find_hadoop_job(session.store, session.destination, job_id, pendingsets_uri=pendingsets)
    return [job] if job is not None else []


def _plain(job: HadoopJob) -> dict[str, Any]:
    verdict = classify(job)
    plain_job: dict[str, Any] = msgspec.to_builtins(job)
    return {**plain_job, "status": verdict.status, "reason": verdict.reason}

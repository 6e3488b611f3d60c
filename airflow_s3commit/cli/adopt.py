"""Adopt: finishing or aborting what Hadoop's own S3A committers left."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import msgspec
from rich.console import RenderableType
from rich.text import Text

from airflow_s3commit.cli.command import store_command
from airflow_s3commit.cli.exit_codes import ExitCode
from airflow_s3commit.cli.finish import told_of_ending
from airflow_s3commit.cli.output import Column, facts, table
from airflow_s3commit.cli.parameters import as_uri
from airflow_s3commit.cli.session import Session
from airflow_s3commit.cli.wording import moment, number, plain, several, size
from airflow_s3commit.exceptions import InvalidRecord
from airflow_s3commit.protocol.destination import Destination
from airflow_s3commit.protocol.hadoop import HadoopJob, find_hadoop_jobs
from airflow_s3commit.protocol.hadoop import adopt as adopt_job
from airflow_s3commit.protocol.hadoop_files import directory_files, job_id_of, read_files
from airflow_s3commit.protocol.records import JobOptions

__all__ = ["adopt"]


@store_command(
    "adopt",
    summary="Finish or discard a job of Hadoop's S3A committers.",
    examples="""
    s3commit adopt s3://lake/sales/                             which jobs Hadoop left here
    s3commit adopt s3://lake/sales/ JOB --commit                what finishing one would do
    s3commit adopt s3://lake/sales/ JOB --commit --apply        finish it
    s3commit adopt s3://lake/sales/ JOB --abort --apply         discard it
    s3commit adopt s3://lake/sales/ --commit --apply \\
        --pendingsets s3://lake/tmp/etl/UUID/staging-uploads/_temporary/0/
    """,
    job="optional",
    confirms=True,
)
@click.option(
    "--commit", "to_commit", is_flag=True, help="Finish the job: complete what its tasks committed."
)
@click.option("--abort", "to_abort", is_flag=True, help="Discard the job: abort every upload of it.")
@click.option("--apply", "apply", is_flag=True, help="Do it. Without this it is a dry run.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done; the default.")
@click.option(
    "--pendingsets",
    type=as_uri,
    metavar="URI",
    help="Where a staging committer's pendingsets are, or were copied to.",
)
@click.option(
    "--conflict-mode",
    type=click.Choice(["append", "replace", "fail"]),
    default="append",
    show_default=True,
    help="What happens to data that is there already.",
)
@click.option("--expect-tasks", type=int, help="How many tasks the job had; another number is refused.")
@click.option(
    "--force", is_flag=True, help="Pass over files that cannot be read, where no committed file is lost."
)
def adopt(
    session: Session,
    *,
    to_commit: bool,
    to_abort: bool,
    apply: bool,
    dry_run: bool,
    pendingsets: str | None,
    conflict_mode: str,
    expect_tasks: int | None,
    force: bool,
) -> ExitCode:
    """Finish, or discard, a job that Hadoop's S3A committers left when their driver died.

    Without --commit or --abort it lists the jobs of the magic committer. The Hadoop job must be dead. A dry
    run unless --apply is given. May be run again at any time: it goes on where it was left.
    """
    if (to_commit and to_abort) or (apply and dry_run):
        raise click.UsageError("--commit and --abort, and --apply and --dry-run, contradict each other")
    if not (to_commit or to_abort):
        if apply:
            raise click.UsageError("say what to apply: --commit or --abort")
        return _list_jobs(session, pendingsets)
    session.job_id = session.job_id or (job_id_of(pendingsets) if pendingsets is not None else None)
    if session.job_id is None:
        raise click.UsageError("say which job: its UUID, as s3commit adopt DEST lists it")
    if not apply:
        return _dry_run(session, pendingsets, to_commit=to_commit)
    verb = "Commit" if to_commit else "Abort"
    session.output.confirm(
        f"{verb} Hadoop job {session.job_id} on {session.destination.uri}?", yes=session.yes
    )
    with session.output.completing("adopting") as progress:
        ended = adopt_job(
            session.store,
            session.destination.uri,
            commit=to_commit,
            job_id=session.job_id,
            pendingsets_uri=pendingsets,
            options=_options(session, pendingsets, conflict_mode),
            expect_tasks=expect_tasks,
            force=force,
            progress=progress,
        )
    return told_of_ending(session, ended)


def _options(session: Session, pendingsets: str | None, conflict_mode: str) -> JobOptions:
    mode: Any = conflict_mode
    return JobOptions(
        committer="magic" if pendingsets is None else "partitioned",
        conflict_mode=mode,
        staging=session.staging_root.uri if session.staging_root is not None else None,
    )


def _list_jobs(session: Session, pendingsets: str | None) -> ExitCode:
    with session.output.working("looking for Hadoop's files"):
        found = _found(session, pendingsets)
    value = {"destination": session.destination.uri, "jobs": [_plain(job) for job in found]}
    if not found:
        what = f"Hadoop left no job at {session.destination.uri}; a staging committer's needs --pendingsets"
        session.output.result(value, Text(plain(what)))
        return ExitCode.OK
    columns = (
        Column("job"),
        Column("tasks", right=True),
        Column("uploads", right=True),
        Column("size", right=True),
        Column("doubts", right=True),
        Column("last written", room=100),
        Column("directory", room=150, whole=False),
    )
    rows = (
        [
            job.job_id,
            number(job.pendingsets),
            number(job.uploads),
            size(job.bytes),
            number(job.gaps + len(job.damaged)),
            moment(int(job.modified * 1000)),
            job.prefix,
        ]
        for job in found
    )
    session.output.result(value, table(columns, rows, width=session.output.width), *_doubts(found))
    return ExitCode.OK


def _dry_run(session: Session, pendingsets: str | None, *, to_commit: bool) -> ExitCode:
    found = _found(session, pendingsets)
    value: dict[str, Any] = {
        "dry_run": True,
        "would": "commit" if to_commit else "abort",
        "job_id": session.job_id,
        "destination": session.destination.uri,
        "job": _plain(found[0]) if found else None,
    }
    if not found:
        words = (
            f"Hadoop job {session.job_id} left nothing at {session.destination.uri}, or was adopted before"
        )
        session.output.result(value, Text(plain(words)))
        return ExitCode.FINDINGS
    job = found[0]
    effect = (
        f"complete {several(job.uploads, 'upload')} ({size(job.bytes)})"
        f" of {several(job.pendingsets, 'task')}"
        f", and discard {number(job.others)} of attempts that do not count"
        if to_commit
        else f"discard {several(job.uploads + job.others, 'upload')}"
    )
    session.output.result(
        value,
        Text("dry run: nothing was changed; --apply does it", style="yellow"),
        facts([("job", job.job_id), ("directory", job.prefix), ("would", effect)]),
        *_doubts(found),
    )
    return ExitCode.FINDINGS if to_commit and (job.damaged or not job.pendingsets) else ExitCode.OK


def _doubts(found: list[HadoopJob]) -> Iterator[RenderableType]:
    for job in found:
        if job.gaps:
            words = (
                f"{job.job_id}: {job.gaps} task numbers have no pendingset; see that all its tasks were done"
            )
            yield Text(plain(words), style="yellow")
        for damage in job.damaged:
            yield Text(plain(f"{job.job_id}: {damage}"), style="red")


def _found(session: Session, pendingsets: str | None) -> list[HadoopJob]:
    if pendingsets is not None:
        return _in_directory(session, pendingsets)
    jobs = find_hadoop_jobs(session.store, session.destination.uri)
    return [job for job in jobs if session.job_id in (None, job.job_id)]


def _in_directory(session: Session, pendingsets: str) -> list[HadoopJob]:
    """Describe the job whose pendingsets are in a directory."""
    job_id = session.job_id or job_id_of(pendingsets)
    if job_id is None:
        raise click.UsageError("the directory's path has no job id: say which job it is")
    files = directory_files(session.store, Destination.parse(pendingsets), job_id)
    if not files.found and not files.unknown:
        return []
    damaged = [f"{uri} is no file of Hadoop's committers" for uri in files.unknown]
    uploads = stored = 0
    for _, outcome in read_files(session.store, files.committed, job_id, session.destination):
        if isinstance(outcome, InvalidRecord):
            damaged.append(str(outcome))
        else:
            uploads += len(outcome.commits)
            stored += sum(upload.length for upload in outcome.commits)
    return [
        HadoopJob(
            job_id=job_id,
            prefix=files.uri,
            application_attempt=files.application_attempt,
            pendingsets=len(files.committed),
            uploads=uploads,
            bytes=stored,
            others=len(files.others),
            gaps=files.gaps,
            modified=files.modified,
            damaged=tuple(damaged),
        )
    ]


def _plain(job: HadoopJob) -> dict[str, Any]:
    plain_job: dict[str, Any] = msgspec.to_builtins(job)
    return plain_job

"""Adopt: finishes or discards jobs of Hadoop's S3A committers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import click
import msgspec
from rich.text import Text

from airflow_s3commit._causes import described as words_of
from airflow_s3commit._format import number, several, size
from airflow_s3commit.cli.command import (
    Session,
    apply_option,
    as_duration,
    as_uri,
    flag,
    option,
    store_command,
)
from airflow_s3commit.cli.output import NOT_APPLIED, ExitCode, Rows, line, pairs
from airflow_s3commit.cli.steps import report_ending
from airflow_s3commit.protocol.hadoop.adopt import Adoption
from airflow_s3commit.protocol.hadoop.files import job_id_of
from airflow_s3commit.protocol.hadoop.status import HadoopJob, classify, find_hadoop_job, find_hadoop_jobs
from airflow_s3commit.protocol.model.job import ConflictMode, JobOptions


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

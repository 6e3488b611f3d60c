"""Bringing a job to an end: commit, abort, recover."""

from __future__ import annotations

import click
from rich.text import Text

from airflow_s3commit.cli.command import store_command
from airflow_s3commit.cli.exit_codes import ExitCode
from airflow_s3commit.cli.jobs import preview_words
from airflow_s3commit.cli.output import facts
from airflow_s3commit.cli.parameters import as_duration, as_stage
from airflow_s3commit.cli.rehearse import rehearse_commit, rehearse_ending, state_of
from airflow_s3commit.cli.session import Session
from airflow_s3commit.cli.wording import amount, several, size
from airflow_s3commit.protocol.destination import join_uri
from airflow_s3commit.protocol.preview import preview_commit
from airflow_s3commit.protocol.records import AbortReport, ManifestRecord

__all__ = ["abort", "commit", "recover", "told_of_ending"]


@store_command(
    "commit",
    summary="Commit a sealed job: make its output visible.",
    examples="""
    s3commit commit s3://lake/flights/ JOB --dry-run
    s3commit commit s3://lake/flights/ JOB
    s3commit commit s3://lake/flights/ JOB --seal        a job whose writers are done and whose driver died
    s3commit commit s3://lake/flights/ JOB --replan      after someone else changed the partitions
    """,
    job="required",
    confirms=True,
)
@click.option("--dry-run", is_flag=True, help="Say what it would make visible and replace, and do nothing.")
@click.option("--seal", is_flag=True, help="First seal the job: every sealed stage attempt counts.")
@click.option(
    "--stage",
    "stages",
    multiple=True,
    type=as_stage,
    metavar="STAGE:ATTEMPT",
    help="As --seal, but this stage attempt counts; repeatable.",
)
@click.option("--replan", is_flag=True, help="First plan anew: what is there now is what it replaces.")
@click.option(
    "--lock-wait",
    type=as_duration,
    metavar="DURATION",
    default="1m",
    show_default=True,
    help="How long to wait for another job's commit.",
)
def commit(
    session: Session,
    *,
    dry_run: bool,
    seal: bool,
    stages: tuple[tuple[str, str], ...],
    replan: bool,
    lock_wait: float,
) -> ExitCode:
    """Commit a sealed job: make all its output visible, and delete what it replaces.

    May be run again at any time, also after a crash in its middle or by two processes at once: it goes on
    where it was left, and on a committed job it only says what was committed.
    """
    if dry_run:
        return rehearse_commit(session)
    job = session.job(lock_wait=lock_wait)
    state = state_of(session)
    if (stages and state in ("open", "sealed")) or (seal and state == "open"):
        with session.output.working("sealing"):
            job.seal(stages or None)
    if replan:
        with session.output.working("planning"):
            job.plan()
    _confirm_replacement(session)
    with session.output.completing("completing uploads") as progress:
        record = job.commit(progress=progress)
    return told_of_ending(session, record)


@store_command(
    "abort",
    summary="Abort a job: nothing of it appears or stays pending.",
    examples="""
    s3commit abort s3://lake/flights/ JOB --dry-run
    s3commit abort s3://lake/flights/ JOB --reason "wrong input"
    """,
    job="required",
    confirms=True,
)
@click.option("--dry-run", is_flag=True, help="Say what it would abort and take back, and do nothing.")
@click.option(
    "--force",
    is_flag=True,
    help="Go on although old data was overwritten or deleted and is lost, or the job's records are damaged.",
)
@click.option("--reason", default="aborted by s3commit abort", show_default=True, help="Why, for the record.")
def abort(session: Session, *, dry_run: bool, force: bool, reason: str) -> ExitCode:
    """Abort a job: none of its output is or becomes visible, and none of its uploads stays pending.

    What a commit that was left in its middle has published is taken back. Other jobs' uploads are not
    touched. A committed job is refused. May be run again at any time.
    """
    if dry_run:
        return rehearse_ending(session, "abort")
    session.output.confirm(f"Abort job {session.job_id} on {session.destination.uri}?", yes=session.yes)
    with session.output.working("aborting"):
        report = session.job().abort(force=force, reason=reason)
    return told_of_ending(session, report)


@store_command(
    "recover",
    summary="Finish a commit or abort that was left in its middle.",
    examples="""
    s3commit recover s3://lake/flights/ JOB                 go on with the commit, or the abort
    s3commit recover s3://lake/flights/ JOB --rollback      undo a commit that cannot go on
    s3commit recover s3://lake/flights/ JOB --keep-replaced finish one whose plan is damaged
    """,
    job="required",
    confirms=True,
)
@click.option("--rollback", is_flag=True, help="Undo a commit that has begun, instead of going on with it.")
@click.option(
    "--force", is_flag=True, help="With --rollback: although old data is lost and cannot be put back."
)
@click.option(
    "--keep-replaced",
    is_flag=True,
    help="Finish a commit whose plan is damaged; the old files stay beside the new ones.",
)
@click.option("--dry-run", is_flag=True, help="Say what it would do, and do nothing.")
def recover(session: Session, *, rollback: bool, force: bool, keep_replaced: bool, dry_run: bool) -> ExitCode:
    """Finish what a process left in the middle of a commit or an abort.

    A commit goes on, an abort goes on, and what was not cleaned up is. A job whose commit was not begun is
    refused: commit or abort it. Where the job's state is damaged, it is found out from its other records.
    """
    if force and not rollback:
        raise click.UsageError("--force goes with --rollback")
    if keep_replaced and rollback:
        raise click.UsageError(
            "--keep-replaced finishes a commit, and --rollback undoes it: give one of them"
        )
    if dry_run:
        return rehearse_ending(session, "rollback" if rollback else "recover")
    if rollback:
        session.output.confirm(
            f"Undo the commit of job {session.job_id} on {session.destination.uri}?", yes=session.yes
        )
    with session.output.completing("recovering") as progress:
        ended = session.job().recover(
            rollback=rollback, force=force, keep_replaced=keep_replaced, progress=progress
        )
    return told_of_ending(session, ended)


def told_of_ending(session: Session, ended: ManifestRecord | AbortReport) -> ExitCode:
    """Say how a job ended."""
    if isinstance(ended, ManifestRecord):
        layout = session.layout
        manifest = join_uri(layout.destination.bucket, layout.manifest)
        value = {
            "result": "committed",
            **ended.to_dict(),
            "replaced_bytes": ended.replaced.bytes,
            "manifest": manifest,
        }
        session.output.result(
            value,
            Text.assemble(("committed ", "green"), ended.job_id),
            facts(
                [
                    ("destination", ended.destination),
                    ("visible", f"{amount(ended.counts)} in {several(len(ended.partitions), 'partition')}"),
                    ("replaced", f"{several(ended.replaced.files, 'file')}, {size(ended.replaced.bytes)}"),
                    ("manifest", manifest),
                ]
            ),
        )
        return ExitCode.OK
    value = {
        "result": ended.state,
        "job_id": session.job_id,
        "destination": session.destination.uri,
        "uploads": ended.uploads,
        "objects": ended.objects,
    }
    if ended.state == "aborted":
        words = f"aborted {session.job_id}: {several(ended.uploads, 'upload')} discarded"
        words += f", {several(ended.objects, 'object')} taken back"
    else:
        words = f"no job {session.job_id} is known at {session.destination.uri} (any more)"
        words += f"; {several(ended.uploads, 'upload')} of it discarded"
    session.output.result(value, Text(words))
    return ExitCode.OK


def _confirm_replacement(session: Session) -> None:
    """Ask, where somebody can answer, whether what a commit replaces may go."""
    if session.yes or not session.output.is_interactive or state_of(session) != "sealed":
        return
    preview = preview_commit(session.context)
    if preview.replaced:
        session.output.confirm(f"The commit replaces {preview_words(preview)}. Go on?", yes=session.yes)

"""Commit, abort and recover: end a job."""

from __future__ import annotations

import click

from airflow_s3commit._format import several
from airflow_s3commit.cli.command import Session, as_stage, flag, option, store_command
from airflow_s3commit.cli.output import ExitCode, described, line
from airflow_s3commit.present import MANIFEST_COLUMNS, replacement
from airflow_s3commit.protocol.model.job import AbortReport
from airflow_s3commit.protocol.model.manifest import Manifest


@store_command(
    """
    s3commit show s3://lake/flights/ JOB                    what it would replace
    s3commit commit s3://lake/flights/ JOB
    s3commit commit s3://lake/flights/ JOB --seal           if the writers finished and the driver died
    s3commit commit s3://lake/flights/ JOB --generation 41  only if nobody changed the partitions since
    """,
    job="required",
    confirms=True,
    environment=True,
)
@flag("--seal", "Seal the job first, with every sealed stage attempt.")
@option(
    "--stage",
    "stages",
    multiple=True,
    type=as_stage,
    help="Seal the job first, with this stage attempt instead of all; repeatable.",
)
@option(
    "--generation",
    type=click.IntRange(min=0),
    metavar="N",
    help="Refuse if a commit after this generation, which show names, changed the partitions.",
)
def commit(
    session: Session, *, seal: bool, stages: tuple[tuple[str, str], ...], generation: int | None
) -> ExitCode:
    """Commit a sealed job: make its output visible.

    Also deletes what it replaces. May be repeated at any time, after a crash or by two processes at once: it
    continues where the last run stopped, and for a committed job it only reports the commit.
    """
    job = session.job
    known = job.state()
    state = known.state if known is not None else None
    if (stages and state in ("open", "sealed")) or (seal and state == "open"):
        with session.output.working("sealing"):
            job.seal(stages or None)
        state = "sealed"
    if generation is None and state == "sealed" and not session.yes and session.output.is_interactive:
        # The answer is about the generation that is shown.
        preview = job.preview()
        generation = preview.generation
        if preview.objects:
            session.output.confirm(f"The commit replaces {replacement(preview)}. Continue?", yes=False)
    with session.output.completing("completing uploads") as progress:
        manifest = job.commit(generation=generation, progress=progress)
    return report_ending(session, manifest)


@store_command(
    """
    s3commit abort s3://lake/flights/ JOB --reason "wrong input"
    """,
    job="required",
    confirms=True,
    environment=True,
)
@option("--reason", default="aborted by s3commit abort", help="The reason, for the log.")
def abort(session: Session, *, reason: str) -> ExitCode:
    """Abort a job and discard its uploads.

    None of its output is or becomes visible, and none of its uploads stays pending. Deletes objects that an
    interrupted commit has published. Does not touch other jobs' uploads. Damaged records do not prevent it.
    The id cannot be used again, even if no job had it. May be repeated at any time. A committed job is
    refused: s3commit rollback returns the table to an older generation.
    """
    session.output.confirm(f"Abort job {session.job_id} on {session.destination.uri}?", yes=session.yes)
    with session.output.working("aborting"):
        report = session.job.abort(reason=reason)
    return report_ending(session, report)


@store_command(
    """
    s3commit show s3://lake/flights/ JOB        what has begun, and what is left
    s3commit recover s3://lake/flights/ JOB     continue the commit, or the abort
    """,
    job="required",
)
def recover(session: Session) -> ExitCode:
    """Finish an interrupted commit or abort.

    Continues the commit or abort, and cleans up. Refuses a job of which neither has begun: commit or abort
    it. To undo a commit that has published files and is not in the log, abort the job.
    """
    with session.output.completing("recovering") as progress:
        ended = session.job.recover(progress=progress)
    return report_ending(session, ended)


def report_ending(session: Session, ended: Manifest | AbortReport) -> ExitCode:
    """Report the manifest or the abort of a job that ended."""
    if isinstance(ended, AbortReport):
        named = {"result": "aborted", "job_id": session.job_id, "destination": session.destination.uri}
        words = (
            f"aborted {session.job_id}: {several(ended.uploads, 'upload')} discarded,"
            f" {several(ended.objects, 'object')} taken back"
        )
        return session.output.result({**named, **ended.to_dict()}, line(words))
    value = {"result": "committed", **ended.to_dict(), "replaced_bytes": ended.replaced.bytes}
    done = line("committed", "green")
    shown = described(MANIFEST_COLUMNS, ended)
    return session.output.result({**value, "manifest": ended.uri}, done, shown)

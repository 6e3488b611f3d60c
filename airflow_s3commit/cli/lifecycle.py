"""Commit, abort and recover: end a job."""

from __future__ import annotations

import click

from airflow_s3commit._format import several, size
from airflow_s3commit.cli.command import Session, as_stage, store_command
from airflow_s3commit.cli.output import ExitCode
from airflow_s3commit.cli.report import Facts, Line
from airflow_s3commit.present import amount, replacement
from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.model.job import AbortReport, JobState
from airflow_s3commit.protocol.model.manifest import Manifest


@store_command(
    "commit",
    summary="Commit a sealed job: make its output visible.",
    examples="""
    s3commit show s3://lake/flights/ JOB                    what it would replace
    s3commit commit s3://lake/flights/ JOB
    s3commit commit s3://lake/flights/ JOB --seal           if the writers finished and the driver died
    s3commit commit s3://lake/flights/ JOB --generation 41  only if nobody changed the partitions since
    """,
    job="required",
    confirms=True,
    environment=True,
)
@click.option("--seal", is_flag=True, help="Seal the job first, with every sealed stage attempt.")
@click.option(
    "--stage",
    "stages",
    multiple=True,
    type=as_stage,
    metavar="STAGE:ATTEMPT",
    help="Seal the job first, with this stage attempt instead of all; repeatable.",
)
@click.option(
    "--generation",
    type=click.IntRange(min=0),
    metavar="N",
    help="Refuse if a commit after this generation, which show names, changed the partitions.",
)
def commit(
    session: Session,
    *,
    seal: bool,
    stages: tuple[tuple[str, str], ...],
    generation: int | None,
) -> ExitCode:
    """Commit a sealed job: make all its output visible, and delete what it replaces.

    May be repeated at any time, after a crash or by two processes at once: it continues where the last run
    stopped, and for a committed job it only reports the commit.
    """
    job = session.job()
    state = job.state()
    if state is not None and ((stages and not _has_ended(state)) or (seal and state.state == "open")):
        with session.output.working("sealing"):
            job.seal(stages or None)
        state = job.state()
    if generation is None and state is not None and state.state == "sealed":
        generation = _confirmed(session, job)
    with session.output.completing("completing uploads") as progress:
        manifest = job.commit(generation=generation, progress=progress)
    return report_ending(session, manifest)


@store_command(
    "abort",
    summary="Abort a job and discard its uploads.",
    examples="""
    s3commit abort s3://lake/flights/ JOB --reason "wrong input"
    """,
    job="required",
    confirms=True,
    environment=True,
)
@click.option(
    "--reason",
    default="aborted by s3commit abort",
    show_default=True,
    help="The reason, for the log.",
)
def abort(session: Session, *, reason: str) -> ExitCode:
    """Abort a job: none of its output is or becomes visible, and none of its uploads stays pending.

    Deletes objects that an interrupted commit has published. Does not touch other jobs' uploads. Refuses a
    committed job. Damaged records do not prevent it. The id cannot be used again, even if no job had it. May
    be repeated at any time.
    """
    session.output.confirm(f"Abort job {session.job_id} on {session.destination.uri}?", yes=session.yes)
    with session.output.working("aborting"):
        report = session.job().abort(reason=reason)
    return report_ending(session, report)


@store_command(
    "recover",
    summary="Finish an interrupted commit or abort.",
    examples="""
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
        ended = session.job().recover(progress=progress)
    return report_ending(session, ended)


def report_ending(session: Session, ended: Manifest | AbortReport) -> ExitCode:
    """Report the manifest or the abort of a job that ended."""
    if isinstance(ended, Manifest):
        receipt = ended.uri
        return session.output.result(
            {
                "result": "committed",
                **ended.to_dict(),
                "replaced_bytes": ended.replaced.bytes,
                "manifest": receipt,
            },
            Line(ended.job_id, "green", "committed "),
            Facts(
                [
                    ("destination", ended.destination),
                    ("generation", ended.generation),
                    ("visible", f"{amount(ended.counts)} in {several(len(ended.partitions), 'partition')}"),
                    ("replaced", f"{several(ended.replaced.files, 'file')}, {size(ended.replaced.bytes)}"),
                    ("manifest", receipt),
                ]
            ),
        )
    return session.output.result(
        {
            "result": "aborted",
            "job_id": session.job_id,
            "destination": session.destination.uri,
            **ended.to_dict(),
        },
        Line(
            f"aborted {session.job_id}: {several(ended.uploads, 'upload')} discarded,"
            f" {several(ended.objects, 'object')} taken back"
        ),
    )


def _has_ended(state: JobState) -> bool:
    return state.state in ("committed", "aborted")


def _confirmed(session: Session, job: Job) -> int | None:
    """Ask a person before a commit replaces files; return the generation that the answer is about."""
    if session.yes or not session.output.is_interactive:
        return None
    preview = job.preview()
    if preview.objects:
        session.output.confirm(f"The commit replaces {replacement(preview)}. Continue?", yes=session.yes)
    return preview.generation

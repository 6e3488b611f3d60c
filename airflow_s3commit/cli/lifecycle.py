"""Commit, abort and recover: end a job, or preview that in a dry run."""

from __future__ import annotations

from typing import Literal, TypeAlias

import click

from airflow_s3commit._format import several, size
from airflow_s3commit.cli.command import Session, as_stage, store_command
from airflow_s3commit.cli.output import ExitCode
from airflow_s3commit.cli.report import DRY_RUN, Facts, Line
from airflow_s3commit.exceptions import AlreadyCommitted, JobClosed
from airflow_s3commit.present import amount, replacement
from airflow_s3commit.protocol.inspect.details import preview_commit
from airflow_s3commit.protocol.inspect.jobs import pending_uploads
from airflow_s3commit.protocol.inspect.staging import job_facts
from airflow_s3commit.protocol.inspect.verify_pending import verify_pending
from airflow_s3commit.protocol.metadata.manifests import find_manifest
from airflow_s3commit.protocol.metadata.state import gone
from airflow_s3commit.protocol.model.destination import join_uri
from airflow_s3commit.protocol.model.job import AbortReport, State
from airflow_s3commit.protocol.model.manifest import ManifestRecord

Step: TypeAlias = Literal["abort", "recover", "rollback"]


@store_command(
    "commit",
    summary="Commit a sealed job: make its output visible.",
    examples="""
    s3commit commit s3://lake/flights/ JOB --dry-run
    s3commit commit s3://lake/flights/ JOB
    s3commit commit s3://lake/flights/ JOB --seal        if the writers finished and the driver died
    s3commit commit s3://lake/flights/ JOB --replan      if another writer changed the partitions
    """,
    job="required",
    confirms=True,
    environment=True,
)
@click.option("--dry-run", is_flag=True, help="Report the files and the replaced objects; change nothing.")
@click.option("--seal", is_flag=True, help="Seal the job first, with every sealed stage attempt.")
@click.option(
    "--stage",
    "stages",
    multiple=True,
    type=as_stage,
    metavar="STAGE:ATTEMPT",
    help="Seal the job first, with this stage attempt instead of all; repeatable.",
)
@click.option("--replan", is_flag=True, help="Plan again first, to replace the objects that exist now.")
def commit(
    session: Session,
    *,
    dry_run: bool,
    seal: bool,
    stages: tuple[tuple[str, str], ...],
    replan: bool,
) -> ExitCode:
    """Commit a sealed job: make all its output visible, and delete what it replaces.

    May be repeated at any time, after a crash or by two processes at once: it continues where the last run
    stopped, and for a committed job it only reports the commit.
    """
    if dry_run:
        return _preview_commit(session)
    job = session.job()
    state = _state_of(session)
    if (stages and state in ("open", "sealed")) or (seal and state == "open"):
        with session.output.working("sealing"):
            job.seal(stages or None)
    if replan:
        with session.output.working("planning"):
            job.plan()
    _confirm_replacement(session)
    current = job.state()
    # Somebody may have reviewed the plan, so the commit follows it or is refused.
    plan_etag = current.plan_etag if current is not None and current.state == "sealed" else None
    with session.output.completing("completing uploads") as progress:
        record = job.commit(plan_etag=plan_etag, progress=progress)
    return report_ending(session, record)


@store_command(
    "abort",
    summary="Abort a job and discard its uploads.",
    examples="""
    s3commit abort s3://lake/flights/ JOB --dry-run
    s3commit abort s3://lake/flights/ JOB --reason "wrong input"
    """,
    job="required",
    confirms=True,
    environment=True,
)
@click.option(
    "--dry-run", is_flag=True, help="Report the uploads and objects that it would remove; change nothing."
)
@click.option(
    "--force",
    is_flag=True,
    help="Continue even if the job's records are damaged.",
)
@click.option(
    "--reason",
    default="aborted by s3commit abort",
    show_default=True,
    help="The reason, for the record of the abort.",
)
def abort(session: Session, *, dry_run: bool, force: bool, reason: str) -> ExitCode:
    """Abort a job: none of its output is or becomes visible, and none of its uploads stays pending.

    Deletes objects that an interrupted commit has published. Does not touch other jobs' uploads. Refuses a
    committed job. May be repeated at any time.
    """
    if dry_run:
        return _preview_ending(session, "abort")
    session.output.confirm(f"Abort job {session.job_id} on {session.destination.uri}?", yes=session.yes)
    with session.output.working("aborting"):
        report = session.job().abort(force=force, reason=reason)
    return report_ending(session, report)


@store_command(
    "recover",
    summary="Finish an interrupted commit or abort.",
    examples="""
    s3commit recover s3://lake/flights/ JOB                 continue the commit, or the abort
    s3commit recover s3://lake/flights/ JOB --rollback      undo a commit that cannot continue
    s3commit recover s3://lake/flights/ JOB --keep-replaced finish a commit with a damaged plan
    """,
    job="required",
    confirms=True,
)
@click.option("--rollback", is_flag=True, help="Undo a commit that has begun, instead of continuing it.")
@click.option(
    "--keep-replaced",
    is_flag=True,
    help="Finish a commit with a damaged plan; the old files stay beside the new ones.",
)
@click.option("--dry-run", is_flag=True, help="Report the next step and its effect; change nothing.")
def recover(session: Session, *, rollback: bool, keep_replaced: bool, dry_run: bool) -> ExitCode:
    """Finish an interrupted commit or abort.

    Continues the commit or abort, and cleans up. Refuses a job whose commit has not begun: commit or abort
    it. If the job's state record is damaged, its other records determine the state.
    """
    if keep_replaced and rollback:
        raise click.UsageError(
            "--keep-replaced finishes a commit, and --rollback undoes it: use only one of them"
        )
    if dry_run:
        return _preview_ending(session, "rollback" if rollback else "recover")
    if rollback:
        session.output.confirm(
            f"Undo the commit of job {session.job_id} on {session.destination.uri}?", yes=session.yes
        )
    with session.output.completing("recovering") as progress:
        ended = session.job().recover(rollback=rollback, keep_replaced=keep_replaced, progress=progress)
    return report_ending(session, ended)


def report_ending(session: Session, ended: ManifestRecord | AbortReport) -> ExitCode:
    """Report the manifest or the abort of a job that ended."""
    if isinstance(ended, ManifestRecord):
        layout = session.layout
        manifest = join_uri(layout.destination.bucket, layout.manifest)
        value = {
            "result": "committed",
            **ended.to_dict(),
            "replaced_bytes": ended.replaced.bytes,
            "manifest": manifest,
        }
        return session.output.result(
            value,
            Line(ended.job_id, "green", "committed "),
            Facts(
                [
                    ("destination", ended.destination),
                    ("visible", f"{amount(ended.counts)} in {several(len(ended.partitions), 'partition')}"),
                    ("replaced", f"{several(ended.replaced.files, 'file')}, {size(ended.replaced.bytes)}"),
                    ("manifest", manifest),
                ]
            ),
        )
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
        words = f"no job {session.job_id} exists at {session.destination.uri}"
        words += f"; {several(ended.uploads, 'upload')} with its id discarded"
    return session.output.result(value, Line(words))


def _confirm_replacement(session: Session) -> None:
    """Ask for confirmation before a commit replaces objects, if stdin is a terminal."""
    if session.yes or not session.output.is_interactive or _state_of(session) != "sealed":
        return
    preview = preview_commit(session.context)
    if preview.replaced:
        session.output.confirm(f"The commit replaces {replacement(preview)}. Continue?", yes=session.yes)


def _state_of(session: Session) -> State | None:
    """Return the job's state, which is ``committed`` from its entry on; None if there is no state record."""
    record = session.job().state()
    if record is None or record.state != "committing":
        return record.state if record is not None else None
    return job_facts(session.context).reached


def _preview_commit(session: Session) -> ExitCode:
    """Preview a commit; exit code 1 if conflict mode ``fail`` refuses it."""
    state = _state_of(session)
    if state == "committed" or (state is None and find_manifest(session.context) is not None):
        return session.output.result(
            {"dry_run": True, "job_id": session.job_id, "state": state, "would": "finish"},
            Line("the job is committed; a commit would only finish the cleanup"),
        )
    with session.output.working("listing existing objects"):
        preview = preview_commit(session.context)
    return session.output.result(
        {"dry_run": True, "job_id": session.job_id, "state": state, "would": "commit", **preview.to_dict()},
        DRY_RUN,
        Facts(
            [
                (
                    "would publish",
                    f"{several(preview.files, 'file')}, {size(preview.bytes)}"
                    f" in {several(preview.partitions, 'partition')}",
                ),
                ("would replace", replacement(preview)),
            ]
        ),
        ok=preview.conflict is None,
    )


def _preview_ending(session: Session, step: Step) -> ExitCode:
    """Preview an abort, a recovery or a rollback.

    Raises:
        Refused: The step would be refused.

    """
    state = _state_of(session)
    would = _would(session, state, step)
    uploads = [
        upload
        for upload in pending_uploads(session.store, session.destination, session.staging_root)
        if upload.job_id == session.job_id
    ]
    goes_back = would in ("abort", "roll back", "go on with the abort")
    published = verify_pending(session.context).completed if state == "committing" else None
    words = f"{several(len(uploads), 'pending upload')} would be {'discarded' if goes_back else 'completed'}"
    if goes_back and published is not None:
        words += f", {several(published, 'published object')} taken back"
    return session.output.result(
        {
            "dry_run": True,
            "job_id": session.job_id,
            "destination": session.destination.uri,
            "state": state,
            "would": would,
            "pending_uploads": len(uploads),
            "published_objects": published,
        },
        DRY_RUN,
        Facts([("state", state or "none"), ("would", would), ("effect", words)]),
    )


def _would(session: Session, state: State | None, step: Step) -> str:
    """Return the effect of a step on a job in a state.

    Raises:
        Refused: The step would be refused.

    """
    name = f"job {session.job_id} on {session.destination.uri}"
    match state:
        case "committing":
            would = "go on with the commit" if step == "recover" else "roll back"
        case "aborting" | "aborted":
            would = "go on with the abort"
        case "committed" if step == "recover":
            would = "finish what is left of the commit"
        case "committed":
            raise AlreadyCommitted(f"{name} is committed; this would be refused")
        case "open" | "sealed" if step != "abort":
            raise JobClosed(f"{name} is {state}: its commit has not begun, so this would be refused")
        case None if step != "abort" and find_manifest(session.context) is None:
            raise gone(session.context)
        case None if find_manifest(session.context) is not None:
            if step != "recover":
                raise AlreadyCommitted(f"{name} is committed; this would be refused")
            would = "nothing: it is committed and cleaned up"
        case _:
            would = "abort"
    return would

"""Dry runs of what ends a job: what commit, abort and recover would do, and whether they would be refused."""

from __future__ import annotations

from typing import Literal, TypeAlias

from rich.text import Text

from airflow_s3commit.cli.exit_codes import ExitCode
from airflow_s3commit.cli.jobs import preview_words
from airflow_s3commit.cli.output import facts
from airflow_s3commit.cli.session import Session
from airflow_s3commit.cli.wording import several, size
from airflow_s3commit.exceptions import AlreadyCommitted, JobClosed
from airflow_s3commit.protocol.preview import preview_commit
from airflow_s3commit.protocol.records import State
from airflow_s3commit.protocol.state import find_manifest, gone
from airflow_s3commit.protocol.survey import pending_uploads
from airflow_s3commit.protocol.verify_pending import verify_pending

__all__ = ["Step", "rehearse_commit", "rehearse_ending", "state_of"]

Step: TypeAlias = Literal["abort", "recover", "rollback"]

_NOTHING_CHANGED = Text("dry run: nothing was changed", style="yellow")


def state_of(session: Session) -> State | None:
    """Return the job's state; None if it has none (any more)."""
    record = session.job().state()
    return record.state if record is not None else None


def rehearse_commit(session: Session) -> ExitCode:
    """Say what a commit would make visible and replace. Exit code 1 if conflict mode ``fail`` stops it."""
    state = state_of(session)
    if state == "committed" or (state is None and find_manifest(session.context) is not None):
        session.output.result(
            {"dry_run": True, "job_id": session.job_id, "state": state, "would": "finish"},
            Text("it is committed; a commit would finish what is left, if anything is"),
        )
        return ExitCode.OK
    with session.output.working("looking at what is there"):
        preview = preview_commit(session.context)
    session.output.result(
        {"dry_run": True, "job_id": session.job_id, "state": state, "would": "commit", **preview.to_dict()},
        _NOTHING_CHANGED,
        facts(
            [
                ("would be visible", f"{several(preview.files, 'file')}, {size(preview.bytes)}"),
                ("in", several(preview.partitions, "partition")),
                ("would replace", preview_words(preview)),
            ]
        ),
    )
    return ExitCode.OK if preview.conflict is None else ExitCode.FINDINGS


def rehearse_ending(session: Session, step: Step) -> ExitCode:
    """Say what an abort, a recovery or a rollback would do.

    Raises:
        Refused: The step would be refused.

    """
    state = state_of(session)
    would = _would(session, state, step)
    mine = [
        upload
        for upload in pending_uploads(session.store, session.destination, session.staging_root)
        if upload.job_id == session.job_id
    ]
    goes_back = would in ("abort", "roll back", "go on with the abort")
    published = verify_pending(session.context).completed if state == "committing" else None
    words = f"{several(len(mine), 'pending upload')} would be {'discarded' if goes_back else 'completed'}"
    if goes_back and published is not None:
        words += f", {several(published, 'published object')} taken back"
    session.output.result(
        {
            "dry_run": True,
            "job_id": session.job_id,
            "destination": session.destination.uri,
            "state": state,
            "would": would,
            "pending_uploads": len(mine),
            "published_objects": published,
        },
        _NOTHING_CHANGED,
        facts([("state", state or "none"), ("would", would), ("effect", words)]),
    )
    return ExitCode.OK


def _would(session: Session, state: State | None, step: Step) -> str:
    """Return what a step does to a job in a state, or refuse as the step does."""
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
            raise JobClosed(f"{name} is {state}: no commit of it was begun, so this would be refused")
        case None if step != "abort" and find_manifest(session.context) is None:
            raise gone(session.context)
        case None if find_manifest(session.context) is not None:
            if step != "recover":
                raise AlreadyCommitted(f"{name} is committed; this would be refused")
            would = "nothing: it is committed and cleaned up"
        case _:
            would = "abort"
    return would

"""Looking at jobs: all of a destination, or one from close by."""

from __future__ import annotations

from collections.abc import Iterator

import click
from rich.console import Group, RenderableType
from rich.text import Text

from airflow_s3commit.cli.advice import for_job
from airflow_s3commit.cli.command import store_command
from airflow_s3commit.cli.exit_codes import ExitCode
from airflow_s3commit.cli.output import Column, facts, table
from airflow_s3commit.cli.session import Session
from airflow_s3commit.cli.wording import age, amount, cell, moment, number, plain, several, size, state_cell
from airflow_s3commit.protocol.job_details import JobDetails, describe_job
from airflow_s3commit.protocol.preview import CommitPreview
from airflow_s3commit.protocol.survey import JobSummary, list_jobs
from airflow_s3commit.protocol.verify_pending import PendingReport

__all__ = ["about", "jobs", "preview_words", "show"]

_COLUMNS = (
    Column("job"),
    Column("state"),
    Column("age", right=True),
    Column("files", right=True),
    Column("size", right=True),
    Column("mode", room=95),
    Column("last sign of life", right=True, room=115),
    Column("context", room=150, whole=False),
)


@store_command(
    "jobs",
    summary="List the jobs under way at a destination.",
    examples="""
    s3commit jobs s3://lake/flights/
    s3commit jobs s3://lake/flights/ --committed
    s3commit jobs s3://lake/flights/ --json | jq -r '.jobs[] | select(.state == "committing").job_id'
    """,
)
@click.option("--committed", is_flag=True, help="Also the jobs that are committed and cleaned up.")
def jobs(session: Session, *, committed: bool) -> ExitCode:
    """List the jobs of a destination: those under way, and those that something is left of.

    The age is that of the job's state, by the store's clock. Files and size are what is pending: what the
    seal counts, or until there is one all that task attempts have committed.
    """
    with session.output.working("reading the jobs' records") as step:
        found = []
        for summary in list_jobs(
            session.store, session.destination, session.staging_root, committed=committed
        ):
            found.append(summary)
            step(len(found))
    value = {"destination": session.destination.uri, "jobs": [summary.to_dict() for summary in found]}
    if found:
        session.output.result(
            value, table(_COLUMNS, map(_row, found), width=session.output.width), _problems(found)
        )
    else:
        session.output.result(value, Text(f"no job is under way at {plain(session.destination.uri)}"))
    return ExitCode.OK


@store_command(
    "show",
    summary="Show one job from close by, and what to do next.",
    examples="""
    s3commit show s3://lake/flights/ 0c9a3b0e-6f0e-4c35-8b0f-3f1f6f6f8a11
    s3commit show s3://lake/flights/ JOB --staging s3://pipeline-records/ --json | jq .preview
    """,
    job="required",
)
def show(session: Session) -> ExitCode:
    """Show one job from close by, and say what to do next.

    Its state and who brought it there, its options and context, its stages and what they wrote, the uploads
    that are pending, what its commit would replace, and whether it holds the destination's lock.
    """
    assert session.job_id is not None
    with session.output.working("looking at the job"):
        details = describe_job(session.store, session.destination, session.job_id, session.staging_root)
    steps = for_job(details.summary, session)
    value = {**details.to_dict(), "next": [step._asdict() for step in steps]}
    session.output.result(value, *_views(details, session), Text())
    session.output.advise(steps)
    return ExitCode.OK


def preview_words(preview: CommitPreview) -> str:
    """Return in words what a commit does to what is there."""
    if preview.conflict is not None:
        return f"nothing: conflict mode fail refuses, because {preview.conflict} exists"
    if not preview.replaced:
        return "nothing"
    words = f"{several(preview.replaced, 'object')}, {size(preview.replaced_bytes)}"
    if preview.overwritten:
        words += f"; {number(preview.overwritten)} of them are overwritten in place, with no way back"
    return f"{words} ({'as planned' if preview.planned else 'as it is now'})"


def about(details: JobDetails) -> Iterator[tuple[str, object]]:
    """Yield what is known of a job, by name and as people read it; None where there is nothing to say."""
    summary, options = details.summary, details.summary.options
    yield "job", summary.job_id
    yield "destination", summary.destination
    yield "staging", summary.staging
    yield "state", state_cell(summary.state) if summary.hadoop is None else f"Hadoop's, {summary.hadoop}"
    if summary.since is not None:
        yield (
            "since",
            f"{moment(summary.since)}{f', {age(summary.age)} ago' if summary.age is not None else ''}",
        )
    yield "by", summary.owner
    yield "because", summary.reason
    yield "last sign of life", f"{age(summary.silent)} ago" if summary.silent is not None else None
    if options is not None:
        yield "committer", f"{options.committer}, conflict mode {options.conflict_mode}"
        yield "options", ", ".join(_unusual(details))
    yield from summary.context.items()
    yield ("committed" if summary.state == "committed" else "output"), amount(summary.output)
    if details.uploads is not None:
        yield "uploads", _upload_words(details.uploads)
    if details.preview is not None:
        yield "commit replaces", preview_words(details.preview)
    if details.lock is not None:
        yield "commit lock", f"held, renewed {age(details.lock)} ago"


def _row(summary: JobSummary) -> list[object]:
    return [
        summary.job_id,
        state_cell(summary.state) if summary.hadoop is None else f"Hadoop's, {summary.hadoop}",
        age(summary.age),
        number(summary.output.files),
        size(summary.output.bytes),
        summary.options.conflict_mode if summary.options is not None else _manifest_mode(summary),
        age(summary.silent) if summary.silent is not None else "",
        _context(summary),
    ]


def _manifest_mode(summary: JobSummary) -> str | None:
    return summary.manifest.conflict_mode if summary.manifest is not None else None


def _context(summary: JobSummary) -> str:
    return ", ".join(f"{name} {value}" for name, value in summary.context.items())


def _problems(found: list[JobSummary]) -> RenderableType | None:
    lines = [Text(f"{s.job_id}: {plain(s.problem)}", style="red") for s in found if s.problem is not None]
    return Group(*lines) if lines else None


def _views(details: JobDetails, session: Session) -> Iterator[RenderableType]:
    summary = details.summary
    yield facts(about(details))
    if details.stages:
        yield Text()
        yield table(
            (
                Column("stage", whole=False),
                Column("attempt"),
                Column("sealed"),
                Column("counts"),
                Column("tasks", right=True),
                Column("files", right=True),
                Column("size", right=True),
                Column("rows", right=True),
            ),
            (
                [
                    stage.stage,
                    stage.attempt,
                    "yes" if stage.sealed else "no",
                    {True: "yes", False: "no", None: "?"}[stage.counts],
                    number(stage.tasks),
                    number(stage.output.files) if stage.output is not None else "?",
                    size(stage.output.bytes) if stage.output is not None else "?",
                    number(stage.output.rows) if stage.output is not None else "?",
                ]
                for stage in details.stages
            ),
            width=session.output.width,
        )
    for problem in details.problems:
        yield Text(plain(problem), style="red")
    if summary.manifest is not None and summary.staging is None:
        yield Text("committed and cleaned up: only its manifest is left", style="dim")


def _unusual(details: JobDetails) -> Iterator[str]:
    options = details.summary.options
    assert options is not None
    if options.conflict_mode == "replace" and options.replace_order != "publish-then-delete":
        yield options.replace_order
    if not options.unique_filenames:
        yield "file names as they are"
    if options.track_pending != "task":
        yield f"uploads tracked on {options.track_pending}"
    if options.pendingset_format != "hadoop-3.4.2":
        yield f"pendingsets for {options.pendingset_format}"
    if options.fencing != "required":
        yield f"fencing {options.fencing}"


def _upload_words(report: PendingReport) -> Text:
    words = [f"{number(report.pending)} pending ({size(report.bytes)} by the records)"]
    if report.completed:
        words.append(f"{number(report.completed)} complete")
    if report.unrecorded:
        words.append(f"{number(report.unrecorded)} of attempts that do not count, or are at work")
    if report.missing_count:
        words.append(f"{number(report.missing_count)} MISSING: a commit will fail")
    return cell(", ".join(words), "" if report.sound else "red")

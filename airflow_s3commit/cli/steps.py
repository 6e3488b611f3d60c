"""The steps of a job: setup, put and seal from a shell or a program in any language; then its end."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, get_args
from uuid import uuid4

import click

from airflow_s3commit._format import several, size
from airflow_s3commit.cli.command import (
    Session,
    argument,
    as_job_id,
    as_stage,
    flag,
    option,
    registry_option,
    store_command,
)
from airflow_s3commit.cli.output import ExitCode, described, line
from airflow_s3commit.exceptions import InvalidOption, JobClosed
from airflow_s3commit.present import MANIFEST_COLUMNS, amount, replacement
from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.metadata.registry import failures_logged, register_destination
from airflow_s3commit.protocol.metadata.sealed_job import committed_attempts
from airflow_s3commit.protocol.model.destination import Destination, check_directories, hive_values, is_data
from airflow_s3commit.protocol.model.job import AbortReport, Committer, ConflictMode, JobOptions
from airflow_s3commit.protocol.model.layout import partition_of
from airflow_s3commit.protocol.model.manifest import Manifest

#: Bytes to read at once.
_CHUNK = 1024 * 1024

#: Bytes at the end of a file to keep, for a Parquet footer. A larger one is of thousands of columns.
_FOOTER_BYTES = 1024 * 1024


def _of_stage(function: Callable[..., ExitCode]) -> Callable[..., ExitCode]:
    """Add the options that name a stage attempt."""
    for name, variable, what in (
        ("--attempt", "S3COMMIT_ATTEMPT", "The attempt: letters and digits, such as the number of the try."),
        ("--stage", "S3COMMIT_STAGE", "The stage: a name for this program, the same in each attempt."),
    ):
        option = click.option(name, envvar=variable, required=True, show_envvar=True, help=what)
        function = option(function)
    return function


@store_command(
    """
    s3commit setup s3://lake/flights/ --conflict-mode append
    export S3COMMIT_DESTINATION=s3://lake/flights/
    export S3COMMIT_JOB=$(s3commit setup --conflict-mode replace)
    """,
    environment=True,
    staging=True,
)
@option(
    "--job-id", "new_id", type=as_job_id, help="The id, a UUID; repeats return that job. Default: random."
)
@option(
    "--conflict-mode",
    type=click.Choice([mode for mode in get_args(ConflictMode) if mode != "as-written"]),
    default="fail",
    help="What to do with existing data: refuse the job, add to the data, or replace it.",
)
@option(
    "--committer",
    type=click.Choice(get_args(Committer)),
    default="partitioned",
    help="Whether to check for conflicts by partition, or in the whole directory.",
)
@option("--name", help="A display name.")
@option(
    "--track-pending",
    type=click.Choice(["task", "s3"]),
    default="task",
    help="Where a task records its uploads: in its memory or, for stores that do not list uploads by prefix,"
    " file by file on s3.",
)
@option("--retain", default="0s", metavar="DURATION", help="How long replaced files stay, such as 7d.")
@option("--publish", type=click.Choice(["delta"]), help="Let other engines read each commit as a version.")
@registry_option("Register the destination in the registry at this prefix; a failure is only logged.")
def setup(
    session: Session, *, new_id: str | None, name: str | None, registry: Destination | None, **options: Any
) -> ExitCode:
    """Set up a job, and print its id.

    A job is one refresh of one destination. Write its output with put, seal each stage, then commit or abort.
    --object-option sets options of the objects that the job writes. May be repeated with --job-id.
    """
    root = session.staging_root
    if registry is not None:
        with failures_logged(registry.uri, session.destination.uri):
            register_destination(session.store, registry, session.destination, staging=root)
    job = Job.setup(
        session.store,
        session.destination,
        options=JobOptions(
            **options,
            staging=root.uri if root is not None else None,
            object_options=session.connection.object_options,
        ),
        job_id=new_id,
        name=name,
    )
    if session.output.as_json:
        return session.output.result({"result": "open", **job.reference.to_dict()})
    click.echo(job.reference.job_id)
    return ExitCode.OK


@store_command(
    """
    s3commit put s3://lake/flights/ JOB part-0.parquet dt=2013-01-01/ --stage load --attempt 1
    s3commit put s3://lake/flights/ JOB out/ --stage load --attempt 1
    pg_dump … | s3commit put - dt=2013-01-01/dump.sql --stage load --attempt 1
    """,
    job="required",
    environment=True,
)
@argument("source", "SOURCE", "A file, a directory with all files below it, or - for standard input.")
@argument(
    "target",
    "[TARGET]",
    "A path below DEST. It is a directory if it ends with a slash or SOURCE is a directory. Default: DEST.",
    default="",
)
@option("--content-type", default="application/octet-stream", help="The media type.")
@_of_stage
def put(
    session: Session, *, source: str, target: str, content_type: str, stage: str, attempt: str
) -> ExitCode:
    """Upload a file, a directory or standard input to a job.

    The files stay pending, and so invisible, until the job's commit. The job's id is added to each file's
    name.

    Files are streamed in parts, so memory is bounded. If the command fails, it leaves nothing pending. It may
    be repeated: a put to the same TARGET in the same attempt replaces the earlier one. Several may run at
    once, each with its own TARGET. Seal the stage when all have ended.
    """
    files = list(_sources(source, target))
    try:
        check_directories(f"{target}/" if source != "-" and Path(source).is_dir() else target, "TARGET")
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    job, task = session.job, _task(target if source == "-" or Path(source).is_dir() else files[0][1])
    if job.stage_seal(stage, attempt) is not None:
        raise JobClosed(f"stage {stage}-{attempt} of job {session.job_id} is sealed: use another --attempt")
    earlier = committed_attempts(session.context, stage, attempt, task)
    total = sum(path.stat().st_size for path, _ in files if path is not None)
    with job.task_attempt(stage, attempt, task, uuid4().hex, streamed=True) as writing:
        with session.output.working(f"uploading {source}", total or None) as shown:
            sent = 0
            for path, relative in files:
                with ExitStack() as opened:
                    reading = sys.stdin.buffer if path is None else opened.enter_context(path.open("rb"))
                    file = writing.open(relative, content_type=content_type)
                    opened.enter_context(file)
                    end, kept = b"", _FOOTER_BYTES if relative.endswith(".parquet") else 0
                    while chunk := reading.read(_CHUNK):
                        file.write(chunk)
                        if kept:
                            end = (end + chunk)[-kept:]
                        sent += len(chunk)
                        shown(sent)
                writing.describe(1, _schema(relative, end))
        written = writing.commit()
    for before in earlier:
        job.abort_attempt(stage, attempt, task, before.attempt)
    return session.output.result(
        {"result": "pending", **written.to_dict()},
        line(f"{several(written.files, 'file')}, {size(written.bytes)} pending in stage {stage}-{attempt}"),
    )


@store_command(
    """
    s3commit seal s3://lake/flights/ JOB --stage load --attempt 1
    s3commit seal s3://lake/flights/ JOB --stage load --attempt 1 --empty
    """,
    job="required",
    environment=True,
)
@flag("--empty", "Seal the stage even if nothing was put to it.")
@_of_stage
def seal(session: Session, *, empty: bool, stage: str, attempt: str) -> ExitCode:
    """Seal a stage, with what was put to it.

    Later output of this attempt does not count. Run it after the last put has ended. May be repeated.
    """
    job = session.job
    tasks = committed_attempts(session.context, stage, attempt)
    if not tasks and not empty:
        raise InvalidOption(
            f"nothing was put to stage {stage}-{attempt} of job {session.job_id} on"
            f" {session.destination.uri}: check --stage and --attempt, or seal it with --empty"
        )
    with session.output.working("sealing"):
        sealed = job.seal_stage(stage, attempt, tasks)
    where = several(len(sealed.partitions), "partition")
    words = f"sealed stage {stage}-{attempt}: {amount(sealed.counts)} in {where}"
    return session.output.result(
        {"result": "sealed", "job_id": session.job_id, **sealed.to_dict()}, line(words)
    )


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


def _sources(source: str, target: str) -> Iterator[tuple[Path | None, str]]:
    """Yield each file, None for standard input, and its path below the destination.

    Raises:
        click.UsageError: There is no such file, it is hidden, or standard input has no name.
    """
    path = Path(source)
    if source == "-":
        if not target or target.endswith("/"):
            raise click.UsageError("standard input needs a TARGET with a name: s3commit put - dt=1/part.csv")
        yield None, target
    elif path.is_dir():
        prefix = f"{target.rstrip('/')}/" if target else ""
        for file in sorted(each for each in path.rglob("*") if each.is_file()):
            relative = file.relative_to(path).as_posix()
            if not is_data(relative):
                raise click.UsageError(f"{file} is hidden from readers of the table: remove or rename it")
            yield file, f"{prefix}{relative}"
    elif path.is_file():
        yield path, f"{target}{path.name}" if not target or target.endswith("/") else target
    else:
        raise click.UsageError(f"{source} is neither a file nor a directory")


def _schema(path: str, end: bytes) -> str | None:
    """Return the schema of a Parquet file, by its footer; None without pyarrow, or if it has none."""
    if not end:
        return None
    try:
        from airflow_s3commit.tables.columns import footer_text  # noqa: PLC0415 - the command needs no pyarrow

        return footer_text(end, [*hive_values(partition_of(path))] if "/" in path else [])
    except (ImportError, ValueError):
        return None


def _task(target: str) -> str:
    """Return the task of a target: another put to it is another attempt of the same task."""
    return f"put-{hashlib.sha256(target.encode()).hexdigest()[:32]}"

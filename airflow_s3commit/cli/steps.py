"""The commands for the steps of a job: setup, put, seal, commit, abort, recover; and adopt, for Hadoop's."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, get_args
from uuid import uuid4

import click
import msgspec
from rich.text import Text

from airflow_s3commit._causes import described as words_of
from airflow_s3commit._format import number, several, size
from airflow_s3commit.cli.command import (
    Parsed,
    Session,
    apply_option,
    argument,
    as_duration,
    flag,
    registry_option,
    retain_option,
    stage_options,
    store_command,
)
from airflow_s3commit.cli.output import NOT_APPLIED, ExitCode, Rows, described, line
from airflow_s3commit.exceptions import InvalidOption, JobClosed, NoSuchJob, S3CommitError
from airflow_s3commit.present import MANIFEST_COLUMNS, amount, replacement
from airflow_s3commit.protocol.hadoop.adopt import Adoption
from airflow_s3commit.protocol.hadoop.jobs import HadoopJob, classify, find_hadoop_job, find_hadoop_jobs
from airflow_s3commit.protocol.inspect.jobs import describe_job
from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.metadata.context import has_object
from airflow_s3commit.protocol.metadata.registry import failures_logged, register_destination
from airflow_s3commit.protocol.metadata.sealed_job import committed_attempts
from airflow_s3commit.protocol.model.destination import Destination, check_directories, hive_values, is_data
from airflow_s3commit.protocol.model.job import AbortReport, Committer, ConflictMode
from airflow_s3commit.protocol.model.layout import check_id, check_new_id, is_canonical, job_key, partition_of
from airflow_s3commit.protocol.model.manifest import Manifest
from airflow_s3commit.protocol.steps.log import find_head

_MODES = click.Choice([mode for mode in get_args(ConflictMode) if mode != "as-written"])

track_option = click.option(
    "--track-pending",
    type=click.Choice(["task", "s3"]),
    default="task",
    help="Where a task records its uploads: in its memory or, for stores that do not list uploads by prefix,"
    " file by file on s3.",
)

#: Bytes to read at once.
_CHUNK = 1024 * 1024

#: Bytes at the end of a file to keep, for a Parquet footer. A larger footer has thousands of columns.
_FOOTER_BYTES = 1024 * 1024


def _stage_attempt(text: str) -> tuple[str, str]:
    stage, _, attempt = text.rpartition(":")
    try:
        return check_id(stage, "stage"), check_id(attempt, "stage attempt")
    except S3CommitError as error:
        raise ValueError(f"{error}; write it as stage:attempt") from error


@store_command(
    """
    s3commit setup s3://lake/flights/ --conflict-mode append
    export S3COMMIT_DESTINATION=s3://lake/flights/
    export S3COMMIT_JOB=$(s3commit setup --conflict-mode replace)
    """,
    environment=True,
    staging=True,
)
@click.option(
    "--job-id",
    "new_id",
    type=Parsed("uuid", check_new_id),
    help="The id, a UUID; repeats return that job. Default: random.",
)
@click.option(
    "--conflict-mode",
    type=_MODES,
    default="fail",
    help="What to do with existing data: refuse the job, add to the data, or replace it.",
)
@click.option(
    "--committer",
    type=click.Choice(get_args(Committer)),
    default="partitioned",
    help="Whether to check for conflicts by partition, or in the whole directory.",
)
@click.option("--name", help="A display name.")
@track_option
@retain_option("replaced files")
@click.option(
    "--publish", type=click.Choice(["delta"]), help="Let other engines read each commit as a version."
)
@registry_option("Register the destination in the registry at this prefix; a failure is only logged.")
def setup(session: Session, *, new_id: str | None, name: str | None, **settings: Any) -> ExitCode:
    """Set up a job, and print its id.

    A job is one refresh of one destination. Write its output with put, seal each stage, then commit or abort.
    --object-option sets options of the objects that the job writes. May be repeated with --job-id.
    """
    if (registry := session.registry) is not None:
        with failures_logged(registry.uri, session.destination.uri):
            register_destination(session.store, registry, session.destination, staging=session.staging_root)
    options = session.job_options(**settings)
    job = Job.setup(session.store, session.destination, options=options, job_id=new_id, name=name)
    return session.output.result({"result": "open", **job.reference.to_dict()}, line(job.reference.job_id))


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
@click.option("--content-type", default="application/octet-stream", help="The media type.")
@stage_options
def put(
    session: Session, *, source: str, target: str, content_type: str, stage: str, attempt: str
) -> ExitCode:
    """Upload a file, a directory or standard input to a job.

    The files stay invisible until the job's commit. The job's id is added to each file's name. A put to the
    same TARGET in the same attempt replaces the earlier one, and one that fails leaves nothing pending.
    Several may run at once, each with its own TARGET. Seal the stage when all have ended.
    """
    files, is_directory = list(_sources(source, target)), source != "-" and Path(source).is_dir()
    try:
        check_directories(f"{target}/" if is_directory else target, "TARGET")
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    job = session.job
    # Another put to a target is another attempt of the same task.
    named = target.rstrip("/") if is_directory else files[0][1]
    task = f"put-{hashlib.sha256(named.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"
    if job.stage_seal(stage, attempt) is not None:
        raise JobClosed(f"stage {stage}-{attempt} of job {session.job_id} is sealed: use another --attempt")
    earlier = committed_attempts(session.context, stage, attempt, task)
    total = sum(path.stat().st_size for path, _ in files if path is not None)
    with job.task_attempt(stage, attempt, task, uuid4().hex, streamed=True) as writing:
        with session.output.working(f"uploading {source}", total or None) as shown:
            sent = 0
            for path, relative in files:
                opened = path.open("rb") if path is not None else nullcontext(sys.stdin.buffer)
                end = b"" if path is None else _tail(path)
                if path is not None:
                    writing.check_schema(_schema(relative, end))
                with opened as reading, writing.open(relative, content_type=content_type) as file:
                    while chunk := reading.read(_CHUNK):
                        file.write(chunk)
                        end = (end + chunk)[-_FOOTER_BYTES:] if path is None else end
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
@stage_options
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
    value = {"result": "sealed", "job_id": session.job_id, **sealed.to_dict()}
    return session.output.result(value, line(words))


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
@click.option(
    "--stage",
    "stages",
    multiple=True,
    type=Parsed("stage:attempt", _stage_attempt),
    help="Seal the job first, with this stage attempt instead of all; repeatable.",
)
@click.option(
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
    state = known.state if (known := job.state()) is not None else None
    if (stages and state in ("open", "sealed")) or (seal and state == "open"):
        with session.output.working("sealing"):
            job.seal(stages or None)
        state = "sealed"
    elif state == "open":
        command = session.commands.line("commit", "--seal")
        raise JobClosed(
            f"job {session.job_id} on {session.destination.uri} is not sealed: if all that write for it have"
            f" ended, seal and commit it with: {command}"
        )
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
@click.option("--reason", default="aborted by s3commit abort", help="The reason, for the log.")
def abort(session: Session, *, reason: str) -> ExitCode:
    """Abort a job and discard its uploads.

    None of its output is or becomes visible, also where an interrupted commit has published objects. Damaged
    records do not prevent it. The id cannot be used again, even if no job had it. May be repeated at any
    time. A committed job is refused: s3commit rollback returns the table to an older generation. So are a job
    of a directory above or below, and a destination where no job was ever set up.
    """
    store, home, job_id = session.store, session.destination, session.job_id or ""
    if not (find_head(store, home) or has_object(store, home.bucket, job_key(home, job_id))):
        # A directory above or below may be meant, and an abort here must not discard its jobs' uploads.
        raise NoSuchJob(f"no job was ever set up at {home.uri}, so {job_id} is none of its: check DEST")
    if not is_canonical(job_id):
        try:
            describe_job(store, home, job_id)
        except NoSuchJob:
            check_new_id(job_id)
    session.output.confirm(f"Abort job {job_id} on {home.uri}?", yes=session.yes)
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
    return session.output.result({**value, "manifest": ended.uri}, done, described(MANIFEST_COLUMNS, ended))


def _sources(source: str, target: str) -> Iterator[tuple[Path | None, str]]:
    """Yield each file, None for standard input, and its path below the destination.

    Raises `click.UsageError` if a file is missing, hidden or unreadable, or standard input has no name.
    """
    if source == "-":
        if not target or target.endswith("/"):
            raise click.UsageError("standard input needs a TARGET with a name: s3commit put - dt=1/part.csv")
        yield None, target
        return
    if not source:
        raise click.UsageError("SOURCE is empty, as a shell variable without a value leaves it")
    top, prefix = Path(source).resolve(), f"{target.rstrip('/')}/" if target else ""
    # rglob does not look below links, and leaves out what it cannot read.
    for path in sorted((top, *top.rglob("*"))):
        is_walked = path.is_dir() and not path.is_symlink()
        if not os.access(path, os.R_OK) or not (is_walked or path.is_file()):
            raise click.UsageError(f"{path} is neither a file nor a directory that can be read")
        relative = path.relative_to(top).as_posix()
        if path == top and not is_walked:
            yield path, f"{target}{Path(source).name}" if not target or target.endswith("/") else target
        elif not is_walked and not is_data(relative):
            raise click.UsageError(f"{path} is hidden from readers of the table: remove or rename it")
        elif not is_walked:
            yield path, f"{prefix}{relative}"


def _tail(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - _FOOTER_BYTES, 0))
        return file.read()


def _schema(path: str, end: bytes) -> str | None:
    """Return the schema in a Parquet file's footer; None without pyarrow, or if it cannot be read."""
    if not path.endswith(".parquet"):
        return None
    try:
        from airflow_s3commit.tables.columns import footer_text  # noqa: PLC0415 - the command needs no pyarrow

        return footer_text(end, [*hive_values(partition_of(path))] if "/" in path else [])
    except (ImportError, ValueError):
        return None


@store_command(
    """
    s3commit adopt s3://lake/sales/                             list Hadoop's jobs
    s3commit adopt s3://lake/sales/ JOB --commit                preview its commit
    s3commit adopt s3://lake/sales/ JOB --commit --apply        commit it
    s3commit adopt s3://lake/sales/ JOB --abort --apply         abort it
    s3commit adopt s3://lake/sales/ JOB --commit --apply \\
        --pendingsets s3://lake/tmp/etl/UUID/staging-uploads/_temporary/0/
    """,
    job="optional",
    confirms=True,
    staging=True,
)
@flag("--commit", "Finish the job: complete the uploads of its committed tasks.", "to_commit")
@flag("--abort", "Discard the job: abort all of its uploads.", "to_abort")
@apply_option("Change the store")
@click.option(
    "--pendingsets",
    type=Parsed("uri", lambda text: Destination.parse(text).uri),
    help="Directory of a staging committer's pendingsets, or of a copy.",
)
@click.option("--conflict-mode", type=_MODES, default="append", help="Treatment of existing data.")
@click.option(
    "--expect-tasks", type=int, metavar="N", help="Expected number of tasks; refuse the job if it differs."
)
@flag("--accept-partial", "Commit even if task numbers are missing: publish the tasks that exist.")
@click.option(
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
    apply: bool,
    pendingsets: str | None,
    conflict_mode: Any,
    **settings: Any,
) -> ExitCode:
    """Finish or discard a job of Hadoop's S3A committers.

    Without --commit or --abort, lists the jobs of the magic committer. The Hadoop job must be dead. A dry run
    unless --apply is given, with the same decisions. May be repeated. A successful job is neither committed
    nor aborted: a sweep removes its leftovers.
    """
    verb = "commit" if to_commit else "abort" if to_abort else ""
    if (to_commit and to_abort) or (apply and not verb):
        raise click.UsageError("use one of --commit and --abort")
    job_id = session.job_id
    if job_id is None and (verb or pendingsets is not None):
        raise click.UsageError("the job's UUID is missing; s3commit adopt DEST lists the jobs")
    if job_id is None or not verb:
        return _list_jobs(session, pendingsets)
    output, committer = session.output, "magic" if pendingsets is None else "partitioned"
    options = session.job_options(committer=committer, conflict_mode=conflict_mode)
    settings |= {"pendingsets_uri": pendingsets, "options": options}
    adoption = Adoption(session.store, session.destination, job_id, **settings)
    if not apply:
        return _dry_run(session, adoption, verb)
    output.confirm(f"{verb.capitalize()} Hadoop job {job_id} on {session.destination.uri}?", yes=session.yes)
    with output.completing("adopting") as progress:
        ended = adoption.commit(progress=progress) if to_commit else adoption.abort()
    return report_ending(session, ended)


def _list_jobs(session: Session, pendingsets: str | None) -> ExitCode:
    place, job_id = session.destination, session.job_id
    with session.output.working("listing Hadoop's files"):
        if pendingsets is None or job_id is None:
            found = [job for job in find_hadoop_jobs(session.store, place) if job_id in (None, job.job_id)]
        else:
            one = find_hadoop_job(session.store, place, job_id, pendingsets_uri=pendingsets)
            found = [one] if one is not None else []
    value = {"destination": place.uri, "jobs": [_plain(job) for job in found]}
    if not found:
        words = f"no Hadoop job at {place.uri}; for a staging committer, add --pendingsets"
        return session.output.result(value, line(words))
    return session.output.result(value, Rows(HadoopJob.columns, found), *_problems(found))


def _dry_run(session: Session, adoption: Adoption, verb: str) -> ExitCode:
    with session.output.working("reading Hadoop's files"):
        job = adoption.job
        refused = adoption.refusal(commit=verb == "commit")
    job_id, uri = session.job_id, session.destination.uri
    value: dict[str, Any] = {"dry_run": True, "would": verb, "job_id": job_id, "destination": uri}
    value |= {"job": _plain(job), "refused": words_of(refused) if refused is not None else None}
    if job is None:
        words = f"no files of Hadoop job {job_id} at {uri}; it may be adopted already"
        return session.output.result(value, line(words), ok=False)
    verdict, ok = classify(job, older_than=adoption.older_than), refused is None
    if verb == "commit":
        effect = f"complete {several(job.uploads, 'upload')} ({size(job.bytes)})"
        effect += f" of {several(job.pendingsets, 'task')}"
        effect += f", and discard {number(job.others)} of attempts that are not committed"
        ok = ok and not job.lost
    else:
        effect = f"discard {several(job.uploads + job.others, 'upload')}"
        effect += f", and take back {several(job.published + job.others_published, 'object')}"
    known = line(f"{verdict.status}: {verdict.reason}", "", f"job {job_id} in {job.prefix}")
    would = line(f"it would {effect}") if refused is None else line(f"it would be refused: {refused}", "red")
    return session.output.result(value, NOT_APPLIED, known, would, *_problems([job]), ok=ok)


def _problems(found: list[HadoopJob]) -> Iterator[Text]:
    for job in found:
        if job.gaps:
            words = f"{job.gaps} task numbers have no pendingset: {job.missing_words}"
            yield line(f"{job.job_id}: {words}; check that all of its tasks finished", "yellow")
        yield from (line(f"{job.job_id}: {damage}", "red") for damage in job.damaged)


def _plain(job: HadoopJob | None) -> dict[str, Any] | None:
    return {**msgspec.to_builtins(job), **classify(job)._asdict()} if job is not None else None

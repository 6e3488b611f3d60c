"""The commands jobs, show, pending, log and manifest: what is in progress and committed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from itertools import chain, islice, takewhile
from typing import Any

import click
import msgspec
from msgspec.structs import asdict
from rich.console import RenderableType

from airflow_s3commit._clock import SystemClock
from airflow_s3commit._format import Column, age, moment, number, plain, several, shown, size, time_of
from airflow_s3commit.cli.command import Parsed, Session, flag, registry_option, store_command
from airflow_s3commit.cli.output import BLANK, ExitCode, Rows, described, labelled, line
from airflow_s3commit.exceptions import NoSuchKey, S3CommitError
from airflow_s3commit.present import (
    JOB_COLUMNS,
    LOG_COLUMNS,
    MANIFEST_COLUMNS,
    PARTITION_COLUMNS,
    NextStep,
    amount,
    cost_per_month,
    for_job,
)
from airflow_s3commit.protocol.inspect.jobs import (
    JobSummary,
    StageDetails,
    UploadSummary,
    describe_job,
    list_jobs,
    pending_uploads,
)
from airflow_s3commit.protocol.model.destination import check_partition_names, partition_form
from airflow_s3commit.protocol.model.manifest import FileEntry, Manifest
from airflow_s3commit.protocol.steps.fold import history, latest_manifest, manifest_files, read_manifest
from airflow_s3commit.protocol.sweep_plan import monthly_cost
from airflow_s3commit.protocol.watch import follow

#: Maximum number of uploads to show without --all.
_MOST_UPLOADS = 40


@store_command(
    """
    s3commit jobs s3://lake/flights/
    s3commit jobs 's3://lake/team-*' --registry s3://lake-ops/s3commit/
    s3commit jobs s3://lake/flights/ --json | jq -r '.jobs[] | select(.state == "sealed").job_id'
    """,
    registry=True,
    staging=True,
)
@registry_option("List the jobs of all destinations that the registry at this prefix names.")
def jobs(session: Session) -> ExitCode:
    """List the jobs in progress at a destination.

    These are the jobs that have not ended, or are not cleaned up. The age is the time since the job entered
    its state. Files and size are those in the seal or, before it, of all committed task attempts.
    """
    if session.pattern is not None:
        return _jobs_of_registry(session)
    listed = list_jobs(session.store, session.destination, session.staging_root)
    found = session.output.reading("reading records", listed)
    value = {"destination": session.destination.uri, "jobs": [summary.to_dict() for summary in found]}
    if not found:
        return session.nothing(value, f"no job is in progress at {session.destination.uri}")
    return session.output.result(value, *_job_views(found))


def _job_views(found: list[JobSummary]) -> Iterator[RenderableType]:
    yield Rows(JobSummary.columns, found)
    yield from (line(f"{job.job_id}: {job.problem}", "red") for job in found if job.problem is not None)


def _jobs_of_registry(session: Session) -> ExitCode:
    found: dict[str, list[JobSummary]] = {}
    failures: dict[str, str] = {}
    with session.output.working("reading destinations") as step:
        for done, entry in enumerate(session.registered(), start=1):
            place, root = entry.record.place, entry.record.staging_root
            try:
                # A destination has an entry for each of its stagings.
                listed = (*found.get(place.uri, ()), *list_jobs(session.store, place, root))
                found[place.uri] = [*{job.job_id: job for job in listed}.values()]
            except S3CommitError as error:
                failures[place.uri] = str(error)
            step(done)
    pending = [job for listed in found.values() for job in listed if job.staging is not None]
    stored = sum(job.output.bytes for job in pending)
    oldest = max((job.silent for job in pending if job.silent is not None), default=None)
    value = {
        "registry": session.destination.uri,
        "destinations": [
            {"destination": uri, "jobs": [job.to_dict() for job in listed]} for uri, listed in found.items()
        ],
        "failures": [{"destination": uri, "message": message} for uri, message in failures.items()],
        "pending": {"destinations": len(found), "jobs": len(pending), "bytes": stored, "idle": oldest},
    }
    places = ((line(uri, "bold"), *_job_views(listed), BLANK) for uri, listed in found.items() if listed)
    jobs = f"{several(len(pending), 'job')} in progress at {several(len(found), 'destination')}"
    unread = labelled("NOT READ", (f"{uri}: {message}" for uri, message in failures.items()))
    views = (*chain.from_iterable(places), line(f"{jobs}, {size(stored)} pending"), *unread)
    return session.output.result(value, *views, ok=not failures)


@store_command(
    """
    s3commit show s3://lake/flights/ 0c9a3b0e-6f0e-4c35-8b0f-3f1f6f6f8a11
    s3commit show s3://lake/flights/ JOB --json | jq .preview
    """,
    job="required",
)
def show(session: Session) -> ExitCode:
    """Show one job in detail, with next steps.

    Shows its state, options, context, stages and pending uploads; what its commit replaces; and, while that
    runs, how many of its files are visible.
    """
    assert session.job_id is not None
    with session.output.working("reading records"):
        details = describe_job(session.store, session.destination, session.job_id)
    steps = for_job(details, session.commands)
    stages = (BLANK, Rows(StageDetails.columns, details.stages)) if details.stages else ()
    problems = (line(problem, "red") for problem in details.problems)
    value = {**details.to_dict(), "next": [step._asdict() for step in steps]}
    code = session.output.result(value, described(JOB_COLUMNS, details), *stages, *problems, BLANK)
    session.output.advise(steps)
    return code


class _Totals(msgspec.Struct):
    """Totals of pending uploads: those of one job, or those that no job claims."""

    job_id: str | None
    count: int
    bytes: int | None
    oldest: float | None
    monthly_cost_usd: float | None


_TOTALS = (
    Column("job", "job_id", lambda job_id: job_id or "claimed by no job"),
    Column("uploads", "count", number),
    Column("size", "bytes", size),
    Column("oldest", "oldest", age),
    Column("per month", "bytes", cost_per_month),
)


def _totals(job_id: str | None, uploads: list[UploadSummary]) -> _Totals:
    sizes = [upload.bytes for upload in uploads if upload.bytes is not None]
    stored = sum(sizes) if len(sizes) == len(uploads) else None
    oldest = max((upload.age for upload in uploads if upload.age is not None), default=None)
    return _Totals(job_id, len(uploads), stored, oldest, monthly_cost(stored) if stored is not None else None)


@store_command(
    """
    s3commit pending s3://lake/flights/
    s3commit pending s3://lake/flights/ --all
    """,
    staging=True,
)
@flag("--all", f"Show every upload, not the {_MOST_UPLOADS} oldest.", "everything")
@flag("--no-bytes", "Don't measure uploads, which takes one request per upload.")
def pending(session: Session, *, everything: bool, no_bytes: bool) -> ExitCode:
    """List pending uploads with their jobs, ages and costs.

    A pending upload is not visible, but its bytes are stored and billed. An upload without a job remains from
    a crash, or belongs to another program. The cost is that of S3 Standard in us-east-1.
    """
    place = session.destination
    uploads = pending_uploads(session.store, place, session.staging_root, measure=not no_bytes)
    found = session.output.reading("listing uploads and their parts", uploads)
    found.sort(key=lambda upload: upload.initiated)
    by_job: dict[str | None, list[UploadSummary]] = {}
    for upload in found:
        by_job.setdefault(upload.job_id, []).append(upload)
    total, parts = _totals("total", found), [_totals(job_id, some) for job_id, some in by_job.items()]
    value = {
        "destination": place.uri,
        **{name: value for name, value in asdict(total).items() if name != "job_id"},
        "jobs": [asdict(part) for part in parts],
        "uploads": [upload.to_dict() for upload in found],
    }
    if not found:
        if warning := session.no_log():
            session.output.note(warning)
        return session.output.result(value, line(f"no upload is pending below {place.uri}"))
    totals = Rows(_TOTALS, [*parts, *([total] if len(parts) > 1 else [])])
    shown = Rows(UploadSummary.columns, found, most=None if everything else _MOST_UPLOADS)
    code = session.output.result(value, totals, BLANK, shown, BLANK)
    if None in by_job:
        words = "sweep old uploads that no job claims"
        session.output.advise([NextStep(words, session.commands.line("sweep", "--older-than", "7d"))])
    return code


#: Maximum number of partitions to show.
_MOST_PARTITIONS = 50

_COUNTS = ("files", "bytes", "rows")


def _since(text: str) -> int | datetime:
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        return time_of(text)
    except ValueError:
        raise ValueError(f"{text!r} is neither a generation nor a time such as 2026-11-01T06:00") from None


@store_command(
    """
    s3commit log s3://lake/flights/                          the last 20
    s3commit log s3://lake/flights/ --since 2026-11-01       what is newer, of the last 20
    s3commit log s3://lake/flights/ --partition dt=2026-11-01
    s3commit log s3://lake/flights/ --follow --since 41      all after 41, then new ones as they come
    s3commit log s3://lake/flights/ --json | jq '.commits[0].generation'
    """
)
@click.option(
    "--limit", type=click.IntRange(1, 10**9), default=20, metavar="N", help="How many commits to list."
)
@click.option(
    "--partition",
    "partitions",
    multiple=True,
    type=Parsed("name", lambda name: partition_form(*check_partition_names([name], "--partition"))),
    help="List commits that added files to this partition, such as dt=2026-11-01; repeatable.",
)
@click.option(
    "--since",
    type=Parsed("generation|time", _since),
    help="List commits after this generation, or after this ISO 8601 time (UTC without a time zone).",
)
@flag(
    "--follow",
    "List oldest first, then new commits as they come, until Ctrl-C; with --json one object per line.",
    "follows",
)
def log(
    session: Session, *, limit: int, partitions: tuple[str, ...], since: int | datetime | None, follows: bool
) -> ExitCode:
    """List the commits to a destination, newest first.

    Each has the job, what it added and replaced, and when. The generation is the number by which readers can
    read the table as it was after the commit. Generation 1 is the data that was there before the first job.
    Missing numbers are of aborted jobs and releases. The version is that of the Delta table, if the table is
    published. With --follow --since GENERATION, all commits after it are listed, whatever the limit.
    """
    wanted = set(partitions)
    if follows:
        return _follow(session, limit, since, wanted)
    read = history(session.store, session.destination, limit=None if wanted else limit)
    # The clocks of machines differ, so a time ends the search only where the limit does not.
    recent = (takewhile if wanted else filter)(lambda record: _is_after(record, since), read)
    matching = (record for record in recent if _touches(record, wanted))
    found = session.output.reading("reading the log", islice(matching, limit))
    value = {"destination": session.destination.uri, "commits": [_value(record) for record in found]}
    if found:
        return session.output.result(value, Rows(LOG_COLUMNS, found))
    nothing = "no such commit is" if wanted or since is not None else "no commit is"
    return session.nothing(value, f"{nothing} in the log of {session.destination.uri}")


def _follow(session: Session, limit: int, since: int | datetime | None, wanted: set[str]) -> ExitCode:
    """List commits as they come, until the user interrupts."""
    store, place = session.store, session.destination
    with suppress(KeyboardInterrupt):
        earlier = [] if isinstance(since, int) else [*history(store, place, limit=None if wanted else limit)]
        after = since if isinstance(since, int) else earlier[0].generation if earlier else 0
        if not earlier and (warning := session.no_log()):
            session.output.note(warning)
        known = (one for one in earlier if _is_after(one, since) and _touches(one, wanted))
        for record in chain(reversed([*islice(known, limit)]), follow(store, place, after, SystemClock())):
            if _touches(record, wanted):
                click.echo(json.dumps(_value(record)) if session.output.as_json else _line(record))
    return ExitCode.OK


def _is_after(record: Manifest, since: int | datetime | None) -> bool:
    if isinstance(since, datetime):
        return record.committed > since.timestamp() * 1000
    return since is None or record.generation > since


def _touches(record: Manifest, wanted: set[str]) -> bool:
    return not wanted or not wanted.isdisjoint(map(partition_form, record.partitions))


def _value(record: Manifest) -> dict[str, Any]:
    """Return a commit for scripts, with the counts of each partition and without statistics of columns."""
    known = _plain(record)
    names = ("generation", "delta_version", "job_id", "committed", "conflict_mode", "replaced")
    return {
        **{name: known[name] for name in (*names, "rolled_back_to", "context")},
        "counts": {name: known["counts"][name] for name in _COUNTS},
        "partitions": {
            partition: {name: counts[name] for name in _COUNTS}
            for partition, counts in known["partitions"].items()
        },
    }


def _line(record: Manifest) -> str:
    """Return a commit as a single line, with columns of typical width."""
    counts = f"{amount(record.counts)} in {several(len(record.partitions), 'partition')}"
    start = f"{record.generation:>8}  {moment(record.committed)}  {record.mode:<14}  {counts:<50}"
    return plain(f"{start}  {record.job_id}  {shown(record.context)}").rstrip()


@store_command(
    """
    s3commit manifest s3://lake/flights/                     the last commit
    s3commit manifest s3://lake/flights/ JOB                 one job's
    s3commit manifest s3://lake/flights/ --files             size, rows and key of every file
    s3commit manifest s3://lake/flights/ --files --json | jq -r '.files[].key'
    """,
    job="optional",
)
@flag("--files", "List every file, instead of totals by partition.")
def manifest(session: Session, *, files: bool) -> ExitCode:
    """Show what a job committed.

    By default it is the last commit. It is read from the job's entry in the log, which remains when the job
    is cleaned up. Exit code 1 if there is none.
    """
    store, place, job_id = session.store, session.destination, session.job_id
    try:
        record = latest_manifest(store, place) if job_id is None else read_manifest(store, place, job_id)
    except NoSuchKey as error:
        return report_missing(session, str(error))
    if files:
        listed = manifest_files(session.store, record)
        return session.output.stream(_plain(record), "files", listed, _file_line)
    rows = Rows(PARTITION_COLUMNS, [*record.partitions.items()], most=_MOST_PARTITIONS)
    return session.output.result(_plain(record), described(MANIFEST_COLUMNS, record), rows)


def _plain(record: Manifest) -> dict[str, Any]:
    """Return a manifest as JSON values, without the list of files that may be within it."""
    values: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(record, within=None))
    del values["within"]
    return values


def report_missing(session: Session, words: str) -> ExitCode:
    """Report that nothing is committed, with the next step."""
    value = {"destination": session.destination.uri, "job_id": session.job_id}
    code = session.output.result({**value, "manifest": None, "message": words}, line(words), ok=False)
    step = NextStep("list the jobs in progress", session.commands.line("jobs"))
    if session.job_id is not None:
        step = NextStep("show the job's state", session.commands.line("show"))
    session.output.advise([step])
    return code


def _file_line(entry: FileEntry) -> str:
    rows: Any = entry.rows if entry.rows is not None else "?"
    return f"{entry.size:>14,} {rows:>12}  {entry.key}"

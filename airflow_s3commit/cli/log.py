"""Log and manifest: the commits to a destination, and what one of them committed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from airflow_s3commit._clock import SystemClock
from airflow_s3commit._format import moment, number, plain, several, size
from airflow_s3commit.cli.command import Session, as_duration, as_job_id, store_command
from airflow_s3commit.cli.output import ExitCode
from airflow_s3commit.cli.report import Column, Facts, Line, Table, View
from airflow_s3commit.exceptions import NoSuchKey
from airflow_s3commit.present import NextStep, amount
from airflow_s3commit.protocol.model.manifest import FileEntry, Manifest
from airflow_s3commit.protocol.model.partition_names import check_partition_names, partition_form
from airflow_s3commit.protocol.model.sealed_job import Counts
from airflow_s3commit.protocol.steps.manifests import history, manifest_files, manifest_of, read_manifest
from airflow_s3commit.protocol.watch.new_manifests import follow

_COLUMNS = (
    Column("generation", right=True),
    Column("committed"),
    Column("mode"),
    Column("files", right=True),
    Column("size", right=True),
    Column("rows", right=True),
    Column("partitions", right=True, room=100),
    Column("replaced", right=True, room=110),
    Column("job", room=150),
    Column("context", room=190, whole=False),
)

#: Maximum number of partitions to show.
_SHOWN = 50


def _since(text: str) -> int | datetime:
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise click.BadParameter(
            f"{text!r} is neither a generation nor a time such as 2026-11-01T06:00"
        ) from error
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


@store_command(
    "log",
    summary="List the commits to a destination, newest first.",
    examples="""
    s3commit log s3://lake/flights/                          the last 20
    s3commit log s3://lake/flights/ --limit 1000
    s3commit log s3://lake/flights/ --since 2026-11-01       what is newer, of the last 20
    s3commit log s3://lake/flights/ --partition dt=2026-11-01
    s3commit log s3://lake/flights/ --follow --since 41      all after 41, then new ones as they come
    s3commit log s3://lake/flights/ --json | jq '.commits[0].generation'
    """,
)
@click.option(
    "--limit", type=click.IntRange(min=1), default=20, show_default=True, help="How many commits to list."
)
@click.option("--job", "only_job", type=as_job_id, metavar="ID", help="List the commit of this job only.")
@click.option(
    "--partition",
    "partitions",
    multiple=True,
    metavar="NAME",
    help="List commits that added files to this partition, such as dt=2026-11-01; repeatable.",
)
@click.option(
    "--since",
    type=_since,
    metavar="GENERATION|TIME",
    help="List commits after this generation, or after this ISO 8601 time (UTC without a time zone).",
)
@click.option(
    "--follow",
    "follows",
    is_flag=True,
    help="List oldest first, then new commits as they come, until Ctrl-C; with --json one object per line.",
)
@click.option(
    "--interval",
    type=as_duration,
    default="5s",
    show_default=True,
    metavar="DURATION",
    help="With --follow: time between two searches for new commits, plus or minus a fifth.",
)
def log(
    session: Session,
    *,
    limit: int,
    only_job: str | None,
    partitions: tuple[str, ...],
    since: int | datetime | None,
    follows: bool,
    interval: float,
) -> ExitCode:
    """List the commits to a destination, newest first: which job added and replaced what, and when.

    The generation is the number by which readers can read the table as it was after the commit. Generation 1
    is the data that was there before the first job. Missing numbers are of aborted jobs and releases. The log
    is read backwards from its newest entry until the limit is reached or, with --since, until a commit is
    older.

    With --follow --since GENERATION, all commits after it are listed, whatever the limit.
    """
    try:
        names = check_partition_names(partitions, "--partition")
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    wanted = {partition_form(name) for name in names}
    if follows:
        if only_job is not None:
            raise click.UsageError("--follow waits for new jobs: it excludes --job")
        return _follow(session, limit, since, wanted, interval)
    with session.output.working("reading the log") as step:
        found = []
        for number_read, record in enumerate(_commits(session, only_job, limit if not wanted else None), 1):
            step(number_read)
            if since is not None and not _is_after(record, since):
                break
            if not wanted or not wanted.isdisjoint(map(partition_form, record.partitions)):
                found.append(record)
            if len(found) == limit:
                break
    value = {"destination": session.destination.uri, "commits": [_value(record) for record in found]}
    if found:
        return session.output.result(value, Table(_COLUMNS, [_row(record) for record in found]))
    nothing = "no such commit is" if only_job or wanted or since is not None else "no commit is"
    return session.output.result(value, Line(f"{nothing} in the log of {session.destination.uri}"))


def _follow(
    session: Session, limit: int, since: int | datetime | None, wanted: set[str], interval: float
) -> ExitCode:
    """List commits as they come, until the user interrupts."""
    store, place = session.store, session.destination

    def show(record: Manifest) -> None:
        if not wanted or not wanted.isdisjoint(map(partition_form, record.partitions)):
            session.output.raw(json.dumps(_value(record)) if session.output.as_json else _line(record))

    try:
        after = since if isinstance(since, int) else 0
        if not isinstance(since, int):
            earlier = list(history(store, place, limit=limit))
            after = earlier[0].generation if earlier else 0
            for record in reversed(earlier):
                if since is None or _is_after(record, since):
                    show(record)
        for record in follow(store, place, after, interval=interval, clock=SystemClock()):
            show(record)
    except KeyboardInterrupt:
        return ExitCode.OK
    raise AssertionError("it follows for ever")


def _commits(session: Session, job_id: str | None, limit: int | None) -> Iterator[Manifest]:
    """Yield commits, newest first; for one job only its commit, without reading the whole log."""
    if job_id is None:
        yield from history(session.store, session.destination, limit=limit)
        return
    with suppress(NoSuchKey):
        yield read_manifest(session.store, session.destination, job_id)


def _is_after(record: Manifest, since: int | datetime) -> bool:
    if isinstance(since, int):
        return record.generation > since
    return record.committed > since.timestamp() * 1000


def _value(record: Manifest) -> dict[str, Any]:
    """Return a commit for scripts; files and bytes of each partition, without statistics of columns."""
    known = _plain(record)
    names = (
        "generation",
        "job_id",
        "committed",
        "conflict_mode",
        "replaced",
        "rolled_back_to",
        "context",
    )
    totals = ("files", "bytes", "rows")
    return {
        **{name: known[name] for name in names},
        "counts": {name: known["counts"][name] for name in totals},
        "partitions": {
            partition: {name: counts[name] for name in totals}
            for partition, counts in known["partitions"].items()
        },
    }


def _row(record: Manifest) -> list[object]:
    return [
        record.generation,
        moment(record.committed),
        record.mode,
        number(record.counts.files),
        size(record.counts.bytes),
        number(record.counts.rows),
        number(len(record.partitions)),
        amount(record.replaced) if record.replaced.files else "",
        record.job_id,
        ", ".join(f"{name} {value}" for name, value in record.context.items()),
    ]


def _line(record: Manifest) -> str:
    """Return a commit as a single line, with columns of typical width."""
    generation, when, mode, files, bytes_, _, partitions, _, job_id, context = map(str, _row(record))
    counts = f"{files:>9} files {bytes_:>9} in {partitions:>5} partitions"
    return plain(f"{generation:>8}  {when}  {mode:<14}  {counts}  {job_id}  {context}".rstrip())


@store_command(
    "manifest",
    summary="Show what a job committed.",
    examples="""
    s3commit manifest s3://lake/flights/                     the last commit
    s3commit manifest s3://lake/flights/ JOB                 one job's
    s3commit manifest s3://lake/flights/ --files             size, rows and key of every file
    s3commit manifest s3://lake/flights/ --files --json | jq -r '.files[].key'
    """,
    job="optional",
)
@click.option("--files", is_flag=True, help="List every file, instead of totals by partition.")
def manifest(session: Session, *, files: bool) -> ExitCode:
    """Show the manifest of the last commit, or of one job. Exit code 1 if there is none.

    It is read from the job's entry in the log, which remains when the job is cleaned up.
    """
    try:
        record = manifest_of(session.store, session.destination, session.job_id)
    except NoSuchKey as error:
        return report_missing(session, str(error))
    if files:
        session.output.stream(
            _plain(record),
            "files",
            manifest_files(session.store, record),
            msgspec.to_builtins,
            _file_line,
        )
        return ExitCode.OK
    return session.output.result(_plain(record), *_manifest_views(record))


def _plain(record: Manifest) -> dict[str, Any]:
    """Return a manifest as JSON values, without the list of files that may be within it."""
    values: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(record, within=None))
    del values["within"]
    return values


def report_missing(session: Session, words: str) -> ExitCode:
    """Report that nothing is committed, with the next step."""
    value = {
        "destination": session.destination.uri,
        "job_id": session.job_id,
        "manifest": None,
        "message": words,
    }
    code = session.output.result(value, Line(words), ok=False)
    step = NextStep("list all jobs, including committed ones", session.commands.line("jobs", "--committed"))
    if session.job_id is not None:
        step = NextStep("show the job's state", session.commands.line("show"))
    session.output.advise([step])
    return code


def _manifest_views(record: Manifest) -> Iterator[View]:
    yield Facts(
        [
            ("job", record.job_id),
            ("destination", record.destination),
            ("committed", moment(record.committed)),
            ("generation", record.generation),
            ("mode", record.mode),
            ("output", f"{amount(record.counts)} in {several(len(record.partitions), 'partition')}"),
            ("replaced", f"{several(record.replaced.files, 'file')}, {size(record.replaced.bytes)}"),
            ("receipt", record.uri),
            *record.context.items(),
        ]
    )
    named = list(record.partitions.items())
    columns = (
        Column("partition", whole=False),
        Column("files", right=True),
        Column("size", right=True),
        Column("rows", right=True),
        Column("columns", right=True, room=90),
    )
    yield Table(columns, [_partition_row(name, counts) for name, counts in named[:_SHOWN]])
    if len(named) > _SHOWN:
        yield Line(f"… and {len(named) - _SHOWN:,} more partitions; --json has them all", "dim")


def _partition_row(partition: str, counts: Counts) -> list[object]:
    columns = number(len(counts.columns)) if counts.columns is not None else ""
    return [partition or "(root)", number(counts.files), size(counts.bytes), number(counts.rows), columns]


def _file_line(entry: FileEntry) -> str:
    rows: Any = entry.rows if entry.rows is not None else "?"
    return f"{entry.size:>14,} {rows:>12}  {entry.key}"

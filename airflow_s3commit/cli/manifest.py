"""Manifest: what a job committed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import msgspec
from rich.console import RenderableType
from rich.text import Text

from airflow_s3commit.cli.command import store_command
from airflow_s3commit.cli.exit_codes import ExitCode
from airflow_s3commit.cli.output import Column, NextStep, facts, table
from airflow_s3commit.cli.session import Session
from airflow_s3commit.cli.wording import amount, moment, number, plain, several, size
from airflow_s3commit.exceptions import NoSuchKey
from airflow_s3commit.protocol.manifest import latest_manifest, manifest_files, read_manifest
from airflow_s3commit.protocol.records import Counts, FileEntry, ManifestRecord

__all__ = ["latest_or_none", "manifest"]

#: So many partitions are shown; --json has all.
_SHOWN = 50


@store_command(
    "manifest",
    summary="Show what a job committed.",
    examples="""
    s3commit manifest s3://lake/flights/                     the last commit
    s3commit manifest s3://lake/flights/ JOB                 one job's
    s3commit manifest s3://lake/flights/ --files             size, rows and key of every file, one a line
    s3commit manifest s3://lake/flights/ --files --json | jq -r '.files[].key'
    """,
    job="optional",
    staging=False,
)
@click.option("--files", is_flag=True, help="List every file, instead of totals by partition.")
def manifest(session: Session, *, files: bool) -> ExitCode:
    """Show what the last job, or one job, committed. Exit code 1 if nothing was.

    The manifest's presence is the proof that a job committed. It stays when the job is cleaned up.
    """
    record = latest_or_none(session) if session.job_id is None else _of_job(session, session.job_id)
    if record is None:
        return ExitCode.FINDINGS
    if files:
        session.output.stream(
            msgspec.to_builtins(record) | {"list": record.files},
            "files",
            manifest_files(session.store, record),
            msgspec.to_builtins,
            _line,
        )
    else:
        session.output.result(msgspec.to_builtins(record), *_views(record, width=session.output.width))
    return ExitCode.OK


def latest_or_none(session: Session) -> ManifestRecord | None:
    """Return the manifest that ``_SUCCESS`` points to; say so and return None if nothing was committed."""
    try:
        return latest_manifest(session.store, session.destination)
    except NoSuchKey:
        _say_nothing(
            session,
            f"no _SUCCESS at {session.destination.uri}: nothing is committed, or a commit is at work",
        )
        words = "see what is under way, and what was committed before"
        session.output.advise([NextStep(words, session.about_all("jobs", "--committed"))])
        return None


def _of_job(session: Session, job_id: str) -> ManifestRecord | None:
    try:
        return read_manifest(session.store, session.destination, job_id)
    except NoSuchKey:
        _say_nothing(
            session,
            f"job {job_id} did not commit to {session.destination.uri}",
        )
        session.output.advise([NextStep("see where it is", session.command("show"))])
        return None


def _say_nothing(session: Session, words: str) -> None:
    value = {
        "destination": session.destination.uri,
        "job_id": session.job_id,
        "manifest": None,
        "message": words,
    }
    session.output.result(value, Text(plain(words)))


def _views(record: ManifestRecord, *, width: int) -> Iterator[RenderableType]:
    yield facts(
        [
            ("job", record.job_id),
            ("destination", record.destination),
            ("committed", moment(record.committed)),
            ("committer", f"{record.committer}, conflict mode {record.conflict_mode}"),
            ("brought", f"{amount(record.counts)} in {several(len(record.partitions), 'partition')}"),
            ("replaced", f"{several(record.replaced.files, 'file')}, {size(record.replaced.bytes)}"),
            ("list of files", record.files),
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
    yield table(columns, (_row(name, counts) for name, counts in named[:_SHOWN]), width=width)
    if len(named) > _SHOWN:
        yield Text(f"… and {len(named) - _SHOWN:,} more partitions; --json has them all", style="dim")


def _row(partition: str, counts: Counts) -> list[object]:
    columns = number(len(counts.columns)) if counts.columns is not None else ""
    return [partition or "(root)", number(counts.files), size(counts.bytes), number(counts.rows), columns]


def _line(entry: FileEntry) -> str:
    rows: Any = entry.rows if entry.rows is not None else "?"
    return f"{entry.size:>14,} {rows:>12}  {entry.key}"

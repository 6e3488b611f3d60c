"""Manifest: shows what a job committed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import msgspec

from airflow_s3commit._format import moment, number, several, size
from airflow_s3commit.cli.command import Session, store_command
from airflow_s3commit.cli.exit_codes import ExitCode
from airflow_s3commit.cli.report import Column, Facts, Line, Table, View
from airflow_s3commit.exceptions import NoSuchKey
from airflow_s3commit.present.facts import amount
from airflow_s3commit.present.next_steps import NextStep
from airflow_s3commit.protocol.metadata.manifests import latest_manifest, manifest_files, read_manifest
from airflow_s3commit.protocol.model.manifest import FileEntry, ManifestRecord
from airflow_s3commit.protocol.model.seal import Counts

#: Maximum number of partitions to show.
_SHOWN = 50


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
    staging=False,
)
@click.option("--files", is_flag=True, help="List every file, instead of totals by partition.")
def manifest(session: Session, *, files: bool) -> ExitCode:
    """Show the manifest of the last commit, or of one job. Exit code 1 if there is none.

    A manifest proves that its job committed. It remains when the job is cleaned up.
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
        return ExitCode.OK
    return session.output.result(msgspec.to_builtins(record), *_views(record))


def latest_or_none(session: Session) -> ManifestRecord | None:
    """Return the manifest of the last commit; report if there is none, and return None."""
    try:
        return latest_manifest(session.store, session.destination)
    except NoSuchKey as error:
        _report_missing(session, str(error))
        words = "list all jobs, including committed ones"
        session.output.advise([NextStep(words, session.commands.line("jobs", "--committed"))])
        return None


def _of_job(session: Session, job_id: str) -> ManifestRecord | None:
    try:
        return read_manifest(session.store, session.destination, job_id)
    except NoSuchKey:
        _report_missing(session, f"job {job_id} has not committed to {session.destination.uri}")
        session.output.advise([NextStep("show the job's state", session.commands.line("show"))])
        return None


def _report_missing(session: Session, words: str) -> None:
    value = {
        "destination": session.destination.uri,
        "job_id": session.job_id,
        "manifest": None,
        "message": words,
    }
    session.output.result(value, Line(words))


def _views(record: ManifestRecord) -> Iterator[View]:
    yield Facts(
        [
            ("job", record.job_id),
            ("destination", record.destination),
            ("committed", moment(record.committed)),
            ("committer", f"{record.committer}, conflict mode {record.conflict_mode}"),
            ("output", f"{amount(record.counts)} in {several(len(record.partitions), 'partition')}"),
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
    yield Table(columns, [_row(name, counts) for name, counts in named[:_SHOWN]])
    if len(named) > _SHOWN:
        yield Line(f"… and {len(named) - _SHOWN:,} more partitions; --json has them all", "dim")


def _row(partition: str, counts: Counts) -> list[object]:
    columns = number(len(counts.columns)) if counts.columns is not None else ""
    return [partition or "(root)", number(counts.files), size(counts.bytes), number(counts.rows), columns]


def _line(entry: FileEntry) -> str:
    rows: Any = entry.rows if entry.rows is not None else "?"
    return f"{entry.size:>14,} {rows:>12}  {entry.key}"

"""Log: lists the commits to a destination."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from airflow_s3commit._format import moment, number, size
from airflow_s3commit.cli.command import Session, store_command
from airflow_s3commit.cli.exit_codes import ExitCode
from airflow_s3commit.cli.report import Column, Line, Table
from airflow_s3commit.present.facts import amount
from airflow_s3commit.protocol.inspect.history import history
from airflow_s3commit.protocol.model.manifest import ManifestRecord

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


@store_command(
    "log",
    summary="List the commits to a destination, newest first.",
    examples="""
    s3commit log s3://lake/flights/                          the last 20
    s3commit log s3://lake/flights/ --limit 1000
    s3commit log s3://lake/flights/ --json | jq '.commits[0].generation'
    """,
    staging=False,
)
@click.option(
    "--limit", type=click.IntRange(min=1), default=20, show_default=True, help="How many commits to list."
)
def log(session: Session, *, limit: int) -> ExitCode:
    """List the commits to a destination, newest first: which job added and replaced what, and when.

    The generation is what readers name to read the table as it was after the commit. Numbers that are
    missing are of jobs that were aborted.
    """
    with session.output.working("reading the log") as step:
        found = []
        for record in history(session.store, session.destination, limit=limit):
            found.append(record)
            step(len(found))
    value = {"destination": session.destination.uri, "commits": [_value(record) for record in found]}
    if not found:
        return session.output.result(value, Line(f"no commit is in the log of {session.destination.uri}"))
    return session.output.result(value, Table(_COLUMNS, [_row(record) for record in found]))


def _value(record: ManifestRecord) -> dict[str, Any]:
    """Return a commit for scripts; files and bytes of each partition, without statistics of columns."""
    known = msgspec.to_builtins(record)
    names = ("generation", "job_id", "committed", "committer", "conflict_mode", "replaced", "context")
    totals = ("files", "bytes", "rows")
    return {
        **{name: known[name] for name in names},
        "counts": {name: known["counts"][name] for name in totals},
        "partitions": {
            partition: {name: counts[name] for name in totals}
            for partition, counts in known["partitions"].items()
        },
    }


def _row(record: ManifestRecord) -> list[object]:
    return [
        record.generation,
        moment(record.committed),
        record.conflict_mode,
        number(record.counts.files),
        size(record.counts.bytes),
        number(record.counts.rows),
        number(len(record.partitions)),
        amount(record.replaced) if record.replaced.files else "",
        record.job_id,
        ", ".join(f"{name} {value}" for name, value in record.context.items()),
    ]

"""Publish: let other engines read a table."""

from __future__ import annotations

import click
from rich.text import Text

from airflow_s3commit._format import several
from airflow_s3commit.cli.command import Session, option, store_command
from airflow_s3commit.cli.output import ExitCode
from airflow_s3commit.cli.report import line
from airflow_s3commit.protocol.model.ddl import ENGINES, ddl
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.publication import publish_table


@store_command(
    """
    s3commit publish s3://lake/flights/               from now on other engines read it as a Delta table
    s3commit publish s3://lake/flights/ --ddl athena  how an engine gets to know it
    """,
)
@option(
    "--ddl",
    "engine",
    type=click.Choice(ENGINES),
    help="Only show the statements by which an engine gets to know the table, once.",
)
@option("--table", "name", default="", metavar="NAME", help="The name there: lake.flights.")
def publish(session: Session, *, engine: str | None, name: str) -> ExitCode:
    """Let other engines read each commit whole, as a version of a Delta table.

    The first version has all files of the table, which must be Parquet files of this package; from then on
    every commit is one. Of a published table it writes the versions that are missing. May be repeated.
    """
    if engine is not None:
        statements = ddl(engine, Destination.of(session.destination), name)
        return session.output.result({"engine": engine, "statements": statements}, Text(statements))
    with session.output.working("publishing"):
        report = publish_table(session.store, session.destination)
    words = (
        f"{report.destination} is a Delta table: generation {report.generation} is version {report.version}"
        f" ({several(report.written, 'version')} written)"
    )
    return session.output.result(report.to_dict(), line(words, "green"))

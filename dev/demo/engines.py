"""Other engines, asked for the rows: plain Spark lists the files, the others read the Delta log."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_s3commit._format import several
from airflow_s3commit.protocol.publication import publish_table
from airflow_s3commit.store.s3.store import S3Store
from airflow_s3commit.testing.programs import ProgramFailed
from dev.demo.unchanged.prepare import s3a_jars, spark_submit
from dev.java import java_home

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rich.console import Console

    from airflow_s3commit.protocol.model.destination import Destination
    from airflow_s3commit.store.s3.config import S3Config

#: The rows of each day, by its name.
Days = dict[str, int]


def ask_engines(
    console: Console, config: S3Config, destination: Destination, expected: Days, home: Path
) -> bool:
    """Publish the dataset, and show in a line what each engine sees; return whether all are right.

    Args:
        console: Where the lines are shown.
        config: Address and keys of the store.
        destination: The dataset.
        expected: The rows of each day with a commit.
        home: Where Java and the jars of Hadoop's S3A are kept; Spark fetches them once, 18 MB.
    """
    report = publish_table(S3Store.connect(config), destination)
    console.print(f"published: generation {report.generation} is version {report.version} of a Delta table")
    options = {
        "AWS_ENDPOINT_URL": config.endpoint_url or "",
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": config.region or "",
        "AWS_ACCESS_KEY_ID": config.access_key or "",
        "AWS_SECRET_ACCESS_KEY": config.secret_key or "",
    }
    right = True
    engines: dict[str, Callable[[str, Mapping[str, str]], Days]] = {"polars": _polars, "DuckDB": _duckdb}
    try:
        java = java_home(home / "java")
        engines["plain Spark"] = partial(_spark, java, s3a_jars(home, java))
    except ProgramFailed as error:
        console.print(f"plain Spark is not asked: {error}")
    for name, ask in engines.items():
        found = ask(destination.uri, options)
        same = found == expected
        right = right and same
        verdict = "[green]right[/]" if same else "[bold red]wrong[/]"
        console.print(f"{name} sees {sum(found.values()):,} rows of {several(len(found), 'day')}: {verdict}")
    return right


def _spark(java: Path, jars: Path, uri: str, options: Mapping[str, str]) -> Days:
    conf = {
        "spark.master": "local[2]",
        "spark.driver.extraClassPath": f"{jars}/*",
        "spark.hadoop.fs.s3a.endpoint": options["AWS_ENDPOINT_URL"],
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
    }
    arguments = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    program = str(Path(__file__).parent / "unchanged" / "count.py")
    printed = spark_submit(java, *arguments, program, uri.replace("s3:", "s3a:", 1), environment=options)
    days: Days = json.loads(printed.splitlines()[-1])
    return days


def _polars(uri: str, options: Mapping[str, str]) -> Days:
    import polars as pl  # noqa: PLC0415 - the story needs none of these

    counted = pl.scan_delta(uri, storage_options=dict(options)).group_by("dt").len().collect()
    return {str(day): rows for day, rows in counted.iter_rows()}


def _duckdb(uri: str, options: Mapping[str, str]) -> Days:
    import duckdb  # noqa: PLC0415
    from deltalake import DeltaTable  # noqa: PLC0415

    flights = duckdb.from_arrow(DeltaTable(uri, storage_options=dict(options)).to_pyarrow_dataset().scanner())
    counted = flights.aggregate("dt, count(*)")
    return {str(day): rows for day, rows in counted.fetchall()}

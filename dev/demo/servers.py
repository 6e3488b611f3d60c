"""The servers of the demo, one inside the other: Java found, S3 started, Airflow wired to both."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console

from airflow_s3commit.exceptions import S3CommitError
from airflow_s3commit.testing.programs import ProgramFailed, end_in_order_on_signals
from airflow_s3commit.testing.s3_server import S3Server
from dev.airflow_api import ApiError
from dev.airflow_home import AirflowHome
from dev.demo.unchanged.prepare import s3a_jars, unchanged_dags
from dev.java import NoJava, java_home

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager, ExitStack
    from pathlib import Path

    from airflow_s3commit.store.s3.config import S3Config

#: Spark only listens on loopback, and its user interface is off.
SPARK_DEFAULTS = """\
spark.driver.bindAddress 127.0.0.1
spark.driver.host 127.0.0.1
spark.driver.memory 1g
spark.sql.shuffle.partitions 2
spark.ui.enabled false
spark.ui.showConsoleProgress false
"""


def exit_code_of(work: Callable[[Console, Path], bool], home: Path) -> int:
    """Do work in its own directory, show how it ends, and return the exit code.

    What the last run left in the directory is removed first: the directories that a demo or a stack makes,
    and nothing else. Signals end the work in order.

    Args:
        work: A function of the console and the directory; returns whether everything that it checked held.
        home: The directory, which no other process may use meanwhile.
    """
    # Without a terminal no width is known, and the tables must not break.
    console = Console(width=None if sys.stdout.isatty() else 132, highlight=False)
    end_in_order_on_signals()
    began = time.monotonic()
    try:
        with _own_directory(home.absolute()):
            held = work(console, home.absolute())
    except KeyboardInterrupt:
        console.print("\n[yellow]Interrupted.[/] Everything that was started is stopped.")
        return 128 + signal.SIGINT
    except (ProgramFailed, NoJava, ApiError, S3CommitError) as error:
        console.print("[bold red]It could not go on:[/]")
        for part in (str(error), *getattr(error, "__notes__", ())):
            console.print(part, markup=False, soft_wrap=True)
        return 1
    verdict = "[bold green]Every check held.[/]" if held else "[bold red]Not every check held, see ✗.[/]"
    console.print(f"{verdict} It took {time.monotonic() - began:.0f} s; logs are in {home}.")
    return 0 if held else 1


@contextmanager
def _own_directory(home: Path) -> Iterator[None]:
    home.mkdir(parents=True, exist_ok=True)
    names = ("airflow", "s3", "spark", "java")
    if not (home / "lock").exists() and (others := [name for name in names if (home / name).exists()]):
        raise ProgramFailed(
            f"{home / others[0]} is of no earlier run, and would be removed: choose another --home"
        )
    with (home / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ProgramFailed(f"another one runs in {home}: stop it, or choose another --home") from error
        for name in names:
            shutil.rmtree(home / name, ignore_errors=True)
        yield


def start(
    stack: ExitStack,
    home: Path,
    dags: Path,
    dag_ids: Sequence[str],
    step: Callable[[str], AbstractContextManager[None]],
    *,
    unchanged: bool = False,
) -> tuple[S3Server, AirflowHome]:
    """Start S3 and Airflow, and return them when these DAGs can run.

    Args:
        stack: Closing it stops what was started, Airflow first.
        home: The directory for all files.
        dags: The directory with the DAG files.
        dag_ids: The DAGs.
        step: Returns a context manager that shows the named step while it runs.
        unchanged: Whether the nights run a Spark job with Spark's own writer.
    """
    if not dags.is_dir():
        raise ProgramFailed(f"no DAGs at {dags}: run the demo from a checkout, or name them with --dags")
    with step("Java for Spark"):
        java = java_home(home / "java")
    defaults = SPARK_DEFAULTS
    if unchanged:
        with step("the jars of Hadoop's S3A"):
            defaults += f"spark.driver.extraClassPath {s3a_jars(home, java)}/*\n"
        dags = unchanged_dags(home, dags)
    with step("SeaweedFS, an S3 server on loopback, with keys made just now"):
        server = stack.enter_context(S3Server(home / "s3"))
    with step("Airflow: database, API server, scheduler, DAG processor"):
        environment = connections(server.config) | spark_environment(home / "spark", java, defaults)
        airflow = stack.enter_context(AirflowHome(home / "airflow", dags, environment))
        airflow.wait_until_ready(dag_ids)
    return server, airflow


def connections(store: S3Config, spark_master: str = "local[2]") -> dict[str, str]:
    """Return the connections that the DAGs name, as Airflow reads them from its environment."""
    aws = {
        "conn_type": "aws",
        "login": store.access_key,
        "password": store.secret_key,
        "extra": {
            "endpoint_url": store.endpoint_url,
            "region_name": store.region,
            "config_kwargs": {"s3": {"addressing_style": "path"}},
        },
    }
    spark = {
        "conn_type": "spark",
        "host": spark_master,
        "extra": {"deploy-mode": "client", "spark-binary": "spark-submit"},
    }
    return {
        "AIRFLOW_CONN_AWS_DEFAULT": json.dumps(aws),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(spark),
        # The demo does not use the keys and profiles of the user who runs it.
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def spark_environment(directory: Path, java: Path, defaults: str = SPARK_DEFAULTS) -> dict[str, str]:
    """Write Spark's configuration into a directory, and return the variables that make Spark use it."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "spark-defaults.conf").write_text(defaults)
    return {
        "JAVA_HOME": str(java),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_CONF_DIR": str(directory),
        "SPARK_LOCAL_DIRS": str(directory / "scratch"),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }

"""The servers of the demo, one inside the other: Java found, S3 started, Airflow wired to both."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow_s3commit.testing.java import java_home
from airflow_s3commit.testing.programs import ProgramFailed
from airflow_s3commit.testing.s3_server import S3Server
from dev.airflow_home import AirflowHome
from dev.demo.unchanged.prepare import s3a_jars, unchanged_dags

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager, ExitStack
    from pathlib import Path

    from airflow_s3commit.store.s3.config import S3Config

#: Spark listens on loopback alone, and its user interface nowhere.
SPARK_DEFAULTS = """\
spark.driver.bindAddress 127.0.0.1
spark.driver.host 127.0.0.1
spark.driver.memory 1g
spark.sql.shuffle.partitions 2
spark.ui.enabled false
spark.ui.showConsoleProgress false
"""


@contextmanager
def own_directory(home: Path) -> Iterator[Path]:
    """Make ``home`` an empty directory for this process alone, for as long as the ``with`` block runs.

    What the last run left there is removed first, and nothing else: only the directories a demo makes.

    Raises:
        ProgramFailed: Another process is using it.

    """
    home = home.absolute()
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ProgramFailed(
                f"another demo is running in {home}: stop it, or choose another --home"
            ) from error
        for name in ("airflow", "s3", "spark", "java"):
            shutil.rmtree(home / name, ignore_errors=True)
        yield home


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
        home: Where all of it lies.
        dags: The directory with the DAG files.
        dag_ids: The DAGs.
        step: Makes a context manager that shows a step by its name while the step takes its time.
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
    """Write Spark's configuration into a directory, and return the variables with which Spark works there."""
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

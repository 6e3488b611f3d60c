"""One Airflow, on PostgreSQL if there is one, with SeaweedFS behind it, and Spark if it is needed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_s3commit import S3Store
from airflow_s3commit.testing import S3Server
from airflow_s3commit.testing.programs import free_ports
from dev import airflow_api, airflow_home
from dev.demo.servers import connections, spark_environment
from dev.java import java_home
from tests.hadoop.real_hadoop import Hadoop
from tests.integration.airflow_live.airflow import LiveAirflow
from tests.integration.airflow_live.asset_rows import ASSET_STORIES
from tests.integration.airflow_live.cluster_rows import CLUSTER_STORIES
from tests.integration.airflow_live.control import (
    CONTROL,
    COUNTED,
    PASSWORD,
    S3A_JARS,
    SPARK_CLUSTER,
    WAREHOUSE,
)
from tests.integration.airflow_live.matrix import STORIES
from tests.integration.airflow_live.scenario import Played, Run, Stage, play
from tests.integration.airflow_live.sensor_rows import SENSOR_STORIES
from tests.integration.airflow_live.sql_rows import SQL_STORIES
from tests.spark_cluster.cluster import Cluster
from tests.store.s3.relay import relay

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
DAGS = Path(__file__).parent / "dags"

#: A variable that makes these tests use SQLite even if there is a PostgreSQL.
NO_POSTGRES = "S3COMMIT_LIVE_SQLITE"

#: One DAG of each file: once Airflow knows these, it knows all.
KNOWN = (
    "committed",
    "fifty_deferred",
    "sealed_and_lost",
    "file_removed",
    "month",
    "spark_killed",
    "assets_told",
    "flights_report_on_commit",
    "beside",
    "code_changed",
)

#: All stories; the first ones take the longest.
ALL_STORIES = {**SENSOR_STORIES, **CLUSTER_STORIES, **SQL_STORIES, **STORIES, **ASSET_STORIES}


@pytest.fixture(scope="package")
def asked_for(request: pytest.FixtureRequest) -> list[str]:
    """Return the stories that the selected tests judge."""
    named = [item.callspec.params for item in request.session.items if _is_of_a_story(item)]
    return [name for name in ALL_STORIES if any(params["name"] == name for params in named)]


def _is_of_a_story(item: pytest.Item) -> bool:
    return Path(__file__).parent in item.path.parents and "played" in getattr(item, "fixturenames", ())


@pytest.fixture(scope="package")
def stage(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, asked_for: list[str]
) -> Iterator[Stage]:
    """Run everything, for as long as the tests here take."""
    home = tmp_path_factory.mktemp("live")
    with (
        _patience(),
        S3Server(home / "s3") as server,
        relay(server.endpoint_url) as counting,
        _database(home) as url,
    ):
        known = connections(server.config)
        environment = {
            **known,
            f"AIRFLOW_CONN_{COUNTED.upper()}": _with_endpoint(
                known["AIRFLOW_CONN_AWS_DEFAULT"], counting.endpoint_url
            ),
            f"AIRFLOW_CONN_{WAREHOUSE.upper()}": json.dumps({"conn_type": "generic", "password": PASSWORD}),
            **spark_environment(home / "spark", java_home(home / "java")),
            CONTROL: str(home / "control"),
            "PYTHONPATH": str(ROOT),
        }
        if SQL_STORIES.keys() & set(asked_for):
            hadoop = Hadoop.get("3.5.0", request.config.cache.mkdir("hadoop"))
            environment[S3A_JARS] = ":".join(hadoop.jars_for_spark)
        cluster = _cluster(home, server, environment) if CLUSTER_STORIES.keys() & set(asked_for) else None
        with cluster or nullcontext():
            if cluster is not None:
                environment[f"AIRFLOW_CONN_{SPARK_CLUSTER.upper()}"] = _connection(cluster)
            settings = {
                "DATABASE__SQL_ALCHEMY_CONN": url,
                "DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": _bundles(home / "dags"),
            }
            with LiveAirflow(home / "airflow", DAGS, environment, settings) as airflow:
                airflow.wait_until_ready(KNOWN)
                store = S3Store.connect(server.config)
                yield Stage(airflow, store, home / "control", home / "dags", url, counting, cluster)


@pytest.fixture(scope="package")
def played(stage: Stage, asked_for: list[str]) -> Played:
    """Play the selected rows side by side, and look at their destinations after all have ended."""
    runs = {name: Run(stage, name, "row") for name in asked_for}
    failures = play(stage, {name: ALL_STORIES[name](run) for name, run in runs.items()})
    return Played(failures, {name: run.left() for name, run in runs.items()})


def _cluster(home: Path, server: S3Server, environment: dict[str, str]) -> Cluster:
    """Return a cluster with room for three drivers and their executors, which have their own keys."""
    own = {
        "AWS_ACCESS_KEY_ID": server.access_key,
        "AWS_SECRET_ACCESS_KEY": server.secret_key,
        "PYSPARK_PYTHON": sys.executable,
    }
    kept = ("PYTHONPATH", "JAVA_HOME", "SPARK_LOCAL_IP", "AWS_EC2_METADATA_DISABLED", CONTROL)
    (home / "cluster").mkdir()
    inherited = {name: environment[name] for name in kept}
    return Cluster(home / "cluster", {**inherited, **own}, cores=6, rest=True)


def _connection(cluster: Cluster) -> str:
    """Return the connection of a cluster's master, for drivers that run on the cluster."""
    extra = {"deploy-mode": "cluster", "rest-port": cluster.rest_port}
    known = {"conn_type": "spark", "host": "spark://127.0.0.1", "port": cluster.port, "extra": extra}
    return json.dumps(known)


def _with_endpoint(connection: str, endpoint_url: str) -> str:
    """Return an ``aws`` connection to the same store at another address."""
    known = json.loads(connection)
    known["extra"]["endpoint_url"] = endpoint_url
    return json.dumps(known)


def _bundles(home: Path) -> str:
    """Return the sources of DAGs: the rows', one file of the project's, and those that rows change."""
    home.mkdir()
    for file in (ROOT / "dags" / "flights_daily_report.py", *(DAGS.parent / "project").glob("*.py")):
        shutil.copy(file, home)
    local = "airflow.dag_processing.bundles.local.LocalDagBundle"
    bundles = [
        {"name": "dags-folder", "classpath": local, "kwargs": {}},
        {"name": "project", "classpath": local, "kwargs": {"path": str(home)}},
    ]
    return json.dumps(bundles)


@contextmanager
def _patience() -> Iterator[None]:
    """Give Airflow the time that it needs on a machine where other tests run at the same time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(airflow_api, "TIMEOUT", 240.0)
        patch.setattr(airflow_home, "START_SECONDS", 480.0)
        yield


@contextmanager
def _database(home: Path) -> Iterator[str]:
    """Run PostgreSQL if Debian's is on this machine, and return its URL; otherwise that of an SQLite."""
    if shutil.which("pg_virtualenv") is None or os.environ.get(NO_POSTGRES):
        yield f"sqlite:///{home / 'airflow.db'}"
        return
    # A cluster of its own on loopback, with a password. It goes when the command ends, which is at the end of
    # its input: with this block or this process.
    (port,) = free_ports(1)
    answer, told = os.pipe()  # by /dev/fd: a shell may only know one-digit descriptors
    say = f'echo "postgresql+psycopg2://$PGUSER:$PGPASSWORD@$PGHOST:$PGPORT/$PGDATABASE" >/dev/fd/{told}; cat'
    with (home / "postgres.log").open("wb") as log, os.fdopen(answer) as lines:
        server = subprocess.Popen(
            ["pg_virtualenv", "-t", "-o", "max_connections=200", "sh", "-c", say],
            env=os.environ | {"PGPORT": str(port)},
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=[told],
        )
        os.close(told)
        with server:
            url = lines.readline().strip()
            assert url, (home / "postgres.log").read_text()
            yield url

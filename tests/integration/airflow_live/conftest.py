"""One Airflow, on PostgreSQL where there is one, with SeaweedFS behind it."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_s3commit.demo import airflow_api, airflow_home
from airflow_s3commit.demo.java import java_home
from airflow_s3commit.demo.postgres import PostgresServer
from airflow_s3commit.demo.seaweed import SeaweedServer
from airflow_s3commit.demo.stack import _connections, _spark
from airflow_s3commit.store.s3 import S3Store
from tests.integration.airflow_live.airflow import LiveAirflow
from tests.integration.airflow_live.control import CONTROL
from tests.integration.airflow_live.scenario import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
DAGS = Path(__file__).parent / "dags"

#: A variable that, if set, has these tests run on SQLite although there is a PostgreSQL.
NO_POSTGRES = "S3COMMIT_LIVE_SQLITE"


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Run the whole of it, for as long as the tests here take."""
    home = tmp_path_factory.mktemp("live")
    with _patience(), SeaweedServer(home / "s3") as server, _database(home) as url:
        environment = {
            **_connections(server),
            **_spark(home / "spark", java_home(home / "java")),
            CONTROL: str(home / "control"),
            "PYTHONPATH": str(ROOT),
        }
        settings = {"DATABASE__SQL_ALCHEMY_CONN": url}
        with LiveAirflow(home / "airflow", DAGS, environment, settings) as airflow:
            airflow.wait_until_ready(["committed", "month"])
            yield Stage(airflow, S3Store.connect(server.config), home / "control", url)


@contextmanager
def _patience() -> Iterator[None]:
    """Give Airflow the time that it takes on a machine where other tests run at the same time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(airflow_api, "TIMEOUT", 240.0)
        patch.setattr(airflow_home, "START_SECONDS", 480.0)
        yield


@contextmanager
def _database(home: Path) -> Iterator[str]:
    """Run PostgreSQL if this machine has it, and return where; else say where an SQLite is to be."""
    if not PostgresServer.available() or os.environ.get(NO_POSTGRES):
        yield f"sqlite:///{home / 'airflow.db'}"
        return
    with PostgresServer(home / "postgres.log") as server:
        yield server.url()

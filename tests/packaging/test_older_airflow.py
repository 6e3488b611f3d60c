"""The wheel on the older versions of Airflow that it supports, each with what its release was made with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.packaging.conftest import uv

if TYPE_CHECKING:
    from airflow_s3commit import S3Store
    from airflow_s3commit.testing import S3Server
    from tests.packaging.conftest import Distributions

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

pytestmark = [
    pytest.mark.all,
    pytest.mark.seaweedfs,
    pytest.mark.spark,
    pytest.mark.timeout(1800),
    pytest.mark.xdist_group("older-airflow"),
]

SUCCESS = dict.fromkeys(("", "refresh.setup", "refresh.spark_submit", "refresh.resolve_conflicts"), "success")


@pytest.fixture(scope="session", params=["3.1", "3.2"])
def release(request: pytest.FixtureRequest) -> str:
    """Return a version of Airflow, whose last release and its libraries are in a file beside this one."""
    return str(request.param)


@pytest.fixture(scope="session")
def came_of_it(
    release: str, distributions: Distributions, seaweed: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """Install the wheel beside that Airflow, and run the project's DAGs there; return what came of them."""
    home = tmp_path_factory.mktemp(f"airflow-{release}")
    python = home / "venv" / "bin" / "python"
    uv("venv", "--quiet", "--python", sys.executable, str(home / "venv"))
    uv(
        *("pip", "install", "--quiet", "--python", str(python)),
        *("--constraint", str(HERE / f"airflow-{release}.txt")),
        f"airflow-s3commit[spark-submit,tables] @ {distributions.wheel.as_uri()}",
    )
    # Spark is in this process's environment, as the page on installing advises.
    programs = sysconfig.get_path("scripts")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "AIRFLOW"))},
        "AIRFLOW_HOME": str(home / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "AIRFLOW_CONN_AWS_DEFAULT": json.dumps(
            {
                "conn_type": "aws",
                "login": seaweed.config.access_key,
                "password": seaweed.config.secret_key,
                "extra": {"endpoint_url": seaweed.endpoint_url, "region_name": "us-east-1"},
            }
        ),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
        "PATH": os.pathsep.join([programs, os.environ["PATH"]]),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": "",
    }
    done = subprocess.run(
        [python, HERE / "on_airflow.py", ROOT / "dags", f"s3://lake/airflow-{release}/flights/"],
        env=environment,
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def test_everything_is_imported_and_parsed(release: str, came_of_it: dict[str, Any]) -> None:
    """Every module is imported, and every DAG parsed but the one that needs events of partitions."""
    assert came_of_it["version"].startswith(f"{release}.")
    assert (came_of_it["not imported"], came_of_it["not parsed"]) == ({}, {})
    assert came_of_it["dags"] == [
        "flights_daily_report",
        "multi_stage_refresh",
        "nightly_flights_refresh",
        "sweep_orphan_uploads",
    ]


def test_an_audit_that_asks_waits_in_the_triggerer(came_of_it: dict[str, Any]) -> None:
    """Before Airflow 3.3 a task cannot wait for an answer by itself, so a trigger of Airflow does."""
    assert came_of_it["asking"] == ["TaskDeferred", "airflow.providers.standard.triggers.hitl.HITLTrigger"]


def test_a_night_commits_and_its_report_reads_it(came_of_it: dict[str, Any]) -> None:
    """The nightly makes a day visible, and the sensor of the report finds its manifest."""
    assert came_of_it["nightly"] == {
        **SUCCESS,
        "refresh.commit": "success",
        "refresh.abort": "success",
    }
    assert {*came_of_it["report"].values()} == {"success"}


def test_a_failing_night_is_aborted(came_of_it: dict[str, Any]) -> None:
    """A stage that fails after its uploads fails the run, and its teardown leaves nothing pending."""
    failing = came_of_it["failing"]
    assert (failing[""], failing["refresh.spark_submit"], failing["refresh.abort"]) == (
        "failed",
        "failed",
        "failed",
    )
    assert failing["refresh.commit"] == "upstream_failed"


def test_a_backfill_commits_its_day(release: str, came_of_it: dict[str, Any], seaweed_store: S3Store) -> None:
    """A backfill's run commits too; afterwards the table has the two days, and nothing is pending."""
    (run,) = came_of_it["backfill"]
    assert run == {**SUCCESS, "refresh.commit": "success", "refresh.abort": "success"}
    place = f"airflow-{release}/flights/"
    names = [info.key.removeprefix(place) for info in seaweed_store.list_objects("lake", place)]
    # Airflow 3.2 takes the date of a run, which refreshes the day before it.
    day = "dt=2013-01-03" if release == "3.1" else "dt=2013-01-02"
    assert {name.partition("/")[0] for name in names if name.startswith("dt=")} == {"dt=2013-01-01", day}
    assert not list(seaweed_store.list_uploads("lake", place))

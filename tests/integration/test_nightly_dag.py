"""The DAGs of the project, run by Airflow through a real ``spark-submit`` against a real S3 server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from datetime import date
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from airflow_s3commit import Destination, latest_manifest, manifest_files
from airflow_s3commit.testing.java import java_home

if TYPE_CHECKING:
    from airflow_s3commit import S3Store
    from airflow_s3commit.testing import S3Server

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.spark,
    pytest.mark.seaweedfs,
    pytest.mark.timeout(1800),
    # Large groups are begun first; alone, this would be the last test to end.
    pytest.mark.xdist_group("dag_steps"),
]

ROOT = Path(__file__).parents[2]

#: Seconds that Airflow may take for all of it; on two idle cores it takes a tenth.
TIMEOUT = 1500.0

FIRST, SECOND = "2013-01-01", "2013-01-02"


def run(tmp_path: Path, server: S3Server, runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Let Airflow run DAGs in a home of its own; return the outcomes."""
    home = tmp_path / "airflow"
    home.mkdir(exist_ok=True)
    aws = {
        "conn_type": "aws",
        "login": server.access_key,
        "password": server.secret_key,
        "extra": {"endpoint_url": server.endpoint_url, "region_name": "us-east-1"},
    }
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "AWS"))}
    environment = {
        **clean,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "JAVA_HOME": str(java_home(tmp_path)),
        "SPARK_LOCAL_IP": "127.0.0.1",
        # For every JVM of every spark-submit: these do too little to be worth compiling twice.
        "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "AIRFLOW_CONN_AWS_DEFAULT": json.dumps(aws),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[1]"}),
    }
    told = tmp_path / "outcomes.json"
    asked = {"dags": str(ROOT / "dags"), "runs": runs, "outcomes": str(told)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.airflow_run"],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        env=environment,
        cwd=ROOT,
        check=False,
        timeout=TIMEOUT,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-6000:]
    assert server.secret_key not in said
    (tmp_path / "airflow.log").write_text(said)
    return json.loads(told.read_text())


def errors_in(log: Path) -> str:
    """Return what a log says of errors, so that a failure is understood after its directory is gone."""
    lines = log.read_text().splitlines()
    return "\n".join(line[:400] for line in lines if "rror:" in line or "xception:" in line)


def nightly(day: str, destination: str, **conf: Any) -> dict[str, Any]:
    """Return a run of the nightly DAG for one day."""
    return {
        "dag": "nightly_flights_refresh",
        "date": day,
        # dag.test() lets one run's conf linger in the DAG's params, so every run says all it wants.
        "conf": {
            "day": day,
            "destination": destination,
            "conflict_mode": "fail",
            "fail_after_uploads": False,
            **conf,
        },
    }


def carriers(store: S3Store, destination: Destination, day: str) -> Counter[str]:
    """Count a day's flights by carrier, in the files that the last manifest lists."""
    counted: Counter[str] = Counter()
    for file in manifest_files(store, latest_manifest(store, destination)):
        assert file.partition == f"dt={day}"
        body = store.get(destination.bucket, file.key).body
        counted.update(pq.read_table(BytesIO(body), columns=["carrier"])["carrier"].to_pylist())
    return counted


def flights_of(day: str) -> Counter[str]:
    """Count a day's flights by carrier, in the package that they come from."""
    sys.path.insert(0, str(ROOT / "dags" / "jobs"))
    try:
        import flights  # noqa: PLC0415
    finally:
        sys.path.pop(0)
    return Counter(flights.flights_of(date.fromisoformat(day))["carrier"].to_pylist())


def test_a_night_a_report_and_a_replacement(
    seaweed: S3Server, seaweed_store: S3Store, prefix: str, tmp_path: Path
) -> None:
    """The report counts the rows of the night, and a second refresh of the day replaces its files."""
    destination = Destination("lake", f"{prefix}flights/")
    report = {
        "dag": "flights_daily_report",
        "date": FIRST,
        "conf": {"day": FIRST, "destination": destination.uri},
    }
    first, reported, replaced = run(
        tmp_path,
        seaweed,
        [
            nightly(FIRST, destination.uri),
            report,
            nightly(FIRST, destination.uri, conflict_mode="replace"),
        ],
    )
    states = [each["state"] for each in (first, reported, replaced)]
    assert states == ["success"] * 3, errors_in(tmp_path / "airflow.log")
    assert first["xcoms"]["refresh.commit"]["rows"] == 842
    assert reported["xcoms"]["flights_by_carrier"] == dict(flights_of(FIRST).most_common())

    assert replaced["xcoms"]["refresh.commit"]["replaced_files"] == 3
    assert carriers(seaweed_store, destination, FIRST) == flights_of(FIRST)
    assert [key.split("/")[2] for key in left_at(seaweed_store, destination)] == [f"dt={FIRST}"] * 3
    assert len(json.dumps(first["xcoms"])) < 4000


@pytest.mark.all
def test_a_night_that_fails_leaves_nothing(
    seaweed: S3Server, seaweed_store: S3Store, prefix: str, tmp_path: Path
) -> None:
    """A Spark application that fails after its uploads fails the run and leaves nothing."""
    destination = Destination("lake", f"{prefix}flights/")
    (failed,) = run(tmp_path, seaweed, [nightly(SECOND, destination.uri, fail_after_uploads=True)])
    assert failed["state"] == "failed"
    assert failed["tasks"]["refresh.spark_submit"] == "failed"
    assert failed["tasks"]["refresh.commit"] == "upstream_failed"
    assert left_at(seaweed_store, destination) == []


def left_at(store: S3Store, destination: Destination) -> list[str]:
    """Return the keys of a destination's files; no upload is pending there, and no job has a staging."""
    keys = [info.key for info in store.list_objects("lake", destination.prefix)]
    assert not [key for key in keys if "__magic" in key and "_s3commit/" not in key]
    assert list(store.list_uploads("lake", destination.prefix)) == []
    return [key for key in keys if key.endswith(".parquet")]

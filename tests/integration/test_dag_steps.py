"""Every DAG of the project under ``dag.test()``, against a real S3 server; one night with Spark itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_s3commit import Destination, latest_manifest, manifest_files, read_manifest
from dev.java import java_home

if TYPE_CHECKING:
    from airflow_s3commit import S3Store
    from airflow_s3commit.testing import S3Server

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.spark,
    pytest.mark.seaweedfs,
    pytest.mark.xdist_group("dag_steps"),
    pytest.mark.timeout(1800),  # the first test waits until every step has been taken
]

ROOT = Path(__file__).parents[2]

#: Seconds that Airflow may take for all of it; on two idle cores it takes a tenth.
TIMEOUT = 1500.0

DAY, NEXT = "2013-01-01", "2013-01-02"
AIRPORTS = ("EWR", "JFK", "LGA")
TABLES = ("flights", "weather")


@pytest.fixture(scope="module")
def place() -> Destination:
    """Return this module's own place on the server."""
    return Destination("lake", f"dag-steps-{os.getpid()}/")


@pytest.fixture(scope="module")
def outcomes(
    seaweed: S3Server, place: Destination, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """Take all steps in one Airflow process, and return the outcome of each by its name."""
    flights, nyc = f"{place.uri}flights/", f"{place.uri}nyc/"
    steps = {
        "nightly": {**_night(flights), "real_spark": True},
        "report": _run("flights_daily_report", flights),
        "started": {"started_by_events": "flights_report_on_commit"},
        "by hand": _run("flights_report_on_commit", flights),
        "refused": _night(flights),
        "replaced": _night(flights, conflict_mode="replace"),
        "failed": _night(flights, day=NEXT, fail_after_uploads=True),
        "approved": _two_tables(nyc, "Approve"),
        "rejected": _two_tables(nyc, "Reject"),
        "sweep": {
            **_run("sweep_orphan_uploads", nyc),
            "conf": {"destination": nyc, "older_than_days": 7, "dry_run": True},
        },
    }
    told = _take(seaweed, list(steps.values()), tmp_path_factory.mktemp("airflow"))
    return dict(zip(steps, told, strict=True))


def _run(dag: str, destination: str, **conf: Any) -> dict[str, Any]:
    told = {"day": DAY, "destination": destination, **conf}
    return {"dag": dag, "date": told["day"], "conf": told}


def _night(destination: str, **conf: Any) -> dict[str, Any]:
    # dag.test() lets one run's conf linger in the DAG's params, so every run states all of it.
    return _run(
        "nightly_flights_refresh",
        destination,
        **{"conflict_mode": "fail", "fail_after_uploads": False, **conf},
    )


def _two_tables(destination: str, answer: str) -> dict[str, Any]:
    """Return a run whose audit fails, and the answer."""
    asked = {"conflict_mode": "replace", "min_rows": 1_000, "on_failed_audit": "ask"}
    return {**_run("multi_stage_refresh", destination, **asked), "answer": answer}


def _take(server: S3Server, steps: list[dict[str, Any]], home: Path) -> list[Any]:
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
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "JAVA_HOME": str(java_home(home / "java")),
        "SPARK_LOCAL_IP": "127.0.0.1",
        # The one application does too little to be worth compiling twice.
        "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW_CONN_AWS_DEFAULT": json.dumps(aws),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[1]"}),
    }
    asked = {"dags": str(ROOT / "dags"), "steps": steps, "outcomes": str(home / "outcomes.json")}
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.dag_steps"],
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
    return json.loads((home / "outcomes.json").read_text())


def flights_of(day: str) -> dict[str, int]:
    """Count a day's flights by carrier, in the package that they come from."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "dags" / "jobs")
        from flights import flights_of as told  # noqa: PLC0415

        return dict(Counter(told(date.fromisoformat(day))["carrier"].to_pylist()).most_common())


def test_a_commit_updates_two_assets(outcomes) -> None:
    """The table's event has no key and the partition's has one; both have manifest, rows and counts."""
    nightly = outcomes["nightly"]
    assert nightly["state"] == "success"
    events = {event["asset"]: event for event in nightly["events"]}
    assert (events["flights"]["key"], events["flight_days"]["key"]) == (None, f"dt={DAY}")
    extra = events["flight_days"]["extra"]
    assert extra["manifest"] == nightly["xcoms"]["refresh.commit"]["manifest"]
    assert extra["partition_counts"][f"dt={DAY}"]["rows"] == extra["rows"] == 842


def test_the_report_waits_for_the_commit(outcomes) -> None:
    """The scheduled report finds the manifest and counts the rows that Spark wrote, in the listed files."""
    report = outcomes["report"]
    assert report["state"] == "success"
    assert report["xcoms"]["flights_by_carrier"] == flights_of(DAY)


def test_the_scheduler_starts_the_report_of_the_day(outcomes) -> None:
    """The partition's event makes one run, with the mapper's key and date; it reads the event's commit."""
    (started,) = outcomes["started"]
    assert (started["state"], started["partition_key"]) == ("success", DAY)
    assert started["partition_date"].startswith(DAY)
    told = started["xcoms"]["commit_that_brought"]
    assert told["partition_counts"][f"dt={DAY}"]["files"] == 3
    assert started["xcoms"]["flights_by_carrier"] == flights_of(DAY)


def test_the_report_of_the_day_by_hand(outcomes) -> None:
    """Without events it finds the newest commit of the day."""
    by_hand = outcomes["by hand"]
    nightly = outcomes["nightly"]["xcoms"]["refresh.commit"]
    assert (by_hand["state"], by_hand["xcoms"]["commit_that_brought"]) == ("success", nightly)


def test_a_day_with_data_is_refused(outcomes) -> None:
    """With the conflict mode ``fail`` the second run of the night fails before its commit, and is aborted."""
    refused = outcomes["refused"]
    assert refused["state"] == "failed"
    assert refused["tasks"]["refresh.resolve_conflicts"] == "failed"
    assert refused["tasks"]["refresh.commit"] == "upstream_failed"
    assert refused["tasks"]["refresh.abort"] == "failed"


def test_a_repeated_night_replaces_its_files(outcomes, seaweed_store: S3Store, place: Destination) -> None:
    """A second refresh of the day replaces the files of the first."""
    replaced = outcomes["replaced"]
    assert replaced["state"] == "success"
    assert replaced["xcoms"]["refresh.commit"]["replaced_files"] == 3
    flights = Destination.parse(f"{place.uri}flights/")
    listed = [file.key for file in manifest_files(seaweed_store, latest_manifest(seaweed_store, flights))]
    there = [info.key for info in seaweed_store.list_objects("lake", f"{flights.prefix}dt=")]
    assert (there, len(listed)) == (listed, 1)


def test_a_night_that_fails_leaves_nothing(outcomes, seaweed_store: S3Store, place: Destination) -> None:
    """An application that fails after its uploads fails the run, and nothing of it is visible."""
    failed = outcomes["failed"]
    assert failed["state"] == "failed"
    assert failed["tasks"]["refresh.spark_submit"] == "failed"
    assert failed["tasks"]["refresh.commit"] == "upstream_failed"
    assert list(seaweed_store.list_objects("lake", f"{place.prefix}flights/dt={NEXT}")) == []


def test_mapped_stages_and_mapped_parts_are_one_commit(
    outcomes, seaweed_store: S3Store, place: Destination
) -> None:
    """Six stage instances of two tables are committed in two parts, after an approval."""
    approved = outcomes["approved"]
    assert approved["state"] == "success", approved["tasks"]
    assert approved["xcoms"]["refresh.audit"]["decision"]["approved_by"] == "alice"
    stages = [approved["xcoms"][f"refresh.{table}[{number}]"] for table in TABLES for number in range(3)]
    assert [stage["stage"] for stage in stages] == [
        f"refresh.{table}.{number}" for table in TABLES for number in range(3)
    ]
    assert {approved["tasks"][f"refresh.commit_parts[{number}]"] for number in (0, 1)} == {"success"}
    summary = approved["xcoms"]["refresh.commit"]
    assert (summary["files"], summary["partitions"]) == (6, 6)
    nyc = Destination.parse(f"{place.uri}nyc/")
    record = read_manifest(seaweed_store, nyc, summary["job_id"])
    wanted = {f"table={table}/dt={DAY}/airport={airport}" for table in TABLES for airport in AIRPORTS}
    assert {file.partition for file in manifest_files(seaweed_store, record)} == wanted
    assert {event["key"] for event in approved["events"]} == wanted | {None}


def test_a_rejected_refresh_leaves_nothing(outcomes, seaweed_store: S3Store, place: Destination) -> None:
    """The run fails, its job is aborted, and the table stays as the approved run left it."""
    rejected = outcomes["rejected"]
    assert rejected["state"] == "failed"
    tasks = rejected["tasks"]
    assert (tasks["refresh.audit"], tasks["refresh.abort"]) == ("failed", "failed")
    assert tasks["refresh.commit"] == "upstream_failed"
    assert rejected["events"] == []
    listed = seaweed_store.list_objects("lake", f"{place.prefix}nyc/table=")
    job = outcomes["approved"]["xcoms"]["refresh.commit"]["job_id"]
    assert [job in info.key for info in listed] == [True] * 6


def test_the_sweep_finds_nothing_to_do(outcomes) -> None:
    """A dry run after all other steps names no job and no upload."""
    swept = outcomes["sweep"]
    assert swept["state"] == "success"
    found = swept["xcoms"]["sweep"]["found"]
    assert (found["jobs"], found["uploads"]) == (0, 0)


def test_nothing_stays_pending(outcomes, seaweed_store: S3Store, place: Destination) -> None:
    """After all of the runs there is no pending upload, and no job's staging."""
    assert list(seaweed_store.list_uploads("lake", place.prefix)) == []
    keys = [info.key for info in seaweed_store.list_objects("lake", place.prefix)]
    assert not [key for key in keys if "__magic" in key and "_s3commit/" not in key]

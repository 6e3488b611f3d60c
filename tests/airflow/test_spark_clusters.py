"""Stages on clusters: YARN, Kubernetes and standalone, as far as their configuration decides what happens."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

from airflow_s3commit import links
from airflow_s3commit.hooks import S3CommitHook
from airflow_s3commit.operators import S3CommitSparkSubmitOperator
from airflow_s3commit.operators.spark_submit import stage_name
from airflow_s3commit.protocol.model.layout import check_id
from tests.airflow.runs import TaskStateStore, new_context, set_up, write_stage

STAGE = "refresh.spark_submit"


@pytest.fixture
def cluster(store, monkeypatch) -> SimpleNamespace:
    """A cluster behind the real operator and the real hook; only the program is not started."""
    seen = SimpleNamespace(submitted=[], writes=True, driver=None, reference=None)

    def submit(hook: SparkSubmitHook, application: str = "") -> str | None:
        seen.submitted.append(hook._build_spark_submit_command(application))
        conf = hook._conf
        if seen.writes:
            attempt = conf["spark.s3commit.stage.attempt"]
            write_stage(store, seen.reference, stage=STAGE, attempt=attempt)
        return seen.driver

    monkeypatch.setattr(SparkSubmitHook, "submit", submit)
    monkeypatch.setattr(S3CommitHook, "_explicit_keys", lambda self: {})
    return seen


def connect(monkeypatch: pytest.MonkeyPatch, host: str, **extra: Any) -> None:
    """Define the Spark connection."""
    scheme = {"conn_type": "spark", "host": host, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(scheme))


def stage_task(cluster: SimpleNamespace, reference: dict, **arguments: Any) -> S3CommitSparkSubmitOperator:
    """Return the stage's task."""
    cluster.reference = reference
    return S3CommitSparkSubmitOperator(task_id=STAGE, job=reference, application="flights.py", **arguments)


@pytest.mark.parametrize(
    ("status", "attempt"), [("RUNNING", "1"), ("FINISHED", "1"), ("FAILED", "2"), ("KILLED", "2")]
)
def test_a_standalone_driver_is_found_again(store, cluster, monkeypatch, status, attempt) -> None:
    """The seal of a living or finished driver counts under its own attempt; a dead one is replaced."""
    connect(monkeypatch, "spark://master", **{"deploy-mode": "cluster"})
    reference, remembered = set_up(store), TaskStateStore()
    remembered.set("s3commit.stage_attempt", {"job_id": reference["job_id"], "stage_attempt": "1"})
    remembered.set("spark_job_id", "driver-1")
    cluster.driver, submissions = "driver-2", int(attempt == "2")

    def fetched(operator: SparkSubmitOperator, url: str, driver: str) -> str:
        # The driver seals while it is being looked at: the operator asked for its seal before.
        if not submissions:
            write_stage(store, reference, stage=STAGE, attempt="1")
        return status

    def tracked(hook: SparkSubmitHook) -> None:
        hook._driver_status = "FINISHED"

    monkeypatch.setattr(SparkSubmitOperator, "_fetch_driver_status", fetched)
    monkeypatch.setattr(SparkSubmitHook, "_start_driver_status_tracking", tracked)
    output = stage_task(cluster, reference).execute(new_context(2, remembered))
    assert (output["stage_attempt"], len(cluster.submitted)) == (attempt, submissions)
    assert remembered["spark_job_id"] == ("driver-2" if submissions else "driver-1")
    if submissions:
        (command,) = cluster.submitted
        assert "spark.s3commit.stage.attempt=2" in command


def test_plain_values_become_text(store, cluster, monkeypatch) -> None:
    """Numbers, booleans and nothing, from native templates, are what ``spark-submit`` can read."""
    connect(monkeypatch, "local[1]")
    task = stage_task(
        cluster,
        set_up(store),
        application_args=["--day", 5, True],
        conf={"spark.a": True, "spark.b": 2, "spark.c": None},
    )
    task.execute(new_context())
    (command,) = cluster.submitted
    assert command[-3:] == ["--day", "5", "true"]
    assert {"spark.a=true", "spark.b=2"} <= set(command)
    assert not [word for word in command if word.startswith("spark.c")]


def test_the_seal_is_linked_and_of_the_job(store, cluster, monkeypatch) -> None:
    """The XCom names the job, and the link leads to the jobs of the run."""
    connect(monkeypatch, "local[1]")
    reference = set_up(store)
    task = stage_task(cluster, reference)
    output = task.execute(new_context())
    (link,) = task.operator_extra_links
    assert output["job_id"] == reference["job_id"]
    monkeypatch.setattr(links, "page_destinations", lambda: "s3://lake/flights/")
    assert "s3commit/run?dag_id=nightly" in link.get_link(
        task, ti_key=SimpleNamespace(dag_id="nightly", run_id="r")
    )


def test_each_instance_of_each_task_has_a_stage_of_its_own() -> None:
    """Groups, mapped instances and long names never share a stage."""
    tasks = ["a.load", "b.load", "load", f"{'g' * 140}.load", f"{'g' * 140}.look"]
    names = [stage_name(task, index) for task in tasks for index in (-1, 0, 1)]
    assert len(set(names)) == len(names)
    assert max(map(len, names)) <= 128


@pytest.mark.parametrize("task_id", ["läufe", "laufe", "_load", "日報", "-"])
def test_any_task_s_id_makes_a_stage(task_id: str) -> None:
    """Airflow takes letters of any alphabet, and any of its characters first; names stay apart."""
    assert check_id(stage_name(task_id), "stage")
    assert stage_name(task_id) != stage_name(f"{task_id}ä")

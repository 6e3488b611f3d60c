"""Stages whose Spark drivers run on a standalone cluster: found again, taken over, killed with their task."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.airflow_live.cluster_rows import TASK, driver_state
from tests.integration.airflow_live.scenario import Played, Run, Stage

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.seaweedfs,
    pytest.mark.spark,
    pytest.mark.all,
    pytest.mark.xdist_group("airflow-live"),
    pytest.mark.timeout(1800),  # the first test waits until every story has been played
    pytest.mark.skipif(
        not Path("/usr/bin/curl").exists(), reason="Spark's provider watches drivers with curl"
    ),
]


@pytest.mark.parametrize("name", ["cluster_reconnected", "cluster_sealed"])
def test_a_retry_takes_what_the_first_driver_wrote(name: str, stage: Stage, played: Played) -> None:
    """A driver that outlives its task is found again, and one that failed after its seal is not repeated."""
    run, left, report = Run(stage, name, "row"), played.left[name], stage.airflow.report(name, "row")
    assert name not in played.failures, f"{played.failures[name]}\n{report}"
    assert run.state == "success", report
    assert run.tasks()["spark_submit"] == ("success", 2), report
    api = stage.airflow.api
    assert api.xcom(name, "row", TASK)["stage_attempt"] == "1", report
    assert driver_state(run) == ("FINISHED" if name == "cluster_reconnected" else "FAILED"), report
    committed = api.xcom(name, "row", "refresh.commit")
    assert (committed["rows"], committed["files"], len(left.visible)) == (1000, 2, 2), report
    assert (left.pending, left.staging) == ([], []), report


@pytest.mark.parametrize("name", ["cluster_killed"])
def test_a_driver_dies_with_its_task(name: str, stage: Stage, played: Played) -> None:
    """Marking the task as failed kills the driver and its executors, and the job is aborted."""
    run, left, report = Run(stage, name, "row"), played.left[name], stage.airflow.report(name, "row")
    assert name not in played.failures, f"{played.failures[name]}\n{report}"
    assert run.state == "failed", report
    assert {task: run.tasks()[task][0] for task in ("spark_submit", "abort")} == {
        "spark_submit": "failed",
        "abort": "failed",
    }, report
    assert driver_state(run) == "KILLED", report
    assert not Path(f"/proc/{run.place.read('held.spark.1')['task']}").exists()
    assert (left.visible, left.pending, left.staging) == ({}, [], []), report

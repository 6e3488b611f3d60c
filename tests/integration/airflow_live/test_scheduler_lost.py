"""A scheduler is lost with all of its tasks, while two runs write and another one commits."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.integration.airflow_live.matrix import settled
from tests.integration.airflow_live.scenario import Run, Story, play

if TYPE_CHECKING:
    from tests.integration.airflow_live.scenario import Stage

pytestmark = [
    pytest.mark.all,
    pytest.mark.airflow,
    pytest.mark.seaweedfs,
    pytest.mark.xdist_group("airflow-live"),
    pytest.mark.timeout(1800),
]

#: What each run's files must contain, by the DAG. Airflow repeats lost tasks, those without retries too.
SAID = {
    "lost_with_retries": b"row try 2",
    "lost_without_retries": b"row try 2",
    "lost_in_commit": b"row try 1",
}


def scheduler_lost(*runs: Run) -> Story:
    """The scheduler and its tasks get SIGKILL; when Airflow misses it, another scheduler continues."""
    *writing, committing = runs
    for run in runs:
        run.start()
    for run in writing:
        yield run.held("write")
    yield committing.held("commit")
    airflow = writing[0].stage.airflow
    airflow.lose("scheduler")
    yield "Airflow misses its scheduler", lambda: not airflow.api.healthy("scheduler")
    for run in writing:
        left = run.left()
        assert (left.visible, len(left.pending)) == ({}, 2)
    airflow.begin("scheduler")
    for run in writing:
        yield run.held("write", 2)
        run.go("write", "finish", 2)
    for run in runs:
        yield from settled(run)


def test_another_scheduler_ends_what_the_lost_one_began(stage: Stage) -> None:
    """The stages are retried and their first tries never show; the commit continues where it was killed."""
    runs = [Run(stage, dag_id, "row") for dag_id in SAID]
    failures = play(stage, {"lost": scheduler_lost(*runs)})
    report = "\n".join(stage.airflow.report(run.dag_id, run.run_id) for run in runs)
    assert failures == {}, f"{failures}\n{report}"
    for run in runs:
        left = run.left()
        assert run.state == "success", report
        assert Counter(left.visible.values()) == {SAID[run.dag_id]: 2}, report
        assert (left.pending, left.staging) == ([], []), report

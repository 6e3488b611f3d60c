"""Every way a run can end, for real: uncommitted output is gone, and the run's state says so."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.integration.airflow_live.matrix import STORIES
from tests.integration.airflow_live.scenario import Played, Run, Stage

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.seaweedfs,
    pytest.mark.spark,
    pytest.mark.all,
    pytest.mark.xdist_group("airflow-live"),
    pytest.mark.timeout(1800),  # the first test waits until every story has been played
]


@dataclass(frozen=True, slots=True)
class Ending:
    """How a row must end.

    Attributes:
        state: The run's state: success only if the job committed.
        visible: What readers see, by content.
        tasks: States of tasks that say that it ended for the reason it should have.
        task_callback: Whether Airflow must (or must not) have called the stage's own failure callback; None
            where nothing is said of it.
    """

    state: str
    visible: tuple[bytes, ...] = ()
    tasks: tuple[tuple[str, str], ...] = ()
    task_callback: bool | None = None


def committed(said: str, files: int = 2, **tasks: str) -> Ending:
    """Return the ending of a run that committed the files of one try of its stage."""
    return Ending("success", (said.encode(),) * files, tuple(tasks.items()))


def aborted(*, task_callback: bool | None = None, **tasks: str) -> Ending:
    """Return the ending of a run that committed nothing, and whose teardown said so."""
    return Ending("failed", (), tuple({"abort": "failed", **tasks}.items()), task_callback)


ENDINGS = {
    "committed": committed("row try 1", abort="success"),
    "stage_raises": aborted(task_callback=True, write="failed", commit="upstream_failed"),
    "retried": committed("row try 2", abort="success"),
    # The try that Airflow calls successful counts, whatever an earlier one has sealed.
    "sealed_and_lost": committed("row try 2", files=1, abort="success"),
    "named_sealed_and_lost": committed("row try 2", files=1, abort="success"),
    "application_found_again": committed("row try 1", files=1, abort="success"),
    "named_without_output": aborted(seal_and_vanish="success", resolve_conflicts="failed"),
    "marked_success_when_sealed": committed("row try 1", files=1, seal_and_vanish="success"),
    "marked_success_too_soon": aborted(write="success", resolve_conflicts="failed"),
    "skipped": Ending("success", (), (("commit", "skipped"), ("abort", "success"))),
    "one_of_two_skipped": committed("row try 1", no_data_today="skipped", commit="success", abort="success"),
    "one_of_two_skipped_by_default": aborted(write="success", no_data_today="skipped", commit="skipped"),
    "nothing_written": Ending("success", (), (("resolve_conflicts", "skipped"), ("commit", "skipped"))),
    "empty_committed": Ending("success", (), (("no_data_today", "skipped"), ("commit", "success"))),
    "empty_refused": Ending("failed", (b"old",), (("resolve_conflicts", "failed"), ("abort", "failed"))),
    "emptied": Ending("success", (), (("commit", "success"), ("abort", "success"))),
    "stage_timed_out": aborted(task_callback=True, write="failed"),
    "task_killed": aborted(task_callback=False, write="failed"),
    "node_lost": aborted(task_callback=True, write="failed"),
    "task_marked_failed": aborted(task_callback=False, write="failed"),
    "run_marked_failed": aborted(task_callback=False, write="failed"),
    # Airflow skips the teardown with everything else: only the DAG's notifier aborts.
    "run_timed_out": Ending("failed", (), (("write", "skipped"), ("abort", "skipped"))),
    "run_timed_out_by_default": Ending("failed", (), (("write", "skipped"), ("abort", "skipped"))),
    "run_timed_out_and_swept": Ending("failed", (), (("write", "skipped"), ("abort", "skipped"))),
    "setup_fails": Ending("failed", (b"old",), (("setup", "failed"), ("abort", "upstream_failed"))),
    "cleared_while_running": committed("row try 2", abort="success"),
    "sensor_marked_failed": aborted(write="success", wait="failed"),
    "run_marked_failed_while_deferred": aborted(write="success", wait="failed"),
    "file_removed": committed("row try 1", abort="success"),
    "triggerer_killed": committed("row try 1", wait="success"),
    "spark_killed": aborted(spark_submit="failed"),
    # Its audit fails and asks a human.
    "approved": committed("row try 1", audit="success", commit="success", abort="success"),
    "rejected": aborted(audit="failed", commit="upstream_failed"),
    "commit_killed": committed("row try 1", commit="success", abort="success"),
    # Nothing was computed again, although the run was cleared twice.
    "store_away": committed("row try 1", write="success", commit="success", abort="success"),
    "commit_marked_failed": aborted(commit="failed"),
    # The data is visible for good, so the teardown finishes the commit, and success is the truth.
    "commit_marked_failed_too_late": committed("row try 1", commit="failed", abort="success"),
}


@pytest.mark.parametrize("name", STORIES)
def test_a_row_of_the_matrix(name: str, stage: Stage, played: Played) -> None:
    """Nothing is visible that was not committed, nothing is pending, and the run's state tells the truth."""
    ending, left, run = ENDINGS[name], played.left[name], Run(stage, name, "row")
    report = stage.airflow.report(name, "row")

    assert name not in played.failures, f"{played.failures[name]}\n{report}"
    assert run.state == ending.state, report
    assert sorted(left.visible.values()) == sorted(ending.visible), report
    assert left.pending == [], report
    assert left.staging == [], report

    tasks = {task: state for task, (state, _) in run.tasks().items()}
    assert {task: tasks.get(task) for task, _ in ending.tasks} == dict(ending.tasks), report
    # The DAG's callback is called, and it is the right one.
    assert run.place.said("dag-failed") == (ending.state == "failed"), report
    assert run.place.said("dag-succeeded") == (ending.state == "success"), report
    if ending.task_callback is not None:
        assert run.place.said("task-failed") == ending.task_callback, report


def test_every_row_has_an_ending() -> None:
    """Every row that is played is judged."""
    assert ENDINGS.keys() == STORIES.keys()

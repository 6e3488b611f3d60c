"""Branches and short circuits in front of a commit group's stages, in runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from airflow.sdk import DAG, get_current_context, task

from airflow_s3commit.hooks import S3CommitHook
from airflow_s3commit.task_group import s3_commit_task_group
from tests.airflow.dag_runs import Scheduled
from tests.airflow.runs import pending

if TYPE_CHECKING:
    from airflow_s3commit import MemoryStore

pytestmark = pytest.mark.xdist_group("airflow-dag-runs")


@task
def load(job: dict[str, str]) -> None:
    """Write and seal one file, named by the task."""
    name = get_current_context()["ti"].task_id.rpartition(".")[2]
    opened = S3CommitHook().job(job)
    with opened.task_attempt(name, "1", "00000", "0") as writing:
        with writing.open(f"{name}.csv") as file:
            file.write(b"rows")
        written = writing.commit()
    opened.seal_stage(name, "1", [written])


@task.branch
def choose() -> list[str]:
    """Choose none of the stages."""
    return []


@task.short_circuit(ignore_downstream_trigger_rules=False)
def is_needed() -> bool:
    """Say no."""
    return False


@pytest.mark.parametrize("check", [choose, is_needed], ids=["branch", "short_circuit"])
def test_a_check_in_front_of_a_stage_skips_that_stage_alone(store: MemoryStore, check) -> None:
    """With ``ignore`` the commit takes what the other stage wrote, if the check itself is no stage."""
    dag_id = f"with_{check.function.__name__}"
    with (
        DAG(dag_id, schedule=None) as dag,
        s3_commit_task_group(destination=f"s3://lake/{dag_id}/", skipped_stages="ignore") as commit,
    ):
        check() >> commit.stage(load.override(task_id="needless")(commit.job))
        commit.stage(load.override(task_id="needed")(commit.job))
    run = Scheduled([dag]).by_hand(dag_id)
    assert (run.state, run.tasks["s3_commit.needless"]) == ("success", "skipped"), run.tasks
    data = [info.key for info in store.list_objects("lake", f"{dag_id}/") if info.key.endswith(".csv")]
    assert [key.partition("-")[0] for key in data] == [f"{dag_id}/needed"]
    assert pending(store) == []

"""One DAG for each way in which a run can go wrong, except those with Spark."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param

from airflow_s3commit.operators import (
    S3CommitAbortOperator,
    S3CommitResolveConflictsOperator,
    S3CommitSetupOperator,
    S3CommitSweepOperator,
)
from airflow_s3commit.sensors import S3SuccessManifestSensor
from tests.integration.airflow_live.control import RUN_TIMEOUT
from tests.integration.airflow_live.row_dag import KILL_WINDOW, group, row
from tests.integration.airflow_live.stages import (
    DAY,
    HeldCommit,
    away_in_first_try,
    no_data_today,
    noting,
    write,
)


def task_failed() -> dict[str, Any]:
    """Return the arguments of a task that notes that its own callback was called."""
    return {"on_failure_callback": noting("task-failed")}


for name, late in (
    ("committed", False),
    ("stage_raises", False),
    ("task_killed", False),
    ("node_lost", False),
    ("task_marked_failed", True),
    ("run_marked_failed", True),
    ("lost_without_retries", False),
):
    with row(name) as dag, group(dag) as commit:
        commit.stage(write.override(**task_failed())(commit.job, late=late))

with row("skipped") as dag, group(dag) as commit:
    commit.stage(no_data_today(commit.job))

with row("one_of_two_skipped") as dag, group(dag, skipped_stages="ignore") as commit:
    commit.stage(write(commit.job, hold=False))
    commit.stage(no_data_today(commit.job))

for name in ("retried", "lost_with_retries"):
    with row(name) as dag, group(dag) as commit:
        commit.stage(write.override(retries=1, retry_delay=timedelta(seconds=1))(commit.job))

with row("cleared_while_running") as dag, group(dag) as commit:
    commit.stage(write(commit.job, late=True))

with row("stage_timed_out") as dag, group(dag) as commit:
    commit.stage(write.override(execution_timeout=timedelta(seconds=20), **task_failed())(commit.job))

for name, seconds in (
    # It waits for Airflow on a busy machine: the first XCom that a callback asks for takes long.
    ("run_timed_out", 180),
    ("run_timed_out_and_swept", 0),
):
    with row(name, notifier_seconds=seconds, dagrun_timeout=RUN_TIMEOUT) as dag, group(dag) as commit:
        commit.stage(write(commit.job, late=True))

# Its runs name a destination that no longer has a job.
with DAG("sweep", schedule=None, params={"destination": Param(type="string")}):
    S3CommitSweepOperator(
        task_id="sweep", destination="{{ params.destination }}", older_than="0s", apply=True
    )

# The group adds the notifier, with its own short time limit.
with row("run_timed_out_by_default", dagrun_timeout=RUN_TIMEOUT) as dag, group(dag) as commit:
    commit.stage(write(commit.job, late=True))

with row("setup_fails") as dag, group(dag, committer="directory", conflict_mode="fail") as commit:
    commit.stage(write(commit.job))

for name in ("sensor_marked_failed", "run_marked_failed_while_deferred", "triggerer_killed"):
    with row(name) as dag, group(dag) as commit:
        written = commit.stage(write(commit.job, hold=False))
        waits = S3SuccessManifestSensor(
            task_id="wait",
            destination=f"s3://lake/{name}.upstream/",
            partitions=[f"dt={DAY}"],
            deferrable=True,
            poke_interval=1,
            timeout=600,
        )
        written >> commit.stage(waits)

for name in ("approved", "rejected"):
    audit = {"min_rows": 1000, "on_fail": "ask", "response_timeout": timedelta(minutes=10)}
    with row(name) as dag, group(dag, audit=audit) as commit:
        commit.stage(write(commit.job, hold=False))

with row("store_away") as dag:
    with group(dag, retries=0) as commit:
        commit.stage(write(commit.job, hold=False))
    away_in_first_try(commit.commit)

for name, held_at in (
    ("commit_killed", "first file"),
    ("lost_in_commit", "first file"),
    ("commit_marked_failed", "first file"),
    ("commit_marked_failed_too_late", "receipt"),
):
    with row(name) as dag:
        setup = S3CommitSetupOperator(
            task_id="setup", destination=f"s3://lake/{name}/", committer="magic", conflict_mode="replace"
        )
        stage = write(setup.output, hold=False)
        resolve = S3CommitResolveConflictsOperator(task_id="resolve", job=setup.output)
        commit_task = HeldCommit(
            task_id="commit",
            job=setup.output,
            conflicts=resolve.output,
            held_at=held_at,
            retries=2,
            retry_delay=timedelta(seconds=1),
        )
        abort = S3CommitAbortOperator(task_id="abort", job=setup.output, kill_window=KILL_WINDOW)
        setup >> stage >> resolve >> commit_task
        commit_task >> abort.as_teardown(setups=setup, on_failure_fail_dagrun=True)

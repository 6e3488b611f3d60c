"""What users write around a commit: mappings that change, runs that start others or wait for the last one."""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, CronPartitionTimetable

from airflow_s3commit.params import conflict_mode_param
from tests.integration.airflow_live.control import WAREHOUSE
from tests.integration.airflow_live.row_dag import group, row
from tests.integration.airflow_live.stages import cannot_sign_in, parts, write, write_part

for name in ("mapping_shrinks", "one_instance_cleared"):
    with row(name) as dag:
        chosen = parts()
        with group(dag, conflict_mode="replace") as commit:
            commit.stage(write_part.partial(job=commit.job).expand(part=chosen))

with DAG("triggering", schedule=None):
    TriggerDagRunOperator(
        task_id="go",
        trigger_dag_id="triggered",
        trigger_run_id="of-{{ run_id }}",
        wait_for_completion=True,
        poke_interval=2,
    )

with row("triggered") as dag, group(dag) as commit:
    commit.stage(write(commit.job, hold=False))

with row("secret_in_template") as dag, group(dag) as commit:
    commit.stage(write(commit.job, hold=False))
    commit.stage(cannot_sign_in(f"{{{{ conn.{WAREHOUSE}.password }}}}"))

with (
    row("past", start_date=datetime(2013, 1, 1, tzinfo=UTC), default_args={"depends_on_past": True}) as dag,
    group(dag, conflict_mode="replace") as commit,
):
    commit.stage(write(commit.job))

with (
    row(
        "beside",
        schedule=CronPartitionTimetable("0 0 * * *", timezone="UTC", key_format="%Y-%m-%d"),
        start_date=datetime(2013, 1, 1, tzinfo=UTC),
        end_date=datetime(2014, 1, 1, tzinfo=UTC),
        catchup=False,
        params={"conflict_mode": conflict_mode_param()},
    ) as dag,
    group(dag) as commit,
):
    commit.stage(write(commit.job))

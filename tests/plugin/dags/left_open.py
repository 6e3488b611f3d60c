"""Three DAGs whose runs set a job up and leave it."""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_s3commit.operators import S3CommitSetupOperator

for dag_id in ("left_open", "left_open_too", "left_to_end"):
    with DAG(dag_id, schedule=None):
        S3CommitSetupOperator(
            task_id="setup",
            destination="s3://lake/flights/",
            conflict_mode="append",
            aws_conn_id="lake",
        )

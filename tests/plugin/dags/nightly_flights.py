"""A run that sets a job up, writes to it and commits it, without Spark."""

from __future__ import annotations

from airflow.sdk import dag, task

from airflow_s3commit.operators import S3CommitJobOperator, S3CommitSetupOperator
from airflow_s3commit.params import conflict_mode_param


@task
def write(job: dict[str, str]) -> None:
    """Write a day as two tasks of a stage."""
    from airflow_s3commit.hooks import S3CommitHook  # noqa: PLC0415

    opened, committed = S3CommitHook("lake").job(job), []
    for number in range(2):
        with opened.task_attempt("write", "1", f"{number:05d}", "0") as writing:
            output = writing.open(f"dt=2013-01-31/part-{number:05d}.parquet")
            output.write(b"row" * 1000)
            output.close(rows=1000)
            committed.append(writing.commit())
    opened.seal_stage("write", "1", committed)
    opened.seal()


@dag(schedule=None, params={"conflict_mode": conflict_mode_param("append")})
def nightly_flights() -> None:
    """Refresh the flights of one day."""
    setup = S3CommitSetupOperator(task_id="setup", destination="s3://lake/flights/", aws_conn_id="lake")
    written = write(setup.output)  # type: ignore[arg-type]
    written >> S3CommitJobOperator(task_id="commit", job=setup.output, aws_conn_id="lake")


nightly_flights()

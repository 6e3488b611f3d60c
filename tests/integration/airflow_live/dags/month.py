"""A partitioned refresh like the nightly one, with a stage that costs nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import CronPartitionTimetable, dag

from airflow_s3commit.params import conflict_mode_param
from airflow_s3commit.task_group import s3_commit_task_group
from tests.integration.airflow_live.stages import write_day


@dag(
    schedule=CronPartitionTimetable("0 0 * * *", timezone="UTC", key_format="%Y-%m-%d"),
    start_date=datetime(2013, 1, 1, tzinfo=UTC),
    end_date=datetime(2014, 1, 1, tzinfo=UTC),
    catchup=False,
    params={"conflict_mode": conflict_mode_param()},
)
def month() -> None:
    """Refresh one day."""
    with s3_commit_task_group("refresh", destination="s3://lake/month/", kill_window=8.0) as commit:
        stage = write_day.override(retries=2, retry_delay=timedelta(seconds=1))
        commit.stage(stage(commit.job))


month()

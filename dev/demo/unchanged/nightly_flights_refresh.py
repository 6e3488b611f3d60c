"""Every night, yesterday's flights, by a Spark job with Spark's own writer.

Its save mode says what is replaced: a dynamic overwrite replaces the day that it writes, in a backfill too.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.sdk import Asset, Param, dag

from airflow_s3commit.airflow_version import CronPartitionTimetable
from airflow_s3commit.notifications import AbortUploadsNotifier
from airflow_s3commit.task_group import s3_commit_task_group


@dag(
    schedule=CronPartitionTimetable("0 0 * * *", timezone="UTC", run_offset=-1, key_format="%Y-%m-%d"),
    start_date=datetime(2013, 1, 1, tzinfo=UTC),
    end_date=datetime(2014, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    dagrun_timeout=timedelta(hours=2),
    on_failure_callback=AbortUploadsNotifier(),
    params={"fail_after_uploads": Param(default=False, type="boolean")},
    doc_md=__doc__,
    tags=["s3commit", "flights"],
)
def nightly_flights_refresh() -> None:
    """Refresh one day."""
    with s3_commit_task_group(
        "refresh",
        destination="s3://lake/flights/",
        outlets=[Asset("flights")],
        partition_asset=Asset("flight_days"),
    ) as commit:
        commit.spark_submit(
            application=str(Path(__file__).parent / "jobs" / "flights.py"),
            application_args=[
                "--day",
                "{{ partition_key }}",
                "--destination",
                "s3a://lake/flights/",
                "--fail-after-write={{ params.fail_after_uploads | lower }}",
            ],
            name="nightly-flights",
            writer="spark",
        )


nightly_flights_refresh()

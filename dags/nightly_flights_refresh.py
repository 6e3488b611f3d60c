"""Every night, yesterday's flights: written by Spark as pending uploads, and made visible by one commit.

Each run refreshes one day, which is one partition of the dataset. Backfills replace the days they touch:
``airflow backfill create --dag-id nightly_flights_refresh --from-date 2013-01-01 --to-date 2013-01-07``.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pendulum
from airflow.sdk import Asset, Param, dag

from airflow_s3commit.airflow_version import CronPartitionTimetable
from airflow_s3commit.notifications import AbortUploadsNotifier
from airflow_s3commit.params import conflict_mode_param
from airflow_s3commit.task_group import s3_commit_task_group

#: A partitioned run has its day as the partition key; any other run uses the param, or its date.
DAY = "{{ partition_key or params.day or (dag_run.logical_date or dag_run.run_after) | ds }}"
DESTINATION = "{{ params.destination or var.value.get('flights_destination', 's3://lake/flights/') }}"

#: The dataset; its events have its location, what changed, and the run's partition key if it has one. With a
#: key they start no DAG with ``schedule=[flights]``: see docs/how-to/assets-and-partitions.md.
flights = Asset("flights")

#: Its days: one event for each partition that a commit added to, which starts the report of that day.
flight_days = Asset("flight_days")


@dag(
    schedule=CronPartitionTimetable("0 0 * * *", timezone="UTC", run_offset=-1, key_format="%Y-%m-%d"),
    start_date=pendulum.datetime(2013, 1, 1, tz="UTC"),
    end_date=pendulum.datetime(2014, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,
    dagrun_timeout=timedelta(hours=2),
    on_failure_callback=AbortUploadsNotifier(),
    params={
        "conflict_mode": conflict_mode_param(),
        "day": Param(
            None,
            type=["null", "string"],
            format="date",
            title="Day",
            description="The day to refresh, for runs without a partition key.",
        ),
        "destination": Param(
            None,
            type=["null", "string"],
            title="Destination",
            description="s3://bucket/prefix/; by default the Variable flights_destination, else the lake.",
        ),
        "fail_after_uploads": Param(
            default=False,
            type="boolean",
            title="Fail after the uploads",
            description="Make the Spark application fail after all uploads, to see what is left behind.",
        ),
    },
    doc_md=__doc__,
    tags=["s3commit", "flights"],
)
def nightly_flights_refresh() -> None:
    """Refresh one day."""
    with s3_commit_task_group(
        "refresh", destination=DESTINATION, outlets=[flights], partition_asset=flight_days
    ) as commit:
        commit.spark_submit(
            application=str(Path(__file__).parent / "jobs" / "flights.py"),
            application_args=[
                "--day",
                DAY,
                "--destination",
                DESTINATION,
                "--fail-after-write={{ params.fail_after_uploads | lower }}",
            ],
            name="nightly-flights",
        )


nightly_flights_refresh()

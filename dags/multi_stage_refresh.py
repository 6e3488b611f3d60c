"""Flights and weather of a day, refreshed together: two mapped stages, an audit, and one commit.

Six Spark applications write, one for each table and airport. One commit makes either all of their output
visible or none, so a day's flights are never committed without its weather. Before the commit an audit checks
the output; if it fails, somebody is asked whether to commit anyway.
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

DAY = "{{ partition_key or params.day or (dag_run.logical_date or dag_run.run_after) | ds }}"
DESTINATION = "{{ params.destination or var.value.get('nyc_destination', 's3://lake/nyc/') }}"
AIRPORTS = ("EWR", "JFK", "LGA")
TABLES = ("flights", "weather")


@dag(
    schedule=CronPartitionTimetable("0 1 * * *", timezone="UTC", run_offset=-1, key_format="%Y-%m-%d"),
    start_date=pendulum.datetime(2013, 1, 1, tz="UTC"),
    end_date=pendulum.datetime(2014, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,
    dagrun_timeout=timedelta(days=1),
    on_failure_callback=AbortUploadsNotifier(),
    params={
        "conflict_mode": conflict_mode_param("replace"),
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
            description="s3://bucket/prefix/; by default the Variable nyc_destination, else the lake.",
        ),
        "min_rows": Param(
            300,
            type="integer",
            minimum=1,
            title="Rows expected",
            description="The audit fails if both tables together have fewer rows.",
        ),
        "on_failed_audit": Param(
            "ask",
            type="string",
            enum=["fail", "warn", "ask"],
            title="If the audit fails",
            description="fail: abort. warn: commit. ask: wait for somebody to decide.",
        ),
    },
    doc_md=__doc__,
    tags=["s3commit", "flights"],
)
def multi_stage_refresh() -> None:
    """Refresh one day of both tables."""
    with s3_commit_task_group(
        "refresh",
        destination=DESTINATION,
        outlets=[Asset("nyc")],
        partition_asset=Asset("nyc_partitions"),
        parts=2,
        audit={
            "min_rows": "{{ params.min_rows }}",
            "partitions": [
                f"table={table}/dt={DAY}/airport={airport}" for table in TABLES for airport in AIRPORTS
            ],
            "only_partitions": True,
            "on_fail": "{{ params.on_failed_audit }}",
            "response_timeout": timedelta(hours=12),
        },
    ) as commit:
        for table in TABLES:
            stages = commit.spark_submit.partial(
                task_id=table,
                application=str(Path(__file__).parent / "jobs" / "nyc.py"),
                name=f"nyc-{table}",
            )
            stages.expand(
                application_args=[
                    ["--table", table, "--day", DAY, "--airport", airport, "--destination", DESTINATION]
                    for airport in AIRPORTS
                ]
            )


multi_stage_refresh()

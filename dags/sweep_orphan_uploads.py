"""Every day, remove what dead jobs left behind: pending uploads that cost money and that no listing shows.

The teardown of a run aborts its own uploads. The sweep finds the rest: runs that were lost together with
their scheduler, and writers outside Airflow. By default it is a dry run: look at its log first.
"""

from __future__ import annotations

from datetime import timedelta

import pendulum
from airflow.sdk import Param, dag

from airflow_s3commit.operators import S3CommitSweepOperator

DESTINATION = "{{ params.destination or var.value.get('flights_destination', 's3://lake/flights/') }}"


@dag(
    schedule="@daily",
    start_date=pendulum.datetime(2013, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,
    params={
        "destination": Param(
            None,
            type=["null", "string"],
            title="Dataset",
            description="s3://bucket/prefix/; by default the Variable flights_destination, else the lake.",
        ),
        "older_than_days": Param(
            7,
            type="number",
            minimum=0,
            title="Older than, in days",
            description="A job is dead after this time without activity; longer than any job takes.",
        ),
        "dry_run": Param(
            default=True,
            type="boolean",
            title="Dry run",
            description="Only report what would be removed, and why.",
        ),
    },
    doc_md=__doc__,
    tags=["s3commit", "maintenance"],
)
def sweep_orphan_uploads() -> None:
    """Sweep one destination."""
    S3CommitSweepOperator(
        task_id="sweep",
        destination=DESTINATION,
        older_than="{{ params.older_than_days * 86400 }}",
        apply="{{ not params.dry_run }}",
        retries=2,
        retry_delay=timedelta(minutes=5),
    )


sweep_orphan_uploads()

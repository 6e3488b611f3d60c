"""Every morning, how many of yesterday's flights each carrier flew: two DAGs with the same report.

`flights_daily_report` runs on a schedule and waits for the manifest of the commit with the day.
`flights_report_on_commit` runs whenever a commit adds a day, on events of the asset `flight_days`, which
Airflow sends from 3.3 on. Both read exactly the files that the manifest lists, not what a listing of the
directory happens to show.
"""

from __future__ import annotations

from collections import Counter
from io import BytesIO
from typing import Any

import pendulum
from airflow.sdk import Asset, Param, dag, task

from airflow_s3commit.airflow_version import CronPartitionTimetable, has_partition_events
from airflow_s3commit.assets import HivePathMapper
from airflow_s3commit.sensors import S3SuccessManifestSensor

#: With filters in place of ``or``, because Airflow 3.1 has no ``partition_key``.
DAY = (
    "{{ dag_run.partition_key | default(params.day, true)"
    " | default((dag_run.logical_date or dag_run.run_after) | ds, true) }}"
)
DESTINATION = "{{ params.destination or var.value.get('flights_destination', 's3://lake/flights/') }}"


@task
def flights_by_carrier(manifest: dict[str, Any], day: str) -> dict[str, int]:
    """Count each carrier's flights in the day's files, each of which is read as committed or not at all."""
    import pyarrow.parquet as pq  # noqa: PLC0415 - kept out of DAG parsing

    from airflow_s3commit import Destination, manifest_files, read_manifest  # noqa: PLC0415
    from airflow_s3commit.hooks import S3CommitHook  # noqa: PLC0415

    hook = S3CommitHook()
    destination = Destination.parse(manifest["destination"])
    record = read_manifest(hook.store, destination, manifest["job_id"])
    flights: Counter[str] = Counter()
    for file in manifest_files(hook.store, record):
        if file.partition != f"dt={day}":
            continue
        pinned = {"IfMatch": file.etag} if file.etag else {}
        client: Any = hook.aws.conn
        answer = client.get_object(Bucket=destination.bucket, Key=file.key, **pinned)
        carriers = pq.read_table(BytesIO(answer["Body"].read()), columns=["carrier"])
        flights.update(carriers["carrier"].to_pylist())
    return dict(flights.most_common())


@task
def commit_that_brought(day: str, destination: str, *, triggering_asset_events: Any = None) -> dict[str, Any]:
    """Return the newest commit among the events that started this run; in a manual run, the day's newest."""
    events = [event for told in (triggering_asset_events or {}).values() for event in told]
    # An event that somebody has created by hand names no commit.
    commits = [event.extra for event in events if "committed" in event.extra]
    if commits:
        return dict(max(commits, key=lambda extra: extra["committed"]))
    from airflow_s3commit import history  # noqa: PLC0415 - kept out of DAG parsing
    from airflow_s3commit.hooks import S3CommitHook  # noqa: PLC0415

    for manifest in history(S3CommitHook().store, destination):
        if (counts := manifest.partitions.get(f"dt={day}")) is not None and counts.files:
            return manifest.to_dict()
    raise ValueError(f"No commit has added {day} to {destination}")


PARAMS = {
    "day": Param(
        None,
        type=["null", "string"],
        format="date",
        title="Day",
        description="The day to report on, for runs without a partition key.",
    ),
    "destination": Param(
        None,
        type=["null", "string"],
        title="Dataset",
        description="s3://bucket/prefix/; by default the Variable flights_destination, else the lake.",
    ),
}


@dag(
    schedule=CronPartitionTimetable("0 0 * * *", timezone="UTC", run_offset=-1, key_format="%Y-%m-%d"),
    start_date=pendulum.datetime(2013, 1, 1, tz="UTC"),
    end_date=pendulum.datetime(2014, 1, 1, tz="UTC"),
    catchup=False,
    params=PARAMS,
    doc_md=__doc__,
    tags=["s3commit", "flights"],
)
def flights_daily_report() -> None:
    """Report one day."""
    committed = S3SuccessManifestSensor(
        task_id="wait_for_the_day",
        destination=DESTINATION,
        partitions=[f"dt={DAY}"],
        mode="reschedule",
        poke_interval=60,
        timeout=6 * 60 * 60,
    )
    flights_by_carrier(committed.output, DAY)  # type: ignore[arg-type]


flights_daily_report()


if has_partition_events():
    from airflow.sdk import PartitionedAssetTimetable

    @dag(
        schedule=PartitionedAssetTimetable(
            assets=Asset("flight_days"),
            default_partition_mapper=HivePathMapper("{dt}", date_column="dt"),  # type: ignore[arg-type]
        ),
        start_date=pendulum.datetime(2013, 1, 1, tz="UTC"),
        catchup=False,
        params=PARAMS,
        doc_md=__doc__,
        tags=["s3commit", "flights"],
    )
    def flights_report_on_commit() -> None:
        """Report the day that a commit added."""
        flights_by_carrier(commit_that_brought(DAY, DESTINATION), DAY)  # type: ignore[arg-type]

    flights_report_on_commit()

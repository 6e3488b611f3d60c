"""A commit that tells assets, and DAGs that it starts; that of the partitions is the project's own report."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from airflow.sdk import (
    DAG,
    Asset,
    AssetWatcher,
    IdentityMapper,
    PartitionedAssetTimetable,
    PartitionedAtRuntime,
    get_current_context,
    task,
)

from airflow_s3commit.assets import HivePathMapper
from airflow_s3commit.hooks import S3CommitHook
from airflow_s3commit.triggers import S3SuccessManifestEventTrigger
from tests.integration.airflow_live.row_dag import group, row
from tests.integration.airflow_live.stages import DAY

TABLE = Asset("live_table")

#: What schedules the DAG flights_report_on_commit.
FLIGHT_DAYS = Asset("flight_days")

WATCHED = Asset(
    "live_watched",
    watchers=[
        AssetWatcher(
            name="commits",
            trigger=S3SuccessManifestEventTrigger(destination="s3://lake/assets_told/", poke_interval=2),
        )
    ],
)


@task
def write_flights(job: dict[str, str]) -> None:
    """Write three flights of the day."""
    attempt = str(get_current_context()["ti"].try_number)
    opened = S3CommitHook().job(job)
    with opened.task_attempt("write", attempt, "00000", "0") as writing:
        flights = pa.table({"dt": [DAY] * 3, "carrier": ["UA", "AA", "UA"]})
        writing.write_table(flights, partition_by=["dt"])
        committed = writing.commit()
    opened.seal_stage("write", attempt, [committed])


@task
def told(*, triggering_asset_events: Any = None) -> list[Any]:
    """Return the content of the events that started this run."""
    return [event.extra for events in triggering_asset_events.values() for event in events]


with row("assets_told") as dag, group(dag, outlets=[TABLE], partition_asset=FLIGHT_DAYS) as commit:
    commit.stage(write_flights(commit.job))

#: The same with a partition key: Airflow puts the run's key on the event of the table.
KEYED_TABLE, KEYED_DAYS = Asset("keyed_table"), Asset("keyed_days")

KEYED_WATCHED = Asset(
    "keyed_watched",
    watchers=[
        AssetWatcher(
            name="commits",
            trigger=S3SuccessManifestEventTrigger(
                destination="s3://lake/assets_told_by_key/", poke_interval=2
            ),
        )
    ],
)

with (
    row("assets_told_by_key", schedule=PartitionedAtRuntime()) as dag,
    group(dag, outlets=[KEYED_TABLE], partition_asset=KEYED_DAYS) as commit,
):
    commit.stage(write_flights(commit.job))

for asset in (TABLE, WATCHED, KEYED_TABLE, KEYED_WATCHED):
    with DAG(f"started_by_{asset.name}", schedule=[asset]):
        told()

for asset, mapper in ((KEYED_TABLE, IdentityMapper()), (KEYED_DAYS, HivePathMapper("{dt}"))):
    schedule = PartitionedAssetTimetable(assets=asset, default_partition_mapper=mapper)  # type: ignore[arg-type]
    with DAG(f"keyed_by_{asset.name}", schedule=schedule):
        told()

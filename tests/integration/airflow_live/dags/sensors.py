"""The rows of many sensors that wait at a few destinations: in the triggerer, and on workers now and then."""

from __future__ import annotations

from airflow_s3commit.sensors import S3SuccessManifestSensor
from tests.integration.airflow_live.control import (
    AT_THE_FIRST,
    COUNTED,
    OTHERS,
    POKE_INTERVALS,
    SENSORS,
    awaited,
)
from tests.integration.airflow_live.row_dag import group, row
from tests.integration.airflow_live.stages import DAY, write

for name, interval in POKE_INTERVALS.items():
    deferred = name == "fifty_deferred"
    first, *others = awaited(name)
    with row(name, max_active_tasks=SENSORS) as dag, group(dag) as commit:
        waits = S3SuccessManifestSensor.partial(
            task_id="wait",
            # Each place has manifests of this day from before the run.
            partitions=[f"dt={DAY}"],
            newer_than="0s",
            aws_conn_id=COUNTED,
            deferrable=deferred,
            mode="poke" if deferred else "reschedule",
            poke_interval=interval,
            timeout=1800,
        ).expand(destination=[*[first] * AT_THE_FIRST, *others * ((SENSORS - AT_THE_FIRST) // OTHERS)])
        commit.stage(waits) >> commit.stage(write(commit.job, hold=False))

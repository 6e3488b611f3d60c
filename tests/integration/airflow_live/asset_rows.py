"""The row whose commit starts other DAGs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.integration.airflow_live.matrix import settled
from tests.integration.airflow_live.scenario import OVER, Run, Stage, Story
from tests.integration.airflow_live.stages import DAY

#: The DAGs that the commit starts, by the asset that schedules each.
CONSUMERS = {
    "live_table": "started_by_live_table",
    "live_watched": "started_by_live_watched",
    "flight_days": "flights_report_on_commit",
}

#: The DAGs that a commit of a run with a partition key starts, and the keys of their runs.
KEYED_CONSUMERS = {"started_by_keyed_watched": None, "keyed_by_keyed_days": DAY, "keyed_by_keyed_table": DAY}


def runs_of(stage: Stage, dag_id: str) -> list[dict[str, Any]]:
    """Return a DAG's runs, as of the last look."""
    return [run for run in stage.runs.values() if run["dag_id"] == dag_id]


def assets_told(run: Run) -> Story:
    """A DAG commits; three others wait for its assets."""
    yield "the watcher has looked", lambda: _has_looked(run.stage)
    run.start()
    yield from settled(run)
    for dag_id in CONSUMERS.values():
        yield f"{dag_id} is over", lambda dag_id=dag_id: _are_over(run.stage, dag_id)


def assets_told_by_key(run: Run) -> Story:
    """A run with a partition key commits; of the DAGs that wait, all but the one of its table start."""
    yield "the watcher has looked", lambda: _has_looked(run.stage, "keyed_watched")
    run.stage.airflow.api.start(run.dag_id, run.run_id, partition_key=DAY)
    yield from settled(run)
    for dag_id in KEYED_CONSUMERS:
        yield f"{dag_id} is over", lambda dag_id=dag_id: _are_over(run.stage, dag_id)


def _has_looked(stage: Stage, watched: str = "live_watched") -> bool:
    """Whether the watcher's first look is over: earlier commits do not count."""
    asset = stage.airflow.api.asset(watched)
    return asset is not None and "s3commit.last_manifest" in str(stage.airflow.api.asset_state(asset["id"]))


def _are_over(stage: Stage, dag_id: str) -> bool:
    runs = runs_of(stage, dag_id)
    return bool(runs) and all(run["state"] in OVER for run in runs)


#: The row's story, by its DAG.
ASSET_STORIES: dict[str, Callable[[Run], Story]] = {
    "assets_told": assets_told,
    "assets_told_by_key": assets_told_by_key,
}

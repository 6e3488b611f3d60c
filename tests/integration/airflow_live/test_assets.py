"""What a commit reports to the assets of a running Airflow, and which DAGs that starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.airflow_live.asset_rows import CONSUMERS, KEYED_CONSUMERS, runs_of
from tests.integration.airflow_live.stages import DAY

if TYPE_CHECKING:
    from tests.integration.airflow_live.scenario import Played, Stage

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.seaweedfs,
    pytest.mark.xdist_group("airflow-live"),
    pytest.mark.timeout(1800),  # the first test waits until every story has been played
]

PARTITION = f"dt={DAY}"
told_once = pytest.mark.parametrize("name", ["assets_told"])


def summary(stage: Stage) -> dict[str, Any]:
    """Return what the commit returned."""
    return dict(stage.airflow.api.xcom("assets_told", "row", "refresh.commit"))


@told_once
def test_the_events_name_what_was_committed(name: str, stage: Stage, played: Played) -> None:
    """Over REST, the table's event has no key and the partition's has one; both name manifest and counts."""
    assert name not in played.failures, f"{played.failures[name]}\n{stage.airflow.report(name, 'row')}"
    events = stage.airflow.api.asset_events(source_dag_id=name)
    assert {(event["name"], event["partition_key"]) for event in events} == {
        ("live_table", None),
        ("flight_days", PARTITION),
    }
    for event in events:
        extra = event["extra"]
        assert {key: extra[key] for key in summary(stage)} == summary(stage)
        assert extra["partition_counts"][PARTITION]["rows"] == extra["rows"] == 3


@told_once
def test_the_watcher_reports_the_commit(name: str, stage: Stage, played: Played) -> None:
    """The triggerer sees the manifest, once, and its event carries the same summary."""
    watched = stage.airflow.api.asset("live_watched")
    assert watched is not None, played.failures
    (event,) = stage.airflow.api.asset_events(asset_id=watched["id"])
    assert event["extra"] == {"from_trigger": True, "payload": summary(stage)}


@told_once
@pytest.mark.parametrize("asset", list(CONSUMERS))
def test_a_consumer_is_started(name: str, asset: str, stage: Stage, played: Played) -> None:
    """Each of the three assets starts its DAG once, and the commit's event reaches the DAG's tasks."""
    dag_id = CONSUMERS[asset]
    (run,) = runs_of(stage, dag_id)
    run_id = run["dag_run_id"]
    assert run["state"] == "success", stage.airflow.report(dag_id, run_id)
    api, committed = stage.airflow.api, summary(stage)
    if asset == "flight_days":
        assert run["partition_key"] == DAY
        assert api.xcom(dag_id, run_id, "flights_by_carrier") == {"UA": 2, "AA": 1}
        assert api.xcom(dag_id, run_id, "commit_that_brought")["manifest"] == committed["manifest"]
    else:
        (extra,) = api.xcom(dag_id, run_id, "told")
        assert extra.get("payload", extra)["manifest"] == committed["manifest"]


@pytest.mark.parametrize("name", ["assets_told_by_key"])
def test_a_run_with_a_key_starts_every_consumer_but_the_table_s(
    name: str, stage: Stage, played: Played
) -> None:
    """Airflow puts the run's key on the table's event, which starts no DAG with ``schedule=[table]``."""
    assert name not in played.failures, f"{played.failures[name]}\n{stage.airflow.report(name, 'row')}"
    events = stage.airflow.api.asset_events(source_dag_id=name)
    assert {(event["name"], event["partition_key"]) for event in events} == {
        ("keyed_table", DAY),
        ("keyed_days", PARTITION),
    }
    for dag_id, key in KEYED_CONSUMERS.items():
        (run,) = runs_of(stage, dag_id)
        assert (run["state"], run["partition_key"]) == ("success", key), dag_id
        (extra,) = stage.airflow.api.xcom(dag_id, run["dag_run_id"], "told")
        committed = stage.airflow.api.xcom(name, "row", "refresh.commit")
        assert extra.get("payload", extra)["manifest"] == committed["manifest"]
    assert runs_of(stage, "started_by_keyed_table") == []

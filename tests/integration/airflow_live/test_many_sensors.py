"""Fifty concurrent sensors: their cost to the store, and what they wait for."""

from __future__ import annotations

import pytest

from tests.integration.airflow_live.control import OTHERS, POKE_INTERVALS, SENSORS
from tests.integration.airflow_live.scenario import Played, Run, Stage
from tests.integration.airflow_live.sensor_rows import states_of

pytestmark = [
    pytest.mark.all,
    pytest.mark.airflow,
    pytest.mark.seaweedfs,
    pytest.mark.xdist_group("airflow-live"),
    pytest.mark.timeout(3600),  # the first test waits until every story has been played
]

#: The most requests of one look at a destination with three manifests: a worker that knows nothing reads the
#: marker, lists the manifests, and reads each.
A_LOOK = 8


@pytest.mark.parametrize("name", list(POKE_INTERVALS))
def test_fifty_sensors_end_with_the_commit_that_they_wait_for(
    name: str, stage: Stage, played: Played
) -> None:
    """Only the new manifest of their place satisfies them, and no old one of the same partition."""
    run, left = Run(stage, name, "row"), played.left[name]
    assert name not in played.failures, f"{played.failures[name]}\n{states_of(run)} {run.tasks()}"
    assert run.state == "success", run.tasks()
    assert states_of(run) == {"success": SENSORS}
    assert sorted(left.visible.values()) == [b"row try 1"] * 2
    assert (left.pending, left.staging) == ([], [])


@pytest.mark.parametrize("name", ["fifty_deferred"])
def test_the_triggerer_looks_once_for_all_sensors(name: str, stage: Stage, played: Played) -> None:
    """A destination costs the same for forty sensors as for one: one look an interval, of two requests."""
    assert name not in played.failures, played.failures[name]
    asked = Run(stage, name, "row").place.read("asked")
    looks = asked["seconds"] / POKE_INTERVALS[name] + 1
    assert asked["requests"], "the sensors asked past the relay"
    for number in range(1 + OTHERS):
        at_one = sum(count for what, count in asked["requests"].items() if what.endswith(f" {number:02d}"))
        assert at_one <= 2 * looks, asked


@pytest.mark.parametrize("name", ["fifty_rescheduled"])
def test_a_sensor_on_workers_looks_once_an_interval(name: str, stage: Stage, played: Played) -> None:
    """Each look is its own process and costs a few requests, and there are no more looks than turns."""
    assert name not in played.failures, played.failures[name]
    asked = Run(stage, name, "row").place.read("asked")
    turns = SENSORS * (asked["seconds"] / POKE_INTERVALS[name] + 1)
    assert 0 < sum(asked["requests"].values()) <= A_LOOK * turns, asked

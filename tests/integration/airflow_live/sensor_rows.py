"""The rows of many sensors: old manifests wherever they wait, requests that are counted, and new commits."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from tests.integration.airflow_live.control import (
    AT_THE_FIRST,
    OTHERS,
    POKE_INTERVALS,
    SENSORS,
    awaited,
)
from tests.integration.airflow_live.scenario import Run, Story

#: Manifests at each destination from before the run.
OLD = 3

#: Seconds in which the requests of waiting sensors are counted, at least one interval between looks.
WATCHED = 60.0


def sensors_wait(run: Run) -> Story:
    """All sensors wait for a while beside old manifests; then new ones arrive, place by place."""
    first, *others = awaited(run.dag_id)
    for _ in range(OLD):
        for destination in (first, *others):
            commit_day(run, destination)
    began, before = time.monotonic(), len(run.stage.relay.seen)
    run.start()
    yield f"all sensors of {run.dag_id} have looked", have_looked(run)
    watched = float(POKE_INTERVALS[run.dag_id])
    if watched < WATCHED:
        # Deferred: the first look of each, on a worker, is not the triggerer's.
        began, before, watched = time.monotonic(), len(run.stage.relay.seen), WATCHED
    yield f"{watched:.0f} s have passed", lambda: time.monotonic() > began + watched
    took, asked = time.monotonic() - began, requests_of(run, before)
    run.place.say("asked", {"seconds": took, "requests": asked, "sensors": dict(states_of(run))})
    assert states_of(run)["success"] == 0
    commit_day(run, first)
    yield f"{AT_THE_FIRST} sensors of {run.dag_id} went on", lambda: states_of(run)["success"] == AT_THE_FIRST
    for destination in others:
        assert states_of(run)["success"] < SENSORS
        commit_day(run, destination)
    yield run.over()


def commit_day(run: Run, destination: str) -> None:
    """Commit the day that the sensors wait for."""
    run.stage.commit(destination, "dt=2013-01-01/part-0.txt", b"upstream")


def have_looked(run: Run) -> Callable[[], bool]:
    """Return whether each sensor was seen waiting, in the triggerer or for its next turn on a worker."""
    seen: set[int] = set()

    def look() -> bool:
        tasks = run.stage.airflow.api.tasks(run.dag_id, run.run_id)
        waiting = {"deferred", "up_for_reschedule"}
        seen.update(task["map_index"] for task in tasks if is_sensor(task) and task["state"] in waiting)
        return len(seen) == SENSORS

    return look


def states_of(run: Run) -> Counter[str]:
    """Count the sensors by their state."""
    tasks = run.stage.airflow.api.tasks(run.dag_id, run.run_id)
    return Counter(str(task["state"]) for task in tasks if is_sensor(task))


def is_sensor(task: dict[str, object]) -> bool:
    """Whether a task of the row is one of the sensors."""
    return task["task_id"] == "refresh.wait"


def requests_of(run: Run, since: int) -> dict[str, int]:
    """Count a row's requests after the first ``since`` of all, by method and destination."""
    counted: Counter[str] = Counter()
    for seen in run.stage.relay.seen[since:]:
        for number in range(1 + OTHERS):
            if f"{run.dag_id}.upstream-{number:02d}" in seen.path:
                counted[f"{seen.method} {number:02d}"] += 1
    return dict(counted)


#: Each row's story, by its DAG.
SENSOR_STORIES: dict[str, Callable[[Run], Story]] = dict.fromkeys(POKE_INTERVALS, sensors_wait)

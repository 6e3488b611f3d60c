"""The rows whose Spark drivers run on a standalone cluster: what is done to each run, and when."""

from __future__ import annotations

import json
from collections.abc import Callable
from urllib.request import urlopen

from tests.integration.airflow_live.matrix import settled
from tests.integration.airflow_live.scenario import Run, Story, Wait

TASK = "refresh.spark_submit"


def driver_of(run: Run) -> str | None:
    """Return the driver that the run's stage remembers, and note it: a task that succeeds forgets it."""
    if not run.place.said("driver-id"):
        found = run.stage.airflow.api.remembered(run.dag_id, run.run_id, TASK, "spark_job_id")
        if found is None:
            return None
        run.place.say("driver-id", found)
    return str(run.place.read("driver-id"))


def driver_state(run: Run) -> str:
    """Return what the cluster's REST server says of the run's driver."""
    assert run.stage.cluster is not None
    status = f"http://127.0.0.1:{run.stage.cluster.rest_port}/v1/submissions/status/{driver_of(run)}"
    with urlopen(status, timeout=60) as answer:
        return str(json.load(answer)["driverState"])


def remembered(run: Run) -> Wait:
    """Wait until the stage can find its driver again."""
    return f"{run.dag_id} remembers its driver", lambda: driver_of(run)


def cluster_killed(run: Run) -> Story:
    """Mark the stage as failed while its driver runs and one of its executors writes."""
    run.start()
    yield run.held("spark")
    yield remembered(run)
    run.stage.airflow.api.mark_task(run.dag_id, run.run_id, TASK, "failed")
    yield from settled(run)
    yield f"the driver of {run.dag_id} is dead", lambda: driver_state(run) not in ("SUBMITTED", "RUNNING")


def cluster_reconnected(run: Run) -> Story:
    """Airflow's processes get SIGKILL while the driver runs; the retry finds it again, and it finishes."""
    run.start()
    yield run.held("spark")
    yield remembered(run)
    run.kill("begun.1", "supervisor", "task")
    yield run.noted("begun.2")
    yield (
        f"{run.dag_id} reconnects",
        lambda: "Reconnecting to existing job" in run.stage.airflow.api.log(run.dag_id, run.run_id, TASK, 2),
    )
    run.go("spark", "finish")
    yield from settled(run)


def cluster_sealed(run: Run) -> Story:
    """The application seals its output and then fails."""
    run.start()
    yield run.held("spark")
    yield remembered(run)
    run.go("spark", "finish")
    yield from settled(run)


#: Each row's story, by its DAG.
CLUSTER_STORIES: dict[str, Callable[[Run], Story]] = {
    "cluster_reconnected": cluster_reconnected,
    "cluster_sealed": cluster_sealed,
    "cluster_killed": cluster_killed,
}

"""Runs DAGs of the project with ``dag.test()``, in a process of its own.

Airflow reads its home and its configuration when it is first imported, so a test that needs a home of its
own starts this as ``python -m tests.integration.airflow_run`` with a list of runs on its standard input, and
reads their outcomes from the file that the list names.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow.dag_processing.dagbag import DagBag
from airflow.sdk.execution_time.xcom import XCom
from airflow.utils.db import initdb

#: XComs that a run's outcome tells of.
TOLD = (
    "refresh.setup",
    "refresh.spark_submit",
    "refresh.resolve_conflicts",
    "refresh.commit",
    "flights_by_carrier",
)


def main() -> None:
    """Run what standard input asks for, one after the other."""
    asked = json.load(sys.stdin)
    initdb()
    bag = DagBag(asked["dags"])
    for dag in bag.dags.values():
        no_waiting(dag)
    outcomes = [outcome(bag, run) for run in asked["runs"]]
    Path(asked["outcomes"]).write_text(json.dumps(outcomes))


def no_waiting(dag: Any) -> None:
    """Have teardowns look again at once: tasks run in this process, so none of them is still being killed."""
    for task in dag.tasks:
        if hasattr(task, "kill_window"):
            task.kill_window = 0.0


def outcome(bag: DagBag, run: dict[str, Any]) -> dict[str, Any]:
    """Run one DAG once; return the state of the run and of its tasks, and what they returned."""
    dag = bag.dags[run["dag"]]
    finished = dag.test(
        run_conf=run["conf"], logical_date=datetime.fromisoformat(run["date"]).replace(tzinfo=UTC)
    )
    instances = finished.get_task_instances()
    return {
        "state": str(finished.state),
        "run_id": finished.run_id,
        "tasks": {ti.task_id: str(ti.state) for ti in instances},
        "xcoms": {ti.task_id: returned(ti) for ti in instances if ti.task_id in TOLD},
    }


def returned(instance: Any) -> Any:
    """Return what a task instance returned."""
    from airflow.models.xcom import XComModel  # noqa: PLC0415
    from airflow.utils.session import create_session  # noqa: PLC0415

    with create_session() as session:
        row = session.scalars(
            XComModel.get_many(
                run_id=instance.run_id,
                dag_ids=instance.dag_id,
                task_ids=instance.task_id,
                key="return_value",
            )
        ).first()
        return XCom.deserialize_value(row) if row is not None else None


if __name__ == "__main__":
    main()

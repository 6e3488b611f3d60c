"""Runs the project's DAGs with the Airflow of this environment, and prints what came of them."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4

import airflow
from airflow.models.dagrun import DagRun
from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.taskinstance import TaskInstance
from airflow.sdk.definitions.dag import _run_task
from airflow.utils.session import create_session
from sqlalchemy import select

import airflow_s3commit
from airflow_s3commit.airflow_version import wait_for_answer

try:
    from airflow.dag_processing.dagbag import DagBag
except ImportError:  # Airflow 3.1
    from airflow.models.dagbag import DagBag

#: What no environment of Airflow needs: Spark has its own, and libcurl and Iceberg are extras.
OPTIONAL = {"pycurl", "pyiceberg", "pyspark", "pytest"}


def missing() -> dict[str, str]:
    """Import every module of the package; return why those cannot be imported that should be."""
    wrong = {}
    for module in pkgutil.walk_packages(airflow_s3commit.__path__, "airflow_s3commit."):
        try:
            if not module.name.endswith("__main__"):
                import_module(module.name)
        except Exception as error:
            if getattr(error, "name", None) not in OPTIONAL:
                wrong[module.name] = f"{type(error).__name__}: {error}"
    return wrong


def parsed(folder: str) -> Any:
    """Return the DAGs of a folder, parsed anew: ``dag.test()`` leaves its conf in the DAG's params."""
    bag = DagBag(folder)
    for task in (task for dag in bag.dags.values() for task in dag.tasks):
        # Each task runs alone, so a teardown need not wait for one that is being killed.
        if hasattr(task, "kill_window"):
            task.kill_window = 0.0
    return bag


def tested(dag: Any, day: str, **conf: object) -> dict[str, str]:
    """Run a DAG for a day with ``dag.test()``; return the states of the run and its tasks."""
    at = datetime.fromisoformat(day).replace(tzinfo=UTC)
    return states(dag.dag_id, dag.test(logical_date=at, run_conf={"day": day, **conf}).run_id)


def backfilled(dag: Any, day: str, **conf: object) -> list[dict[str, str]]:
    """Run a DAG for one day as a backfill; return the states of each run."""
    subprocess.run(
        [
            *(Path(sys.executable).parent / "airflow", "backfill", "create", "--dag-id", dag.dag_id),
            *("--from-date", day, "--to-date", day, "--dag-run-conf", json.dumps(conf)),
        ],
        check=True,
    )
    with create_session() as session:
        of_it = (DagRun.dag_id == dag.dag_id) & (DagRun.run_type == "backfill")
        runs = session.scalars(select(DagRun.run_id).where(of_it)).all()
    return [executed(dag, run_id) for run_id in runs]


def executed(dag: Any, run_id: str) -> dict[str, str]:
    """Run the tasks of a queued run in this process, as ``dag.test()`` does with a run of its own."""
    with create_session() as session:
        run = session.scalars(
            select(DagRun).where(DagRun.dag_id == dag.dag_id, DagRun.run_id == run_id)
        ).one()
        run.dag = SerializedDagModel.get_dag(dag.dag_id)
        run.state = "running"
        run.verify_integrity(session=session, dag_version_id=run.created_dag_version_id)
        session.commit()
        for _ in range(4 * len(dag.tasks)):
            ready, _ = run.update_state(session=session, execute_callbacks=False)
            for instance in ready:
                instance.try_number += 1
                instance.state = "scheduled"
            session.commit()
            for instance in run.get_task_instances(state=["scheduled"], session=session):
                _run_task(ti=instance, task=dag.task_dict[instance.task_id], run_triggerer=True)
            session.expire_all()
            if run.state != "running":
                break
    return states(dag.dag_id, run_id)


def states(dag_id: str, run_id: str) -> dict[str, str]:
    """Return the state of a run, under ``""``, and those of its tasks."""
    found = {}
    with create_session() as session:
        for kind, name in ((DagRun, "run_id"), (TaskInstance, "task_id")):
            of_it = (kind.dag_id == dag_id, kind.run_id == run_id)
            for one in session.scalars(select(kind).where(*of_it)):
                found["" if kind is DagRun else getattr(one, name)] = str(
                    getattr(one.state, "value", one.state)
                )
    return found


def asking() -> list[str]:
    """Return how an audit that asks is suspended: the exception, and who waits for the answer."""
    try:
        wait_for_answer(uuid4(), ["Approve", "Reject"], "execute_complete", {}, timedelta(days=1))
    except BaseException as suspended:
        return [type(suspended).__name__, suspended.trigger.serialize()[0]]


def main(folder: str, destination: str) -> None:
    """Do all of it, in this order: later runs find what earlier ones have committed.

    Args:
        folder: The DAGs.
        destination: An empty destination.
    """
    program = Path(sys.executable).parent / "airflow"
    for command in (["db", "migrate"], ["dags", "reserialize"]):
        subprocess.run([program, *command], check=True)
    bag = parsed(folder)
    place = {"destination": destination}
    result = {
        "version": airflow.__version__,
        "not imported": missing(),
        "not parsed": bag.import_errors,
        "dags": sorted(bag.dags),
        "asking": asking(),
        "nightly": tested(parsed(folder).dags["nightly_flights_refresh"], "2013-01-01", **place),
        "failing": tested(
            parsed(folder).dags["nightly_flights_refresh"], "2013-01-02", **place, fail_after_uploads=True
        ),
        "report": tested(parsed(folder).dags["flights_daily_report"], "2013-01-01", **place),
        # Airflow 3.2 takes the time of the run, which refreshes the day before, and 3.1 the day itself.
        "backfill": backfilled(parsed(folder).dags["nightly_flights_refresh"], "2013-01-03", **place),
    }
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

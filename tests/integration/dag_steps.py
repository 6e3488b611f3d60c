"""Runs DAGs step by step in a process of its own: by ``dag.test()``, and as the scheduler would start them.

Started as ``python -m tests.integration.dag_steps`` with a list of steps on its standard input. A step is a
run of one DAG, with the answer to the question that it may stop at; or the runs that the scheduler makes for
the asset events so far. Spark has a stand-in, unless the step asks for the real one. The outcome of each step
is in the file that the list names.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.api_fastapi.core_api.datamodels.hitl import UpdateHITLDetailPayload
from airflow.api_fastapi.core_api.routes.public.hitl import update_hitl_detail
from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
from airflow.jobs.job import Job
from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
from airflow.models.asset import AssetEvent
from airflow.models.dagbundle import DagBundleModel
from airflow.models.dagrun import DagRun
from airflow.models.hitl import HITLDetail
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from airflow.sdk.definitions.dag import DAG, _run_task
from airflow.sdk.execution_time.xcom import XCom
from airflow.utils.db import initdb
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState, TaskInstanceState
from sqlalchemy import select

if TYPE_CHECKING:
    from collections.abc import Callable

STAND_IN = Path(__file__).parent / "stand_in_spark"


def main() -> None:
    """Take the steps from standard input, one after the other."""
    asked = json.load(sys.stdin)
    initdb()
    bag = DagBag(asked["dags"])
    for dag in bag.dags.values():
        no_waiting(dag)
    with create_session() as session:
        session.merge(DagBundleModel(name="dags-folder"))
    # All of them first: an event finds the DAGs that it starts when it is emitted.
    sync_bag_to_db(bag, "dags-folder", None)
    outcomes = [_step(bag, step) for step in asked["steps"]]
    Path(asked["outcomes"]).write_text(json.dumps(outcomes, default=str))


def no_waiting(dag: Any) -> None:
    """Have teardowns look again at once: tasks run in this process, so none of them is being killed."""
    for task in dag.tasks:
        if hasattr(task, "kill_window"):
            task.kill_window = 0.0


def _step(bag: DagBag, step: dict[str, Any]) -> Any:
    if "started_by_events" in step:
        return [_executed(bag, run_id) for run_id in _start_runs(step["started_by_events"])]
    programs = os.environ["PATH"] if step.get("real_spark") else f"{STAND_IN}{os.pathsep}{os.environ['PATH']}"
    with (
        mock.patch.dict(os.environ, PATH=programs),
        mock.patch("time.sleep", _answering(step["dag"], step.get("answer"))),
    ):
        finished = bag.dags[step["dag"]].test(
            run_conf=step["conf"], logical_date=datetime.fromisoformat(step["date"]).replace(tzinfo=UTC)
        )
    return _outcome(finished)


def _answering(dag_id: str, answer: str | None) -> Callable[[float], None]:
    """Return a ``sleep`` that answers the question of a DAG when the run can only wait.

    ``dag.test()`` sleeps then, and only then. Any sooner it may be about to write that the task waits, over
    the answer, and would wait for ever.
    """
    sleep = time.sleep

    def answer_or_sleep(seconds: float) -> None:
        run_waits = sys._getframe(1).f_globals["__name__"] == DAG.__module__
        if not (run_waits and answer and _answered(dag_id, answer)):
            sleep(seconds)

    return answer_or_sleep


def _answered(dag_id: str, answer: str) -> bool:
    """Answer the next question of a DAG as its page of required actions does; tell whether there was one."""
    with create_session() as session:
        waiting = session.scalars(
            select(TaskInstance)
            .join(HITLDetail, HITLDetail.ti_id == TaskInstance.id)
            .where(
                TaskInstance.dag_id == dag_id,
                TaskInstance.state == TaskInstanceState.AWAITING_INPUT,
                HITLDetail.responded_at.is_(None),
            )
        ).first()
        if waiting is None:
            return False
        update_hitl_detail(
            dag_id=dag_id,
            dag_run_id=waiting.run_id,
            task_id=waiting.task_id,
            update_hitl_detail_payload=UpdateHITLDetailPayload(chosen_options=[answer]),
            user=SimpleAuthManagerUser(username="alice", role="admin"),
            session=session,
        )
        return True


def _start_runs(dag_id: str) -> list[str]:
    """Let the scheduler make the runs that asset events require; return their ids."""
    runner = SchedulerJobRunner(job=Job())
    with create_session() as session:
        runner._create_dagruns_for_partitioned_asset_dags(session)
    with create_session() as session:
        found = session.scalars(select(DagRun).where(DagRun.dag_id == dag_id).order_by(DagRun.id))
        return [run.run_id for run in found if run.state == DagRunState.QUEUED]


def _executed(bag: DagBag, run_id: str) -> dict[str, Any]:
    """Run the tasks of a run that the scheduler made."""
    with create_session() as session:
        run = session.scalars(select(DagRun).where(DagRun.run_id == run_id)).one()
        dag = bag.dags[run.dag_id]
        run.dag = _scheduled(dag)
        run.state = DagRunState.RUNNING
        run.verify_integrity(session=session, dag_version_id=run.created_dag_version_id)
        session.commit()
        while run.state == DagRunState.RUNNING:
            ready, _ = run.update_state(session=session)
            for instance in ready:
                instance.try_number += 1
                instance.state = TaskInstanceState.SCHEDULED
                session.commit()
                _run_task(ti=instance, task=dag.task_dict[instance.task_id])
                session.expire_all()
        return _outcome(run)


def _scheduled(dag: Any) -> Any:
    from airflow.serialization.serialized_objects import DagSerialization  # noqa: PLC0415

    return DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))


def _outcome(run: DagRun) -> dict[str, Any]:
    with create_session() as session:
        instances = session.scalars(select(TaskInstance).where(TaskInstance.run_id == run.run_id)).all()
        events = session.scalars(select(AssetEvent).where(AssetEvent.source_run_id == run.run_id)).all()
        return {
            "state": str(run.state),
            "run_id": run.run_id,
            "partition_key": run.partition_key,
            "partition_date": str(run.partition_date),
            "tasks": {_name(ti): str(ti.state) for ti in instances},
            "xcoms": {_name(ti): _returned(ti, session) for ti in instances},
            "events": [
                {"asset": event.asset.name, "key": event.partition_key, "extra": event.extra}
                for event in events
            ],
        }


def _name(instance: TaskInstance) -> str:
    return instance.task_id if instance.map_index < 0 else f"{instance.task_id}[{instance.map_index}]"


def _returned(instance: TaskInstance, session: Any) -> Any:
    row = session.scalars(
        XComModel.get_many(
            run_id=instance.run_id,
            dag_ids=instance.dag_id,
            task_ids=instance.task_id,
            map_indexes=instance.map_index,
            key="return_value",
        )
    ).first()
    return XCom.deserialize_value(row) if row is not None else None


if __name__ == "__main__":
    main()

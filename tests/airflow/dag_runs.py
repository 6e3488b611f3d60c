"""Runs whole DAGs in this process: the scheduler's own functions make the runs, and tasks run one by one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
from airflow.jobs.job import Job as AirflowJob
from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
from airflow.models.backfill import ReprocessBehavior, _create_backfill
from airflow.models.dag import DagModel
from airflow.models.dagbundle import DagBundleModel
from airflow.models.dagrun import DagRun
from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.taskinstance import TaskInstance
from airflow.sdk import timezone
from airflow.sdk.definitions.dag import _run_task
from airflow.utils.db import initdb
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState, TaskInstanceState
from airflow.utils.types import DagRunTriggeredByType, DagRunType
from sqlalchemy import select

if TYPE_CHECKING:
    from airflow.sdk import DAG

_BUNDLE = "tests"


class Finished:
    """A run that has ended, as people see it.

    Attributes:
        run_id: Its id.
        state: Its state.
        partition_key: Its partition key.
        tasks: The state of each task instance, with a map index as ``task[1]``.
    """

    def __init__(self, run: DagRun) -> None:
        self.run_id, self.state, self.partition_key = run.run_id, str(run.state), run.partition_key
        with create_session() as session:
            of_this = (TaskInstance.dag_id == run.dag_id) & (TaskInstance.run_id == run.run_id)
            found = session.scalars(select(TaskInstance).where(of_this)).all()
            self.tasks = {_name(one): str(one.state) for one in found}


class Scheduled:
    """DAGs that a scheduler knows, in this process's own database.

    Args:
        dags: The DAGs; those of earlier calls stay.
    """

    def __init__(self, dags: Iterable[DAG]) -> None:
        initdb()
        self.dags: dict[str, Any] = {dag.dag_id: dag for dag in dags}
        bag = DagBag("/dev/null", collect_dags=False, bundle_name=_BUNDLE)
        with create_session() as session:
            session.merge(DagBundleModel(name=_BUNDLE))
        for dag in self.dags.values():
            _without_waiting(dag)
            dag.fileloc = dag.relative_fileloc = f"{dag.dag_id}.py"
            bag.bag_dag(dag)
        sync_bag_to_db(bag, _BUNDLE, None)
        with create_session() as session:
            for model in session.scalars(select(DagModel).where(DagModel.dag_id.in_(self.dags))):
                model.is_paused = False

    def by_hand(self, dag_id: str, partition_key: str | None = None, **conf: Any) -> Finished:
        """Run a DAG as somebody who triggers it, with or without a partition key."""
        now = timezone.utcnow()
        with create_session() as session:
            dag = session.scalar(SerializedDagModel.latest_item_select_object(dag_id)).dag
            run = dag.create_dagrun(
                run_id=f"manual__{now.isoformat()}",
                run_after=now,
                run_type=DagRunType.MANUAL,
                triggered_by=DagRunTriggeredByType.UI,
                conf=conf,
                partition_key=partition_key,
                partition_date=dag.timetable.resolve_partition_date(partition_key),
                state=DagRunState.QUEUED,
                session=session,
            )
            run_id = run.run_id
        return self._executed(dag_id, run_id)

    def by_schedule(self, dag_id: str, at: datetime) -> Finished:
        """Run a DAG as the scheduler would at its next time after ``at``."""
        runner = SchedulerJobRunner(job=AirflowJob())
        with create_session() as session:
            model = session.get(DagModel, dag_id)
            dag = runner._get_current_dag(dag_id=dag_id, session=session)
            info = dag.timetable.next_dagrun_info_v2(last_dagrun_info=None, restriction=_restriction(at))
            model.next_dagrun_partition_key = info.partition_key
            model.next_dagrun_partition_date = info.partition_date
            model.next_dagrun = info.logical_date
            model.next_dagrun_create_after = info.run_after
            session.flush()
            runner._create_dag_runs([model], session)
        (run_id,) = self._queued(dag_id)
        return self._executed(dag_id, run_id)

    def by_backfill(self, dag_id: str, first: datetime, last: datetime, **conf: Any) -> list[Finished]:
        """Run a DAG for each of its days in a range, as ``airflow backfill create`` does."""
        _create_backfill(
            dag_id=dag_id,
            from_date=first,
            to_date=last,
            max_active_runs=1,
            reverse=False,
            dag_run_conf=conf,
            triggering_user_name="alice",
            reprocess_behavior=ReprocessBehavior.COMPLETED,
        )
        return [self._executed(dag_id, run_id) for run_id in self._queued(dag_id)]

    def _queued(self, dag_id: str) -> Sequence[str]:
        with create_session() as session:
            of_this = (DagRun.dag_id == dag_id) & (DagRun.state == DagRunState.QUEUED)
            return session.scalars(select(DagRun.run_id).where(of_this).order_by(DagRun.id)).all()

    def _executed(self, dag_id: str, run_id: str) -> Finished:
        with create_session() as session:
            run = session.scalars(
                select(DagRun).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id)
            ).one()
            run.dag = session.scalar(SerializedDagModel.latest_item_select_object(dag_id)).dag
            run.state = DagRunState.RUNNING
            run.verify_integrity(session=session, dag_version_id=run.created_dag_version_id)
            session.commit()
            idle = 0
            while run.state == DagRunState.RUNNING:
                ready, _ = run.update_state(session=session)
                # A look may only mark tasks that will not run, one task further each time.
                idle = 0 if ready else idle + 1
                if idle > len(self.dags[dag_id].tasks):
                    waiting = {_name(one): str(one.state) for one in run.get_task_instances(session=session)}
                    raise AssertionError(f"{dag_id} {run_id} cannot go on: {waiting}")
                for instance in ready:
                    instance.try_number += 1
                    instance.state = TaskInstanceState.SCHEDULED
                session.commit()
                # Read again: instances into which a mapped task was just expanded are not the session's.
                for instance in run.get_task_instances(state=[TaskInstanceState.SCHEDULED], session=session):
                    _run_task(
                        ti=instance, task=self.dags[dag_id].task_dict[instance.task_id], run_triggerer=True
                    )
                session.expire_all()
            return Finished(run)


def _restriction(at: datetime) -> Any:
    from airflow.timetables.base import TimeRestriction  # noqa: PLC0415

    return TimeRestriction(earliest=timezone.coerce_datetime(at), latest=None, catchup=True)


def _without_waiting(dag: Any) -> None:
    """Let teardowns look again at once: each task runs alone in this process, so none is being killed."""
    for task in dag.tasks:
        if hasattr(task, "kill_window"):
            task.kill_window = 0.0


def _name(instance: TaskInstance) -> str:
    return instance.task_id if instance.map_index < 0 else f"{instance.task_id}[{instance.map_index}]"

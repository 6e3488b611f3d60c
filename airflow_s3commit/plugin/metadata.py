"""What Airflow's own database knows of DAGs and of their runs' jobs, and the audit log of endings."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping

from airflow.models.dag import DagModel
from airflow.models.log import Log
from airflow.models.xcom import XComModel
from airflow.state import TaskScope, get_state_backend
from airflow.utils.session import create_session
from sqlalchemy import select

from airflow_s3commit.exceptions import InvalidRecord
from airflow_s3commit.operators.setup import REMEMBERED_JOBS
from airflow_s3commit.plugin.origin import Origin
from airflow_s3commit.protocol.records import JobReference

__all__ = ["Metadata"]

#: XComs of a run that are looked at.
_MOST = 1_000


class Metadata:
    """Airflow's metadata database, as the page reads it."""

    def teams_of(self, dag_ids: Collection[str]) -> dict[str, str | None]:
        """Return the DAGs that Airflow knows among these, each with its team; None for no team."""
        with create_session() as session:
            known = session.scalars(select(DagModel.dag_id).where(DagModel.dag_id.in_(dag_ids))).all()
            teams = DagModel.get_dag_id_to_team_name_mapping(list(known), session=session)
        return {dag_id: teams.get(dag_id) for dag_id in known}

    def all_dag_ids(self) -> set[str]:
        """Return the ids of all DAGs that Airflow knows."""
        with create_session() as session:
            return set(session.scalars(select(DagModel.dag_id)))

    def jobs_of(self, origin: Origin) -> list[JobReference]:
        """Return the jobs that a run's tasks set up, each once, by what those tasks gave Airflow.

        That is what they returned as XCom and what a setup task keeps in its state store, from before the
        job exists and across tries. With a task in ``origin``, only that task is asked.
        """
        if origin.run_id is None:
            return []
        given = [*self._returned(origin), *self._remembered(origin)]
        return list(dict.fromkeys(reference for value in given for reference in _references(value)))

    def write_down(self, event: str, owner: str, origin: Origin | None, facts: Mapping[str, str]) -> None:
        """Write into Airflow's audit log that a person ended a job; ``origin`` is one that Airflow knows."""
        with create_session() as session:
            session.add(
                Log(
                    event=event,
                    owner=owner,
                    extra=json.dumps(dict(facts)),
                    dag_id=origin.dag_id if origin is not None else None,
                    run_id=origin.run_id if origin is not None else None,
                    task_id=origin.task_id if origin is not None else None,
                )
            )

    def _returned(self, origin: Origin) -> list[object]:
        chosen = select(XComModel.value).where(
            XComModel.dag_id == origin.dag_id,
            XComModel.run_id == origin.run_id,
            XComModel.key == "return_value",
        )
        if origin.task_id is not None:
            chosen = chosen.where(
                XComModel.task_id == origin.task_id, XComModel.map_index == origin.map_index
            )
        with create_session() as session:
            return list(session.scalars(chosen.limit(_MOST)))

    def _remembered(self, origin: Origin) -> list[object]:
        if origin.run_id is None or origin.task_id is None:
            return []
        scope = TaskScope(origin.dag_id, origin.run_id, origin.task_id, origin.map_index)
        found = _parsed(get_state_backend().get(scope, REMEMBERED_JOBS))
        return list(found) if isinstance(found, list) else []


def _references(value: object) -> Iterator[JobReference]:
    found = _parsed(value)
    if not isinstance(found, Mapping) or not {"job_id", "destination", "staging"} <= found.keys():
        return
    try:
        yield JobReference.from_dict(found)
    except InvalidRecord:
        return


def _parsed(value: object) -> object:
    """Return the value of a JSON text; anything else as it is."""
    if not isinstance(value, str | bytes):
        return value
    try:
        parsed: object = json.loads(value)
    except (ValueError, RecursionError):
        return None
    return parsed

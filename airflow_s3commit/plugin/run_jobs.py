"""What Airflow's own database says of a run's jobs, and what is written there when a person ends one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from airflow.models.log import Log
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from sqlalchemy import select

from airflow_s3commit.exceptions import InvalidRecord
from airflow_s3commit.protocol.records import JobReference

__all__ = ["jobs_of_run", "write_down"]

#: XComs of a run that are looked at.
_MOST = 1_000


def jobs_of_run(dag_id: str, run_id: str) -> list[JobReference]:
    """Return the jobs that the tasks of a run returned a reference to, each once."""
    chosen = (
        select(XComModel.value)
        .where(XComModel.dag_id == dag_id, XComModel.run_id == run_id, XComModel.key == "return_value")
        .limit(_MOST)
    )
    with create_session() as session:
        values = list(session.scalars(chosen))
    return list({reference.job_id: reference for value in values for reference in _reference(value)}.values())


def write_down(event: str, owner: str, context: Mapping[str, str], facts: Mapping[str, str]) -> None:
    """Write into Airflow's audit log that a person ended a job."""
    with create_session() as session:
        session.add(
            Log(
                event=event,
                owner=owner,
                extra=json.dumps(dict(facts)),
                dag_id=context.get("dag_id"),
                run_id=context.get("run_id"),
                task_id=context.get("task_id"),
            )
        )


def _reference(value: object) -> Iterator[JobReference]:
    try:
        known = json.loads(value) if isinstance(value, str | bytes) else value
    except ValueError:
        return
    if not isinstance(known, Mapping) or known.keys() != {"job_id", "destination", "staging"}:
        return
    try:
        yield JobReference.from_dict(known)
    except InvalidRecord:
        return

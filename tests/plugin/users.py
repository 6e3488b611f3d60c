"""An auth manager that knows whose DAG is whose, and an Airflow that knows some DAGs and jobs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

from airflow_s3commit import JobReference
from airflow_s3commit.plugin.auth import Metadata, Origin

__all__ = ["DAGS", "KnownRuns", "PerDagAuthManager", "user"]

DAGS = frozenset({"nightly_flights", "payroll", "weather"})

#: What each user may do with which DAG; ``*`` is all of them, but for those named beside it.
RIGHTS: dict[str, dict[str, frozenset[str]]] = {
    "root": {"*": frozenset({"GET", "PUT"})},
    "auditor": {"*": frozenset({"GET"})},
    "barred": {"*": frozenset({"GET", "PUT"}), "payroll": frozenset()},
    "keeper": {"*": frozenset({"GET", "PUT"}), "payroll": frozenset({"GET"})},
    "collector": {dag_id: frozenset({"GET", "PUT"}) for dag_id in DAGS},
    "owner": {"nightly_flights": frozenset({"GET", "PUT"})},
    "viewer": {"nightly_flights": frozenset({"GET"})},
    "stranger": {"weather": frozenset({"GET", "PUT"})},
    "lister": {"nightly_flights": frozenset({"list"})},
    "public": {},
}


class PerDagAuthManager(SimpleAuthManager):
    """Lets users do with a DAG's runs what `RIGHTS` says, and nothing else; ``list`` is the DAG without them.

    As Airflow's FAB manager does, it answers a question without a DAG by whether one may be listed.
    """

    def is_authorized_dag(
        self,
        *,
        method: Any,
        user: SimpleAuthManagerUser,
        access_entity: Any = None,
        details: Any = None,
    ) -> bool:
        """See the base class."""
        rights = RIGHTS[user.username]
        if details is None or details.id is None:
            return any(method in allowed for allowed in rights.values())
        allowed = rights.get(details.id, rights.get("*", frozenset()))
        return method in allowed or (access_entity is not DagAccessEntity.RUN and "list" in allowed)

    def get_authorized_dag_ids(self, *, user: SimpleAuthManagerUser, method: Any = "GET", **_: Any) -> Any:
        """See the base class."""
        rights = RIGHTS[user.username]
        return {dag_id for dag_id in DAGS if method in rights.get(dag_id, rights.get("*", frozenset()))}


@dataclass
class KnownRuns(Metadata):
    """An Airflow that knows `DAGS`, and some jobs that a run of one of them set up."""

    jobs: dict[tuple[str, str | None], list[JobReference]] = field(default_factory=dict)

    def teams_of(self, dag_ids: Collection[str]) -> dict[str, str | None]:
        return dict.fromkeys(DAGS & set(dag_ids))

    def all_dag_ids(self) -> set[str]:
        return set(DAGS)

    def jobs_of(self, origin: Origin) -> list[JobReference]:
        return self.jobs.get((origin.dag_id, origin.run_id), [])

    def tell(self, dag_id: str, run_id: str, reference: JobReference) -> None:
        """Let a run know a job."""
        self.jobs.setdefault((dag_id, run_id), []).append(reference)


def user(name: str) -> SimpleAuthManagerUser:
    """Return a user."""
    return SimpleAuthManagerUser(username=name, role="VIEWER")

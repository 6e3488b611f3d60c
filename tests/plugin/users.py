"""An auth manager that knows whose DAG is whose, which Airflow's simple one does not."""

from __future__ import annotations

from typing import Any

from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

__all__ = ["PerDagAuthManager", "user"]

#: What each user may do with which DAG; ``*`` is all of them.
RIGHTS: dict[str, dict[str, frozenset[str]]] = {
    "root": {"*": frozenset({"GET", "PUT"})},
    "auditor": {"*": frozenset({"GET"})},
    "owner": {"nightly_flights": frozenset({"GET", "PUT"})},
    "viewer": {"nightly_flights": frozenset({"GET"})},
    "stranger": {"weather": frozenset({"GET", "PUT"})},
}


class PerDagAuthManager(SimpleAuthManager):
    """Lets users do with a DAG what `RIGHTS` says, and nothing else."""

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
        dag_id = details.id if details is not None else None
        return method in rights.get("*", frozenset()) or method in rights.get(dag_id or "", frozenset())


def user(name: str) -> SimpleAuthManagerUser:
    """Return a user."""
    return SimpleAuthManagerUser(username=name, role="VIEWER")

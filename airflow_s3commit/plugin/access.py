"""Who may see a job, and who may end it: whoever may do so with the DAG run that it belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, TypeAlias

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.models.dag import DagModel

if TYPE_CHECKING:
    from airflow.api_fastapi.auth.managers.base_auth_manager import BaseAuthManager
    from airflow.api_fastapi.auth.managers.models.base_user import BaseUser

__all__ = ["Access"]

_Method: TypeAlias = Literal["GET", "PUT"]


class Access:
    """What one user may see and do, asked of Airflow's auth manager once for each DAG.

    A job whose record names no DAG was set up outside Airflow, or nothing is known of it: it takes the right
    to all DAGs.

    Args:
        manager: Airflow's auth manager.
        user: The user.

    """

    def __init__(self, manager: BaseAuthManager[BaseUser], user: BaseUser) -> None:
        self._manager = manager
        self._user = user
        self._known: dict[tuple[_Method, str | None], bool] = {}

    def may_read(self, context: Mapping[str, str]) -> bool:
        """Tell whether the user may read the run that a job's context names."""
        return self._may("GET", context.get("dag_id"))

    def may_end(self, context: Mapping[str, str]) -> bool:
        """Tell whether the user may edit the run that a job's context names."""
        return self._may("PUT", context.get("dag_id"))

    def may_read_everything(self) -> bool:
        """Tell whether the user may read all DAGs."""
        return self._may("GET", None)

    def _may(self, method: _Method, dag_id: str | None) -> bool:
        asked = (method, dag_id or None)
        if asked not in self._known:
            self._known[asked] = self._ask(*asked)
        return self._known[asked]

    def _ask(self, method: _Method, dag_id: str | None) -> bool:
        if dag_id is None:
            return self._manager.is_authorized_dag(method=method, details=DagDetails(), user=self._user)
        details = DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id))
        return self._manager.is_authorized_dag(
            method=method, access_entity=DagAccessEntity.RUN, details=details, user=self._user
        )

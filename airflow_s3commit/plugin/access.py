"""Who may see a job, and who may end it: rights to the DAG run that Airflow itself knows it by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from airflow.api_fastapi.auth.managers.models.batch_apis import IsAuthorizedDagRequest
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails

from airflow_s3commit.plugin.origin import Origin
from airflow_s3commit.protocol.records import JobReference

if TYPE_CHECKING:
    from airflow.api_fastapi.auth.managers.base_auth_manager import BaseAuthManager
    from airflow.api_fastapi.auth.managers.models.base_user import BaseUser

    from airflow_s3commit.plugin.metadata import Metadata
    from airflow_s3commit.protocol.survey import JobSummary

__all__ = ["Access"]

_Method: TypeAlias = Literal["GET", "PUT"]

#: A DAG that cannot exist, because no DAG's id has a colon: who has a right to it has it to DAGs in general.
#: Asked without an id, auth managers tell whether somebody may list DAGs, for which one DAG is enough.
_NO_DAG: Final = "s3commit:no-dag"


class Access:
    """What one user may see and do, asked of Airflow's auth manager once for each DAG.

    A job that names no DAG that Airflow knows takes the right to all DAGs.

    Args:
        manager: Airflow's auth manager.
        user: The user.
        metadata: What Airflow knows of DAGs and runs.

    """

    def __init__(self, manager: BaseAuthManager[BaseUser], user: BaseUser, metadata: Metadata) -> None:
        self._manager = manager
        self._user = user
        self._metadata = metadata
        self._teams: dict[str, str | None] = {}
        self._unknown: set[str] = set()
        self._dags: dict[tuple[_Method, str], bool] = {}
        self._all: dict[_Method, bool] = {}

    def expect(self, contexts: Iterable[Mapping[str, str]]) -> None:
        """Ask in one go whether the user may read the runs that several jobs' contexts name.

        Changes no answer of `may_read`; it saves requests where the auth manager is a service.
        """
        known = {origin.dag_id for origin in self._known(contexts)}
        asked = sorted(dag_id for dag_id in known if ("GET", dag_id) not in self._dags)
        requests = [
            IsAuthorizedDagRequest(
                method="GET", access_entity=DagAccessEntity.RUN, details=self._details(dag_id)
            )
            for dag_id in asked
        ]
        # The answer is one for all: if it is no, each is asked by itself when it is needed.
        if requests and self._manager.batch_is_authorized_dag(requests, user=self._user):
            self._dags.update({("GET", dag_id): True for dag_id in asked})

    def may_read(self, context: Mapping[str, str]) -> bool:
        """Tell whether the user may read the run that a job's context names."""
        origin = self.origin(context)
        return self._may_all("GET") if origin is None else self._may("GET", origin.dag_id)

    def origin(self, context: Mapping[str, str]) -> Origin | None:
        """Return the run that a job's context names; None if Airflow knows no such DAG."""
        return next(iter(self._known([context])), None)

    def why_not_end(self, job: JobSummary, destination: str) -> str | None:
        """Return why the user may not end a job, in words; None if they may.

        What a job's record says of its run decides nothing by itself: the run's own tasks must have told
        Airflow of this very job.

        Args:
            job: The job.
            destination: URI of the destination that it is shown at.

        """
        origin = self.origin(job.context)
        if origin is None:
            if self._may_all("PUT"):
                return None
            return "It names no DAG that Airflow knows: ending it takes the right to edit all DAGs."
        if not self._may("PUT", origin.dag_id):
            return f"Ending it takes the right to edit the runs of the DAG {origin.dag_id}."
        if job.staging is not None:
            job_itself = JobReference(job_id=job.job_id, destination=destination, staging=job.staging)
            if job_itself in self._metadata.jobs_of(origin):
                return None
        if self._may_all("PUT"):
            return None
        return (
            f"Its record names the run {origin.run_id or '(none)'} of the DAG {origin.dag_id}, but Airflow"
            " does not know that this run set up this job here: ending it takes the right to edit all DAGs."
        )

    def _known(self, contexts: Iterable[Mapping[str, str]]) -> list[Origin]:
        origins = [origin for context in contexts if (origin := Origin.of(context)) is not None]
        new = {origin.dag_id for origin in origins} - self._teams.keys() - self._unknown
        if new:
            self._teams.update(self._metadata.teams_of(new))
            self._unknown |= new - self._teams.keys()
        return [origin for origin in origins if origin.dag_id in self._teams]

    def _may(self, method: _Method, dag_id: str) -> bool:
        asked = (method, dag_id)
        if asked not in self._dags:
            self._dags[asked] = self._ask(method, self._details(dag_id))
        return self._dags[asked]

    def _may_all(self, method: _Method) -> bool:
        """Tell whether the user has a right to all DAGs: to DAGs in general, and to each one by its name."""
        if method not in self._all:
            self._all[method] = self._ask(method, DagDetails(id=_NO_DAG)) and (
                self._manager.get_authorized_dag_ids(user=self._user, method=method)
                >= self._metadata.all_dag_ids()
            )
        return self._all[method]

    def _ask(self, method: _Method, details: DagDetails) -> bool:
        return self._manager.is_authorized_dag(
            method=method, access_entity=DagAccessEntity.RUN, details=details, user=self._user
        )

    def _details(self, dag_id: str) -> DagDetails:
        return DagDetails(id=dag_id, team_name=self._teams[dag_id])

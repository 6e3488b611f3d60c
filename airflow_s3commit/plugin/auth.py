"""Authorization: permissions on a job's DAG run, and signed forms.

A job's record names the DAG run that set it up. The record is not trusted: Airflow's database confirms it.

Airflow's session is a cookie, which a browser adds to every request. ``SameSite=Lax`` protects against forms
of other sites, but not of other hosts in the same domain. So a form has a token, signed with the API server's
key for one user, one step and one job, which expires after an hour.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias
from urllib.parse import quote, urlsplit

from airflow.api_fastapi.auth.managers.models.batch_apis import IsAuthorizedDagRequest
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.models.dag import DagModel
from airflow.models.log import Log
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from itsdangerous import BadSignature, URLSafeTimedSerializer
from msgspec.structs import replace
from sqlalchemy import select

from airflow_s3commit.exceptions import InvalidRecord
from airflow_s3commit.operators.setup import JOB
from airflow_s3commit.protocol.model.job import JobReference

if TYPE_CHECKING:
    from airflow.api_fastapi.auth.managers.base_auth_manager import BaseAuthManager
    from airflow.api_fastapi.auth.managers.models.base_user import BaseUser

    from airflow_s3commit.protocol.inspect.jobs import JobSummary

_Method: TypeAlias = Literal["GET", "PUT"]

#: Id of a DAG that cannot exist, because ids have no colon: permission for it is permission for all DAGs.
#: Without an id, auth managers check for permission to list DAGs, which permission for one DAG implies.
_NO_DAG: Final = "s3commit:no-dag"


class Access:
    """The permissions of one user, by Airflow's auth manager. Checks each DAG once.

    A job whose DAG is unknown to Airflow requires permission for all DAGs.

    Args:
        manager: Airflow's auth manager.
        user: The user.
        metadata: Airflow's database.

    """

    def __init__(self, manager: BaseAuthManager[BaseUser], user: BaseUser, metadata: Metadata) -> None:
        self._manager = manager
        self._user = user
        self._metadata = metadata
        self._teams: dict[str, str | None] = {}
        self._unknown: set[str] = set()
        self._dags: dict[tuple[_Method, str], bool] = {}
        self._all: dict[_Method, bool] = {}

    def may_look(self) -> bool:
        """Return whether the user may read any DAG; otherwise the page does not even show destinations."""
        return self._manager.is_authorized_dag(method="GET", user=self._user)

    def prefetch(self, contexts: Iterable[Mapping[str, str]]) -> None:
        """Check in one request whether the user may read the runs of several jobs.

        Optional: `may_read` returns the same without this call, with more requests to the auth manager.

        Args:
            contexts: The contexts of the jobs.

        """
        known = {origin.dag_id for origin in self._known(contexts)}
        unchecked = sorted(dag_id for dag_id in known if ("GET", dag_id) not in self._dags)
        requests = [
            IsAuthorizedDagRequest(
                method="GET", access_entity=DagAccessEntity.RUN, details=self._details(dag_id)
            )
            for dag_id in unchecked
        ]
        # The response is for all DAGs together: if it is no, each DAG is checked when needed.
        if requests and self._manager.batch_is_authorized_dag(requests, user=self._user):
            self._dags.update({("GET", dag_id): True for dag_id in unchecked})

    def may_read(self, context: Mapping[str, str]) -> bool:
        """Return whether the user may read the run in a job's context."""
        origin = self.origin(context)
        return self._may_all("GET") if origin is None else self._may("GET", origin.dag_id)

    def origin(self, context: Mapping[str, str]) -> Origin | None:
        """Return the run in a job's context; None if Airflow has no such DAG."""
        return next(iter(self._known([context])), None)

    def why_not_end(self, job: JobSummary, destination: str) -> str | None:
        """Return why the user may not end a job, as text; None if they may.

        The job's record alone is not enough: the tasks of its run must have recorded the same job in
        Airflow.

        Args:
            job: The job.
            destination: URI of the job's destination.

        """
        origin = self.origin(job.context)
        if origin is None:
            if self._may_all("PUT"):
                return None
            return "The job has no DAG in this Airflow. Ending it requires permission to edit all DAGs."
        if not self._may("PUT", origin.dag_id):
            return f"Ending the job requires permission to edit the runs of the DAG {origin.dag_id}."
        if job.staging is not None:
            reference = JobReference(job_id=job.job_id, destination=destination, staging=job.staging)
            if reference in self._metadata.jobs_of(origin):
                return None
        if self._may_all("PUT"):
            return None
        return (
            f"The job's record names the run {origin.run_id or '(none)'} of the DAG {origin.dag_id}, but"
            " Airflow has no record that it set up the job. Ending it requires permission to edit all DAGs."
        )

    def _known(self, contexts: Iterable[Mapping[str, str]]) -> list[Origin]:
        origins = [origin for context in contexts if (origin := Origin.of(context)) is not None]
        new = {origin.dag_id for origin in origins} - self._teams.keys() - self._unknown
        if new:
            self._teams.update(self._metadata.teams_of(new))
            self._unknown |= new - self._teams.keys()
        return [origin for origin in origins if origin.dag_id in self._teams]

    def _may(self, method: _Method, dag_id: str) -> bool:
        if (method, dag_id) not in self._dags:
            self._dags[method, dag_id] = self._is_authorized(method, self._details(dag_id))
        return self._dags[method, dag_id]

    def _may_all(self, method: _Method) -> bool:
        """Return whether the user has permission for all DAGs: in general, and for each one by its id."""
        if method not in self._all:
            self._all[method] = self._is_authorized(method, DagDetails(id=_NO_DAG)) and (
                self._manager.get_authorized_dag_ids(user=self._user, method=method)
                >= self._metadata.all_dag_ids()
            )
        return self._all[method]

    def _is_authorized(self, method: _Method, details: DagDetails) -> bool:
        return self._manager.is_authorized_dag(
            method=method, access_entity=DagAccessEntity.RUN, details=details, user=self._user
        )

    def _details(self, dag_id: str) -> DagDetails:
        return DagDetails(id=dag_id, team_name=self._teams[dag_id])


#: Seconds for which a form is valid.
FORM_SECONDS: Final = 3600

_SALT = "airflow-s3commit.form"


class FormTokens:
    """Signs and checks the tokens of forms.

    Args:
        secret: The secret key that all API servers of an Airflow installation share.

    """

    def __init__(self, secret: str) -> None:
        self._serializer = URLSafeTimedSerializer(secret, salt=_SALT)

    def sign(self, user: str, step: str, destination: str, job_id: str) -> str:
        """Return the token of a form for a user, a step and a job."""
        return self._serializer.dumps([user, step, destination, job_id])

    def is_valid(self, token: str, user: str, step: str, destination: str, job_id: str) -> bool:
        """Return whether a token was signed for this user, step and job within the last hour."""
        try:
            signed = self._serializer.loads(token, max_age=FORM_SECONDS)
        except BadSignature:
            return False
        return bool(signed == [user, step, destination, job_id])


def is_same_origin(headers: Mapping[str, str], base_url: str) -> bool:
    """Return whether a page of this server sent a request.

    Args:
        headers: The request's headers.
        base_url: Airflow's configured base URL, which differs from the request's host behind a proxy.

    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = urlsplit(headers.get("origin", "")).netloc
    return bool(origin) and origin in {headers.get("host", ""), urlsplit(base_url).netloc}


@dataclass(frozen=True, slots=True)
class Origin:
    """The task that set a job up, according to the job's record; its ids are valid in Airflow.

    Attributes:
        dag_id: Id of the DAG.
        run_id: Id of the DAG run; None if the record has no valid one.
        task_id: Id of the task; None if the record has no valid one.
        map_index: Index of the mapped task instance; -1 if the task is not mapped.

    """

    dag_id: str
    run_id: str | None = None
    task_id: str | None = None
    map_index: int = -1

    @classmethod
    def of(cls, context: Mapping[str, str]) -> Origin | None:
        """Return the origin in a job's context; None if it has no valid DAG id."""
        dag_id, run_id = context.get("dag_id", ""), context.get("run_id", "")
        task_id, map_index = context.get("task_id", ""), context.get("map_index", "")
        if not _is_id(dag_id) or not _ID.fullmatch(dag_id):
            return None
        return cls(
            dag_id,
            run_id if _is_id(run_id) else None,
            task_id if _is_id(task_id) and _ID.fullmatch(task_id) else None,
            int(map_index) if re.fullmatch(r"[0-9]{1,9}", map_index) else -1,
        )

    @property
    def url(self) -> str | None:
        """Path of the run in Airflow's UI, relative to Airflow's root; None without a run."""
        if self.run_id is None:
            return None
        return f"dags/{quote(self.dag_id, safe='')}/runs/{quote(self.run_id, safe='')}"


def _is_id(text: str) -> bool:
    # Browsers resolve "." and ".." in paths even when they are encoded. Databases reject NUL.
    return 0 < len(text) <= _MAX_ID_LENGTH and text.isprintable() and text not in {".", ".."}


#: Characters and maximum length of the ids of DAGs and tasks in Airflow.
_ID = re.compile(r"[\w.-]+")
_MAX_ID_LENGTH = 250


class Metadata:
    """Airflow's metadata database: DAGs, the jobs of their runs, and the audit log."""

    def teams_of(self, dag_ids: Collection[str]) -> dict[str, str | None]:
        """Return the team of each of these DAGs that exist; None for a DAG without a team."""
        with create_session() as session:
            known = session.scalars(select(DagModel.dag_id).where(DagModel.dag_id.in_(dag_ids))).all()
            # Airflow 3.1 has no teams.
            find: Any = getattr(DagModel, "get_dag_id_to_team_name_mapping", None)
            teams = {} if find is None else find(list(known), session=session)
        return {dag_id: teams.get(dag_id) for dag_id in known}

    def all_dag_ids(self) -> set[str]:
        """Return the ids of all DAGs."""
        with create_session() as session:
            return set(session.scalars(select(DagModel.dag_id)))

    def jobs_of(self, origin: Origin) -> list[JobReference]:
        """Return the jobs that a run's tasks recorded in Airflow, without duplicates.

        Tasks record jobs in their return values (XCom). A setup task also records its job in an XCom of its
        own, which is written before the job exists.

        Args:
            origin: The run; with a task id, only this task is read.

        """
        if origin.run_id is None:
            return []
        chosen = select(XComModel.value).where(
            XComModel.dag_id == origin.dag_id,
            XComModel.run_id == origin.run_id,
            XComModel.key.in_(("return_value", JOB)),
        )
        if origin.task_id is not None:
            chosen = chosen.where(
                XComModel.task_id == origin.task_id, XComModel.map_index == origin.map_index
            )
        with create_session() as session:
            values = session.scalars(chosen.limit(_MAX_XCOMS)).all()
        return list(dict.fromkeys(reference for value in values for reference in _references(value)))

    def log_action(self, event: str, owner: str, origin: Origin | None, facts: Mapping[str, str]) -> None:
        """Add an entry to Airflow's audit log.

        Args:
            event: Name of the event.
            owner: Name of the user.
            origin: The run of the job; None if Airflow has no such DAG.
            facts: Details of the event.

        """
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


def _references(value: object) -> Iterator[JobReference]:
    found = _parsed(value)
    if not isinstance(found, Mapping) or not {"job_id", "destination", "staging"} <= found.keys():
        return
    try:
        # The one that is written before the job exists pins no record.
        yield replace(JobReference.from_dict(found), sha256="")
    except InvalidRecord:
        return


def _parsed(value: object) -> object:
    """Return the value of a JSON text; return any other value unchanged."""
    if not isinstance(value, str | bytes):
        return value
    try:
        parsed: object = json.loads(value)
    except (ValueError, RecursionError):
        return None
    return parsed


#: Maximum number of XComs of a run to read.
_MAX_XCOMS = 1_000

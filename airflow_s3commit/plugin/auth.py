"""Authorization: permissions on the DAG run of a job, and forms that come from the page itself.

A job's record names the DAG run that set it up. The record is not trusted: Airflow's database confirms it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias
from urllib.parse import quote, urlsplit

from airflow.api_fastapi.auth.managers.models.batch_apis import IsAuthorizedDagRequest
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.models.dag import DagModel
from airflow.models.log import Log
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
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
_NO_DAG: Final = DagDetails(id="s3commit:no-dag")

#: Characters and maximum length of the ids of DAGs and tasks in Airflow.
_ID = re.compile(r"[\w.-]+")
_MAX_ID_LENGTH = 250

#: Maximum number of XComs of a run to read.
_MAX_XCOMS = 1_000


class Origin(NamedTuple):
    """The task instance that set up a job, by the job's record; ids that Airflow cannot have are left out."""

    dag_id: str
    run_id: str | None = None
    task_id: str | None = None
    map_index: int = -1

    @classmethod
    def of(cls, context: Mapping[str, str]) -> Origin | None:
        """Return the origin in a job's context; None if it has no valid DAG id."""
        dag_id, run_id, task_id, map_index = (
            context.get(name, "") for name in ("dag_id", "run_id", "task_id", "map_index")
        )
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


class Access:
    """The permissions of one user; for a job whose DAG is unknown to Airflow, those for all DAGs."""

    def __init__(self, manager: BaseAuthManager[BaseUser], user: BaseUser, metadata: Metadata) -> None:
        self._manager = manager
        self._user = user
        self._metadata = metadata
        self._dags: dict[str, DagDetails | None] = {}
        self._answers: dict[tuple[_Method, str | None], bool] = {}

    def may_look(self) -> bool:
        """Return whether the user may read any DAG; otherwise the page does not even show destinations."""
        return self._manager.is_authorized_dag(method="GET", user=self._user)

    def readable(self, contexts: Iterable[Mapping[str, str]]) -> Callable[[Mapping[str, str]], bool]:
        """Return `may_read`, after one request about all of these jobs instead of one for each DAG."""
        known = [dag for dag in self._details(contexts) if dag is not None]
        requests = [
            IsAuthorizedDagRequest(method="GET", access_entity=DagAccessEntity.RUN, details=dag)
            for dag in known
        ]
        # The response is for all DAGs together: if it is no, each DAG is checked when needed.
        if requests and self._manager.batch_is_authorized_dag(requests, user=self._user):
            self._answers.update({("GET", dag.id): True for dag in known})
        return self.may_read

    def may_read(self, context: Mapping[str, str]) -> bool:
        """Return whether the user may read the run in a job's context."""
        return self._may("GET", next(self._details([context]), None))

    def origin(self, context: Mapping[str, str]) -> Origin | None:
        """Return the run in a job's context; None if Airflow has no such DAG."""
        return Origin.of(context) if next(self._details([context]), None) is not None else None

    def why_not_end(self, job: JobSummary, destination: str) -> str | None:
        """Return why the user may not end a job; None if they may.

        The job's record is not enough: the tasks of its run must have recorded the same job in Airflow.
        """
        origin, why = self.origin(job.context), "The job has no DAG in this Airflow."
        if origin is not None:
            if not self._may("PUT", next(self._details([job.context]))):
                return f"Ending the job requires permission to edit the runs of the DAG {origin.dag_id}."
            if any(
                (one.job_id, one.destination, one.staging) == (job.job_id, destination, job.staging)
                for one in self._metadata.jobs_of(origin)
            ):
                return None
            why = (
                f"The job's record names the run {origin.run_id or '(none)'} of the DAG {origin.dag_id}, but"
                " Airflow has no record that it set up the job."
            )
        return None if self._may("PUT", None) else f"{why} Ending it requires permission to edit all DAGs."

    def _details(self, contexts: Iterable[Mapping[str, str]]) -> Iterator[DagDetails | None]:
        """Yield the DAG of each context, as the auth manager knows it; None if Airflow has no such DAG."""
        ids = [origin.dag_id if (origin := Origin.of(context)) else "" for context in contexts]
        if new := set(ids) - self._dags.keys():
            teams = self._metadata.teams_of(new)
            self._dags |= {
                one: DagDetails(id=one, team_name=teams[one]) if one in teams else None for one in new
            }
        yield from (self._dags[one] for one in ids)

    def _may(self, method: _Method, dag: DagDetails | None) -> bool:
        """Return whether the user may read or edit the runs of a DAG; with None, of all DAGs.

        Permission for all DAGs is permission for one that cannot exist, and for each that exists by its id.
        """
        key = (method, dag.id if dag is not None else None)
        if key not in self._answers:
            self._answers[key] = self._manager.is_authorized_dag(
                method=method, access_entity=DagAccessEntity.RUN, details=dag or _NO_DAG, user=self._user
            ) and (
                dag is not None
                or self._manager.get_authorized_dag_ids(user=self._user, method=method)
                >= self._metadata.all_dag_ids()
            )
        return self._answers[key]


def is_same_origin(headers: Mapping[str, str], base_url: str) -> bool:
    """Return whether a page of this server sent a request, which Airflow's cookie alone does not prove.

    Every browser names the relation of a form's page to this server or, over plain HTTP, its origin; no page
    can change that. Other hosts in the same domain, which ``SameSite`` lets in, are refused. Behind a proxy,
    Airflow's configured base URL differs from the request's host.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = urlsplit(headers.get("origin", "")).netloc
    return bool(origin) and origin in {headers.get("host", ""), urlsplit(base_url).netloc}


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
        """Return the jobs that the origin's task, or all tasks of its run, recorded in Airflow, each once.

        They are in return values (XCom), and in an XCom that a setup task writes before its job exists.
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
        found = (reference_in(value) for value in values)
        return [*dict.fromkeys(reference for reference in found if reference is not None)]

    def log_action(self, event: str, owner: str, origin: Origin | None, facts: Mapping[str, str]) -> None:
        """Add a user's action to Airflow's audit log; ``origin`` is None if Airflow has no such DAG."""
        log = Log(event=event, owner=owner, extra=json.dumps(dict(facts)))
        if origin is not None:
            log.dag_id, log.run_id, log.task_id = origin.dag_id, origin.run_id, origin.task_id
        with create_session() as session:
            session.add(log)


def reference_in(value: object) -> JobReference | None:
    """Return the job reference in an XCom's value, which may be JSON, without its digest; else None."""
    try:
        known = json.loads(value) if isinstance(value, str | bytes) else value
        if isinstance(known, Mapping):
            return replace(JobReference.from_dict(known), sha256="")
    except (ValueError, RecursionError, InvalidRecord):
        pass
    return None

"""A client of Airflow's REST API, with the calls that a demo makes."""

from __future__ import annotations

import http.client
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Seconds that one request may take; the first ones load half of Airflow.
TIMEOUT = 60.0


class ApiError(RuntimeError):
    """A request was answered with an error, or not at all.

    Args:
        message: The request and the answer.
        status: The HTTP status; 0 if there was no answer.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class AirflowApi:
    """The REST API of one Airflow, with the token of one user.

    Args:
        url: The address of the API server, such as ``http://127.0.0.1:8080``.
        user: The user's name.
        password: The user's password.

    Attributes:
        url: As given.
        user: As given.
    """

    def __init__(self, url: str, user: str, password: str) -> None:
        self.url = url
        self.user = user
        self._password = password
        self._token = ""

    def healthy(self, *components: str) -> bool:
        """Return whether all these components, such as ``scheduler``, report that they are healthy."""
        try:
            health = self._call("GET", "/api/v2/monitor/health")
        except ApiError:
            return False
        return all((health.get(name) or {}).get("status") == "healthy" for name in components)

    def has_dag(self, dag_id: str) -> bool:
        """Return whether the DAG has been read from its file and can run."""
        try:
            return not self._get(f"/dags/{quote(dag_id)}")["is_paused"]
        except ApiError as error:
            if error.status == http.HTTPStatus.NOT_FOUND:
                return False
            raise

    def import_errors(self) -> list[str]:
        """Return the tracebacks of DAG files that could not be imported."""
        return [found["stack_trace"] for found in self._get("/importErrors")["import_errors"]]

    def trigger(
        self, dag_id: str, *, partition_key: str | None = None, conf: Mapping[str, Any] | None = None
    ) -> str:
        """Start a run and return its id.

        Args:
            dag_id: The DAG's id.
            partition_key: The partition that the run is for; None for DAGs without partitions.
            conf: Values for the DAG's params.
        """
        body = {"logical_date": None, "partition_key": partition_key, "conf": dict(conf or {})}
        return str(self._post(f"/dags/{quote(dag_id)}/dagRuns", body)["dag_run_id"])

    def backfill(self, dag_id: str, *, first: str, last: str, conf: Mapping[str, Any] | None = None) -> int:
        """Start a backfill that runs every partition from ``first`` to ``last`` again, and return its id.

        Args:
            dag_id: The DAG's id.
            first: The first partition's time, in ISO 8601.
            last: The last partition's time.
            conf: Values for the DAG's params.
        """
        body = {
            "dag_id": dag_id,
            "from_date": first,
            "to_date": last,
            "reprocess_behavior": "completed",
            "dag_run_conf": dict(conf or {}),
            "max_active_runs": 1,
        }
        return int(self._post("/backfills", body)["id"])

    def runs(self, dag_id: str) -> list[dict[str, Any]]:
        """Return the DAG's runs, oldest first."""
        found = self._get(f"/dags/{quote(dag_id)}/dagRuns?{urlencode({'order_by': 'id', 'limit': 100})}")
        return list(found["dag_runs"])

    def run(self, dag_id: str, run_id: str) -> dict[str, Any]:
        """Return one run."""
        return self._get(f"/dags/{quote(dag_id)}/dagRuns/{quote(run_id)}")

    def tasks(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        """Return the task instances of a run."""
        path = f"/dags/{quote(dag_id)}/dagRuns/{quote(run_id)}/taskInstances?limit=100"
        return list(self._get(path)["task_instances"])

    def xcom(self, dag_id: str, run_id: str, task_id: str) -> Any:
        """Return what a task returned, or None."""
        path = f"/dags/{quote(dag_id)}/dagRuns/{quote(run_id)}/taskInstances/{quote(task_id)}"
        try:
            return self._get(f"{path}/xcomEntries/return_value?deserialize=false&stringify=false")["value"]
        except ApiError as error:
            if error.status == http.HTTPStatus.NOT_FOUND:
                return None
            raise

    def _get(self, path: str) -> dict[str, Any]:
        return self._call("GET", f"/api/v2{path}", token=self._token or self._sign_in())

    def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._call("POST", f"/api/v2{path}", body, token=self._token or self._sign_in())

    def _sign_in(self) -> str:
        answer = self._call("POST", "/auth/token", {"username": self.user, "password": self._password})
        self._token = str(answer["access_token"])
        return self._token

    def _call(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, token: str = ""
    ) -> dict[str, Any]:
        where = f"{method} {path}"
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=TIMEOUT)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            text = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise ApiError(f"Airflow's API did not answer {where}: {error}") from error
        finally:
            connection.close()
        if response.status >= http.HTTPStatus.BAD_REQUEST:
            said = text.decode(errors="replace")[:500]
            raise ApiError(f"Airflow's API refused {where} with {response.status}: {said}", response.status)
        answer = json.loads(text)
        if not isinstance(answer, dict):
            raise ApiError(f"Airflow's API answered {where} with something else than an object")
        return answer

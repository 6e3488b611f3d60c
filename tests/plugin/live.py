"""A real Airflow API server on loopback, with its own home and users, and the page's plugin in it."""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from airflow_s3commit.testing import ProgramFailed
from airflow_s3commit.testing.programs import Program, free_ports
from dev.programs import wait_for
from tests.plugin.scene import FLIGHTS, ORDERS

if TYPE_CHECKING:
    from airflow_s3commit.testing import S3Server

ROOT = Path(__file__).parents[2]
START_SECONDS = 240.0

#: Users and their roles; each one's password is their name.
USERS = {"ann": "admin", "vic": "viewer"}

FAB = "airflow.providers.fab.auth_manager.fab_auth_manager.FabAuthManager"


def _of_one_dag(dag_id: str) -> list[tuple[str, str]]:
    resources = (f"DAG:{dag_id}", "DAG Runs")
    return [(action, resource) for action in ("can_read", "can_edit") for resource in resources]


#: Users of an Airflow with FAB's auth manager: one of its own roles, or what a role of theirs permits.
FAB_RIGHTS: dict[str, str | list[tuple[str, str]]] = {
    "ann": "Admin",
    "otto": "Op",
    "vera": "Viewer",
    "paul": "Public",
    "one": [*_of_one_dag("left_open"), *_of_one_dag("left_to_end")],
    "two": _of_one_dag("left_open_too"),
}

#: A destination whose store never answers.
UNREACHABLE = "s3://lake/unreachable/"

#: What the page is told to show; the first one is that of the DAGs.
DESTINATIONS = (
    {"destination": FLIGHTS, "aws_conn_id": "lake"},
    {"destination": ORDERS, "aws_conn_id": "lake"},
    {"destination": UNREACHABLE, "aws_conn_id": "gone"},
)


class LiveAirflow:
    """An API server whose page watches three destinations on a SeaweedFS; one cannot be reached.

    Before it starts, the DAGs named run once. With a registry, their destination is only known by its entry
    there.
    """

    def __init__(
        self,
        home: Path,
        seaweed: S3Server,
        *dag_ids: str,
        auth_manager: str | None = None,
        registry: str | None = None,
    ) -> None:
        (port, nobody) = free_ports(2)
        self.home = home
        self.url = f"http://127.0.0.1:{port}"
        self.runs: dict[str, str] = {}
        self._dag_ids = dag_ids
        self._environment = _settings(home, self.url, port, seaweed, nobody)
        if auth_manager is not None:
            self._environment["AIRFLOW__CORE__AUTH_MANAGER"] = auth_manager
        if registry is not None:
            self._environment |= {
                "AIRFLOW__S3COMMIT__REGISTRY": registry,
                "AIRFLOW__S3COMMIT__REGISTRY_CONN_ID": "lake",
                "AIRFLOW__S3COMMIT__DESTINATIONS": json.dumps(DESTINATIONS[1:]),
            }
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.home.mkdir(parents=True, exist_ok=True)
            (self.home / "passwords.json").write_text(json.dumps({name: name for name in USERS}))
            outcome = self.home / "outcome.json"
            dags = str(ROOT / "tests/plugin/dags")
            with self._program(
                "prepare", "-m", "tests.plugin.prepare", dags, str(outcome), *self._dag_ids
            ) as preparing:
                if wait_for(preparing, START_SECONDS):
                    raise ProgramFailed(f"the run failed{preparing.last_words()}")
            told = json.loads(outcome.read_text())
            assert {run["state"] for run in told.values()} == {"success"}, told
            self.runs = {dag_id: run["run_id"] for dag_id, run in told.items()}
            server = stack.enter_context(self._program("api-server", "-m", "airflow", "api-server"))
            self._wait_for(server)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def token(self, user: str) -> str:
        """Sign a user in."""
        body = json.dumps({"username": user, "password": user}).encode()
        request = urllib.request.Request(f"{self.url}/auth/token", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return str(json.load(answer)["access_token"])

    def _program(self, name: str, *arguments: str) -> Program:
        return Program(
            name,
            [sys.executable, *arguments],
            log=self.home / f"{name}.log",
            environment=self._environment,
            directory=ROOT,
            grace=0.5,
        )

    def _wait_for(self, server: Program) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/api/v2/version", timeout=30):
                    return
            except (OSError, urllib.error.URLError):
                if not server.running or time.monotonic() > deadline:
                    raise ProgramFailed(f"the API server does not answer{server.last_words()}") from None
                time.sleep(0.25)


def _settings(home: Path, url: str, port: int, seaweed: S3Server, nobody: int) -> dict[str, str]:
    settings: dict[str, Any] = {
        "CORE__DAGS_FOLDER": ROOT / "tests/plugin/dags",
        "CORE__LOAD_EXAMPLES": False,
        "CORE__DAGS_ARE_PAUSED_AT_CREATION": False,
        "CORE__EXECUTOR": "LocalExecutor",
        "CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{name}:{role}" for name, role in USERS.items()),
        "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": home / "passwords.json",
        "DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}",
        "API__HOST": "127.0.0.1",
        "API__PORT": port,
        "API__WORKERS": 1,
        "API__BASE_URL": url,
        "API__SECRET_KEY": secrets.token_hex(32),
        "API_AUTH__JWT_SECRET": secrets.token_hex(32),
        "USAGE_DATA_COLLECTION__ENABLED": False,
        "S3COMMIT__DESTINATIONS": json.dumps(DESTINATIONS),
    }
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW_", "AWS_"))}
    return {
        **kept,
        **{f"AIRFLOW__{name}": str(value) for name, value in settings.items()},
        "AIRFLOW_HOME": str(home),
        "PYTHONPATH": str(ROOT),
        "no_proxy": "127.0.0.1",
        "AIRFLOW_CONN_LAKE": _connection(seaweed.endpoint_url, seaweed.access_key, seaweed.secret_key),
        "AIRFLOW_CONN_GONE": _connection(f"http://127.0.0.1:{nobody}", "nobody", "nobody"),
    }


def _connection(endpoint_url: str, access_key: str, secret_key: str) -> str:
    return json.dumps(
        {
            "conn_type": "aws",
            "login": access_key,
            "password": secret_key,
            "extra": {"endpoint_url": endpoint_url, "region_name": "us-east-1"},
        }
    )

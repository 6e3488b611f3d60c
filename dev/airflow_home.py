"""A separate Airflow: a home directory, and the processes that use it."""

from __future__ import annotations

import base64
import json
import os
import secrets
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

from airflow_s3commit.testing.programs import Program, ProgramFailed, free_ports
from dev.airflow_api import AirflowApi
from dev.programs import check_running, stop_all, wait_for

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

HOST = "127.0.0.1"
USER = "demo"

#: Seconds until its components must be healthy and its DAGs known. Two idle cores take about 25.
START_SECONDS = 240.0

#: Seconds that its processes get to stop. A stopping scheduler waits for its tasks, which by then wait for an
#: API server that is gone; nothing here is worth waiting for.
GRACE_SECONDS = 3.0


class RunningAirflow(Protocol):
    """An Airflow that runs DAGs."""

    @property
    def api(self) -> AirflowApi:
        """Its REST API."""

    def check_running(self) -> None:
        """Return if all of its processes run; raise `ProgramFailed` if one has ended."""


def wait_for_dags(airflow: RunningAirflow, dag_ids: Sequence[str], seconds: float) -> None:
    """Wait until these DAGs can run.

    Raises:
        ProgramFailed: A process ended, a DAG file does not import, or it takes longer than ``seconds``.
    """
    deadline = time.monotonic() + seconds
    while missing := [dag_id for dag_id in dag_ids if not airflow.api.has_dag(dag_id)]:
        if errors := airflow.api.import_errors():
            raise ProgramFailed("a DAG file does not import:\n" + "\n".join(errors))
        airflow.check_running()
        if time.monotonic() > deadline:
            raise ProgramFailed(f"Airflow does not know {', '.join(missing)} after {seconds:.0f} s")
        time.sleep(0.5)


class AirflowHome:
    """A scheduler, an API server and a DAG processor on loopback, on an SQLite database of their own.

    As a context manager it is started on entry and stopped on exit, with every task that still runs. It also
    ends when this process does, however that happens. Only what is triggered runs: schedules are off.

    Args:
        home: Airflow's home directory; created if missing.
        dags: The directory with the DAG files.
        environment: Variables for its processes besides Airflow's own: connections, keys, JAVA_HOME. They
            reach every task; none of them is written to disk or logged here.
        password: The password of its only user; if empty, one is generated.
        triggerer: Whether a triggerer runs too, without which no task can be deferred.

    Attributes:
        api: Its REST API.
    """

    def __init__(
        self,
        home: Path,
        dags: Path,
        environment: Mapping[str, str],
        *,
        password: str = "",
        triggerer: bool = False,
    ) -> None:
        self.home = home.absolute()
        self.dags = dags.absolute()
        (port,) = free_ports(1)
        password = password or secrets.token_urlsafe(16)
        self.api = AirflowApi(f"http://{HOST}:{port}", USER, password)
        self._password = password
        self._environment = clean_environment() | self._settings(port) | dict(environment)
        self._triggerer = triggerer
        self._programs: list[Program] = []

    def __enter__(self) -> Self:
        with ExitStack() as on_error:
            on_error.callback(self.stop)
            self.start()
            on_error.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def logs(self) -> Path:
        """The directory with the logs of its processes; the tasks' are in ``logs`` of its home."""
        return self.home / "processes"

    def start(self) -> None:
        """Create the database and start the processes, without waiting for them: see `wait_until_ready`.

        Raises:
            ProgramFailed: The database could not be created.
        """
        self.home.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._passwords, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump({USER: self._password}, file)
        with self._program("db", "migrate") as migration:
            if wait_for(migration, START_SECONDS):
                raise ProgramFailed(f"airflow db migrate failed{migration.last_words()}")
        self._programs = [
            self._program("api-server"),
            # Logs are read from this machine's files; the server for them would listen on every interface.
            self._program("scheduler", "--skip-serve-logs"),
            self._program("dag-processor"),
        ]
        if self._triggerer:
            self._programs.append(self._program("triggerer", "--skip-serve-logs"))
        for program in self._programs:
            program.start()

    def wait_until_ready(self, dag_ids: Sequence[str]) -> None:
        """Wait until everything is healthy and these DAGs can run.

        Raises:
            ProgramFailed: A process ended, a DAG file does not import, or it takes longer than four minutes.
        """
        deadline = time.monotonic() + START_SECONDS
        while not self.api.healthy("metadatabase", "scheduler", "dag_processor"):
            self.check_running()
            if time.monotonic() > deadline:
                raise ProgramFailed(f"Airflow was not healthy after {START_SECONDS:.0f} s; see {self.logs}")
            time.sleep(0.25)
        wait_for_dags(self, dag_ids, deadline - time.monotonic())

    def check_running(self) -> None:
        """Return if every process runs.

        Raises:
            ProgramFailed: One has ended.
        """
        check_running(self._programs)

    def stop(self) -> None:
        """Stop its processes and their tasks; return when they are gone. Repeatable."""
        stop_all(self._programs)
        self._passwords.unlink(missing_ok=True)

    @property
    def _passwords(self) -> Path:
        return self.home / "passwords.json"

    def _program(self, *arguments: str) -> Program:
        return Program(
            f"airflow {arguments[0]}",
            [sys.executable, "-m", "airflow", *arguments],
            log=self.logs / f"{arguments[0]}.log",
            environment=self._environment,
            directory=self.home,
            grace=GRACE_SECONDS,
        )

    def _settings(self, port: int) -> dict[str, str]:
        url = f"http://{HOST}:{port}"
        settings = {
            "CORE__DAGS_FOLDER": str(self.dags),
            "CORE__LOAD_EXAMPLES": "False",
            "CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "CORE__EXECUTOR": "LocalExecutor",
            "CORE__PARALLELISM": "4",
            "CORE__DEFAULT_TASK_RETRY_DELAY": "5",
            "CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
            "CORE__FERNET_KEY": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
            "CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USER}:admin",
            "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(self._passwords),
            "DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self.home / 'airflow.db'}",
            "API__HOST": HOST,
            "API__PORT": str(port),
            "API__WORKERS": "1",
            "API__BASE_URL": url,
            "API__SECRET_KEY": secrets.token_hex(32),
            "API_AUTH__JWT_SECRET": secrets.token_hex(32),
            "SCHEDULER__USE_JOB_SCHEDULE": "False",
            "SCHEDULER__CATCHUP_BY_DEFAULT": "False",
            "DAG_PROCESSOR__REFRESH_INTERVAL": "5",
            "USAGE_DATA_COLLECTION__ENABLED": "False",
        }
        return {"AIRFLOW_HOME": str(self.home)} | {f"AIRFLOW__{k}": v for k, v in settings.items()}


def clean_environment() -> dict[str, str]:
    """Return this process's environment without settings of other Airflows, stores and Sparks."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AIRFLOW_", "AWS_", "SPARK_"))
    }
    # The environment's own programs: spark-submit is called by name.
    kept["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", os.defpath)])
    for name in ("no_proxy", "NO_PROXY"):
        kept[name] = ",".join(filter(None, [kept.get(name), HOST]))
    return kept

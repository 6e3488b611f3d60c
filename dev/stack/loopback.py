"""The stack of ``docker/compose.yaml`` on loopback: its own scripts, settings, health checks and order."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from airflow_s3commit.testing.programs import ProgramFailed, free_ports
from dev.stack.base import HOST, WORKER, Stack
from dev.stack.compose_file import read_compose, read_env
from dev.stack.places import Places
from dev.stack.postgres import POSTGRES_GRACE, available
from dev.stack.services import RunningServices, Service

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

#: The services whose programs are Debian's and not this project's, and what works without them.
DATABASE, QUEUE, SCHEDULER = "postgres", "redis", "airflow-scheduler"

#: How many ports the S3 server's inner parts listen on.
INNER_PORTS = 7


class LoopbackStack(Stack):
    """Every service of the Compose file as a process of this machine, on 127.0.0.1.

    As a context manager everything is healthy after entry, and gone after exit. Everything also ends when
    this process does, however that happens. Without PostgreSQL's programs Airflow's database is SQLite, and
    without them or Redis's its executor is the LocalExecutor, with no worker of its own: see `missing`.

    Args:
        checkout: The root of the checkout.
        home: Where all it makes lies; what an earlier stack left in it is removed.
        java: ``JAVA_HOME`` for Spark.
        tell: Called with the name of each service when it is healthy, or has ended well.

    Attributes:
        missing: What this machine lacks, and what takes its place; a sentence each.
        secrets: The file with its secrets, made anew.

    """

    def __init__(
        self, checkout: Path, home: Path, java: Path, *, tell: Callable[[str], None] = lambda _: None
    ) -> None:
        self._checkout = checkout.absolute()
        self._home = home.absolute()
        self._java = java
        self._tell = tell
        self._resources = ExitStack()
        self._running: RunningServices | None = None
        self._places: Places | None = None
        self.missing: list[str] = []
        self.secrets = self._home / "env"
        self._logs = self._home / "logs"

    def __enter__(self) -> Self:
        with ExitStack() as on_error:
            on_error.callback(self._resources.close)
            self._start()
            on_error.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._resources.close()

    @property
    def logs(self) -> str:
        """Where the logs of its services are, and those of Airflow's tasks."""
        return f"{self._logs}, the tasks' in {self._home / 'volumes' / 'airflow-logs'}"

    def port(self, service: str, port: int) -> int:
        """Return the loopback port that stands for a service's port."""
        if self._places is None:
            raise ProgramFailed("the stack was not started, so it has no addresses")
        return self._places.port(service, port)

    def check_running(self) -> None:
        """Return if every service runs.

        Raises:
            ProgramFailed: One has ended.

        """
        if self._running is None:
            raise ProgramFailed("the stack was not started")
        self._running.check_running()

    def ailing(self) -> list[str]:
        """Ask every service for its health; return the names of those that are not well."""
        return [] if self._running is None else self._running.ailing()

    def _start(self) -> None:
        for name in ("logs", "volumes", "containers"):
            shutil.rmtree(self._home / name, ignore_errors=True)
        docker = self._checkout / "docker"
        self._make_secrets(docker)
        services = read_compose(docker / "compose.yaml", read_env(self.secrets))
        places = Places(services.values(), checkout=self._checkout, compose=docker, home=self._home)
        self._places = places
        possible = self._possible(services)
        sockets = Path(tempfile.mkdtemp(prefix="seaweedfs-"))
        self._resources.callback(shutil.rmtree, sockets, ignore_errors=True)
        changed = self._changed(possible, sockets)
        named = {name for service in possible.values() for name in service.environment}
        if unknown := changed.keys() - named:
            raise ProgramFailed(f"no service of docker/compose.yaml has {', '.join(sorted(unknown))}")
        self._running = RunningServices(
            [self._placed(service, places, changed) for service in possible.values()],
            directory=self._home / "containers",
            logs=self._logs,
            tell=self._tell,
        )
        self._resources.enter_context(self._running)

    def _possible(self, services: dict[str, Service]) -> dict[str, Service]:
        """Return the services that this machine has the programs for, the scheduler for the worker."""
        left_out = set()
        if available():
            services[DATABASE] = _from_this_machine(services[DATABASE])
        else:
            left_out.add(DATABASE)
            self.missing.append("PostgreSQL (package postgresql) is missing: Airflow's database is SQLite.")
        if shutil.which("redis-server") is None or shutil.which("redis-cli") is None:
            self.missing.append("Redis (package redis-server) is missing: there is no queue for a worker.")
        if self.missing:
            self.missing.append("So Airflow's scheduler runs the tasks itself, by the LocalExecutor.")
            left_out |= {QUEUE, WORKER}
            # It runs the tasks, so it needs all that the worker has, and waits for all that it waits for.
            services[SCHEDULER] = replace(
                services[SCHEDULER],
                environment={**services[SCHEDULER].environment, **services[WORKER].environment},
                after=services[WORKER].after,
            )
        return {name: service for name, service in services.items() if name not in left_out}

    def _placed(self, service: Service, places: Places, changed: dict[str, str]) -> Service:
        """Return a service with its addresses and paths on this machine, and its directories made."""
        own = places.inside(service.name)
        for directory in (own, *(places.mounted(service, inside) for inside in service.mounts)):
            directory.mkdir(parents=True, exist_ok=True)
        environment = self._machine() | {"HOME": str(own)} | places.environment(service)
        return replace(
            service,
            command=places.command(service, service.command),
            environment={name: changed.get(name, value) for name, value in environment.items()},
            health=places.command(service, service.health),
        )

    def _machine(self) -> dict[str, str]:
        """What an image would give to its programs, and the address they may listen on."""
        kept = {name: os.environ[name] for name in ("LANG", "LC_ALL", "TMPDIR", "TZ") if name in os.environ}
        return kept | {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
            "JAVA_HOME": str(self._java),
            "SPARK_LOCAL_IP": HOST,
            "NO_PROXY": HOST,
            "no_proxy": HOST,
        }

    def _changed(self, services: dict[str, Service], sockets: Path) -> dict[str, str]:
        """Return the variables that cannot be the same without Docker."""
        changed = {
            "AIRFLOW__API__BASE_URL": self.airflow_url,
            "STATE": str(sockets),
            "INNER_PORTS": " ".join(map(str, free_ports(INNER_PORTS))),
        }
        if self.missing:
            changed["AIRFLOW__CORE__EXECUTOR"] = "LocalExecutor"
        if DATABASE not in services:
            database = self._home / "volumes" / "airflow.db"
            changed["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] = f"sqlite:///{database}"
        return changed


def _from_this_machine(postgres: Service) -> Service:
    """Return the database as the machine's own PostgreSQL runs it; its image's entry point is not here."""
    script = "/opt/source/dev/stack/postgres.sh"
    return replace(
        postgres,
        command=[script, "server"],
        health=[script, "health"],
        environment={**postgres.environment, "ADDRESS": "0.0.0.0:5432"},
        mounts={},
        grace=POSTGRES_GRACE,
    )

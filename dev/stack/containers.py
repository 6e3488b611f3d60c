"""The stack of ``docker/compose.yaml`` in containers, run by Docker Compose."""

from __future__ import annotations

import json
import os
import subprocess
import time
from typing import TYPE_CHECKING, Any, Self

from airflow_s3commit.testing.programs import ProgramFailed, free_ports
from dev.airflow_api import AirflowApi
from dev.airflow_home import HOST
from dev.stack.base import DOCKER, Stack, make_secrets, read_env

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

#: The variables that tell Compose the ports to publish, and the ports in the machine's own network.
_PORTS = {"AIRFLOW_PORT": 8080, "SPARK_PORT": 8081, "S3_PORT": 8333}

_COMPOSE = ("docker", "compose")

#: Seconds between two queries of all containers: each starts a program.
_LOOK_SECONDS = 5.0

#: Microseconds over which a share of a processor is counted.
_PERIOD = 100_000


def has_networks() -> bool:
    """Return whether the engine gives containers networks of their own; some kernels have no bridges.

    Raises:
        ProgramFailed: The engine does not answer.
    """
    _run(["docker", "info", "--format", "{{.ID}}"])
    name = f"s3commit-probe-{os.getpid()}"
    try:
        _run(["docker", "network", "create", name])
    except ProgramFailed:
        return False
    _run(["docker", "network", "rm", name])
    return True


class ContainerStack(Stack):
    """Every service of the Compose file as a container, in a project of its own.

    Entry builds the images and waits until everything is healthy; exit removes the containers, networks and
    volumes. The images stay.

    Args:
        home: The directory of its secrets, which are replaced by new ones.
        project: The name of Compose's project; an existing project of this name is removed first.
        host_network: Whether every service is in the machine's own network, on fixed ports of loopback.
        tell: Called with a sentence for each step.
    """

    def __init__(
        self,
        home: Path,
        *,
        project: str = "s3commit-tried",
        host_network: bool = False,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__(home)
        self._tell = tell
        self._project = project
        names = ["compose.yaml", "compose.host.yaml"] if host_network else ["compose.yaml"]
        self._files = [DOCKER / name for name in names]
        ports = list(_PORTS.values()) if host_network else free_ports(len(_PORTS))
        self._published = dict(zip(_PORTS, map(str, ports), strict=True))
        self._airflow_url, self.spark_page, self.s3_url = (f"http://{HOST}:{port}" for port in ports)
        self._killed: set[str] = set()
        self._ids: dict[str, str] = {}
        self._looked = 0.0
        self.logs = f"docker compose --project-name {project} logs"

    def __enter__(self) -> Self:
        password = make_secrets(self.secrets)["AIRFLOW_ADMIN_PASSWORD"]
        self.api = AirflowApi(self._airflow_url, "admin", password)
        self._remove()
        self.compose("build", "--quiet")
        self._tell("the images are built")
        try:
            self.compose("up", "--wait", "--quiet-pull")
        except BaseException as error:
            if isinstance(error, ProgramFailed):
                error.add_note(self.compose("logs", "--no-color", "--tail", "20"))
            self._remove_after(error)
            raise
        self._tell("every service is healthy")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove_after(error)

    def check_running(self) -> None:
        """Return if every service runs, apart from those that were killed here.

        Raises:
            ProgramFailed: One has ended.
        """
        if time.monotonic() < self._looked + _LOOK_SECONDS:
            return
        for container in self._containers():
            name, code = container["Service"], container["ExitCode"]
            ended = container["State"] != "running" and code != 0
            if ended and name not in self._killed:
                said = self.compose("logs", "--no-color", "--tail", "20", name)
                raise ProgramFailed(f"{name} ended with {code}; the end of its log:\n{said}")
        self._looked = time.monotonic()

    def ailing(self) -> list[str]:
        """Return the names of the services whose last health check failed."""
        ailing = ("unhealthy", "starting")
        return [found["Service"] for found in self._containers() if found["Health"] in ailing]

    def shown_secrets(self) -> list[str]:
        """Return the names of secrets that appear in a log or in a command line, which others may read."""
        shown = self.compose("logs", "--no-color") + self.compose("top")
        return [name for name, value in read_env(self.secrets).items() if value in shown]

    def limit(self, service: str, share: float | None) -> None:
        """Limit a service to this share of one processor; None lifts the limit."""
        quota = -1 if share is None else int(share * _PERIOD)
        limits = ("--cpu-period", str(_PERIOD), "--cpu-quota", str(quota))
        _run(["docker", "update", *limits, self.container(service)])

    def kill(self, service: str) -> None:
        """Kill every process of a service at once; it stays down until `start`."""
        self._killed.add(service)
        _run(["docker", "kill", self.container(service)])

    def start(self, service: str) -> None:
        """Start a killed service again, not by Compose, which would rerun what the service waited for."""
        _run(["docker", "start", self.container(service)])
        self._killed.discard(service)

    def compose(self, *arguments: str) -> str:
        """Run Docker Compose on this stack and return its output.

        Raises:
            ProgramFailed: Compose failed.
        """
        files = ["--env-file", str(self.secrets)]
        files += [word for file in self._files for word in ("--file", str(file))]
        return _run([*_COMPOSE, "--project-name", self._project, *files, *arguments], self._published)

    def container(self, service: str) -> str:
        """Return the id of a service's container; Compose is asked once, which takes a second or two."""
        if service not in self._ids:
            self._ids[service] = self.compose("ps", "--all", "--quiet", service).strip()
        return self._ids[service]

    def _containers(self) -> list[dict[str, Any]]:
        told = self.compose("ps", "--all", "--format", "json")
        return [json.loads(line) for line in told.splitlines()]

    def _remove_after(self, error: BaseException | None) -> None:
        """Remove everything; after an earlier error, an error here only becomes a note of it."""
        try:
            self._remove()
        except ProgramFailed as left:
            if error is None:
                raise
            error.add_note(f"Not everything was removed: {left}")

    def _remove(self) -> None:
        down = ("down", "--volumes", "--remove-orphans", "--timeout", "5")
        try:
            self.compose(*down)
        except ProgramFailed:
            # A busy engine releases a container that ends a moment later.
            self.compose(*down)


def _run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        command, env=os.environ | dict(environment or {}), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        said = (done.stdout + done.stderr)[-4000:]
        raise ProgramFailed(f"{' '.join(command)} ended with {done.returncode}:\n{said}")
    return done.stdout

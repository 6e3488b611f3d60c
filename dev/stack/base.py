"""How a running stack is reached from this machine, whatever runs it."""

from __future__ import annotations

import subprocess
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

from airflow_s3commit.store.s3.config import S3Config
from dev.airflow_api import AirflowApi
from dev.stack.compose_file import read_env

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

HOST = "127.0.0.1"

#: The services that are asked for something from outside.
API, STORE, SPARK, WORKER = "airflow-api-server", "seaweedfs", "spark-master", "airflow-worker"

REGION = "us-east-1"


class Stack(ABC):
    """The services of ``docker/compose.yaml``, running. As a context manager: healthy inside, gone after.

    Attributes:
        secrets: The file with its secrets.

    """

    secrets: Path

    def _make_secrets(self, docker: Path) -> None:
        """Make the secrets anew, by the script in the checkout's directory ``docker``."""
        self.secrets.parent.mkdir(parents=True, exist_ok=True)
        self.secrets.unlink(missing_ok=True)
        subprocess.run([docker / "make-env.sh", self.secrets], check=True, stdout=subprocess.DEVNULL)

    @abstractmethod
    def __enter__(self) -> Self:
        """Start everything; return when all of it is healthy."""

    @abstractmethod
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop everything."""

    @abstractmethod
    def port(self, service: str, port: int) -> int:
        """Return the port of 127.0.0.1 at which a service's port is reached."""

    @abstractmethod
    def check_running(self) -> None:
        """Return if every service runs.

        Raises:
            ProgramFailed: One has ended.

        """

    @abstractmethod
    def ailing(self) -> list[str]:
        """Return the names of the services that are not well."""

    @property
    @abstractmethod
    def logs(self) -> str:
        """Where the logs are, in words."""

    @property
    def airflow_url(self) -> str:
        """Where Airflow's pages and API are."""
        return f"http://{HOST}:{self.port(API, 8080)}"

    @property
    def spark_page(self) -> str:
        """Where the Spark master shows its workers and applications."""
        return f"http://{HOST}:{self.port(SPARK, 8080)}"

    @property
    def api(self) -> AirflowApi:
        """Airflow's API, as its administrator."""
        return AirflowApi(self.airflow_url, "admin", read_env(self.secrets)["AIRFLOW_ADMIN_PASSWORD"])

    def store(self, identity: str) -> S3Config:
        """Return what `S3Store.connect` needs to reach the store.

        Args:
            identity: ``ADMIN`` or ``PIPELINE``.

        """
        secrets = read_env(self.secrets)
        return S3Config(
            endpoint_url=f"http://{HOST}:{self.port(STORE, 8333)}",
            region=REGION,
            access_key=secrets[f"S3_{identity}_ACCESS_KEY"],
            secret_key=secrets[f"S3_{identity}_SECRET_KEY"],
            path_style=True,
        )

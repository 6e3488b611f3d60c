"""How a running stack is reached from this machine, in containers or without."""

from __future__ import annotations

import subprocess
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_s3commit.store.s3.config import S3Config

if TYPE_CHECKING:
    from dev.airflow_api import AirflowApi

CHECKOUT = Path(__file__).parents[2]

DOCKER = CHECKOUT / "docker"

REGION = "us-east-1"


def read_env(path: Path) -> dict[str, str]:
    """Return the variables of an ``.env`` file of plain ``NAME=value`` lines."""
    lines = (line.strip() for line in path.read_text().splitlines())
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {name: value for name, _, value in pairs}


class Stack(ABC):
    """Airflow, a Spark cluster and an S3 server, running.

    Args:
        home: The directory of its secrets.

    Attributes:
        secrets: The file with its secrets.
        api: Airflow's API, as its administrator.
        spark_page: URL of the page on which the Spark master shows its workers and applications.
        s3_url: URL of the S3 server.
        logs: Where the logs are, in words.
    """

    api: AirflowApi
    spark_page: str
    s3_url: str
    logs: str

    def __init__(self, home: Path) -> None:
        self.secrets = home.absolute() / "env"

    @abstractmethod
    def check_running(self) -> None:
        """Return if every service runs.

        Raises:
            ProgramFailed: One has ended.
        """

    def store(self, identity: str) -> S3Config:
        """Return the configuration with which `S3Store.connect` reaches the store.

        Args:
            identity: Whose keys: ``ADMIN`` or ``PIPELINE``.
        """
        secrets = read_env(self.secrets)
        return S3Config(
            endpoint_url=self.s3_url,
            region=REGION,
            access_key=secrets[f"S3_{identity}_ACCESS_KEY"],
            secret_key=secrets[f"S3_{identity}_SECRET_KEY"],
            path_style=True,
        )


def make_secrets(file: Path) -> dict[str, str]:
    """Make new secrets with the script that a user runs, and return them."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    subprocess.run([DOCKER / "make-env.sh", file], check=True, stdout=subprocess.DEVNULL)
    return read_env(file)

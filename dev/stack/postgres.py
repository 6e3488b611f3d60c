"""PostgreSQL from the machine's own packages: a private server on loopback, run by ``postgres.sh``."""

from __future__ import annotations

import os
import secrets
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_s3commit.testing.programs import free_ports
from dev.stack.base import HOST
from dev.stack.services import RunningServices, Service

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Seconds to end in: it removes its data, a thousand files, and the disk may be busy.
POSTGRES_GRACE = 60.0

_SCRIPT = Path(__file__).with_name("postgres.sh")


def available() -> bool:
    """Whether this machine has PostgreSQL's programs, and a user who may run them."""
    return subprocess.run([_SCRIPT, "available"], check=False).returncode == 0


@contextmanager
def postgres(logs: Path) -> Iterator[str]:
    """Run a server with the database ``airflow``; yield its URL for SQLAlchemy, which holds the password.

    It listens on 127.0.0.1 alone. It ends, and its data go, with the block and with this process, however
    that ends.

    Args:
        logs: The directory of its log.

    Raises:
        ProgramFailed: It ended while it started, or was not ready within seven minutes.

    """
    (port,) = free_ports(1)
    password = secrets.token_urlsafe(24)
    environment = os.environ | {
        "ADDRESS": f"{HOST}:{port}",
        "POSTGRES_USER": "airflow",
        "POSTGRES_PASSWORD": password,
        "POSTGRES_DB": "airflow",
    }
    logs.mkdir(parents=True, exist_ok=True)
    script = str(_SCRIPT)
    server = Service("postgres", [script, "server"], environment, [script, "health"], grace=POSTGRES_GRACE)
    with RunningServices([server], directory=logs, logs=logs):
        yield f"postgresql+psycopg2://airflow:{password}@{HOST}:{port}/airflow"

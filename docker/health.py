#!/usr/bin/env python3
"""Say by the exit code whether a service of the stack does its work; Compose asks every few seconds.

``health.py airflow JOB``: the component of Airflow on this machine that runs jobs of this type, such as
``SchedulerJob``, has a recent heartbeat in the database.
``health.py airflow-api``: Airflow's API server answers, and reaches its database.
``health.py celery``: the worker on this machine answers.
``health.py spark-master``, ``health.py spark-worker``: it is alive; a worker also has its master.
``health.py s3``: the S3 server answers.

It imports no Airflow, so that asking is cheap.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import urllib.request
from datetime import UTC, datetime, timedelta
from typing import Any

#: Seconds that an answer may take.
TIMEOUT = 10

#: How old a heartbeat may be. Airflow's components send one every five seconds.
HEARTBEAT = timedelta(seconds=30)


def main(arguments: list[str]) -> int:
    """Return 0 if the service is healthy; else say why not and return 1."""
    try:
        why = _ailment(*arguments)
    except Exception as error:
        why = str(error) or type(error).__name__
    if why:
        print(f"{' '.join(arguments)}: {why}", file=sys.stderr)
    return 1 if why else 0


def _ailment(service: str, job_type: str = "") -> str:
    """Return what is wrong with a service; nothing if it is healthy."""
    if service == "airflow":
        return _heartbeat_ailment(job_type)
    if service == "celery":
        return _celery_ailment()
    return _page_ailment(service)


def _page_ailment(service: str) -> str:
    if service == "airflow-api":
        status = _json(f"http://127.0.0.1:{_own_port()}/api/v2/monitor/health")["metadatabase"]["status"]
        return "" if status == "healthy" else f"its database is {status}"
    if service == "spark-master":
        status = _json(f"http://{os.environ['PAGE']}/json/")["status"]
        return "" if status == "ALIVE" else f"its status is {status}"
    if service == "spark-worker":
        return "" if _json(f"http://{os.environ['PAGE']}/json/")["masterwebuiurl"] else "it has no master"
    if service == "s3":
        _get(f"http://127.0.0.1:{_own_port()}/healthz")
        return ""
    return "no such service"


def _heartbeat_ailment(job_type: str) -> str:
    from sqlalchemy import create_engine, text  # noqa: PLC0415 - the other images have none

    query = text("SELECT max(latest_heartbeat) FROM job WHERE job_type = :job_type AND hostname = :hostname")
    engine = create_engine(os.environ["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"])
    with engine.connect() as connection:
        latest = connection.execute(
            query, {"job_type": job_type, "hostname": socket.gethostname()}
        ).scalar_one()
    if latest is None:
        return f"there is no {job_type} of {socket.gethostname()}"
    sent = latest if isinstance(latest, datetime) else datetime.fromisoformat(latest)  # SQLite has texts
    age = datetime.now(UTC) - (sent if sent.tzinfo else sent.replace(tzinfo=UTC))
    return "" if age < HEARTBEAT else f"its last heartbeat is {age.total_seconds():.0f} s old"


def _own_port() -> str:
    return os.environ["ADDRESS"].rpartition(":")[2]


def _celery_ailment() -> str:
    # The broker's address holds a password: in the environment it shows in no process list.
    environment = os.environ | {"CELERY_BROKER_URL": os.environ["AIRFLOW__CELERY__BROKER_URL"]}
    name = f"celery@{socket.gethostname()}"
    asked = subprocess.run(
        ["celery", "inspect", "ping", "--timeout", "5", "--destination", name],
        env=environment,
        capture_output=True,
        text=True,
        timeout=3 * TIMEOUT,
        check=False,
    )
    return "" if asked.returncode == 0 else f"{name} does not answer: {asked.stdout}{asked.stderr}"


def _json(url: str) -> Any:
    return json.loads(_get(url))


def _get(url: str) -> bytes:
    # Nothing between here and a service of the same stack: no proxy.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=TIMEOUT) as answer:
        body: bytes = answer.read()
    return body


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

#!/usr/bin/env python3
"""Say by the exit code whether a service of the stack does its work; Compose asks every few seconds.

``health.py airflow COMPONENT``: a component of Airflow (``metadatabase`` for the API server itself) has sent
its heartbeat lately, by what the API server knows.
``health.py celery``: the worker on this machine answers.
``health.py spark-master``, ``health.py spark-worker``: it is alive; a worker also has its master.
``health.py s3``: the S3 server answers.

It imports the standard library alone, so that asking is cheap.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import urllib.request
from typing import Any
from urllib.parse import urlsplit

#: Seconds that an answer may take.
TIMEOUT = 10


def main(arguments: list[str]) -> int:
    """Return 0 if the service is healthy; else say why not and return 1."""
    try:
        why = _ailment(*arguments)
    except (OSError, ValueError, LookupError, subprocess.SubprocessError) as error:
        why = str(error) or type(error).__name__
    if why:
        print(f"{' '.join(arguments)}: {why}", file=sys.stderr)
    return 1 if why else 0


def _ailment(service: str, component: str = "") -> str:
    """Return what is wrong with a service; nothing if it is healthy."""
    if service == "airflow":
        api = urlsplit(os.environ["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"]).netloc
        status = _json(f"http://{api}/api/v2/monitor/health")[component]["status"]
        return "" if status == "healthy" else f"its status is {status}"
    if service == "celery":
        return _celery_ailment()
    if service == "spark-master":
        status = _json(f"http://{os.environ['PAGE']}/json/")["status"]
        return "" if status == "ALIVE" else f"its status is {status}"
    if service == "spark-worker":
        return "" if _json(f"http://{os.environ['PAGE']}/json/")["masterwebuiurl"] else "it has no master"
    if service == "s3":
        port = os.environ["ADDRESS"].rpartition(":")[2]
        _get(f"http://127.0.0.1:{port}/healthz")
        return ""
    return "no such service"


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

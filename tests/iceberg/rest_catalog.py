"""Iceberg's own server of a REST catalog, which writes the tables' metadata itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from typing import TYPE_CHECKING

import httpx
import pytest

from airflow_s3commit.testing.programs import Program, free_ports
from dev.java import java_home
from dev.programs import check_running

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_s3commit import S3Config

#: The server with all that it needs, as Iceberg tests its clients with it.
SERVER = "org.apache.iceberg:iceberg-open-api:1.10.1"

#: Seconds that it may take to answer.
_PATIENCE = 60


def server(config: S3Config, warehouse: str, folder: Path) -> tuple[Program, str]:
    """Return the server of an empty catalog and its address, or skip the test where Maven cannot get it."""
    if shutil.which("mvn") is None:
        pytest.skip("mvn is not installed: Debian has it in maven")
    copied = ["dependency:copy", f"-Dartifact={SERVER}", f"-DoutputDirectory={folder}"]
    done = subprocess.run(
        ["mvn", "-B", "-q", *copied], capture_output=True, text=True, check=False, timeout=300
    )
    if done.returncode:
        pytest.skip(f"Maven cannot get {SERVER}: {done.stdout.strip()[:500]}")
    jar = next(folder.glob("iceberg-open-api-*.jar"))
    (port,) = free_ports(1)
    environment = {
        **os.environ,
        "CATALOG_REST_PORT": str(port),
        "CATALOG_WAREHOUSE": warehouse,
        "CATALOG_IO__IMPL": "org.apache.iceberg.aws.s3.S3FileIO",
        "CATALOG_S3_ENDPOINT": config.endpoint_url or "",
        "CATALOG_S3_PATH__STYLE__ACCESS": "true",
        "AWS_ACCESS_KEY_ID": config.access_key or "",
        "AWS_SECRET_ACCESS_KEY": config.secret_key or "",
        "AWS_REGION": config.region or "us-east-1",
    }
    java = f"{java_home()}/bin/java"
    command = [java, "-Xmx512m", "-jar", str(jar)]
    program = Program("REST catalog", command, log=folder / "rest.log", environment=environment)
    return program, f"http://127.0.0.1:{port}"


def wait_until_it_answers(program: Program, address: str) -> None:
    """Return when the server of the catalog answers."""
    end, never = time.monotonic() + _PATIENCE, threading.Event()
    while not never.wait(0.1):
        check_running([program])
        try:
            if httpx.get(f"{address}/v1/config").is_success:
                return
        except httpx.TransportError:
            assert time.monotonic() < end, f"the catalog does not answer{program.last_words()}"

"""The whole stack without Docker, as ``make stack`` runs it: up, judged by a run of the nightly DAG, gone."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dev.stack.base import read_env

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.spark,
    pytest.mark.seaweedfs,
    pytest.mark.timeout(1500),
    # Large groups are begun first; alone, this would be among the last tests to end.
    pytest.mark.all,
    pytest.mark.xdist_group("packaging"),
    pytest.mark.skipif(sys.platform != "linux", reason="what is left running is looked up in Linux's /proc"),
]

ROOT = Path(__file__).parents[2]

#: The last line that is written before the stack waits to be stopped.
UP = "Ctrl-C stops all of it."


def processes_of(home: Path) -> dict[int, bytes]:
    """Return the command lines of the processes that have this directory in their environment."""
    found = {}
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            if bytes(home) in (directory / "environ").read_bytes():
                found[int(directory.name)] = (directory / "cmdline").read_bytes()
        except OSError:
            continue
    return found


def lines_until_up(stack: subprocess.Popen[str]) -> Iterator[str]:
    """Return what the stack says until it is up, or has ended."""
    assert stack.stdout is not None
    for line in stack.stdout:
        yield line
        if UP in line:
            return


def test_the_stack_runs_the_nightly_dag_and_leaves_nothing(tmp_path: Path) -> None:
    """Airflow, Spark and S3 are up, the nightly DAG commits, no secret shows, SIGTERM ends all."""
    home = tmp_path / "stack"
    with subprocess.Popen(
        [sys.executable, "-m", "dev.stack", "--home", str(home)],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "160"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as stack:
        try:
            said = "".join(lines_until_up(stack))
            assert UP in said, said
            running = processes_of(home)
        finally:
            stack.send_signal(signal.SIGTERM)
    assert stack.returncode == 128 + signal.SIGTERM
    assert processes_of(home) == {}
    # Everything that the run is judged by, and the verdict on the rows that pyarrow read.
    assert "✗" not in said, said
    assert len(re.findall("✓", said)) == 9
    assert "right, row for row" in said
    assert "0 uploads pending in all of s3://lake/" in said
    assert b"org.apache.spark.deploy.worker.Worker" in b" ".join(running.values())
    check_secrets(home, said, running)


def check_secrets(home: Path, said: str, running: dict[int, bytes]) -> None:
    """Check that no secret is in what was said, in a log, or in a command line that anyone can read."""
    secrets = {value.encode() for value in read_env(home / "env").values()}
    logs = [path for path in [*home.rglob("*.log"), *home.rglob("*.out")] if path.is_file()]
    assert len(logs) > 10
    places = {"output": said.encode()} | {str(pid): line for pid, line in running.items()}
    places |= {str(path): path.read_bytes() for path in logs}
    assert [(place, secret) for place, text in places.items() for secret in secrets if secret in text] == []

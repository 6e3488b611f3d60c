"""The tests of `make check` cannot start a server, a program or Airflow unnoticed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cases import each

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]

BREAKING = {
    "import airflow.sdk": "imports airflow",
    "from pyspark.sql import SparkSession": "imports pyspark",
    "import socket; socket.socket().bind(('127.0.0.1', 0))": "starts a server on ('127.0.0.1', 0)",
    "import subprocess; subprocess.run(['java', '-version'])": "starts java",
    "import contextlib, http.server as h\n"
    "    with contextlib.suppress(Exception): h.HTTPServer(('127.0.0.1', 0), None)": "starts a server",
}


def run(directory: Path, body: str) -> subprocess.CompletedProcess[str]:
    """Run a test of this body with the plugin of `make check`."""
    (directory / "test_it.py").write_text(f"def test_it():\n    {body}\n")
    arguments = ("-p", "tests.inner_loop", "-p", "no:randomly", "-p", "no:cacheprovider", "-q", "--rootdir")
    return subprocess.run(
        [sys.executable, "-m", "pytest", *arguments, str(directory), str(directory / "test_it.py")],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


@each(("body", "broken"), BREAKING.items())
def test_what_needs_a_longer_loop_fails(body: str, broken: str, tmp_path: Path) -> None:
    """A test that starts a server or a program, or imports Airflow or PySpark, fails and says so."""
    done = run(tmp_path, body)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    assert f"a test of `make check` {broken}" in done.stdout


def test_what_needs_none_of_it_passes(tmp_path: Path) -> None:
    """Another Python and a client's socket are let through."""
    body = (
        "import socket, subprocess, sys; socket.socket().close(); subprocess.run([sys.executable, '-c', ''])"
    )
    assert run(tmp_path, body).returncode == pytest.ExitCode.OK

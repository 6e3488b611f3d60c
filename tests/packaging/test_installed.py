"""The wheel in an environment of its own: it works, is light, and has type information."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.packaging.conftest import uv

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.xdist_group("packaging")

#: What a user might write, with every type in it checked.
GOOD = """
from typing import assert_type

from airflow_s3commit.exceptions import S3CommitError
from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.model.job import JobOptions, JobReference
from airflow_s3commit.protocol.model.manifest import Manifest
from airflow_s3commit.store.memory import MemoryStore


def refresh(store: MemoryStore) -> Manifest:
    job = Job.setup(store, "s3://lake/flights/", options=JobOptions(conflict_mode="append"))
    assert_type(job.reference, JobReference)
    try:
        return job.commit()
    except S3CommitError:
        job.abort()
        raise
"""

BAD = GOOD.replace('conflict_mode="append"', 'conflict_mode="apend"') + "\nrefresh(None)\n"


def run(environment: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a program of the environment, with nothing of this process's own but the search path."""
    return subprocess.run(
        [environment / "bin" / arguments[0], *arguments[1:]],
        env={"PATH": "/usr/bin:/bin", "HOME": str(cwd)},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )


def test_nothing_is_dragged_in(installed: Path) -> None:
    """Neither Airflow nor Spark nor pyarrow comes along, and no more than twenty packages do."""
    names = {line.partition("==")[0] for line in uv("pip", "freeze", "--python", str(installed)).splitlines()}
    assert any(name.startswith("airflow-s3commit") for name in names)
    assert not [
        name
        for name in names
        if name.startswith(("apache-airflow", "pyspark", "pyarrow", "pandas", "numpy", "pycurl"))
    ]
    assert len(names) <= 20


def test_the_command_works(installed: Path, tmp_path: Path) -> None:
    """`s3commit` says what it can do, and its version."""
    told = run(installed, "s3commit", "--help", cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    for command in ("jobs", "recover", "sweep", "doctor"):
        assert command in told.stdout


def test_the_engine_works(installed: Path, tmp_path: Path) -> None:
    """A job is set up, written to, committed and read back with what is installed, in memory."""
    program = """
import airflow_s3commit
from airflow_s3commit.protocol.job import Job
from airflow_s3commit.store.memory import MemoryStore
store = MemoryStore(("lake",))
job = Job.setup(store, "s3://lake/flights/")
with job.task_attempt("s", "1", "t", "1", threads=0) as attempt:
    with attempt.open("dt=1/a.csv") as file:
        file.write(b"1,2")
    job.seal_stage("s", "1", [attempt.commit()])
job.seal()
print(airflow_s3commit.__version__, job.commit().counts.files)
"""
    done = run(installed, "python", "-c", program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[1] == "1"


def test_what_is_missing_is_named(installed: Path, tmp_path: Path) -> None:
    """Without Spark or Airflow, their doors say which module is missing instead of half working."""
    for module, missing in (
        ("airflow_s3commit.spark.datasource", "pyspark"),
        ("airflow_s3commit.operators.setup", "airflow"),
    ):
        done = run(installed, "python", "-c", f"import {module}", cwd=tmp_path)
        assert f"No module named '{missing}" in done.stderr


@pytest.mark.all
@pytest.mark.parametrize(("snippet", "clean"), [(GOOD, True), (BAD, False)], ids=["right", "wrong"])
def test_types_are_exported(installed: Path, tmp_path: Path, snippet: str, clean: bool) -> None:
    """A type checker finds a user's program right, and finds two mistakes in it that only types tell."""
    (tmp_path / "program.py").write_text(snippet)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache")),
            *("--config-file=", "--python-executable", str(installed / "bin" / "python"), "program.py"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode == 0) is clean, done.stdout + done.stderr
    if not clean:
        assert "[arg-type]" in done.stdout
        assert done.stdout.count("error:") == 2

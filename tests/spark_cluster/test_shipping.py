"""Executors without the package installed, and secrets that must never reach them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
import venv
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from airflow_s3commit.spark import py_files
from tests.spark_cluster.cluster import SMALL, ApplicationFailed
from tests.spark_cluster.conftest import DRIVER_KEYS, DRIVER_SECRET, EXECUTOR_SECRET

if TYPE_CHECKING:
    from tests.spark_cluster.conftest import Driver, Table

pytestmark = [
    pytest.mark.all,
    pytest.mark.spark,
    pytest.mark.seaweedfs,
    pytest.mark.xdist_group("spark-cluster"),
]

ROWS = 300


def python_without(home: Path, *names: str) -> str:
    """Make a Python that has what this one has but this package, and but for some libraries."""
    venv.create(home, symlinks=True)
    site = next(home.glob("lib/python*/site-packages"))
    hidden = ("airflow_s3commit", "pyspark_s3commit", "_editable", "__editable__", *names)
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if entry.suffix != ".pth" and not entry.name.startswith(hidden):
            (site / entry.name).symlink_to(entry)
    return str(home / "bin" / "python")


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the zip."""
    return py_files(tmp_path_factory.mktemp("shipped"))


def test_executors_get_the_package_by_py_files(
    driver: Driver, table: Table, tmp_path: Path, shipped: str
) -> None:
    """A Python without the package cannot write; with the zip it can, and only libraries must be there."""
    bare = python_without(tmp_path / "bare")
    how = {"door": "write_pending", "destination": table.uri, "rows": ROWS, "tasks": 2, "conf": {}}
    with pytest.raises(ApplicationFailed, match="No module named 'airflow_s3commit'"):
        driver.call("write", python=bare, **how)
    # From here on the application has it, for the tests after this one too.
    driver.call("ship", path=shipped)
    driver.call("write", python=bare, **how)
    assert table.rows() == list(range(ROWS))
    poor = python_without(tmp_path / "poor", "msgspec")
    told = r"airflow-s3commit needs msgspec.*-m pip install boto3 msgspec pyarrow"
    with pytest.raises(ApplicationFailed, match=told):
        driver.call("write", python=poor, **how)
    assert table.rows() == list(range(ROWS))
    assert table.pending() == []


@pytest.mark.all
def test_spark_submit_sends_the_package(driver: Driver, table: Table, tmp_path: Path, shipped: str) -> None:
    """`spark-submit --py-files` runs an application whose driver and executors have libraries alone."""
    # The cluster has cores for one application.
    driver.stop()
    script = tmp_path / "submitted.py"
    shutil.copy(Path(__file__).with_name("submitted.py"), script)
    bare = python_without(tmp_path / "bare")
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--py-files", shipped]
    for key, value in {**SMALL, "spark.master": driver.cluster.url, **table.address}.items():
        command += ["--conf", f"{key}={value}"]
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("AWS_", "SPARK_", "PYSPARK_", "PYTHON"))}
    python = {"PYSPARK_PYTHON": bare, "PYSPARK_DRIVER_PYTHON": bare, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [*command, str(script), table.uri],
        env={**kept, **python, **DRIVER_KEYS},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("told: "))
    told = json.loads(line.removeprefix("told: "))
    assert Path(shipped).name in told["package"]
    assert told["rows"] == 100
    for door in ("pending/", "format/"):
        assert table.below(door).rows() == list(range(100))
        assert table.below(door).pending() == []


def test_no_secret_leaves_its_process(driver: Driver, table: Table) -> None:
    """Neither the conf, nor the event log, nor any command line contains a secret key."""
    driver.call("write", door="format", destination=table.uri, rows=ROWS, tasks=2, conf={})
    said = driver.call("whole_conf")
    assert any("spark.s3commit.endpoint.url" in line for line in said)
    lines = list(command_lines())
    assert any("CoarseGrainedExecutorBackend" in line for line in lines)
    logs = [path.read_text(errors="replace") for path in log_files(driver.cluster.home)]
    assert any("SparkListenerTaskEnd" in text for text in logs)
    for secret in (EXECUTOR_SECRET, DRIVER_SECRET, table.server.secret_key):
        assert not [text for text in (*said, *lines, *logs) if secret in text]


def command_lines() -> list[str]:
    """Return the command lines of everything that runs on this machine."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return found


def log_files(home: Path) -> list[Path]:
    """Return what Spark's processes have written for people."""
    # Not all below home: what executors work with comes and goes.
    patterns = ("*.log", "events/*/*", "work*/app-*/*/stdout", "work*/app-*/*/stderr")
    return [path for pattern in patterns for path in home.glob(pattern) if path.is_file()]

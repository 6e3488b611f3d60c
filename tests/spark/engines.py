"""Releases of Spark with Hadoop's S3A, each for every Scala binary version that it supports."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from airflow_s3commit.spark import pending_jar
from tests.hadoop.real_hadoop import Hadoop

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ENGINES", "Engine", "python_with_pyspark"]

#: The last release of Spark before 4.
RELEASE = "3.5.6"

#: One release of each minor version that is not this environment's.
RELEASES = (RELEASE, "4.0.1", "4.1.4", "4.2.1")

_NEEDED = ("pyarrow", "pandas", "setuptools", "boto3", "msgspec", "click", "rich")


@dataclass(frozen=True)
class Engine:
    """A Spark, on this machine alone.

    Attributes:
        home: Its directory, with ``bin``.
        python: The Python of its applications.
        jars: What ``--jars`` names.
        conf: What else it needs to have S3A.
    """

    home: Path
    python: Path
    jars: tuple[str, ...]
    conf: Mapping[str, str] = field(default_factory=dict)

    def command(self, conf: Mapping[str, str], *application: str) -> list[str]:
        """Return the command that submits an application."""
        command = [str(self.home / "bin" / "spark-submit"), "--master", "local[2,2]"]
        for name, value in {**self.conf, **conf}.items():
            command += ["--conf", f"{name}={value}"]
        return [*command, "--jars", ",".join([*self.jars, pending_jar()]), *application]

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of `command`, without keys of a store."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
        python = {"PYSPARK_PYTHON": str(self.python), "PYSPARK_DRIVER_PYTHON": str(self.python)}
        return {**kept, **python, "SPARK_HOME": str(self.home)}


def installed(cache: pytest.Cache) -> Engine:
    """Return the PySpark of this environment."""
    hadoop = Hadoop.get("3.5.0", cache.mkdir("hadoop"))
    return Engine(Path(pyspark.__file__).parent, Path(sys.executable), tuple(hadoop.jars_for_spark))


def of_release(cache: pytest.Cache, release: str = RELEASE) -> Engine:
    """Return a release of PySpark; with a Hadoop of its own if it is not this environment's."""
    if release == pyspark.__version__:
        return installed(cache)
    python = python_with_pyspark(cache, release)
    hadoop = Hadoop.get("3.4.1", cache.mkdir("hadoop"))
    clients = [jar for jar in hadoop.class_path.split(":") if Path(jar).name.startswith("hadoop-client")]
    class_path = ":".join([*clients, *hadoop.jars_for_spark])
    return Engine(_home(python), python, (), {"spark.driver.extraClassPath": class_path})


def scala_213(cache: pytest.Cache) -> Engine:
    """Return Spark 3.5 for Scala 2.13, assembled from Maven's jars and PySpark's scripts."""
    python = python_with_pyspark(cache)
    hadoop = Hadoop.get(f"spark-{RELEASE}", cache.mkdir("hadoop"))
    home = cache.mkdir("pyspark") / f"{RELEASE}-scala-2.13"
    shutil.rmtree(home, ignore_errors=True)
    (home / "jars").mkdir(parents=True)
    for jar in hadoop.class_path.split(":"):
        (home / "jars" / Path(jar).name).symlink_to(jar)
    for name in ("bin", "python"):
        (home / name).symlink_to(_home(python) / name)
    return Engine(home, python, ())


ENGINES = {"installed": installed, "3.5-scala-2.12": of_release, "3.5-scala-2.13": scala_213}


def python_with_pyspark(cache: pytest.Cache, release: str = RELEASE) -> Path:
    """Return the Python of a cached environment with a release of PySpark; skip if there can be none."""
    uv = Path(sysconfig.get_path("scripts")) / "uv"
    home = cache.mkdir("pyspark") / release
    if not (home / "ready").exists():
        shutil.rmtree(home, ignore_errors=True)
        made = [str(home / "bin" / "python"), f"pyspark=={release}", *_NEEDED]
        for command in (["venv", "--python", "3.11", str(home)], ["pip", "install", "--python", *made]):
            done = subprocess.run([str(uv), *command], capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"no environment with PySpark {release}: {done.stderr.strip()[-500:]}")
        (home / "ready").touch()
    return home / "bin" / "python"


def _home(python: Path) -> Path:
    return next(python.parents[1].glob("lib/python*/site-packages/pyspark"))

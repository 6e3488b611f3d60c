"""What jobs of plain Spark need: the jars of Hadoop's S3A, and DAGs that submit an unchanged job."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from airflow_s3commit.testing.programs import ProgramFailed

_HERE = Path(__file__).parent

#: The Hadoop of PySpark 4.3, and the AWS SDK's modules that S3A uses, whose bundle has half a gigabyte.
_PACKAGES = (
    "org.apache.hadoop:hadoop-aws:3.5.0",
    *(f"software.amazon.awssdk:{name}:2.35.4" for name in ("s3", "s3-transfer-manager", "sts")),
)

#: The bundle, and what Spark already has, often in a newer version.
_EXCLUDED = (
    "software.amazon.awssdk:bundle",
    "org.apache.hadoop:hadoop-client-api",
    "org.apache.hadoop:hadoop-client-runtime",
    "org.wildfly.openssl:wildfly-openssl",
    "io.netty:*",
    "org.slf4j:*",
    "commons-codec:*",
    "commons-logging:*",
)


def unchanged_dags(home: Path, dags: Path) -> Path:
    """Return a copy of the DAGs in which the nightly one submits the unchanged job.

    Args:
        home: Where the copy is made.
        dags: The DAGs.
    """
    copy = home / "dags"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(dags, copy)
    shutil.copy(_HERE / "nightly_flights_refresh.py", copy)
    shutil.copy(_HERE / "flights.py", copy / "jobs")
    return copy


def s3a_jars(home: Path, java: Path) -> Path:
    """Return the folder with the jars of S3A; Spark fetches them from Maven's registry once, 18 MB.

    Args:
        home: Where they are kept.
        java: ``JAVA_HOME`` for Spark.

    Raises:
        ProgramFailed: They cannot be fetched.
    """
    folder = home / "s3a"
    if not (folder / "jars").is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        nothing = folder / "nothing.py"
        nothing.touch()
        arguments = ["--packages", ",".join(_PACKAGES), "--exclude-packages", ",".join(_EXCLUDED)]
        try:
            spark_submit(java, *arguments, "--conf", f"spark.jars.ivy={folder}", str(nothing))
        except ProgramFailed:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    return folder / "jars"


def spark_submit(java: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """Run a program with Spark, and return what it printed.

    Args:
        java: ``JAVA_HOME`` for Spark.
        arguments: The arguments of ``spark-submit``.
        environment: Further environment variables.

    Raises:
        ProgramFailed: The program failed.
    """
    done = subprocess.run(
        [str(Path(sys.executable).with_name("spark-submit")), *arguments],
        env={**os.environ, **(environment or {}), "JAVA_HOME": str(java), "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ProgramFailed(f"spark-submit failed: {done.stderr.strip()[-2000:]}")
    return done.stdout

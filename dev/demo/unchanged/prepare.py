"""What an unchanged job needs: DAGs that submit it, and the jars of Hadoop's S3A."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from airflow_s3commit.testing.programs import ProgramFailed

_HERE = Path(__file__).parent

#: Hadoop of PySpark 4.3, and those modules of the AWS SDK that S3A uses: their bundle has half a gigabyte.
_PACKAGES = (
    "org.apache.hadoop:hadoop-aws:3.5.0",
    *(f"software.amazon.awssdk:{name}:2.35.4" for name in ("s3", "s3-transfer-manager", "sts")),
)

#: The bundle, and what Spark has already, often newer.
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
        command = [str(Path(sys.executable).with_name("spark-submit")), "--packages", ",".join(_PACKAGES)]
        command += ["--exclude-packages", ",".join(_EXCLUDED), "--conf", f"spark.jars.ivy={folder}"]
        done = subprocess.run(
            [*command, str(nothing)],
            env={**os.environ, "JAVA_HOME": str(java), "PYSPARK_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            shutil.rmtree(folder, ignore_errors=True)
            raise ProgramFailed(f"Spark cannot fetch the jars of hadoop-aws: {done.stderr.strip()[-2000:]}")
    return folder / "jars"

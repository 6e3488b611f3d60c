"""A Spark session with Hadoop's S3A, if its jars are available."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from dev.java import java_home

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_s3commit.testing.s3_server import S3Server

#: Hadoop of PySpark 4.3. No spark-hadoop-cloud of Spark 4.3 is published; 4.1's classes work with its core.
PACKAGES = "org.apache.hadoop:hadoop-aws:3.5.0,org.apache.spark:spark-hadoop-cloud_2.13:4.1.1"

#: What PySpark already has, and clouds that are not needed.
EXCLUDES = (
    "org.apache.hadoop:hadoop-azure", "org.apache.hadoop:hadoop-azure-datalake",
    "org.apache.hadoop:hadoop-client-api", "org.apache.hadoop:hadoop-client-runtime",
    "org.apache.hadoop:hadoop-cloud-storage", "com.google.cloud.bigdataoss:gcs-connector",
    "software.amazon.encryption.s3:amazon-s3-encryption-client-java", "joda-time:joda-time",
    "com.fasterxml.jackson.core:jackson-databind", "com.fasterxml.jackson.core:jackson-annotations",
    "com.fasterxml.jackson.dataformat:jackson-dataformat-cbor", "org.apache.httpcomponents:httpclient",
    "org.apache.httpcomponents:httpcore", "org.eclipse.jetty:jetty-util", "org.eclipse.jetty:jetty-util-ajax",
    "org.scala-lang:scala-library", "org.xerial.snappy:snappy-java",
)  # fmt: skip


_SPARK = {
    "spark.driver.memory": "3g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.python.daemon.module": "counting_daemon",
}

#: The folder of that module.
_DAEMON = Path(__file__).with_name("daemon")

_S3A = {
    "spark.hadoop.fs.s3a.aws.credentials.provider": (
        "software.amazon.awssdk.auth.credentials.EnvironmentVariableCredentialsProvider"
    ),
    "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
    "spark.hadoop.fs.s3a.path.style.access": "true",
    "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
    "spark.hadoop.fs.s3a.committer.name": "magic",
    # The store is on this machine: what S3A would do on its own server, given as much.
    "spark.hadoop.fs.s3a.fast.upload.buffer": "bytebuffer",
}


def s3a_conf(server: S3Server, jars: Path | None, more_jars: Sequence[str] = ()) -> dict[str, str]:
    """Return the conf with which S3A writes to a server, with jars from a folder or Maven's registry."""
    if jars:
        found = {"spark.jars": ",".join([*more_jars, *(str(jar) for jar in sorted(jars.glob("*.jar")))])}
    else:
        # PySpark's builder sets a named spark.jars again, after the packages were added to it: executors
        # would not get those.
        path = os.pathsep.join(more_jars)
        found = {
            "spark.jars.packages": PACKAGES,
            "spark.jars.excludes": ",".join(EXCLUDES),
            "spark.driver.extraClassPath": path,
            "spark.executor.extraClassPath": path,
        }
    return {**_S3A, "spark.hadoop.fs.s3a.endpoint": server.endpoint_url, **found}


def new_session(server: S3Server, conf: dict[str, str]) -> SparkSession:
    """Start Spark on two cores with further conf; keys are in the environment, not in the conf."""
    os.environ.update(server.environment)
    os.environ["JAVA_HOME"] = str(java_home())
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_DAEMON), os.environ.get("PYTHONPATH")]))
    return SparkSession.builder.master("local[2]").config(map={**_SPARK, **conf}).getOrCreate()


def start_session(
    server: S3Server, jars: Path | None, *, conf: Mapping[str, str] = {}, more_jars: Sequence[str] = ()
) -> tuple[SparkSession, bool]:
    """Start Spark with S3A and further conf; without both if jars are missing. Return whether it has S3A."""
    try:
        spark = new_session(server, {**s3a_conf(server, jars, more_jars), **conf})
        hadoop = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001
        hadoop.getClassByName("org.apache.hadoop.fs.s3a.S3AFileSystem")
    except Exception as error:
        print(
            f"without S3A: its jars cannot be had here ({str(error).splitlines()[0][:200]})", file=sys.stderr
        )
        with suppress(Exception):
            SparkSession.builder.getOrCreate().stop()
        return new_session(server, {}), False
    return spark, True

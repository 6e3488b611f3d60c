"""Spark's own tests of its writers, from its published test jar: each of their writes is a job."""

from __future__ import annotations

import os
import subprocess
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from airflow_s3commit import S3Store
from airflow_s3commit.spark import pending_jar
from airflow_s3commit.testing import S3Server
from tests.hadoop.real_hadoop import Hadoop
from tests.spark.suites.commits import BUCKET, Commits, serve

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.all,
    pytest.mark.spark,
    pytest.mark.seaweedfs,
    pytest.mark.timeout(1_800),
    pytest.mark.xdist_group("spark-suites"),
]

#: The release of Spark whose tests run.
RELEASE = "spark-suites-4.2.0"

_LOCATION = "a partition has a location of its own, where S3A leaves nothing pending: refused by name"
_DISK = "the test gives the disk a file system that fails, and the jar asks S3A"
_HIVE = "Hive's own writer renames files to their place: refused"
_LOG = "the test reads Spark's log, which is off"

#: Suites, with the tests that fail in each, and why.
SUITES: dict[str, dict[str, str]] = {
    "org.apache.spark.sql.sources.PartitionedWriteSuite": {},
    "org.apache.spark.sql.execution.datasources.FileFormatWriterSuite": {},
    "org.apache.spark.sql.sources.BucketedWriteWithoutHiveSupportSuite": {},
    "org.apache.spark.sql.sources.InsertSuite": {
        "SPARK-20236: dynamic partition overwrite with customer partition path": _LOCATION,
        "SPARK-35106: insert overwrite with custom partition path": _LOCATION,
        "SPARK-35106: dynamic partition overwrite with custom partition path": _LOCATION,
        "SPARK-35106: Throw exception when rename custom partition paths returns false": _LOCATION,
        "SPARK-35106: Throw exception when rename dynamic partition paths returns false": _DISK,
        "Stop task set if FileAlreadyExistsException was thrown": _DISK,
    },
    "org.apache.spark.sql.sources.BucketedWriteWithHiveSupportSuite": {"write hive bucketed table": _HIVE},
    "org.apache.spark.sql.sources.ParquetHadoopFsRelationSuite": {},
    "org.apache.spark.sql.hive.orc.HiveOrcHadoopFsRelationSuite": {},
    "org.apache.spark.sql.sources.JsonHadoopFsRelationSuite": {},
    "org.apache.spark.sql.hive.MetastoreDataSourcesSuite": {
        "saveAsTable(CTAS) using append and insertInto when the target table is Hive serde": _HIVE,
        "Infer schema for Hive serde tables": _HIVE,
        "SPARK-37283: Don't try to store a V1 table in Hive compatible format if the table contains Hive"
        " incompatible types": _LOG,
    },
    "org.apache.spark.sql.hive.PartitionProviderCompatibilitySuite": {
        "insert overwrite partition of new datasource table overwrites just partition": _LOCATION,
        "SPARK-18635 special chars in partition values - partition management true": _LOCATION,
        "SPARK-18635 special chars in partition values - partition management false": _LOCATION,
        "insert into partial dynamic partitions": _LOCATION,
        "insert into fully dynamic partitions": _LOCATION,
        "insert into static partition": _LOCATION,
        "overwrite partial dynamic partitions": _LOCATION,
        "overwrite fully dynamic partitions": _LOCATION,
        "overwrite static partition": _LOCATION,
        "append data with DataFrameWriter": _LOCATION,
    },
}

#: Packages that Spark opens on Java 17.
_OPENED = (
    "java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util",
    "java.util.concurrent", "java.util.concurrent.atomic", "jdk.internal.ref", "sun.nio.ch", "sun.nio.cs",
    "sun.security.action", "sun.util.calendar",
)  # fmt: skip


@pytest.fixture
def commits(tmp_path: Path) -> Iterator[tuple[Commits, dict[str, str], dict[str, str]]]:
    """Return the jobs of a suite, with the JVM's properties and environment."""
    with S3Server(tmp_path / "s3", (BUCKET,)) as server:
        commits = Commits(S3Store.connect(server.config))
        asked, address = serve(commits)
        s3a = "spark.hadoop.fs.s3a."
        properties = {
            "s3commit.suites.server": address,
            "spark.sql.sources.commitProtocolClass": "s3commit.suites.CommittedAtOnce",
            "spark.sql.extensions": "s3commit.spark.CatalogGuard",
            f"{s3a}endpoint": server.endpoint_url,
            f"{s3a}endpoint.region": "us-east-1",
            f"{s3a}path.style.access": "true",
            f"{s3a}committer.magic.track.commits.in.memory.enabled": "true",
        }
        yield commits, properties, server.environment
        asked.shutdown()


@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_of_spark_s_passes(
    suite: str,
    request: pytest.FixtureRequest,
    commits: tuple[Commits, dict[str, str], dict[str, str]],
    tmp_path: Path,
) -> None:
    """Every test passes but those that are refused, while each write is sealed, committed and replaces."""
    jobs, properties, environment = commits
    hadoop = Hadoop.get(RELEASE, request.config.cache.mkdir("hadoop"))
    source = Path(__file__).parent / "suites" / "CommittedAtOnce.java"
    class_path = f"{hadoop.classes}:{pending_jar()}:{hadoop.class_path}"
    compile_ = ["javac", "-proc:none", "-nowarn", "-cp", class_path, "-d", str(hadoop.classes), str(source)]
    subprocess.run(compile_, check=True, capture_output=True)
    (tmp_path / "tmp").mkdir()
    properties |= {
        "spark.testing": "true",
        "spark.ui.enabled": "false",
        "spark.test.home": str(tmp_path),
        "java.io.tmpdir": str(tmp_path / "tmp"),
        "jdk.reflect.useDirectMethodHandle": "false",
    }
    tests = [jar for jar in hadoop.class_path.split(":") if jar.endswith("-tests.jar")]
    # Some tests read resources as files.
    for jar in tests:
        with zipfile.ZipFile(jar) as archive:
            archive.extractall(
                tmp_path / "resources", (name for name in archive.namelist() if name.endswith(".json"))
            )
    class_path = f"{tmp_path / 'resources'}:{class_path}"
    command = ["java", "-Xmx1500m", "-XX:TieredStopAtLevel=1"]
    command += [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENED]
    command += [f"-D{name}={value}" for name, value in properties.items()]
    command += ["-cp", class_path, "org.scalatest.tools.Runner", "-R", " ".join(tests), "-oW", "-s", suite]
    done = subprocess.run(
        [*command, "-u", str(tmp_path / "junit")],
        cwd=tmp_path,
        env={**os.environ, **environment, "SPARK_TESTING": "1", "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=1_700,
    )
    (report,) = (tmp_path / "junit").glob("*.xml")
    cases = list(ET.parse(report).getroot().iter("testcase"))
    failed = {
        str(case.get("name")): str(failure.get("message"))
        for case in cases
        if (failure := case.find("failure")) is not None
    }
    assert len(cases) > len(failed), done.stdout[-4000:]
    assert jobs.committed
    assert failed.keys() == SUITES[suite].keys(), failed

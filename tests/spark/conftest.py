"""A Spark session on this machine, and helpers that show what it left in the store."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyarrow.fs import S3FileSystem
from pyspark.sql import SparkSession

from airflow_s3commit import Destination, Job, JobOptions, latest_manifest, manifest_files
from airflow_s3commit.protocol.model.destination import is_hidden
from airflow_s3commit.spark import committer_conf, write_pending
from airflow_s3commit.spark.options import SaveMode
from airflow_s3commit.tables.options import parse_columns
from tests.hadoop.real_hadoop import Hadoop
from tests.protocol.building import OURS
from tests.spark.engines import ENGINES, Engine

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame

    from airflow_s3commit import FileEntry, Manifest, S3Store
    from airflow_s3commit.testing import S3Server


@pytest.fixture(scope="package")
def s3a_jars(request: pytest.FixtureRequest) -> str:
    """Return the jars of S3A, separated by commas; none where Maven cannot get them."""
    try:
        return ",".join(Hadoop.get("3.5.0", request.config.cache.mkdir("hadoop")).jars_for_spark)
    except pytest.skip.Exception:
        return ""


@pytest.fixture(scope="package")
def spark(
    seaweed: S3Server, tmp_path_factory: pytest.TempPathFactory, s3a_jars: str
) -> Iterator[SparkSession]:
    """Run one local session whose processes find the store's keys in their environment, as on a cluster.

    A task may fail once before its job does. The session is made for many small jobs.
    """
    home = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in seaweed.environment.items():
            patch.setenv(name, value)
        # The store's address must only come from options and conf.
        patch.delenv("AWS_ENDPOINT_URL_S3")
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        session = (
            SparkSession.builder.master("local[2,2]")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.session.timeZone", "Asia/Tokyo")
            .config("spark.sql.warehouse.dir", str(home / "warehouse"))
            .config("spark.local.dir", str(home / "local"))
            .config("spark.jars", s3a_jars)
            .config("spark.python.daemon.module", "tests.spark.warm_daemon")
            .config("spark.hadoop.fs.s3a.endpoint", seaweed.endpoint_url)
            .config("spark.hadoop.fs.s3a.endpoint.region", "us-east-1")
            .config("spark.hadoop.fs.s3a.path.style.access", "true")
            .getOrCreate()
        )
        before = _of_s3a(session)
        yield session
        assert _of_s3a(session) == before, "a test has changed where the next ones find the store"
        session.stop()


def _of_s3a(session: SparkSession) -> dict[str, str]:
    context: Any = session.sparkContext
    return dict(context._jsc.hadoopConfiguration().getPropsWithPrefix("fs.s3a."))


@pytest.fixture
def spark_with_s3a(spark: SparkSession, s3a_jars: str) -> SparkSession:
    """Return the session; skip the test if it lacks S3A."""
    if not s3a_jars:
        pytest.skip("Maven cannot get the jars of S3A")
    return spark


@pytest.fixture(scope="module")
def engine(request: pytest.FixtureRequest) -> Engine:
    """Return the Spark of this environment, with S3A."""
    return ENGINES["installed"](request.config.cache)


class Submit(Protocol):
    """Runs an application of this folder, whose writes the jar of the protocol keeps pending."""

    def __call__(
        self, application: str, arguments: Sequence[str], conf: Mapping[str, str], **environment: str
    ) -> subprocess.CompletedProcess[str]: ...


@pytest.fixture
def submit_unchanged(seaweed: S3Server, engine: Engine) -> Submit:
    """Return what runs an application with S3A and the jar of the protocol."""

    def submit(
        application: str, arguments: Sequence[str], conf: Mapping[str, str], **environment: str
    ) -> subprocess.CompletedProcess[str]:
        s3a = "spark.hadoop.fs.s3a."
        settings = {
            f"{s3a}endpoint": seaweed.endpoint_url,
            f"{s3a}endpoint.region": "us-east-1",
            f"{s3a}path.style.access": "true",
            "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.sql.shuffle.partitions": "2",
            **conf,
        }
        is_ours = application.endswith(".py")
        path = str(Path(__file__).with_name(application)) if is_ours else application
        return subprocess.run(
            engine.command(settings, path, *arguments),
            env={**engine.environment, **seaweed.environment, **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=500,
        )

    return submit


@dataclass
class Lake:
    """A table in the store, seen from outside."""

    store: S3Store
    server: S3Server
    uri: str

    @property
    def destination(self) -> Destination:
        return Destination.parse(self.uri)

    @property
    def options(self) -> dict[str, str]:
        return {"endpointUrl": self.server.endpoint_url, "region": "us-east-1", "pathStyle": "true"}

    def visible(self) -> list[str]:
        """Return the visible data files, without markers of directories, by their paths in the table."""
        found = self.store.list_objects(self.destination.bucket, self.destination.prefix)
        paths = [info.key.removeprefix(self.destination.prefix) for info in found]
        return [path for path in paths if not is_hidden(path) and not path.endswith("/")]

    def everything(self) -> list[str]:
        """Return all keys, hidden ones too."""
        found = self.store.list_objects(self.destination.bucket, self.destination.prefix)
        return [info.key for info in found]

    def kept(self, of: str) -> list[str]:
        """Return the keys that outlive a job: its receipt in ``jobs``, or entries in the ``log``."""
        return [key for key in self.everything() if f"/_s3commit/{of}/" in key]

    def left(self) -> list[str]:
        """Return all keys except those that outlive an aborted job."""
        kept = {*self.kept("jobs"), *self.kept("log")}
        return [key for key in self.everything() if key not in kept]

    def pending(self) -> list[str]:
        """Return the keys of pending uploads."""
        found = self.store.list_uploads(self.destination.bucket, self.destination.prefix)
        return [upload.key for upload in found]

    def manifest(self) -> Manifest:
        return latest_manifest(self.store, self.destination)

    def files(self) -> list[FileEntry]:
        return list(manifest_files(self.store, self.manifest()))

    def download(self, folder: Path) -> Path:
        """Copy the visible data files to a local folder."""
        for path in self.visible():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            key = self.destination.prefix + path
            target.write_bytes(self.store.get(self.destination.bucket, key).body)
        return folder

    def table(self, *partition_by: str) -> pa.Table:
        """Read the visible data files over S3 with pyarrow, partition columns as text."""
        filesystem = S3FileSystem(
            access_key=self.server.access_key,
            secret_key=self.server.secret_key,
            endpoint_override=self.server.endpoint_url,
            region="us-east-1",
        )
        columns = pa.schema([(name, pa.string()) for name in partition_by])
        partitioning = ds.partitioning(columns, flavor="hive")
        source = f"{self.destination.bucket}/{self.destination.prefix}".rstrip("/")
        found = ds.dataset(source, filesystem=filesystem, format="parquet", partitioning=partitioning)
        return found.to_table()


@pytest.fixture
def lake(seaweed: S3Server, seaweed_store: S3Store, bucket: str, prefix: str) -> Lake:
    """Return an empty table for this test."""
    return Lake(seaweed_store, seaweed, f"s3://{bucket}/{prefix}")


@pytest.fixture
def job_conf(spark: SparkSession, lake: Lake) -> Iterator[Any]:
    """Return a function that sets a job up and puts it into the session's conf, as an operator would."""
    keys: set[str] = set()

    def set_up(mode: str, attempt: str = "1", committer: str = "partitioned") -> Job:
        options = JobOptions(conflict_mode=mode, committer=committer)
        job = Job.setup(lake.store, lake.uri, options=options, job_id=OURS)
        conf = committer_conf(
            job.reference, "load", attempt, endpoint_url=lake.server.endpoint_url, path_style=True
        )
        keys.update(conf)
        for key, value in conf.items():
            spark.conf.set(key, value)
        return job

    yield set_up
    for key in keys:
        spark.conf.unset(key)


def write(frame: DataFrame, lake: Lake, mode: SaveMode = "append", **options: str) -> None:
    """Write a frame as a notebook would."""
    frame.write.format("s3commit").mode(mode).options(**lake.options, **options).save(lake.uri)


def fill(frame: DataFrame, lake: Lake, mode: SaveMode = "append", **options: str) -> None:
    """Write a frame with `write_pending`, for which Spark starts fewer processes than for a data source."""
    by = parse_columns(options.pop("partitionBy", ""))
    where = {"destination": lake.uri, "partition_by": by, "format": options.pop("format", "parquet")}
    write_pending(frame, **where, mode=mode, options={**lake.options, **options})


def wait_until_idle(spark: SparkSession) -> None:
    """Wait until Spark has killed the tasks of a failed job, which it does after it reports the failure."""
    deadline = time.monotonic() + 60
    tracker = spark.sparkContext._jsc.sc().statusTracker()
    while any(info.numRunningTasks() for info in tracker.getExecutorInfos()):
        assert time.monotonic() < deadline, "Spark still runs tasks of a job that failed"
        time.sleep(0.1)

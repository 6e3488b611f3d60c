"""The cluster, its gate to the store, and a table of the test's own."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest
from pyarrow.fs import S3FileSystem

from airflow_s3commit import Destination, Job, JobOptions, latest_manifest
from airflow_s3commit.protocol.model.destination import is_hidden
from airflow_s3commit.spark import committer_conf
from tests.spark_cluster.cluster import Application, Cluster, wait_until
from tests.spark_cluster.gate import Gate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from airflow_s3commit import Manifest, S3Store
    from airflow_s3commit.testing import S3Server

#: What must never be seen outside the processes that own them.
EXECUTOR_SECRET = "secret-of-the-executors-4f1c"
DRIVER_SECRET = "secret-of-the-driver-9b7e"

DRIVER_KEYS = {
    "AWS_ACCESS_KEY_ID": "the-driver",
    "AWS_SECRET_ACCESS_KEY": DRIVER_SECRET,
    "AWS_EC2_METADATA_DISABLED": "true",
}


@dataclass
class ExecutorKeys:
    """The executors' own keys, from a program that their profile names; each issue has another access key."""

    home: Path
    issue: int = 1

    def __post_init__(self) -> None:
        self.home.mkdir()
        self.issued = self.home / "issued.json"
        program = f"{sys.executable} -c 'print(open(\"{self.issued}\").read())'"
        (self.home / "config").write_text(f"[default]\nregion = us-east-1\ncredential_process = {program}\n")
        self._write()

    @property
    def environment(self) -> dict[str, str]:
        """What leads a process to them."""
        return {"AWS_CONFIG_FILE": str(self.home / "config"), "AWS_EC2_METADATA_DISABLED": "true"}

    @property
    def access_key(self) -> str:
        """The access key that is good at present."""
        return f"executor-{self.issue}"

    def renew(self) -> None:
        """Issue others."""
        self.issue += 1
        self._write()

    def _write(self) -> None:
        fresh = self.issued.with_suffix(".new")
        keys = {"AccessKeyId": self.access_key, "SecretAccessKey": EXECUTOR_SECRET}
        fresh.write_text(json.dumps({"Version": 1, **keys, "Expiration": "2100-01-01T00:00:00Z"}))
        fresh.replace(self.issued)


@pytest.fixture(scope="package")
def gate(seaweed: S3Server) -> Iterator[Gate]:
    """Put a gate in front of the session's S3 server."""
    with Gate(seaweed) as gate:
        yield gate


@pytest.fixture(scope="package")
def executor_keys(tmp_path_factory: pytest.TempPathFactory) -> ExecutorKeys:
    """Return the keys that executors find for themselves."""
    return ExecutorKeys(tmp_path_factory.mktemp("keys") / "executors")


@pytest.fixture(scope="package")
def cluster(executor_keys: ExecutorKeys, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Run a master and two workers for all tests here."""
    with Cluster(tmp_path_factory.mktemp("cluster"), executor_keys.environment) as cluster:
        yield cluster


def address_of(gate: Gate) -> dict[str, str]:
    """Return the conf that says where the store is."""
    return {
        "spark.s3commit.endpoint.url": gate.endpoint_url,
        "spark.s3commit.endpoint.region": "us-east-1",
        "spark.s3commit.path.style": "true",
    }


@dataclass
class Driver:
    """The application that tests share until one of them kills it."""

    cluster: Cluster
    gate: Gate
    application: Application | None = field(default=None)
    more: dict[str, str] = field(default_factory=dict)

    @property
    def conf(self) -> dict[str, str]:
        return {
            **self.more,
            "spark.master": self.cluster.url,
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": self.cluster.event_log.as_uri(),
            # Where the other tasks are long done, a second attempt is begun.
            "spark.speculation": "true",
            "spark.speculation.interval": "50ms",
            "spark.speculation.quantile": "0.75",
            "spark.speculation.multiplier": "1.5",
            **address_of(self.gate),
        }

    def call(self, function: str, **arguments: Any) -> Any:
        """Call a function of `work` in the application; begin another if it was killed."""
        if self.application is None or not self.application.alive:
            self.application = self.of_its_own()
        return self.application.call(function, **arguments)

    def of_its_own(self) -> Application:
        """Start another application, in place of the shared one: the cluster has cores for one."""
        self.stop()
        return Application(self.cluster.home / "driver.log", DRIVER_KEYS, self.conf)

    def events(self, word: str) -> int:
        """Count the lines of Spark's event logs that have a word."""
        logs = (path for path in self.cluster.event_log.rglob("*") if path.is_file())
        return sum(word in line for path in logs for line in path.read_text(errors="replace").splitlines())

    def kill(self) -> None:
        """Kill the application's processes at this moment."""
        assert self.application is not None
        self.application.kill()

    def wait_for_its_executors(self) -> None:
        """Wait until a killed application's executors and their Python workers have ended too."""
        wait_until("executors of a killed driver end", lambda: not self.cluster.executor_processes())

    def stop(self) -> None:
        if self.application is not None:
            self.application.stop()
            self.application = None


@pytest.fixture(scope="package")
def driver(cluster: Cluster, gate: Gate) -> Iterator[Driver]:
    """Return the application on the cluster, started at its first call."""
    driver = Driver(cluster, gate)
    yield driver
    driver.stop()


@dataclass
class Table:
    """A destination, seen from outside, and what it takes to write to it from the cluster."""

    store: S3Store
    server: S3Server
    gate: Gate
    uri: str
    folder: Path

    @property
    def destination(self) -> Destination:
        return Destination.parse(self.uri)

    @property
    def address(self) -> dict[str, str]:
        """The conf that says where the store is."""
        return address_of(self.gate)

    def fault(self, kind: str, **more: Any) -> dict[str, Any]:
        """Return the arguments of a fault in a write to this table."""
        place = self.destination
        known = {"endpoint": self.gate.endpoint_url, "bucket": place.bucket, "prefix": place.prefix}
        return {"kind": kind, "folder": str(self.folder), **known, **more}

    def job(self, mode: str = "append") -> Job:
        """Set a job up, as Airflow would."""
        return Job.setup(self.store, self.uri, options=JobOptions(committer="magic", conflict_mode=mode))

    def conf(self, job: Job, stage_attempt: str = "1", *, door: str = "") -> dict[str, str]:
        """Return the conf that Airflow gives an application that writes for a job."""
        if door == "spark":
            conf = committer_conf(job.reference, "load", stage_attempt, writer="spark")
            # A session has its extensions from its start.
            return {key: value for key, value in conf.items() if key != "spark.sql.extensions"}
        return committer_conf(
            job.reference, "load", stage_attempt,
            endpoint_url=self.gate.endpoint_url, region="us-east-1", path_style=True,
        )  # fmt: skip

    def below(self, path: str) -> Table:
        """Return the table at a place below this one."""
        return replace(self, uri=self.uri + path)

    def marks(self) -> set[str]:
        """Return what faults have left."""
        return {path.name for path in self.folder.iterdir()}

    def rows(self) -> list[int]:
        """Return the ids of all visible rows, sorted."""
        filesystem = S3FileSystem(
            access_key=self.server.access_key,
            secret_key=self.server.secret_key,
            endpoint_override=self.server.endpoint_url,
            region="us-east-1",
        )
        source = f"{self.destination.bucket}/{self.destination.prefix}".rstrip("/")
        found = ds.dataset(source, filesystem=filesystem, format="parquet", partitioning="hive")
        return sorted(found.to_table(columns=["id"])["id"].to_pylist())

    def pending(self) -> list[str]:
        """Return the keys of pending uploads."""
        found = self.store.list_uploads(self.destination.bucket, self.destination.prefix)
        return [upload.key for upload in found]

    def data(self) -> list[str]:
        """Return the keys that readers see or a dead job has left: all but those of ended jobs' records."""
        found = self.store.list_objects(self.destination.bucket, self.destination.prefix)
        return [info.key for info in found if "/_s3commit/" not in info.key]

    def files(self) -> list[str]:
        """Return the keys that readers see."""
        prefix = self.destination.prefix
        return [key for key in self.data() if not is_hidden(key.removeprefix(prefix))]

    def manifest(self) -> Manifest:
        return latest_manifest(self.store, self.destination)


@pytest.fixture
def table(seaweed_store: S3Store, gate: Gate, bucket: str, prefix: str, tmp_path: Path) -> Table:
    """Return an empty table of the test's own, and a folder for marks."""
    folder = tmp_path / "marks"
    folder.mkdir()
    return Table(seaweed_store, gate.server, gate, f"s3://{bucket}/{prefix}", folder)

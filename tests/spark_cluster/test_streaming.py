"""A streaming query whose driver is killed at chosen moments, and one that has a zombie for a twin."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import pytest

from airflow_s3commit import Job, manifest_files
from airflow_s3commit.spark.stream import Batch
from tests.spark_cluster.cluster import SMALL, ApplicationFailed, DriverProcess
from tests.spark_cluster.conftest import DRIVER_KEYS
from tests.spark_cluster.gate import TurnedAway

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.spark_cluster.conftest import Table
    from tests.spark_cluster.gate import Request

pytestmark = [
    pytest.mark.all,
    pytest.mark.spark,
    pytest.mark.seaweedfs,
    pytest.mark.xdist_group("spark-cluster"),
]

PER_BATCH = 100


@dataclass
class Stream:
    """A source of files, each of which becomes a batch, and a checkpoint."""

    home: Path
    table: Table
    started: list[DriverProcess] = field(default_factory=list)

    def add(self, number: int) -> None:
        """Put the rows of one batch into the source."""
        source = self.home / "source"
        source.mkdir(exist_ok=True)
        first = number * PER_BATCH
        rows = [{"id": n, "p": str(n % 3)} for n in range(first, first + PER_BATCH)]
        (source / f"{number:03d}.json").write_text("\n".join(json.dumps(row) for row in rows))

    def start(self, mode: str = "append") -> DriverProcess:
        """Start a driver of the query."""
        told = {
            "conf": {**SMALL, **self.table.address},
            "source": str(self.home / "source"),
            "checkpoint": str(self.home / "checkpoint"),
            "destination": self.table.uri,
            "mode": mode,
        }
        log = self.home / "driver.log"
        driver = DriverProcess(
            "tests.spark_cluster.stream", json.dumps(told), log=log, environment=DRIVER_KEYS
        )
        self.started.append(driver)
        return driver

    def batch(self, number: int) -> Batch:
        """Return a batch of the query, whose id is in its checkpoint."""
        query = json.loads((self.home / "checkpoint" / "metadata").read_text())["id"]
        return Batch(query, "", self.table.uri, number)

    def concerns(self, request: Request, number: int) -> bool:
        """Tell whether a request is of an attempt at a batch."""
        return any(self.batch(number).reference(attempt).job_id in request.path for attempt in range(4))

    def checkpointed(self) -> int:
        """Return how many batches the checkpoint knows to be committed."""
        folder = self.home / "checkpoint" / "commits"
        return len(list(folder.glob("[0-9]*"))) if folder.is_dir() else 0


@pytest.fixture
def stream(tmp_path: Path, table: Table) -> Iterator[Stream]:
    """Return a stream into the test's table."""
    stream = Stream(tmp_path, table)
    yield stream
    for driver in stream.started:
        driver.stop()


@dataclass
class Kills:
    """Kills a driver at one request: before the store gets it, or when it has answered."""

    driver: DriverProcess
    when: Callable[[Request], bool]
    answered: bool

    def before(self, request: Request) -> None:
        if not self.answered and self.when(request):
            self.driver.kill()
            raise TurnedAway(503, "SlowDown")

    def after(self, request: Request) -> None:
        if self.answered and self.when(request):
            self.driver.kill()


def writes_receipt(request: Request) -> bool:
    """Tell whether it writes a job's receipt."""
    return request.method == "PUT" and "/_s3commit/jobs/" in request.path


#: Where drivers are killed, each in the batch that has its place in this list.
DEATHS: list[tuple[str, Callable[[Request], bool], bool]] = [
    ("before the stage's seal", lambda request: request.writes("/sealed.json"), False),
    ("after an upload was completed", lambda request: request.completes, True),
    ("after the commit, before the checkpoint", writes_receipt, True),
]


@pytest.mark.all
def test_a_query_that_is_killed_again_and_again_commits_each_batch_once(stream: Stream, table: Table) -> None:
    """Drivers killed before the seal, in the commit, and before the checkpoint lose and double nothing."""
    for number, (where, when, answered) in enumerate(DEATHS):
        stream.add(number)
        driver = stream.start()
        # What is left of the batch before is finished first, by requests of the same kinds.
        rule = Kills(driver, partial(strikes, stream, number, when), answered)
        with table.gate.ruled_by(rule), pytest.raises(ApplicationFailed):
            driver.answer()
        assert stream.checkpointed() == number, where
    stream.add(len(DEATHS))
    said = stream.start().answer()
    assert said["error"] is None
    total = len(DEATHS) + 1
    assert stream.checkpointed() == total
    assert table.rows() == list(range(total * PER_BATCH))
    assert table.pending() == []
    assert [key for key in table.data() if "__magic_job" in key] == []
    assert [committed_rows(table, stream.batch(number)) for number in range(total)] == [PER_BATCH] * total


def strikes(stream: Stream, number: int, when: Callable[[Request], bool], request: Request) -> bool:
    """Tell whether a request is of a kind, and of a batch."""
    return when(request) and stream.concerns(request, number)


def committed_rows(table: Table, batch: Batch) -> int:
    """Return how many rows the one attempt at a batch that is committed has."""
    jobs = [Job.at(table.store, batch.reference(attempt)) for attempt in range(4)]
    (manifest,) = [found for job in jobs if (found := job.manifest()) is not None]
    return sum(entry.rows or 0 for entry in manifest_files(table.store, manifest))


@dataclass
class Sleeps:
    """Holds the first request of a kind until it is released; its sender waits meanwhile."""

    when: Callable[[Request], bool]
    asleep: threading.Event = field(default_factory=threading.Event)
    awake: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def before(self, request: Request) -> None:
        with self.lock:
            first = self.when(request) and not self.asleep.is_set()
            if first:
                self.asleep.set()
        if first:
            self.awake.wait(240)

    def after(self, request: Request) -> None:
        pass


@pytest.mark.all
def test_a_zombie_driver_of_the_same_query_changes_nothing(stream: Stream, table: Table) -> None:
    """A driver that sleeps before its seal while another takes the query over finds its batch taken."""
    stream.add(0)
    stream.add(1)
    rule = Sleeps(lambda request: request.writes("/sealed.json"))
    with table.gate.ruled_by(rule):
        zombie = stream.start()
        assert rule.asleep.wait(120)
        assert stream.start().answer()["error"] is None
        assert table.rows() == list(range(2 * PER_BATCH))
        rule.awake.set()
        said = zombie.answer()
    assert said["error"] is not None
    assert table.rows() == list(range(2 * PER_BATCH))
    assert table.pending() == []

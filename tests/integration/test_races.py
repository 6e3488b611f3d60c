"""Processes that commit, abort, sweep and sleep at the same time, on a real S3 server.

Where a race needs one order of requests, a process waits on a pipe before a request until the test lets it go
on; otherwise processes run freely. What must be there is what the log says (`tests/history.py`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from typing import Any
from uuid import uuid4

import pytest

from airflow_s3commit import S3Store
from airflow_s3commit.testing import S3Server
from tests.history import History, is_data

pytestmark = [pytest.mark.seaweedfs, pytest.mark.xdist_group("races")]

ROOT = Path(__file__).parents[2]

#: Files of each job where two commit at once.
FILES = 40

#: How the processes send, in turn.
TRANSPORTS = ("boto3", "curl")

#: Calls before which a committer sleeps: its entry, its deletions, its `_SUCCESS`.
BEFORE_ENTRY = ("put", "*/_s3commit/log/*")
BEFORE_DELETES = ("delete_many",)
BEFORE_MARKER = ("put", "*_SUCCESS")


class Worker:
    """A process that takes steps by order."""

    def __init__(self, server: S3Server, number: int) -> None:
        environment = {
            **os.environ,
            "S3_ENDPOINT": server.endpoint_url,
            "S3_TRANSPORT": TRANSPORTS[number % 2],
            "AWS_ACCESS_KEY_ID": server.access_key,
            "AWS_SECRET_ACCESS_KEY": server.secret_key,
        }
        command = [sys.executable, "-m", "tests.integration.worker_process"]
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def order(self, do: str, destination: str, **arguments: Any) -> None:
        """Have it begin a step."""
        self._write(json.dumps({"do": do, "destination": destination, **arguments}))

    def reply(self) -> dict[str, Any]:
        """Wait until it answers."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the process ended, exit code {self.process.wait()}"
        said: dict[str, Any] = json.loads(line)
        return said

    def take(self, do: str, destination: str, **arguments: Any) -> Any:
        """Have it take a step, and return the outcome."""
        self.order(do, destination, **arguments)
        return self.done()

    def done(self) -> Any:
        """Wait for the end of its step, and return the outcome."""
        said = self.reply()
        assert "done" in said, said
        return said["done"]

    def hold(self, do: str, destination: str, at: tuple[Any, ...], **arguments: Any) -> None:
        """Have it begin a step, and stop it with SIGSTOP before a call."""
        self.order(do, destination, hold=at, **arguments)
        said = self.reply()
        assert "held" in said, said
        self.process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        """Let it go on."""
        self._write("go on")
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """End the process."""
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.communicate()

    def _write(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()


@pytest.fixture(scope="module")
def workers(seaweed: S3Server) -> Iterator[list[Worker]]:
    """Start five processes."""
    started = [Worker(seaweed, number) for number in range(5)]
    yield started
    for worker in started:
        worker.end()


@pytest.mark.parametrize("shared", [False, True], ids=["jobs", "tasks"])
@pytest.mark.parametrize(
    "processes", [4, *(pytest.param(8, marks=pytest.mark.all, id=f"8-{time}") for time in range(10))]
)
def test_processes_set_up_a_new_table_at_once(
    processes: int, *, shared: bool, seaweed: S3Server, seaweed_store: S3Store, bucket: str, prefix: str
) -> None:
    """New processes set up a table at once, a job each or one job as a write's tasks do, and all succeed."""
    place, job_id = f"s3://{bucket}/{prefix}", str(uuid4()) if shared else None
    begun = [Worker(seaweed, number) for number in range(processes)]
    try:
        for worker in begun:
            worker.order("set up", place, mode="append", job_id=job_id, hold=("list_objects",))
        for worker in begun:
            assert "held" in worker.reply()
        for worker in begun:
            worker.wake()
        jobs = {worker.done() for worker in begun}
    finally:
        for worker in begun:
            worker.end()
    left = sorted(info.key.removeprefix(prefix) for info in seaweed_store.list_objects(bucket, prefix))
    names = [f"_s3commit/log/{1:020d}.json", *(f"_s3commit/open/{job}/job.json" for job in jobs)]
    assert (len(jobs), left) == (1 if shared else processes, sorted(names))
    assert list(seaweed_store.list_uploads(bucket, prefix)) == []


class Table:
    """A destination and its required content."""

    def __init__(self, store: S3Store, bucket: str, prefix: str) -> None:
        self._store, self._bucket, self._prefix = store, bucket, prefix
        self.uri = f"s3://{bucket}/{prefix}"

    def check(self) -> History:
        """Check data, marker and leftovers against the log, and return its history."""
        log = f"{self._prefix}_s3commit/log/"
        history = History(self._read).fold(info.key for info in self._store.list_objects(self._bucket, log))
        listed = {info.key: info.etag for info in self._store.list_objects(self._bucket, self._prefix)}
        data = {key: etag for key, etag in listed.items() if is_data(key.removeprefix(self._prefix))}
        assert data == history.data
        marker = json.loads(self._read(f"{self._prefix}_SUCCESS"))
        assert marker["diagnostics"]["s3commit.generation"] == str(history.newest)
        assert [key for key in listed if key.startswith(f"{self._prefix}__magic_job-")] == []
        assert list(self._store.list_uploads(self._bucket, self._prefix)) == []
        return history

    def _read(self, key: str) -> bytes:
        return self._store.get(self._bucket, key).body


@pytest.fixture
def table(seaweed_store: S3Store, bucket: str, prefix: str, workers: list[Worker]) -> Table:
    """Return a table with one partition, in which a job has committed."""
    place = Table(seaweed_store, bucket, prefix)
    workers[0].take("refresh", place.uri, mode="append", partitions=["dt=1"], files=4)
    return place


def rounds(count: int) -> list[Any]:
    """Return the numbers of rounds; all but the first are left to `make test-all`."""
    return [0, *(pytest.param(n, marks=pytest.mark.all) for n in range(1, count))]


@pytest.mark.parametrize("number", rounds(8))
def test_an_append_beside_a_replace_loses_no_file(number: int, table: Table, workers: list[Worker]) -> None:
    """Both commit at once, and the files of the one with the later entry all exist."""
    jobs = {
        workers[n]: workers[n].take("write", table.uri, mode=mode, partitions=["dt=1"], files=FILES)
        for n, mode in enumerate(("append", "replace"))
    }
    for worker, job in jobs.items():
        worker.order("commit", table.uri, job=job)
    for worker in jobs:
        worker.done()
    history = table.check()
    assert [len(history.by_job[job]) for job in jobs.values()] == [FILES, FILES]


@pytest.mark.parametrize("in_parts", [False, True], ids=["paused", "in parts"])
def test_a_replace_leaves_the_files_of_a_half_published_append(
    in_parts: bool,
    table: Table,
    workers: list[Worker],
) -> None:
    """If a replace commits while half of an append's files are visible, all of them exist in the end."""
    append, replace = (
        workers[n].take("write", table.uri, mode=mode, partitions=["dt=1"], files=12)
        for n, mode in enumerate(("append", "replace"))
    )
    slow, other = workers[:2]
    if in_parts:
        slow.hold("part", table.uri, ("complete_upload", "*", 6), job=append, part=0, parts=1)
    else:
        slow.hold("commit", table.uri, ("complete_upload", "*", 6), job=append)
    other.take("commit", table.uri, job=replace)
    slow.wake()
    slow.done()
    if in_parts:
        other.take("commit", table.uri, job=append)
    history = table.check()
    assert list(history.ended)[1:] == [replace, append]
    assert len(history.data) == 24


def test_a_replace_takes_the_files_of_an_append_that_entered_first(
    table: Table, workers: list[Worker]
) -> None:
    """If an append commits right before a replace creates its entry, its files are replaced too."""
    slow, other = workers[:2]
    replace, append = (
        worker.take("write", table.uri, mode=mode, partitions=["dt=1"], files=4)
        for worker, mode in ((slow, "replace"), (other, "append"))
    )
    slow.hold("commit", table.uri, BEFORE_ENTRY, job=replace)
    other.take("commit", table.uri, job=append)
    slow.wake()
    slow.done()
    history = table.check()
    assert list(history.ended)[1:] == [append, replace]
    assert len(history.data) == 4


@pytest.mark.parametrize("number", rounds(8))
@pytest.mark.parametrize("mode", ["replace", "append"])
def test_two_processes_commit_one_job(mode: str, number: int, table: Table, workers: list[Worker]) -> None:
    """Both return the same generation, and nothing is aborted."""
    job = workers[0].take("write", table.uri, mode=mode, partitions=["dt=1", "dt=2"], files=10)
    twins = workers[:2]
    for twin in twins:
        twin.order("commit", table.uri, job=job)
    first, second = (twin.done() for twin in twins)
    assert first == second
    assert table.check().ended[job] == "commit"


@pytest.mark.parametrize(
    "at", [("complete_upload", "*"), BEFORE_ENTRY, ("delete", "*/job.json")], ids=lambda at: at[0]
)
def test_a_process_finishes_what_its_sleeping_twin_began(
    at: tuple[str, str], table: Table, workers: list[Worker]
) -> None:
    """If a twin commits meanwhile, nothing is left to do, and both return the same generation."""
    sleeper, twin = workers[:2]
    job = sleeper.take("write", table.uri, mode="replace", partitions=["dt=1"], files=4)
    sleeper.hold("commit", table.uri, at, job=job)
    generation = twin.take("commit", table.uri, job=job)
    sleeper.wake()
    assert sleeper.done() == generation
    assert table.check().ended[job] == "commit"


@pytest.mark.parametrize("later", [2, pytest.param(0, marks=pytest.mark.all)])
@pytest.mark.parametrize(
    ("at", "how"),
    [
        (BEFORE_ENTRY, "recover"),
        (BEFORE_ENTRY, "abort"),
        (BEFORE_DELETES, "recover"),
        (BEFORE_MARKER, "recover"),
    ],
    ids=["entry-recover", "entry-abort", "deletes-recover", "marker-recover"],
)
def test_a_committer_that_wakes_after_its_job_ended_changes_nothing(
    at: tuple[str, ...], how: str, later: int, table: Table, workers: list[Worker]
) -> None:
    """Another process ends the job, later jobs commit, and data and marker are theirs."""
    sleeper, other = workers[:2]
    job = sleeper.take("write", table.uri, mode="replace", partitions=["dt=1"], files=4)
    sleeper.hold("commit", table.uri, at, job=job)
    other.take(how, table.uri, job=job)
    for _ in range(later):
        other.take("refresh", table.uri, mode="replace", partitions=["dt=1"], files=3)
    sleeper.wake()
    said = sleeper.reply()
    history = table.check()
    assert history.ended[job] == ("abandon" if how == "abort" else "commit")
    assert said.get("failed") == ("JobClosed" if how == "abort" else None), said
    assert len(history.data) == (3 if later else 4)


def test_a_sweep_beside_living_jobs_leaves_them_alone(table: Table, workers: list[Worker]) -> None:
    """One job writes, one is about to create its entry, one about to delete, and all of them commit."""
    writer, committer, finisher, other = workers[:4]
    writer.hold(
        "refresh", table.uri, ("complete_upload", "*", 2), mode="append", partitions=["dt=2"], files=4
    )
    held = {}
    for worker, at in ((committer, BEFORE_ENTRY), (finisher, BEFORE_DELETES)):
        held[worker] = worker.take("write", table.uri, mode="replace", partitions=["dt=1"], files=4)
        worker.hold("commit", table.uri, at, job=held[worker])
    swept = other.take("sweep", table.uri, older_than=3600.0)
    assert swept == [held[finisher]], "whose entry is there is finished, and nothing else is touched"
    for worker in (writer, committer, finisher):
        worker.wake()
        worker.done()
    assert len(table.check().by_job) == 4


def test_a_job_that_a_sweep_takes_for_dead_ends_aborted(table: Table, workers: list[Worker]) -> None:
    """Its writer, which only slept, is refused when it wakes, and leaves nothing."""
    sleeper, other = workers[:2]
    sleeper.hold("refresh", table.uri, ("put", "*.pendingset"), mode="append", partitions=["dt=2"], files=4)
    (job,) = other.take("sweep", table.uri, older_than=0.0)
    sleeper.wake()
    assert sleeper.reply()["failed"] == "JobClosed"
    assert table.check().ended[job] == "abandon"


@pytest.mark.parametrize("number", rounds(3))
def test_a_backfill_beside_a_nightly_run(number: int, table: Table, workers: list[Worker]) -> None:
    """After fourteen days, four at once, and the night's own, each day has the files of its newest job."""
    nightly, *backfill = workers
    days = [f"dt=2013-01-{day:02d}" for day in range(1, 15)]
    tonight = "dt=2013-01-15"
    workers[0].take("refresh", table.uri, mode="append", partitions=[*days, tonight], files=1)
    nightly.order("refresh", table.uri, mode="replace", partitions=[tonight, days[-1]], files=2)
    _run_all(table, backfill, days)
    nightly.done()
    history = table.check()
    assert len(history.by_job) == 2 + len(days) + 1
    for day in (*days, tonight):
        assert sum(f"/{day}/" in key for key in history.data) == 2


def _run_all(table: Table, processes: list[Worker], days: list[str]) -> None:
    """Have processes replace days; each takes its next one when it is done."""
    left = deque(days)
    with DefaultSelector() as selector:
        for worker in processes:
            assert worker.process.stdout is not None
            selector.register(worker.process.stdout, EVENT_READ, worker)
            worker.order("refresh", table.uri, mode="replace", partitions=[left.popleft()], files=2)
        while selector.get_map():
            for key, _ in selector.select():
                key.data.done()
                if left:
                    key.data.order("refresh", table.uri, mode="replace", partitions=[left.popleft()], files=2)
                else:
                    selector.unregister(key.fileobj)

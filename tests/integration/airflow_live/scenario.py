"""Stories played side by side: each waits for what it needs to see, and none waits for another.

A story is a generator. It yields a condition, and is resumed when that holds; what it saw at the end is what
its test judges. So twenty runs take as long as the slowest of them, on a machine of two cores.
"""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeAlias

import sqlalchemy as sa

from airflow_s3commit import Destination, Job, JobOptions, S3Store
from airflow_s3commit.protocol.model.destination import is_hidden
from dev.airflow_api import ApiError
from tests.integration.airflow_live.airflow import LiveAirflow
from tests.integration.airflow_live.control import WAIT_SECONDS, Place
from tests.spark_cluster.cluster import Cluster
from tests.store.s3.fault_server import FaultServer

#: What a story waits for: a condition, and words for it.
Wait: TypeAlias = tuple[str, Callable[[], Any]]
Story: TypeAlias = Generator[Wait, None, None]

#: Seconds between two looks. Each costs the API server a few hundredths of a second.
LOOK_EVERY = 1.0

OVER = ("success", "failed")


@dataclass(frozen=True, slots=True)
class Left:
    """What exists below a destination: data that readers see, pending uploads, records of jobs."""

    visible: dict[str, bytes]
    pending: list[str]
    staging: list[str]


def look(store: S3Store, destination: Destination) -> Left:
    """Look at a destination."""
    bucket, prefix = destination.bucket, destination.prefix
    pending = [upload.key for upload in store.list_uploads(bucket, prefix)]
    keys = [found.key for found in store.list_objects(bucket, prefix)]
    relative = {key: destination.relative(key) for key in keys}
    visible = [key for key in keys if (path := relative[key]) is not None and not is_hidden(path)]
    return Left(
        {str(relative[key]): store.get(bucket, key).body for key in visible},
        pending,
        [key for key in keys if "__magic_job-" in key and "_s3commit/" not in key],
    )


@dataclass(slots=True)
class Stage:
    """Where stories play: an Airflow, a store, and the directory of the notes.

    Attributes:
        airflow: The Airflow under test.
        store: What its tasks write to.
        control: Where its tasks leave their notes.
        project: A directory of DAGs that may change.
        database_url: Where the Airflow keeps what it knows.
        relay: What passes on, and counts, the requests of tasks with the connection for that.
        cluster: A standalone Spark cluster with a REST server; None if nothing was asked for that needs it.
        runs: The runs as they were at the last look.
    """

    airflow: LiveAirflow
    store: S3Store
    control: Path
    project: Path
    database_url: str
    relay: FaultServer
    cluster: Cluster | None = None
    runs: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)

    def commit(self, destination: str, path: str, body: bytes) -> None:
        """Commit one file, as some other job would."""
        job = Job.setup(self.store, destination, options=JobOptions(conflict_mode="replace"))
        with job.task_attempt("other", "1", "0", "0") as attempt:
            with attempt.open(path) as file:
                file.write(body)
            committed = attempt.commit()
        job.seal_stage("other", "1", [committed])
        job.seal()
        job.commit()


@dataclass(slots=True)
class Run:
    """One run of a DAG, as its story and its test see it."""

    stage: Stage
    dag_id: str
    run_id: str

    def start(self, conf: Mapping[str, Any] | None = None, **when: str) -> None:
        """Trigger it, with values for the DAG's params, and perhaps a partition key or a logical date."""
        self.stage.airflow.api.start(self.dag_id, self.run_id, conf=conf, **when)

    def clear(self, *task_ids: str | tuple[str, int]) -> Story:
        """Clear it, or tasks and all behind them, and wait until it is over again."""
        api = self.stage.airflow.api
        if task_ids:
            api.clear(self.dag_id, self.run_id, *task_ids, downstream=True)
        else:
            api.clear_run(self.dag_id, self.run_id)
        yield self.running()
        yield self.over()

    def grow_old(self, age: timedelta) -> None:
        """Have Airflow believe that it started so long ago: an hour passes at once, when the run is ready."""
        runs = sa.table(
            "dag_run",
            sa.column("dag_id"),
            sa.column("run_id"),
            sa.column("start_date", sa.DateTime(timezone=True)),
        )
        of_this = (runs.c.dag_id == self.dag_id) & (runs.c.run_id == self.run_id)
        engine = sa.create_engine(self.stage.database_url, poolclass=sa.NullPool)
        with engine.begin() as connection:
            connection.execute(sa.update(runs).where(of_this).values(start_date=datetime.now(UTC) - age))

    @property
    def place(self) -> Place:
        """Where its tasks leave their notes."""
        return Place.of(self.stage.control, self.dag_id, self.run_id)

    @property
    def destination(self) -> Destination:
        """Where it commits to."""
        return Destination.parse(f"s3://lake/{self.dag_id}/")

    @property
    def state(self) -> str:
        """Its state at the last look."""
        run = self.stage.runs.get((self.dag_id, self.run_id))
        return str(run["state"]) if run else "unknown"

    def tasks(self) -> dict[str, tuple[str, int]]:
        """Its tasks' states and tries."""
        return self.stage.airflow.api.states(self.dag_id, self.run_id)

    def held(self, what: str, try_number: int = 1) -> Wait:
        """Wait until a task is held."""
        name = f"held.{what}.{try_number}"
        return f"{self.dag_id} is held at {what}, try {try_number}", lambda: self.place.said(name)

    def go(self, what: str, order: str, try_number: int = 1) -> None:
        """Tell a held task how to go on."""
        self.place.say(f"go.{what}.{try_number}", order)

    def over(self) -> Wait:
        """Wait until the run is over."""
        return f"{self.dag_id} is over", lambda: self.state in OVER

    def running(self) -> Wait:
        """Wait until a cleared run runs again."""
        return f"{self.dag_id} runs again", lambda: self.state in ("queued", "running")

    def noted(self, *names: str) -> Wait:
        """Wait until one of these notes exists."""
        return f"{self.dag_id} noted {' or '.join(names)}", lambda: any(map(self.place.said, names))

    def task_is(self, task_id: str, *states: str) -> Wait:
        """Wait until a task is in one of these states."""
        told = f"{task_id} of {self.dag_id} is {' or '.join(states)}"
        return told, lambda: self.tasks().get(task_id, ("", 0))[0] in states

    def kill(self, what: str, *processes: str) -> None:
        """Send SIGKILL to processes whose ids are in a note."""
        pids = self.place.read(what)
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(pids[process], signal.SIGKILL)

    def left(self) -> Left:
        """Look at the run's destination."""
        return look(self.stage.store, self.destination)


@dataclass(frozen=True, slots=True)
class Played:
    """The outcome of the runs.

    Attributes:
        failures: Stories that did not come to their end, and why.
        left: What each run left at its destination.
    """

    failures: dict[str, str]
    left: dict[str, Left]


def play(stage: Stage, stories: Mapping[str, Story], *, at_once: int = 4) -> dict[str, str]:
    """Play stories until each is over; return what went wrong, by the story's name.

    Args:
        stage: Where they play.
        stories: The stories; the first ones begin first.
        at_once: How many play at the same time. All at once would only wait for the processors.
    """
    failures: dict[str, str] = {}
    waits: dict[str, tuple[Wait, float]] = {}
    to_come = list(stories)
    while to_come or waits:
        while to_come and len(waits) < at_once:
            _resume(to_come[0], stories[to_come.pop(0)], waits, failures)
        time.sleep(LOOK_EVERY)
        stage.airflow.check_running()
        with suppress(ApiError):  # a busy API server; each wait has its own limit
            stage.runs = stage.airflow.api.all_runs()
        for name, ((told, condition), since) in list(waits.items()):
            if _holds(condition):
                _resume(name, stories[name], waits, failures)
            elif time.monotonic() - since > WAIT_SECONDS:
                failures[name] = f"waited {WAIT_SECONDS:.0f} s until {told}"
                del waits[name]
    return failures


def _holds(condition: Callable[[], Any]) -> bool:
    try:
        return bool(condition())
    except ApiError:
        return False


def _resume(name: str, story: Story, waits: dict[str, tuple[Wait, float]], failures: dict[str, str]) -> None:
    waits.pop(name, None)
    try:
        waits[name] = (next(story), time.monotonic())
    except StopIteration:
        pass
    except Exception:
        failures[name] = traceback.format_exc()

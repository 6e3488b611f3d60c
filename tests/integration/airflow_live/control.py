"""How tests and the tasks of a live Airflow communicate: small files, one directory a run.

A task says that it is where the test wants it (``held``), and waits there until it is told how to go on
(``go``). So nothing depends on how fast anything is.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

#: The variable that names the directory, in every process of the Airflow under test.
CONTROL = "S3COMMIT_LIVE_CONTROL"

#: The variable with the class path of Hadoop's S3A, for stages that write with Spark's own writers.
S3A_JARS = "S3COMMIT_LIVE_S3A"

#: The connection of the standalone Spark cluster.
SPARK_CLUSTER = "spark_cluster"

#: The connection by which sensors reach the store through the relay that counts their requests.
COUNTED = "counted"

#: The connection whose password a DAG has in its templates, and the password.
WAREHOUSE, PASSWORD = "warehouse", "hunter2-of-the-warehouse"

#: Sensors of one run that wait concurrently, how many of them wait at the first destination, and at how
#: many others the rest.
SENSORS, AT_THE_FIRST, OTHERS = 50, 40, 10

#: Seconds between two looks of the sensors, by the DAG. One on a worker takes a process of Airflow, several
#: seconds of a core: fifty of them must leave time for the rows beside them.
POKE_INTERVALS = {"fifty_deferred": 5, "fifty_rescheduled": 240}

#: The ``dagrun_timeout`` of the run that meets it.
RUN_TIMEOUT = timedelta(hours=1)

#: Seconds that a story may wait for one thing. On two idle cores nothing takes a tenth of it.
WAIT_SECONDS = 600.0

#: Seconds that a task waits to be told how to go on; then it fails, rather than to wait for ever. Its story
#: may wait for another thing before it tells the task.
HOLD_SECONDS = 2 * WAIT_SECONDS


def awaited(dag_id: str) -> list[str]:
    """Return the destinations at which a row's sensors wait."""
    return [f"s3://lake/{dag_id}.upstream-{number:02d}/" for number in range(1 + OTHERS)]


@dataclass(frozen=True, slots=True)
class Place:
    """Where one run's notes are."""

    directory: Path

    @classmethod
    def of(cls, root: Path, dag_id: str, run_id: str) -> Place:
        """Return the place of a run."""
        return cls(root / dag_id / run_id.replace("/", "_"))

    @classmethod
    def here(cls, dag_id: str, run_id: str) -> Place:
        """Return the place of a run, for code that Airflow runs."""
        return cls.of(Path(os.environ[CONTROL]), dag_id, run_id)

    def say(self, name: str, value: Any = None) -> None:
        """Leave a note, completely or not at all."""
        self.directory.mkdir(parents=True, exist_ok=True)
        draft = self.directory / f".{name}.{os.getpid()}"
        draft.write_text(json.dumps(value))
        draft.rename(self.directory / name)

    def forget(self, name: str) -> None:
        """Remove a note, if it exists."""
        (self.directory / name).unlink(missing_ok=True)

    def said(self, name: str) -> bool:
        """Whether such a note exists."""
        return (self.directory / name).exists()

    def read(self, name: str) -> Any:
        """Read a note."""
        return json.loads((self.directory / name).read_text())

    def hold(self, what: str, try_number: int, meanwhile: Callable[[], None] = lambda: None) -> Any:
        """Say that this process has arrived, and its pid; return what it is told to do.

        Args:
            what: Which point this is.
            try_number: Which try of the task.
            meanwhile: Called again and again while it waits.
        """
        self.say(f"held.{what}.{try_number}", {"task": os.getpid(), "supervisor": os.getppid()})
        deadline = time.monotonic() + HOLD_SECONDS
        while not self.said(f"go.{what}.{try_number}"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"nobody said how to go on at {what}, try {try_number}")
            meanwhile()
            time.sleep(0.1)
        return self.read(f"go.{what}.{try_number}")

"""What goes wrong in a task, at the moment when the writer behind it has uploads pending."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import TaskContext

from airflow_s3commit.spark.session import store_of_process
from airflow_s3commit.store.credentials import StoreAddress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame

#: Seconds after which a fault stops waiting for what it should see; its test then fails.
_PATIENCE = 60.0


@dataclass(frozen=True)
class Fault:
    """Passes a task's rows on, waits until the writer has uploads of them pending, and then strikes.

    Args:
        kind: ``raise``; ``kill`` this executor; ``kill-other`` executor; or ``linger`` until another attempt
            at the task has begun.
        endpoint: Address of the store.
        bucket: The destination's bucket.
        prefix: Its prefix.
        folder: Where it leaves marks: ``<kind>-<partition>-<attempt>`` when it strikes.
        partition: The task that is struck.
        attempts: How many attempts at it.
    """

    kind: str
    endpoint: str
    bucket: str
    prefix: str
    folder: str
    partition: int = 0
    attempts: int = 1

    def of(self, frame: DataFrame) -> DataFrame:
        """Return the frame with the fault in it."""
        return frame.mapInArrow(self, frame.schema)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        self._mark(f"jvm-{_executor()}")
        if context.partitionId() != self.partition:
            if self.kind == "kill-other":
                # What the other executor holds is still wanted when it is killed.
                self._wait(lambda: list(Path(self.folder).glob("kill-other-*")))
            yield from batches
            return
        before = self._uploads()
        attempt = len(list(Path(self.folder).glob("began-*")))
        self._mark(f"began-{context.taskAttemptId()}")
        yield from batches
        if attempt < self.attempts and self._wait(lambda: self._uploads() - before):
            self._mark(f"{self.kind}-{self.partition}-{attempt}")
            self._strike()

    def _strike(self) -> None:
        if self.kind == "raise":
            raise RuntimeError("injected into what feeds the writer")
        if self.kind == "kill":
            os.kill(_executor(), signal.SIGKILL)
            self._wait(lambda: False)
        elif self.kind == "kill-other":
            self._wait(self._others)
            os.kill(self._others()[0], signal.SIGKILL)
        elif self.kind == "linger":
            self._wait(lambda: len(list(Path(self.folder).glob("began-*"))) > 1)

    def _others(self) -> list[int]:
        known = {int(mark.name.removeprefix("jvm-")) for mark in Path(self.folder).glob("jvm-*")}
        return sorted(known - {_executor()})

    def _uploads(self) -> set[str]:
        store = store_of_process(StoreAddress(self.endpoint, "us-east-1", path_style=True))
        found = store.list_uploads(self.bucket, self.prefix)
        return {upload.upload_id for upload in found if f"/part-{self.partition:05d}-" in upload.key}

    def _wait(self, until: Callable[[], object]) -> bool:
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            if until():
                return True
            time.sleep(0.05)
        return False

    def _mark(self, name: str) -> None:
        Path(self.folder, name).touch()


def _executor() -> int:
    """Return the process id of the JVM that this Python worker belongs to."""
    process = os.getppid()
    while "java" not in Path(f"/proc/{process}/comm").read_text():
        stat = Path(f"/proc/{process}/stat").read_text()
        process = int(stat.rpartition(")")[2].split()[1])
    return process

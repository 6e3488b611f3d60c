"""Faults in a writer's input, injected once the writer is known to have uploaded something."""

from __future__ import annotations

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

    from tests.spark.conftest import Lake

#: Seconds after which a fault stops waiting for what it should see, and its test fails.
_PATIENCE = 240.0


@dataclass(frozen=True)
class Fault:
    """Passes rows on to the writer, and fails the first attempts of each task after the last row.

    A writer that streams has uploads pending before it fails. One that stages has none then; what its failed
    attempt uploads is seen when the next one begins. Each attempt whose uploads were seen leaves a file
    ``<partition>-<attempt>`` in a folder.

    Attributes:
        endpoint: Address of the store.
        bucket: The destination's bucket.
        prefix: Its prefix.
        seen: The folder.
        attempts: How many attempts of each task fail.
        streams: Whether the writer's committer streams.
        bystander: A partition that does not fail but goes on until it is killed; the others fail only when
            it has uploads pending too.
    """

    endpoint: str
    bucket: str
    prefix: str
    seen: str
    attempts: int = 1
    streams: bool = True
    bystander: int | None = None

    def of(self, frame: DataFrame) -> DataFrame:
        """Return the frame with the fault in it."""
        return frame.mapInArrow(self, frame.schema)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        partition, attempt = context.partitionId(), context.attemptNumber()
        before = self._uploads(partition)
        if not self.streams and attempt and self._wait(lambda: self._uploads(partition)):
            self._mark(f"{partition}-{attempt - 1}")
        yield from batches
        if attempt >= self.attempts:
            return
        if self.streams and self._wait(lambda: self._uploads(partition) - before):
            self._mark(f"{partition}-{attempt}")
        if partition == self.bystander:
            self._wait(lambda: False)
        elif self.bystander is not None:
            self._wait(lambda: Path(self.seen, f"{self.bystander}-0").exists())
        raise RuntimeError("injected into what feeds the writer")

    def _uploads(self, partition: int) -> set[str]:
        store = store_of_process(StoreAddress(self.endpoint, "us-east-1", path_style=True))
        found = store.list_uploads(self.bucket, self.prefix)
        return {upload.upload_id for upload in found if f"/part-{partition:05d}-" in upload.key}

    def _wait(self, until: Callable[[], object]) -> bool:
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            if until():
                return True
            time.sleep(0.1)
        return False

    def _mark(self, name: str) -> None:
        Path(self.seen, name).touch()


def fault(lake: Lake, seen: Path, attempts: int = 1, *, streams: bool, bystander: int | None = None) -> Fault:
    """Return a fault for a write to this test's table."""
    place = lake.destination
    return Fault(
        lake.server.endpoint_url, place.bucket, place.prefix, str(seen), attempts, streams, bystander
    )

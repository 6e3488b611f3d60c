"""Jobs and destinations that are too large to hold in memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.model.job import JobOptions
from airflow_s3commit.store.base import ObjectInfo
from airflow_s3commit.store.memory import MemoryStore

EXISTING = 50_000


class Crowded(MemoryStore):
    """A store whose listing of one directory shows 50,000 objects made up on the fly."""

    def list_objects(self, bucket: str, prefix: str, **options: Any) -> Iterator[ObjectInfo]:
        """List the real objects after the crowd."""
        if prefix in ("t/", "t/dt=1/") and not getattr(self, "emptied", False):
            for number in range(EXISTING):
                yield ObjectInfo(f"t/dt=1/old-{number:06d}", 10, f"etag-{number}", 0.0)
        yield from super().list_objects(bucket, prefix, **options)

    def delete_many(self, bucket: str, objects: Any) -> list[Any]:
        """Count what is deleted."""
        self.deleted = getattr(self, "deleted", 0) + sum("/old-" in target.key for target in objects)
        return super().delete_many(bucket, objects)


@pytest.mark.parametrize("committer", ["directory", pytest.param("partitioned", marks=pytest.mark.all)])
@pytest.mark.slow
def test_replacing_many_objects_takes_little_memory(committer: Any) -> None:
    """A replace of 50,000 objects plans and deletes them all, but holds few of them at a time."""
    store = Crowded(min_part_bytes=1)
    options = JobOptions(committer=committer, conflict_mode="replace")
    job = Job.setup(store, "s3://lake/t/", options=options)
    with job.task_attempt("s", "1", "0", "0", threads=0, min_part_bytes=1) as attempt:
        with attempt.open("dt=1/new.bin") as file:
            file.write(b"new")
        tasks = [attempt.commit()]
    job.seal_stage("s", "1", tasks)
    job.seal()

    tracemalloc.start()
    seen = job.preview()
    manifest = job.commit()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert seen.objects == EXISTING
    assert store.deleted == EXISTING
    assert manifest.replaced.files == EXISTING
    # The plan is in the store, which is memory here: some 70 bytes an object.
    assert peak < 12 * 1024 * 1024

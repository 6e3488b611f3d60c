"""A table of files in a store in memory, with its data on local disk for pyarrow to read."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from airflow_s3commit.reader import dataset
from airflow_s3commit.reader.table import CommittedFiles
from airflow_s3commit.tables.encoder import ColumnCounts
from tests.protocol.building import OURS, Lake

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow.dataset as ds

    from airflow_s3commit.protocol.job import Job
    from airflow_s3commit.protocol.model.manifest import Manifest
    from airflow_s3commit.protocol.steps.task_attempt import TaskAttempt


_BOUNDS: dict[str, Any] = {"part_bytes": 1 << 20, "threads": 0, "min_part_bytes": 1}


def write_tables(job: Job, tables: Mapping[str, pa.Table], **bounds: Any) -> None:
    """Write each table as one file of the job, and seal the job."""

    def write(attempt: TaskAttempt) -> None:
        for path, table in tables.items():
            sink = io.BytesIO()
            written: list[pq.FileMetaData] = []
            pq.write_table(table, sink, metadata_collector=written)
            counts = ColumnCounts(table.schema)
            counts.add(table)
            file = attempt.open(path)
            file.write(sink.getvalue())
            file.close(table.num_rows, counts.statistics(written[0]))

    write_and_seal(job, write, **bounds)


def write_and_seal(job: Job, write: Callable[[TaskAttempt], object], **bounds: Any) -> None:
    """Let one task of the job write, and seal the job."""
    with job.task_attempt("spark", "1", "00000", "1", **bounds) as attempt:
        write(attempt)
        task = attempt.commit()
    job.seal_stage("spark", "1", [task])
    job.seal()


class Table:
    """A destination, and how to fill it and read it.

    Attributes:
        lake: The store and what is on it.
    """

    def __init__(self, folder: Path) -> None:
        self.lake = Lake()
        self._folder = folder

    def sealed(self, tables: Mapping[str, pa.Table], job_id: str = OURS, **options: Any) -> Job:
        """Return a sealed job that wrote these tables, by path."""
        job = self.lake.set_up(job_id, **options)
        write_tables(job, tables, **_BOUNDS)
        return job

    def commit(self, tables: Mapping[str, pa.Table], job_id: str = OURS, **options: Any) -> Manifest:
        """Commit a job that wrote these tables, by path."""
        return self.sealed(tables, job_id, **options).commit()

    def commit_as(
        self,
        data: pa.Table,
        *,
        job_id: str = OURS,
        mode: str = "replace",
        partition_by: Sequence[str] = (),
        **how: Any,
    ) -> Manifest:
        """Commit a job that wrote a table as `TaskAttempt.write_table` does."""
        job = self.lake.set_up(job_id, conflict_mode=mode)
        write_and_seal(
            job, lambda attempt: attempt.write_table(data, partition_by=partition_by, **how), **_BOUNDS
        )
        return job.commit()

    def commit_raw(self, files: Mapping[str, bytes], job_id: str = OURS) -> Manifest:
        """Commit a job that wrote these bytes, by path, without counting rows."""

        def write(attempt: TaskAttempt) -> None:
            for path, body in files.items():
                with attempt.open(path) as file:
                    file.write(body)

        job = self.lake.set_up(job_id)
        write_and_seal(job, write, **_BOUNDS)
        return job.commit()

    def read(self, **arguments: Any) -> ds.Dataset:
        """Return the dataset, on a copy of what is visible now."""
        return dataset(self.lake.store, self.lake.destination, filesystem=self.copy(), **arguments)

    def copy(self) -> fs.FileSystem:
        """Make the local copy what is visible now, and return it as a file system of buckets."""
        bucket = self._folder / "lake"
        for path in bucket.rglob("*"):
            if path.is_file():
                path.unlink()
        for key, body in self.lake.visible().items():
            (bucket / key).parent.mkdir(parents=True, exist_ok=True)
            (bucket / key).write_bytes(body)
        return fs.SubTreeFileSystem(str(self._folder), fs.LocalFileSystem())

    def local(self, key: str) -> Path:
        """Return where the local copy has a key."""
        return self._folder / "lake" / key


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Return an empty table."""
    return Table(tmp_path)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the paths of files that were opened, as they are."""
    paths: list[str] = []
    inner = CommittedFiles.open_input_file

    def open_input_file(self: CommittedFiles, path: str) -> pa.NativeFile:
        paths.append(path)
        return inner(self, path)

    monkeypatch.setattr(CommittedFiles, "open_input_file", open_input_file)
    return paths

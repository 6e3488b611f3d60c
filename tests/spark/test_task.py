"""What a task does with its rows, without a JVM."""

from __future__ import annotations

import hashlib
import io
import uuid
from collections import Counter
from contextlib import nullcontext
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_s3commit import CommittedTask, Job, JobOptions, MemoryStore, manifest_files
from airflow_s3commit.exceptions import JobClosed, NoSuchJob, StoreRejected
from airflow_s3commit.protocol.model.sealed_job import ColumnStatistics
from airflow_s3commit.spark.driver import Target
from airflow_s3commit.spark.task import task_ids, write_task
from airflow_s3commit.store.credentials import StoreAddress
from airflow_s3commit.tables.options import TableOptions
from airflow_s3commit.tables.write import TablePlan
from tests.protocol.building import OURS, THEIRS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

SCHEMA = pa.schema([("dt", pa.string()), ("x", pa.int64())])
IDS = ("spark", "0", 3, "17")


def plan(*partition_by: str, **options: int) -> TablePlan:
    """Return the options of a task."""
    return TablePlan(SCHEMA, partition_by, TableOptions(partition_by=partition_by, **options))


def batches(values: Iterable[tuple[str | None, int]], size: int = 100) -> Iterator[pa.RecordBatch]:
    """Yield rows as Spark does, some at a time."""
    rows = list(values)
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        yield pa.record_batch([[dt for dt, _ in part], [x for _, x in part]], schema=SCHEMA)


@pytest.fixture
def store() -> MemoryStore:
    """Return an empty store."""
    return MemoryStore()


@pytest.fixture
def job(store: MemoryStore) -> Job:
    """Return a job that appends."""
    return Job.setup(store, "s3://lake/t", options=JobOptions(conflict_mode="append"), job_id=OURS)


@pytest.fixture
def streaming(store: MemoryStore) -> Job:
    """Return a job whose committer uploads while rows arrive."""
    options = JobOptions(committer="magic", conflict_mode="append")
    return Job.setup(store, "s3://lake/t", options=options, job_id=OURS)


def committed(store: MemoryStore, job: Job, *tasks: CommittedTask) -> dict[str, pa.Table]:
    """Commit the job, and return its files by their paths."""
    job.seal_stage("spark", "0", tasks)
    job.seal()
    job.commit()
    found = {}
    for info in store.list_objects("lake", "t/"):
        if info.key.endswith(".parquet"):
            found[info.key.removeprefix("t/")] = pq.read_table(io.BytesIO(store.get("lake", info.key).body))
    return found


def rows_of(files: dict[str, pa.Table]) -> Counter[tuple[str, int]]:
    """Count the rows by their directory and value."""
    return Counter(
        (path.rpartition("/")[0], x) for path, table in files.items() for x in table["x"].to_pylist()
    )


def test_each_partition_gets_a_file_named_as_spark_names_it(store: MemoryStore, job: Job) -> None:
    """Unsorted rows end up in one file a partition, and rows and files are counted."""
    values = [(f"d{n % 3}", n) for n in range(1000)]
    task = write_task(job, batches(values), plan("dt"), IDS)
    assert (task.files, task.rows, task.task, task.attempt) == (3, 1000, "00003", "17")
    files = committed(store, job, task)
    assert sorted(files) == [f"dt=d{n}/part-00003-{OURS}.c000.snappy.parquet" for n in range(3)]
    assert rows_of(files) == Counter((f"dt={dt}", x) for dt, x in values)
    assert all(table["x"].to_pylist() == sorted(table["x"].to_pylist()) for table in files.values())
    assert files[f"dt=d0/part-00003-{OURS}.c000.snappy.parquet"].column_names == ["x"]


def test_files_end_at_the_maximum_of_records(store: MemoryStore, job: Job) -> None:
    """No file has more rows than allowed, and none are lost."""
    values = [("a", n) for n in range(250)]
    task = write_task(job, batches(values, 40), plan("dt", max_records_per_file=100), IDS)
    files = committed(store, job, task)
    assert [(path, table.num_rows) for path, table in sorted(files.items())] == [
        (f"dt=a/part-00003-{OURS}.c00{n}.snappy.parquet", rows) for n, rows in enumerate((100, 100, 50))
    ]
    assert rows_of(files) == Counter(("dt=a", n) for n in range(250))


def test_tight_bounds_make_more_files_and_lose_nothing(store: MemoryStore, job: Job) -> None:
    """With room for two files and a few rows, forty partitions are written fully, in several files each."""
    values = [(f"d{n * 7 % 40:02d}", n) for n in range(8000)]
    tight = plan("dt", open_files=2, row_bytes=20_000, row_group_bytes=5_000)
    task = write_task(job, batches(values, 500), tight, IDS)
    files = committed(store, job, task)
    assert rows_of(files) == Counter((f"dt={dt}", x) for dt, x in values)
    assert len(files) == task.files
    assert {path.partition("/")[0] for path in files} == {f"dt=d{n:02d}" for n in range(40)}


def test_a_large_partition_streams_row_groups(store: MemoryStore, job: Job) -> None:
    """A partition larger than a row group has several, in one file."""
    rows = batches([("a", n) for n in range(10_000)], 500)
    files = committed(store, job, write_task(job, rows, plan(row_group_bytes=16_000), IDS))
    ((path, table),) = files.items()
    assert path == f"part-00003-{OURS}.c000.snappy.parquet"
    assert table["x"].to_pylist() == list(range(10_000))
    metadata = pq.ParquetFile(io.BytesIO(store.get("lake", f"t/{path}").body)).metadata
    assert metadata.num_row_groups > 3


def test_an_empty_table_has_one_file_of_the_first_task(store: MemoryStore, job: Job) -> None:
    """As with Spark's own writer, the first task of an unpartitioned write leaves the schema."""
    nobody = write_task(job, [], plan(), ("spark", "0", 1, "8"))
    first = write_task(job, [], plan(), ("spark", "0", 0, "9"))
    assert (nobody.files, first.files, first.rows) == (0, 1, 0)
    ((path, table),) = committed(store, job, nobody, first).items()
    assert (path, table.schema.names, table.num_rows) == (
        f"part-00000-{OURS}.c000.snappy.parquet", ["dt", "x"], 0,
    )  # fmt: skip


def test_an_empty_partitioned_table_has_no_file(store: MemoryStore, job: Job) -> None:
    """A partitioned write of nothing commits nothing."""
    assert write_task(job, [], plan("dt"), ("spark", "0", 0, "1")).files == 0


def test_another_stage_has_other_file_names(store: MemoryStore, job: Job) -> None:
    """Two stages of a job can write the same partitions; the job's id still ends the stem."""
    one = write_task(job, batches([("a", 1)]), plan("dt"), ("spark", "0", 0, "1"))
    two = write_task(job, batches([("a", 2)]), plan("dt"), ("late.rows", "0", 0, "1"))
    # With a digest, because late_rows is a stage's name too.
    late = f"late_rows_{hashlib.sha256(b'late.rows').hexdigest()[:8]}"
    job.seal_stage("late.rows", "0", [two])
    files = committed(store, job, one)
    assert sorted(files) == [
        f"dt=a/part-00000-{OURS}.c000.snappy.parquet",
        f"dt=a/part-00000-{late}-{OURS}.c000.snappy.parquet",
    ]


def test_a_failing_task_leaves_nothing_pending(store: MemoryStore, streaming: Job) -> None:
    """An exception from the input aborts what the attempt has uploaded."""

    def failing() -> Iterator[pa.RecordBatch]:
        yield from batches([(f"d{n}", n) for n in range(500)])
        assert list(store.list_uploads("lake", "t/"))
        raise RuntimeError("the source broke")

    tight = plan("dt", open_files=2, row_bytes=1_000, row_group_bytes=500)
    with pytest.raises(RuntimeError, match="the source broke"):
        write_task(streaming, failing(), tight, IDS)
    assert list(store.list_uploads("lake", "t/")) == []
    assert not [info for info in store.list_objects("lake", "t/") if info.key.endswith(".pendingset")]


def test_a_staging_task_that_fails_has_sent_nothing(
    store: MemoryStore, job: Job, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its files are in a directory of Spark's until it commits, and are removed if it fails."""
    places = [tmp_path / "one", tmp_path / "two"]
    for place in places:
        place.mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", ",".join(map(str, places)))

    def failing() -> Iterator[pa.RecordBatch]:
        yield from batches([(f"d{n}", n) for n in range(500)])
        assert [path for path in places[IDS[2] % 2].rglob("*") if path.is_file()]
        raise RuntimeError("the source broke")

    tight = plan("dt", open_files=2, row_bytes=1_000, row_group_bytes=500)
    calls: list[object] = []
    monkeypatch.setattr(store, "create_upload", lambda *args, **_: calls.append(args))
    with pytest.raises(RuntimeError, match="the source broke"):
        write_task(job, failing(), tight, IDS)
    assert calls == []
    assert [path for place in places for path in place.iterdir()] == []


def test_unarranged_rows_go_up_before_the_input_ends(store: MemoryStore, streaming: Job) -> None:
    """Gathering rows to split them is bounded too: with little memory, uploads begin while rows arrive."""
    pending: list[int] = []

    def watched() -> Iterator[pa.RecordBatch]:
        for batch in batches([(f"d{n % 3}", n) for n in range(5_000)]):
            pending.append(len(list(store.list_uploads("lake", "t/"))))
            yield batch

    assert write_task(streaming, watched(), plan("dt", row_bytes=20_000), IDS).rows == 5_000
    assert pending[0] == 0
    assert pending[-1] > 0


def test_facts_about_columns_reach_the_manifest(store: MemoryStore, job: Job) -> None:
    """Each file's entry has its rows and the statistics of its columns, except partition columns."""
    values = [("a", 5), ("b", 1), ("a", 7)]
    job.seal_stage("spark", "0", [write_task(job, batches(values), plan("dt"), IDS)])
    job.seal()
    entries = {entry.partition: entry for entry in manifest_files(store, job.commit())}
    assert entries["dt=a"].rows == 2
    assert entries["dt=a"].statistics == {"x": ColumnStatistics(values=2, nulls=0, least=5, greatest=7)}
    assert entries["dt=b"].statistics == {"x": ColumnStatistics(values=1, nulls=0, least=1, greatest=1)}


def test_attempts_of_restarted_applications_have_other_ids(store: MemoryStore, job: Job) -> None:
    """Two applications that Spark numbers alike commit side by side, and the sealed one counts."""
    target = Target(job.reference, "spark", "0", own=True, store=StoreAddress())
    ids = [task_ids(target, str(uuid.uuid4()), None) for _ in range(2)]
    assert all(attempt.isalnum() for *_, attempt in ids)
    tasks = [write_task(job, batches([("a", n)]), plan(), each) for n, each in enumerate(ids)]
    assert tasks[0].location != tasks[1].location
    assert rows_of(committed(store, job, tasks[1])) == Counter({("", 1): 1})


def test_a_store_that_refuses_parts_fails_the_task_cleanly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused part surfaces as the store's error, and nothing stays pending."""
    store = MemoryStore()
    refused = StoreRejected("no", code="InvalidArgument")

    def refuse(*_: object) -> str:
        raise refused

    job = Job.setup(store, "s3://lake/t", options=JobOptions(conflict_mode="append"), job_id=THEIRS)
    monkeypatch.setattr(store, "upload_part", refuse)
    with pytest.raises(StoreRejected):
        write_task(job, batches([("a", 1)]), plan("dt"), IDS)
    assert list(store.list_uploads("lake", "t/")) == []


def test_an_aborted_job_accepts_no_output(store: MemoryStore, job: Job) -> None:
    """A late task of an aborted job is refused and leaves nothing."""
    job.abort()
    with pytest.raises((JobClosed, NoSuchJob), match=OURS):
        write_task(job, batches([("a", 1)]), plan("dt"), IDS)
    assert list(store.list_uploads("lake", "t/")) == []


@pytest.mark.parametrize("fails", [False, True])
def test_a_worker_releases_arrow_s_memory(job: Job, monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    """After a task, however it ends, Arrow's allocator gives back what it keeps unused."""
    events: list[str] = []

    class Pool:
        def release_unused(self) -> None:
            events.append("given back")

    def rows() -> Iterator[pa.RecordBatch]:
        yield from batches([("a", 1)])
        events.append("rows")
        if fails:
            raise LookupError("no more rows")

    monkeypatch.setattr("pyarrow.default_memory_pool", Pool)
    with pytest.raises(LookupError) if fails else nullcontext():
        write_task(job, rows(), plan("dt"), IDS)
    assert events == ["rows", "given back"]

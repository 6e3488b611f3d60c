"""Jobs of a streaming query's batches, whose drivers die, or live on beside another, at every call."""

from __future__ import annotations

from contextlib import suppress
from itertools import count, product
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import pyarrow as pa
import pytest

from airflow_s3commit import Destination, Job, JobOptions, MemoryStore, latest_manifest, write_table
from airflow_s3commit.exceptions import AlreadyCommitted, JobClosed, S3CommitError
from airflow_s3commit.protocol.steps.fold import read_table
from airflow_s3commit.spark.stream import STAGE, Batch, begin_batch, commit_batch, refuse_passed
from airflow_s3commit.store.forwarding import CountingStore
from airflow_s3commit.testing import Crash, Effect, Fault, FaultyStore
from tests.cases import each
from tests.crash.faulty import FAULTS, count_calls
from tests.crash.late import LaggingLog

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_s3commit import ObjectStore

STOPS: tuple[Effect, ...] = ("crash-before", "crash-after")

BATCH = Batch("query", "", "s3://lake/t/", 7)
FIRST = Batch("query", "", "s3://lake/t/", 6)
OTHER = JobOptions(committer="magic", conflict_mode="append")

by_mode = pytest.mark.parametrize("mode", ["append", "replace"])


def run(store: ObjectStore, batch: Batch = BATCH, mode: str = "append", rows: int = 1) -> str | None:
    """Run a batch as a driver does, and return its job's id, or None if there was nothing to do."""
    token = uuid4().hex
    options = JobOptions(committer="partitioned", conflict_mode=mode)  # type: ignore[arg-type]
    job = begin_batch(store, batch, options, token)
    if job is None:
        return None
    try:
        with job.task_attempt(STAGE, token, "0", "1", threads=0) as attempt:
            file = attempt.open(f"b={batch.number}/part-{token}.parquet")
            file.write(b"rows")
            file.close(rows=rows)
            task = attempt.commit()
        commit_batch(job, token, [task])
    except S3CommitError:
        with suppress(AlreadyCommitted):
            job.abort()
        raise
    return job.reference.job_id


def check(store: MemoryStore, batches: int = 1) -> None:
    """Check that each batch exists once, and nothing is left of other attempts."""
    keys = [info.key for info in store.list_objects("lake", "t/")]
    data = [key for key in keys if "/b=" in key]
    assert [store.get("lake", key).body for key in data] == [b"rows"] * batches
    # The first generation is the data from before the first job: none.
    assert len(read_table(store, Destination("lake", "t/")).live) == batches
    assert not [key for key in keys if "__magic_job" in key or "/_s3commit/open/" in key]
    # A driver that dies while it looks at the store leaves that upload to a sweep.
    pending = [upload.key for upload in store.list_uploads("lake", "t/")]
    assert [key for key in pending if "/_s3commit/probe-" not in key] == []


def attempted(store: object, what: Callable[[ObjectStore], object]) -> None:
    """Run something that may be stopped or refused."""
    with suppress(Crash, S3CommitError):
        what(store)  # type: ignore[arg-type]


def test_ids_follow_from_the_batch() -> None:
    """The same batch and attempt have the same UUID in every process, and any other has another."""
    assert BATCH.reference(0).job_id == Batch("query", "", "s3://lake/t/", 7).reference(0).job_id
    assert str(UUID(BATCH.reference(0).job_id)) == BATCH.reference(0).job_id
    others = [
        BATCH.reference(1).job_id,
        Batch("query", "", "s3://lake/t/", 8).reference(0).job_id,
        Batch("query2", "", "s3://lake/t/", 7).reference(0).job_id,
        Batch("query", "late", "s3://lake/t/", 7).reference(0).job_id,
        Batch("query", "", "s3://lake/u/", 7).reference(0).job_id,
    ]
    assert len({BATCH.reference(0).job_id, *others}) == 6


def test_a_replayed_batch_is_already_committed() -> None:
    """A batch that is replayed after its commit writes nothing."""
    store = MemoryStore()
    assert run(store) == BATCH.reference(0).job_id
    assert run(store) is None
    check(store)


@each("following", ["open", "aborted", "committed"])
def test_a_batch_that_the_next_one_followed_is_not_taken_for_done(following: str) -> None:
    """A committed batch that is begun again, after the next one was begun, has other rows and is refused."""
    store = MemoryStore()
    run(store)
    refuse_passed(store, BATCH)
    if following == "committed":
        run(store, Batch("query", "", "s3://lake/t/", 8))
    else:
        job_id = Batch("query", "", "s3://lake/t/", 8).reference(0).job_id
        job = Job.setup(store, "s3://lake/t/", options=OTHER, job_id=job_id)
        if following == "aborted":
            job.abort()
    with pytest.raises(JobClosed, match="its checkpoint was restored to an earlier state"):
        refuse_passed(store, BATCH)


def test_an_aborted_attempt_spends_its_id() -> None:
    """After attempts that were aborted, by any process, the next one has the next id."""
    store = MemoryStore()
    for attempt in range(3):
        Job.setup(store, "s3://lake/t/", options=OTHER, job_id=BATCH.reference(attempt).job_id).abort()
    assert run(store) == BATCH.reference(3).job_id
    assert run(store) is None
    check(store)


def test_a_batch_without_rows_leaves_no_file() -> None:
    """A batch without rows is committed, so that it is known to be done, without a file."""
    store = MemoryStore()
    assert run(store, rows=0) == BATCH.reference(0).job_id
    assert [info.key for info in store.list_objects("lake", "t/") if "/b=" in info.key] == []
    assert list(store.list_uploads("lake", "t/")) == []
    assert run(store) is None


@by_mode
@pytest.mark.parametrize("fault", FAULTS)
def test_a_driver_stopped_at_any_call_loses_and_doubles_nothing(mode: str, fault: Effect) -> None:
    """Wherever one or two drivers are stopped, the next one writes the batch exactly once."""
    for at in count(1):
        store = MemoryStore()
        faulty = FaultyStore(store, Fault(fault, nth=at))
        attempted(faulty, lambda store: run(store, mode=mode))
        if not faulty.struck:
            assert at > 16
            return
        attempted(FaultyStore(store, Fault(fault, nth=max(1, at // 2))), lambda store: run(store, mode=mode))
        run(store, mode=mode)
        check(store)


@by_mode
@pytest.mark.parametrize("fault", FAULTS)
def test_a_driver_stopped_at_any_call_of_a_later_batch(mode: str, fault: Effect) -> None:
    """The same holds for a later batch of its driver, which is set up without a first look."""
    before = count_calls(MemoryStore(), lambda store: run(store, FIRST, mode))
    for at in count(1):
        store = MemoryStore()
        faulty = FaultyStore(store, Fault(fault, nth=before + at))
        run(faulty, FIRST, mode)
        attempted(faulty, lambda store: run(store, mode=mode))
        if not faulty.struck:
            assert at > 16
            return
        run(store, mode=mode)
        check(store, batches=2)


@by_mode
@pytest.mark.parametrize(("first", "lacks"), [(None, 0), (FIRST, 0), (FIRST, 2)])
def test_another_driver_at_any_call_of_a_zombie(mode: str, first: Batch | None, lacks: int) -> None:
    """Wherever a driver sleeps while another runs this batch and the next, each batch exists once.

    So it is if the sleeper's next listings of the log lack the entries of both.
    """
    earlier = int(first is not None)
    for at in count(1):
        store = MemoryStore()
        lagging = LaggingLog(store, 0, lacks)
        zombie = FaultyStore(lagging)
        if first is not None:
            run(zombie, first, mode)
        calls = 0

        def wake(_: object, at: int = at, store: MemoryStore = store, lagging: LaggingLog = lagging) -> None:
            nonlocal calls
            calls += 1
            if calls == at:
                lagging.listings = 2 if lacks else 0
                run(store, mode=mode)
                run(store, Batch("query", "", "s3://lake/t/", 8), mode=mode)

        zombie.before = wake
        attempted(zombie, lambda store: run(store, mode=mode))
        if calls < at:
            assert at > 16
            return
        check(store, batches=2 + earlier)
        assert run(store, mode=mode) is None


@each("mode", ["append", "replace"])
def test_a_later_batch_sends_an_exact_number_of_requests(mode: Any) -> None:
    """A batch of one file, its task in another process, takes exactly this many from its driver."""
    memory = MemoryStore(min_part_bytes=1)
    driver, executor = CountingStore(memory), CountingStore(memory)
    totals = [0]
    for number in range(3):
        token = uuid4().hex
        options = JobOptions(committer="magic", conflict_mode=mode)
        job = begin_batch(driver, Batch("query", "", "s3://lake/t/", number), options, token)
        assert job is not None
        task_job = Job.at(executor, job.reference)
        with task_job.task_attempt(STAGE, token, "0", "1", threads=0, min_part_bytes=1) as attempt:
            with attempt.open("dt=1/part.parquet") as file:
                file.write(b"rows")
            task = attempt.commit()
        commit_batch(job, token, [task])
        totals.append(sum(driver.counters.values()))
    assert totals[3] - totals[2] == {"append": 16, "replace": 19}[mode]


def test_options_may_change_while_an_attempt_is_partly_set_up() -> None:
    """An attempt with only a record, by a driver that committed otherwise, is given up."""
    for at, fault in product(range(1, 40), STOPS):
        store = MemoryStore()
        faulty = FaultyStore(store, Fault(fault, nth=at))
        attempted(faulty, lambda store: begin_batch(store, BATCH, OTHER, uuid4().hex))
        run(store)
        check(store)


def test_a_batch_that_the_table_refuses_is_written_anew() -> None:
    """A driver dies after it has sealed columns that no commit takes, and the query is mended: it goes on."""
    store = MemoryStore()
    options = JobOptions(conflict_mode="append", publish="delta")
    write_table(pa.table({"v": [1]}), "s3://lake/t/", store=store, job_options=options)
    for values in (["a text"], [2]):
        token = uuid4().hex
        job = begin_batch(store, BATCH, options, token)
        assert job is not None
        with job.task_attempt(STAGE, token, "0", "1") as attempt:
            attempt.write_table(pa.table({"v": values}))
            task = attempt.commit()
        job.seal_stage(STAGE, token, [task])
        job.seal([(STAGE, token)])
    assert commit_batch(job, token, [task]).counts.rows == 1
    assert begin_batch(store, BATCH, options, token) is None
    assert latest_manifest(store, "s3://lake/t/").job_id == job.reference.job_id

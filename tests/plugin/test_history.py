"""A table's history, a page at a time, with a bounded number of requests."""

from __future__ import annotations

import pytest

from airflow_s3commit import Destination, Job, JobOptions, MemoryStore, rollback
from airflow_s3commit.plugin import history
from airflow_s3commit.plugin.history import charts, read_history
from airflow_s3commit.plugin.stores import Place
from airflow_s3commit.store.forwarding import CountingStore
from tests.plugin.scene import FLIGHTS, NIGHTLY, begin, commit

pytestmark = pytest.mark.airflow

PLACE = Place(Destination.parse(FLIGHTS))


@pytest.fixture
def store() -> MemoryStore:
    """An empty lake."""
    return MemoryStore(buckets=("lake",))


def seal_retaining(store: MemoryStore, *, day: int, files: int) -> Job:
    """Return a sealed job that replaces a day, and retains what it replaces."""
    options = JobOptions(conflict_mode="replace", retain="7d")
    job = Job.setup(store, FLIGHTS, options=options, context=NIGHTLY)
    with job.task_attempt("stage0", "1", "00000", "0") as writing:
        for file in range(files):
            output = writing.open(f"dt=2013-01-{day:02d}/part-{file:05d}.parquet")
            output.write(b"row")
            output.close(rows=1)
        committed = writing.commit()
    job.seal_stage("stage0", "1", [committed])
    job.seal()
    return job


def test_each_entry_has_its_size_and_what_led_to_it(store: MemoryStore) -> None:
    """Commits add and replace; an aborted job leaves the table unchanged, and has its reason."""
    commit(store, context=NIGHTLY, day=1, files=4)
    commit(store, context=NIGHTLY, day=2, files=2)
    begin(store, context=NIGHTLY, day=3).abort(reason="not needed")
    commit(store, context=NIGHTLY, day=1, files=1, mode="replace")
    view = read_history(store, PLACE, None)
    assert [(step.number, step.kind, step.after and step.after.files) for step in view.steps] == [
        (4, "commit", 3),
        (3, "abandon", 6),
        (2, "commit", 6),
        (1, "commit", 4),
    ]
    newest, aborted = view.steps[:2]
    assert newest.removed is not None
    assert (newest.mode, newest.removed.files, list(newest.partitions)) == ("replace", 4, ["dt=2013-01-01"])
    assert (aborted.note, dict(aborted.context)["dag_id"]) == ("not needed", NIGHTLY["dag_id"])
    sizes, files = charts(view.steps)
    assert (sizes.name, files.name, files.most, files.first, files.last) == ("bytes", "files", "6", 1, 4)
    assert [point.words for point in files.points] == [
        "generation 1: 4",
        "generation 2: 6",
        "generation 4: 3",
    ]
    assert [point.y for point in files.points] == [50.7, 26.0, 63.0]
    assert charts(view.steps[:1]) == []


def test_a_rollback_shows_the_size_that_it_led_back_to(store: MemoryStore) -> None:
    """It adds no files, so the size before it is counted again; before too many of them it is not shown."""
    commit(store, context=NIGHTLY, day=1, files=4)
    commit(store, context=NIGHTLY, day=2, files=2)
    seal_retaining(store, day=1, files=1).commit()
    rollback(store, FLIGHTS, to=1)
    view = read_history(store, PLACE, None)
    assert [(step.mode, step.after and step.after.files) for step in view.steps[-4:]] == [
        ("rollback to 1", 4),
        ("replace", 3),
        ("append", 6),
        ("append", 4),
    ]


def test_data_older_than_the_log_is_left_out_of_the_sizes(store: MemoryStore) -> None:
    """The baseline is an entry without a job, and the size before it is unknown."""
    store.put("lake", "flights/dt=2013-01-01/old.parquet", b"old")
    commit(store, context=NIGHTLY, day=2, files=2)
    view = read_history(store, PLACE, None)
    assert [(step.kind, step.job_id == "", step.after and step.after.files) for step in view.steps] == [
        ("commit", False, 2),
        ("baseline", True, 0),
    ]
    assert view.since_baseline


def test_a_long_history_takes_few_requests(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entries of a page, those of commits with files, and a few to find them; else no sizes."""
    for number in range(70):
        commit(store, context=NIGHTLY, day=1 + number % 20, mode="replace", files=1)
    counted = CountingStore(store)
    view = read_history(counted, PLACE, None)
    assert [step.number for step in view.steps] == list(range(70, 45, -1))
    assert {step.after.files for step in view.steps if step.after} == {20}
    assert sum(counted.counters.values()) < 50
    older = read_history(counted, PLACE, view.older)
    assert [step.number for step in older.steps] == list(range(45, 20, -1))
    monkeypatch.setattr(history, "MOST_LIVE", 0)
    monkeypatch.setattr(history, "PER_PAGE", 5)
    assert {step.after for step in read_history(store, PLACE, None).steps} == {None}

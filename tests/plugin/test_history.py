"""A table's history, a page at a time, with a bounded number of requests."""

from __future__ import annotations

import time
from collections.abc import Mapping

import pytest

from airflow_s3commit import Counts, Destination, Job, JobOptions, MemoryStore
from airflow_s3commit.plugin import history
from airflow_s3commit.plugin.history import read_history
from airflow_s3commit.plugin.stores import Place
from airflow_s3commit.protocol.metadata.context import JobContext, new_uuid
from airflow_s3commit.protocol.model.layout import Layout
from airflow_s3commit.protocol.steps.release import release
from airflow_s3commit.protocol.steps.rollback import roll_back
from airflow_s3commit.store.forwarding import CountingStore
from tests.plugin.scene import FLIGHTS, NIGHTLY, SECRET, begin, commit

pytestmark = pytest.mark.airflow

PLACE = Place(Destination.parse(FLIGHTS))


@pytest.fixture
def store() -> MemoryStore:
    """An empty lake."""
    return MemoryStore(buckets=("lake",))


def a_job(store: MemoryStore) -> JobContext:
    """Return a job of the destination with an id that nobody has used."""
    return JobContext(store, Layout.of(PLACE.destination, new_uuid()))


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
    assert [(step.entry.number, step.entry.kind, step.after and step.after.files) for step in view.steps] == [
        (5, "commit", 3),
        (4, "abandon", 6),
        (3, "commit", 6),
        (2, "commit", 4),
        (1, "commit", 0),
    ]
    newest, aborted = view.steps[:2]
    assert newest.manifest is not None
    assert (newest.manifest.mode, newest.manifest.replaced.files, newest.partitions) == (
        "replace",
        4,
        ["dt=2013-01-01"],
    )
    assert (aborted.note, aborted.entry.context["dag_id"]) == ("not needed", NIGHTLY["dag_id"])


def test_a_rollback_shows_the_size_that_it_led_back_to(store: MemoryStore) -> None:
    """The rollback adds no files, names the partitions that it changed, and the table has its old size."""
    commit(store, context=NIGHTLY, day=1, files=4)
    commit(store, context=NIGHTLY, day=2, files=2)
    seal_retaining(store, day=1, files=1).commit()
    roll_back(a_job(store), 2)
    view = read_history(store, PLACE, None)
    assert [
        (step.manifest and step.manifest.mode, step.after and step.after.files) for step in view.steps
    ] == [
        ("rollback to 2", 4),
        ("replace", 3),
        ("append", 6),
        ("append", 4),
        ("older-data", 0),
    ]
    assert view.steps[0].partitions == ["dt=2013-01-01", "dt=2013-01-02"]


def test_data_older_than_the_log_is_the_first_entry(store: MemoryStore) -> None:
    """It belongs to no job, and is counted in the sizes."""
    store.put("lake", "flights/dt=2013-01-01/old.parquet", b"old")
    commit(store, context=NIGHTLY, day=2, files=2)
    view = read_history(store, PLACE, None)
    assert [
        (step.manifest and step.manifest.mode, step.entry.job_id is None, step.after and step.after.files)
        for step in view.steps
    ] == [
        ("append", False, 3),
        ("older-data", True, 1),
    ]
    assert [context["dag_id"] for context in view.sized] == [NIGHTLY["dag_id"]]


def test_a_release_says_of_how_many_commits_it_frees_files(store: MemoryStore) -> None:
    """It belongs to no job, and leaves the size as it was."""
    commit(store, context=NIGHTLY, day=1, files=4)
    seal_retaining(store, day=1, files=1).commit()
    assert release(a_job(store), time.time() + 30 * 86_400) == 4
    newest = read_history(store, PLACE, None).steps[0]
    assert (newest.entry.kind, newest.entry.job_id, newest.note) == (
        "release",
        None,
        "retained files of 1 commit may be deleted",
    )
    assert newest.after == Counts(files=1, bytes=3)


def test_sizes_are_hidden_with_the_jobs_that_they_count(store: MemoryStore) -> None:
    """A job that the user may not see, on the page or before it, hides the sizes of all."""
    for number in range(30):
        commit(store, context=SECRET if number == 2 else NIGHTLY, day=number + 1, files=1)
    view = read_history(store, PLACE, None)
    assert [step.entry.number for step in view.steps] == list(range(31, 6, -1))

    def may_read(context: Mapping[str, str]) -> bool:
        return context == NIGHTLY

    assert {step.after for step in view.visible_to(may_read).steps} == {None}
    assert view.visible_to(lambda _: True).steps == view.steps
    older = read_history(store, PLACE, view.older).visible_to(may_read)
    assert (older.hidden, {step.after for step in older.steps}) == (1, {None})


def test_a_long_history_takes_few_requests(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the entries of a page, those of commits with files before it, and a few to find them."""
    for number in range(69):
        commit(store, context=NIGHTLY, day=1 + number % 20, mode="replace", files=1)
    counted = CountingStore(store)
    view = read_history(counted, PLACE, None)
    assert [step.entry.number for step in view.steps] == list(range(70, 45, -1))
    assert {step.after.files for step in view.steps if step.after} == {20}
    assert sum(counted.counters.values()) < 65
    older = read_history(counted, PLACE, view.older)
    assert [step.entry.number for step in older.steps] == list(range(45, 20, -1))
    monkeypatch.setattr(history, "MOST_LIVE", 0)
    monkeypatch.setattr(history, "PER_PAGE", 5)
    assert {step.after for step in read_history(store, PLACE, None).steps} == {None}


def test_a_page_before_any_entry_is_empty(store: MemoryStore) -> None:
    """Neither a destination without a log nor a number that is too small or too large is an error."""
    assert read_history(store, PLACE, None).steps == []
    commit(store, context=NIGHTLY, day=1)
    assert read_history(store, PLACE, 1).steps == []
    assert [step.entry.number for step in read_history(store, PLACE, 99).steps] == [2, 1]

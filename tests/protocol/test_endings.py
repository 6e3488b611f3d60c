"""Tests of finding the jobs that ended last, and of telling when and how far jobs came."""

from __future__ import annotations

import pytest

from airflow_s3commit.exceptions import Unavailable
from airflow_s3commit.protocol.commit_progress import commit_progress
from airflow_s3commit.protocol.context import JobContext
from airflow_s3commit.protocol.destination import Destination
from airflow_s3commit.protocol.endings import latest_endings
from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.layout import Layout
from airflow_s3commit.protocol.milestones import milestones
from airflow_s3commit.protocol.records import JobOptions
from airflow_s3commit.protocol.survey import JobSummary, list_jobs
from airflow_s3commit.store.memory import MemoryStore

LAKE = Destination("lake", "flights/")


@pytest.fixture
def store() -> MemoryStore:
    """An empty lake."""
    return MemoryStore(buckets=("lake",))


def _written(store: MemoryStore, *, files: int = 2, unique: bool = True) -> Job:
    job = Job.setup(
        store,
        LAKE.uri,
        options=JobOptions(conflict_mode="append", unique_filenames=unique),
        context={"dag_id": "nightly"},
    )
    with job.task_attempt("a", "1", "0", "0") as task:
        for number in range(files):
            output = task.open(f"dt=1/{number}-{job.reference.job_id[:4]}.parquet")
            output.write(b"row")
            output.close(rows=1)
        job.seal_stage("a", "1", [task.commit()])
    job.seal()
    return job


def _summary(store: MemoryStore, job: Job) -> JobSummary:
    return next(s for s in list_jobs(store, LAKE) if s.job_id == job.reference.job_id)


def _half_committed(store: MemoryStore, *, unique: bool = True) -> Job:
    job = _written(store, files=4, unique=unique)
    job.begin(1)
    uploads = list(store.list_uploads("lake", "flights/dt=1/"))
    for upload in uploads[:3]:
        etags = [part.etag for part in store.list_parts("lake", upload.key, upload.upload_id)]
        store.complete_upload("lake", upload.key, upload.upload_id, etags)
    return job


def test_the_last_endings_come_first_and_no_more_are_read_than_asked(store: MemoryStore) -> None:
    """Committed and aborted jobs alike, by the store's time of their ending."""
    jobs = [_written(store) for _ in range(4)]
    for number, job in enumerate(jobs):
        job.abort(reason="why not") if number == 2 else job.commit()
    found = latest_endings(store, LAKE, 3)
    assert [job.job_id for job in found.jobs] == [job.reference.job_id for job in reversed(jobs[1:])]
    assert [job.state for job in found.jobs] == ["committed", "aborted", "committed"]
    assert found.jobs[0].context == {"dag_id": "nightly"}
    assert found.jobs[0].output.files == 2
    assert found.jobs[1].reason == "why not"
    assert found.jobs[1].context == {"dag_id": "nightly"}
    assert found.complete


def test_a_damaged_ending_is_told_of(store: MemoryStore) -> None:
    """It does not hide the others."""
    good = _written(store)
    good.commit()
    store.put("lake", "flights/_s3commit/manifests/bad.json", b"{")
    store.put("lake", "flights/_s3commit/aborted/worse.json", b"{")
    found = {job.job_id: job for job in latest_endings(store, LAKE, 10).jobs}
    assert found[good.reference.job_id].problem is None
    assert found["bad"].problem is not None
    assert (found["worse"].state, found["worse"].problem is None) == ("aborted", False)


def test_an_empty_destination_has_no_endings(store: MemoryStore) -> None:
    """And that is no error."""
    assert latest_endings(store, LAKE, 10).jobs == []


def test_a_store_that_cannot_be_asked_is_an_error(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer that is missing is not taken for an ending that is not there."""
    _written(store).commit()
    monkeypatch.setattr(
        store, "perform", lambda calls: ((tag, Unavailable("busy")) for tag, _ in calls), raising=True
    )
    with pytest.raises(Unavailable):
        latest_endings(store, LAKE, 10)


def test_milestones_are_told_by_records_while_they_stand(store: MemoryStore) -> None:
    """Earliest first, and of a cleaned-up job only what its manifest says."""
    job = _written(store)
    job.plan()
    context = JobContext(store, Layout.of(LAKE, job.reference.job_id))
    names = [milestone.name for milestone in milestones(context, _summary(store, job))]
    assert names == ["open", "stage sealed", "sealed", "planned"]
    times = [milestone.at for milestone in milestones(context, _summary(store, job))]
    assert times == sorted(times)
    job.begin(1)
    assert milestones(context, _summary(store, job))[-1].name == "committing"
    job.commit()
    ended = latest_endings(store, LAKE, 1).jobs[0]
    assert [(m.name, m.estimated) for m in milestones(context, ended)] == [
        ("committing", True),
        ("committed", True),
    ]


def test_a_running_commit_is_as_far_as_its_uploads_are_gone(store: MemoryStore) -> None:
    """Each completion was one request, and the rate is that since it began."""
    job = _half_committed(store)
    _written(store)
    summary = _summary(store, job)
    progress = commit_progress(store, LAKE, list_jobs(store, LAKE))
    assert set(progress) == {job.reference.job_id}
    found = progress[job.reference.job_id]
    assert (found.completed, found.files, found.share) == (3, 4, 0.75)
    assert summary.age is not None
    assert found.rate is not None
    assert found.left is not None
    assert found.left == pytest.approx(1 / found.rate)


def test_progress_is_not_guessed_where_keys_do_not_tell(store: MemoryStore) -> None:
    """With file names as they are, a listing does not show whose uploads are whose."""
    _half_committed(store, unique=False)
    assert commit_progress(store, LAKE, list_jobs(store, LAKE)) == {}

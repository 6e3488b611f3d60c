"""What exists at a destination: jobs, pending uploads, and the jobs that ended last."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from airflow_s3commit.exceptions import Unavailable
from airflow_s3commit.protocol.inspect.jobs import (
    JobSummary,
    UploadSummary,
    commit_progress,
    latest_endings,
    list_jobs,
    pending_uploads,
)
from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.job import ConflictMode, JobOptions
from airflow_s3commit.store.memory import MemoryStore
from airflow_s3commit.testing import StoreCall
from tests.protocol.building import BUCKET, OURS, ROOT, THEIRS, Crash, Lake, an_id, complete, named, once

FLIGHTS = Destination(BUCKET, ROOT)


FILES = {"dt=1/part-0.parquet": b"one", "dt=2/part-0.parquet": b"seven!!"}


def _jobs(lake: Lake) -> dict[str, JobSummary]:
    return {job.job_id: job for job in list_jobs(lake.store, FLIGHTS)}


def _totals(summary: JobSummary) -> tuple[int, int, int | None]:
    return summary.output.files, summary.output.bytes, summary.output.rows


def _uploads(lake: Lake, destination: Destination = FLIGHTS, **asked: bool) -> dict[str, UploadSummary]:
    found = pending_uploads(lake.store, destination, threads=0, **asked)
    return {upload.key: upload for upload in found}


def test_an_open_job_shows_what_its_pendingsets_name() -> None:
    """A job that writes is listed with its options, its context, its age and what is pending so far."""
    lake = Lake()
    job = lake.set_up(said={"dag": "nightly"})
    lake.store_clock.advance(100)
    lake.run_task(job, FILES)
    lake.store_clock.advance(20)
    summary = _jobs(lake)[OURS]
    assert (summary.state, summary.destination) == ("open", FLIGHTS.uri)
    assert summary.staging == f"{FLIGHTS.uri}__magic_job-{OURS}/"
    assert summary.since is not None
    assert summary.options == job.record().options
    assert summary.context == {"dag": "nightly"}
    assert (summary.age, summary.silent) == (120.0, 20.0)
    assert _totals(summary) == (2, 10, 10)


def test_a_destination_that_is_slow_keeps_no_other_waiting() -> None:
    """A look at one destination ends while a thread still waits for an answer of another one."""
    slow, fast, asked, answers = Lake(), Lake(), Event(), Event()
    slow.set_up()
    fast.set_up(THEIRS)

    def wait(call: StoreCall) -> None:
        if call.reads and "/log/" in call.key:
            asked.set()
            answers.wait(60)

    slow.store.before = wait
    with ThreadPoolExecutor(2) as threads:
        waiting = threads.submit(_jobs, slow)
        try:
            assert asked.wait(60)
            assert threads.submit(_jobs, fast).result(timeout=30).keys() == {THEIRS}
            assert not waiting.done()
        finally:
            answers.set()
        assert waiting.result().keys() == {OURS}


def test_a_sealed_job_shows_what_its_seal_counts() -> None:
    """Output of an attempt that does not count is not shown once the job is sealed."""
    lake = Lake()
    job = lake.set_up()
    counted = lake.run_task(job, FILES)
    lake.run_task(job, FILES, attempt="2")
    assert _jobs(lake)[OURS].output.files == 4
    for clock in (lake.store_clock, lake.clock):
        clock.advance(100)
    job.seal_stage("spark", "1", [counted])
    job.seal()
    sealed = int(lake.clock.time() * 1000)
    lake.store_clock.advance(20)
    summary = _jobs(lake)[OURS]
    assert _totals(summary) == (2, 10, 10)
    assert (summary.state, summary.since, summary.age) == ("sealed", sealed, 20.0)


def test_jobs_of_other_destinations_are_not_listed() -> None:
    """Destinations below this one, or with a longer name, are not mixed in."""
    lake = Lake()
    lake.set_up()
    for uri in ("s3://lake/flights10/", "s3://lake/flights/dt=1/"):
        Job.setup(lake.store, uri, job_id=THEIRS)
    assert list(_jobs(lake)) == [OURS]


def test_jobs_with_their_staging_elsewhere_are_listed() -> None:
    """If many destinations share a staging root, this one's jobs are found by their records."""
    lake = Lake()
    root = Destination("other", "staging/")
    options = JobOptions(staging=root.uri)
    ours = Job.setup(lake.store, FLIGHTS.uri, job_id=OURS, options=options)
    theirs = Job.setup(lake.store, "s3://lake/trains/", job_id=THEIRS, options=options)
    for job in (ours, theirs):
        lake.run_task(job, FILES)
    for given in (None, root):
        found = list(list_jobs(lake.store, FLIGHTS, given))
        assert [(job.job_id, job.staging, job.output.files) for job in found] == [
            (OURS, f"s3://other/staging/__magic_job-{OURS}/", 2)
        ]


def test_leftovers_under_a_shared_staging_root_are_listed_by_the_log() -> None:
    """A folder there is of this destination's job if the log has its end."""
    lake = Lake()
    options = JobOptions(staging="s3://other/staging/")
    for uri, job_id in ((FLIGHTS.uri, OURS), ("s3://lake/trains/", THEIRS)):
        Job.setup(lake.store, uri, job_id=job_id, options=options).abort()
        lake.store.put("other", f"staging/__magic_job-{job_id}/late", b"")
    found = list(list_jobs(lake.store, FLIGHTS, Destination("other", "staging/")))
    assert [(job.job_id, job.state) for job in found] == [(OURS, "aborted")]


def test_committed_jobs_are_listed_on_request() -> None:
    """A job that is committed and cleaned up is no job in progress; the log has what it committed."""
    lake = Lake()
    lake.sealed(FILES).commit()
    for clock in (lake.store_clock, lake.clock):
        clock.advance(60)
    assert _jobs(lake) == {}
    (summary,) = latest_endings(lake.store, FLIGHTS, 1)
    assert (summary.state, summary.staging, summary.age) == ("committed", None, 60.0)
    assert summary.manifest == lake.job().manifest()
    assert summary.output.files == 2
    assert summary.to_dict()["manifest"]["files"] == 2


@pytest.mark.parametrize("verb", ["commit", "abort"])
def test_a_job_that_has_ended_and_is_not_cleaned_up_is_listed_once(verb: str) -> None:
    """It has its end from the log, the newest entry of which has no receipt, and what is left of it."""
    lake = Lake()
    job = lake.sealed(FILES)
    lake.store.die("put", f"_s3commit/jobs/{OURS}.json")
    with pytest.raises(Crash):
        job.commit() if verb == "commit" else job.abort(reason="why not")
    lake.store.rest()
    (found,) = list_jobs(lake.store, FLIGHTS)
    assert (found.job_id, found.has_ended, found.staging is None) == (OURS, True, False)
    assert found.options == job.record().options
    assert found.output.files == (2 if verb == "commit" else 0)
    assert found.reason == (None if verb == "commit" else "why not")
    lake.job().recover()
    assert _jobs(lake) == {}


def test_damaged_records_are_a_problem_of_their_job_alone() -> None:
    """A job whose record, seal or pendingset cannot be read is listed with the reason, beside the others."""
    lake = Lake()
    lake.set_up()
    lake.set_up(an_id("job"))
    lake.tamper(lake.open_key(job_id=an_id("job")), cut=5)
    lake.sealed(FILES, job_id=an_id("seal"))
    lake.tamper(lake.open_key("sealed.json", job_id=an_id("seal")), cut=5)
    lake.run_task(lake.set_up(an_id("set")), FILES)
    lake.tamper(lake.pendingset_key(job_id=an_id("set")), cut=5)
    lake.set_up(an_id("copy"))
    lake.tamper(lake.open_key(job_id=an_id("copy")), old=b"flights/", new=b"trains1/")
    lake.set_up(an_id("large"))
    lake.store.put(BUCKET, lake.open_key(job_id=an_id("large")), bytes(4 << 20))
    jobs = _jobs(lake)
    assert jobs[OURS].problem is None
    for name, record, state in (
        ("job", "job.json", None),
        ("seal", "sealed.json", "sealed"),
        ("set", ".pendingset", "open"),
        ("copy", "was copied here", None),
        ("large", "job.json", None),
    ):
        assert record in (jobs[an_id(name)].problem or "")
        assert jobs[an_id(name)].state == state


def test_a_damaged_log_is_a_problem_of_every_job() -> None:
    """Without the log nobody knows which of the jobs have ended."""
    lake = Lake()
    lake.set_up()
    lake.tamper(f"{ROOT}_s3commit/log/{1:020d}.json", cut=5)
    assert "log/" in (_jobs(lake)[OURS].problem or "")


def test_staging_without_records_is_listed() -> None:
    """Leftovers of no known job are listed, with their age and without a state."""
    lake = Lake()
    lake.put({"__magic_job-remains/stages/x": b"", "__magic_job-no slash": b"", "__magic_job-/x": b""})
    lake.set_up()
    lake.store_clock.advance(9)
    jobs = _jobs(lake)
    assert sorted(jobs) == [OURS, "remains"]
    assert (jobs["remains"].state, jobs["remains"].destination, jobs["remains"].silent) == (None, None, 9.0)


def test_a_job_that_is_set_up_meanwhile_is_no_leftover() -> None:
    """A folder that a listing shows is judged by records that are read later."""
    lake = Lake()

    def meanwhile() -> None:
        lake.run_task(lake.set_up(), FILES)

    lake.store.before = once("list_objects", "__magic_job-", meanwhile)
    assert [(job.job_id, job.state) for job in list_jobs(lake.store, FLIGHTS)] == [(OURS, "open")]


def test_uploads_are_listed_with_their_size_age_and_job() -> None:
    """Every pending upload has its age and job and, if requested, its parts and bytes."""
    lake = Lake()
    lake.run_task(lake.set_up(), FILES)
    stray = lake.store.create_upload(BUCKET, f"{ROOT}dt=1/stray", metadata={}, content_type="x")
    for number, body in ((1, b"1234"), (2, b"56")):
        lake.store.upload_part(BUCKET, f"{ROOT}dt=1/stray", stray, number, body)
    lake.store_clock.advance(30)
    found = _uploads(lake, measure=True)
    assert found[f"{ROOT}dt=1/stray"] == UploadSummary(
        key=f"{ROOT}dt=1/stray", upload_id=stray, initiated=lake.store_clock.time() - 30, age=30.0, parts=2,
        bytes=6,
    )  # fmt: skip
    ours = found[ROOT + named("dt=2/part-0.parquet")]
    assert (ours.job_id, ours.bytes) == (OURS, 7)
    assert {upload.bytes for upload in _uploads(lake).values()} == {None}


def test_uploads_without_an_id_are_found_by_their_records() -> None:
    """Without an id in the key an upload's job is found by Hadoop's .pending file, here or above."""
    lake = Lake()
    job = lake.set_up()
    with job.task_attempt("spark", "1", "0", "1", threads=0) as attempt:
        attempt.open("dt=1/part-0.parquet")
        hadoops = f"{ROOT}dt=2/part-0.parquet"
        upload_id = lake.store.create_upload(BUCKET, hadoops, metadata={}, content_type="x")
        lake.put({
            "__magic_job-hadoop/job-1/task-1/part-0.parquet.pending": (
                b'{"version":2,"uri":"s3a://lake/x","uploadId":"%s","bucket":"lake","destinationKey":"%s",'
                b'"etags":["e"],"length":3}' % (upload_id.encode(), hadoops.encode())
            ),
            "__magic_job-hadoop/job-1/task-1/damaged.pending": b"{",
        })  # fmt: skip
        owners = {key: upload.job_id for key, upload in _uploads(lake).items()}
        below = _uploads(lake, Destination(BUCKET, f"{ROOT}dt=2/"))
    assert below[hadoops].job_id == "hadoop"
    assert owners == {ROOT + named("dt=1/part-0.parquet"): OURS, hadoops: "hadoop"}


def test_uploads_of_jobs_above_and_below_are_recognised() -> None:
    """An upload below the destination may belong to a job on a directory above it or on a partition."""
    lake = Lake(prefix="")
    above = lake.set_up()
    inside = Job.setup(
        lake.store, f"{FLIGHTS.uri}dt=2/", job_id=THEIRS, options=JobOptions(committer="magic")
    )
    with (
        above.task_attempt("spark", "1", "0", "1", threads=0) as one,
        inside.task_attempt("spark", "1", "0", "1", threads=0) as two,
    ):
        one.open("flights/dt=1/a.parquet")
        two.open("b.parquet")
        owners = sorted(str(upload.job_id) for upload in _uploads(lake).values())
    assert owners == [OURS, THEIRS]


def test_looking_changes_nothing() -> None:
    """Neither listing makes any call that could change anything."""
    lake = Lake()
    lake.sealed(FILES)
    lake.store.create_upload(BUCKET, f"{ROOT}stray", metadata={}, content_type="x")
    lake.store.calls.clear()
    _jobs(lake)
    _uploads(lake, measure=True)
    assert all(call.reads for call in lake.store.calls)


def test_without_any_record_an_upload_has_no_age() -> None:
    """If the store's time is unknown, the age is not computed from this machine's clock."""
    lake = Lake()
    lake.store.create_upload(BUCKET, f"{ROOT}stray", metadata={}, content_type="x")
    assert [upload.age for upload in _uploads(lake).values()] == [None]


LAKE = Destination("lake", "flights/")


@pytest.fixture
def store() -> MemoryStore:
    """An empty lake."""
    return MemoryStore(buckets=("lake",))


def _written(store: MemoryStore, *, files: int = 2, mode: ConflictMode = "append", **facts: str) -> Job:
    job = Job.setup(
        store,
        LAKE.uri,
        options=JobOptions(conflict_mode=mode),
        context={"dag_id": "nightly", **facts},
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


def _half_committed(store: MemoryStore, **facts: str) -> Job:
    job = _written(store, files=4, **facts)
    uploads = list(store.list_uploads("lake", "flights/dt=1/"))
    for upload in uploads[:3]:
        complete(store, upload.key, upload.upload_id)
    return job


def test_the_last_endings_come_first_and_the_rest_is_not_read(store: MemoryStore) -> None:
    """Committed and aborted jobs share the order of the log."""
    jobs = [_written(store) for _ in range(4)]
    for number, job in enumerate(jobs):
        job.abort(reason="why not") if number == 2 else job.commit()
    store.put("lake", f"flights/_s3commit/log/{1:020d}.json", b"damaged, and not read")
    found = latest_endings(store, LAKE, 3)
    assert [job.job_id for job in found] == [job.reference.job_id for job in reversed(jobs[1:])]
    assert [job.state for job in found] == ["committed", "aborted", "committed"]
    assert found[0].context == {"dag_id": "nightly"}
    assert found[0].output.files == 2
    assert found[1].reason == "why not"
    assert found[1].context == {"dag_id": "nightly"}


def test_a_place_without_jobs_has_no_endings(store: MemoryStore) -> None:
    """Neither an empty destination nor data that is older than the log is the end of a job."""
    assert latest_endings(store, LAKE, 10) == []
    store.put("lake", "flights/older.parquet", b"older")
    _written(store)
    assert latest_endings(store, LAKE, 10) == []


def test_a_store_that_cannot_be_asked_is_an_error(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing answer is not taken for a missing ending."""
    _written(store).commit()
    monkeypatch.setattr(
        store, "perform", lambda calls: ((tag, Unavailable("busy")) for tag, _ in calls), raising=True
    )
    with pytest.raises(Unavailable):
        latest_endings(store, LAKE, 10)


def test_the_progress_of_a_commit_is_the_uploads_that_are_gone(store: MemoryStore) -> None:
    """A sealed job with all its uploads has not begun."""
    job = _half_committed(store)
    _written(store)
    progress = commit_progress(store, LAKE, list_jobs(store, LAKE))
    assert set(progress) == {job.reference.job_id}
    found = progress[job.reference.job_id]
    assert (found.completed, found.files, found.share) == (3, 4, 0.75)


def test_progress_is_not_guessed_where_keys_have_no_job_id(store: MemoryStore) -> None:
    """A listing does not show which uploads are those of a job adopted from Hadoop."""
    _half_committed(store, adopted_from="magic")
    assert commit_progress(store, LAKE, list_jobs(store, LAKE)) == {}

"""One writer of many records its commit once, and its abort leaves nothing."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from threading import enumerate as enumerate_threads
from typing import Any

import pytest

from airflow_s3commit.exceptions import (
    AlreadyCommitted,
    DuplicateOutput,
    InvalidRecord,
    JobClosed,
    NoSuchJob,
    NoSuchUpload,
    OutcomeUnknown,
    StoreRejected,
    Unavailable,
)
from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.model.codec import decode, sha256
from airflow_s3commit.protocol.model.pendingset import PendingSet
from airflow_s3commit.protocol.steps.task_attempt import TaskAttempt
from tests.cases import each
from tests.protocol.building import BUCKET, OURS, ROOT, Crash, Lake, WatchedStore, named, once
from tests.protocol.model.test_destination import BAD_PATHS

FILES = {"dt=1/a.parquet": b"11", "dt=2/a.parquet": b"222", "b.parquet": b""}


def attempt_of(job: Job, task: str = "00000", attempt: str = "1") -> TaskAttempt:
    """Begin an attempt that sends parts in this thread."""
    return job.task_attempt("spark", "1", task, attempt, part_bytes=1, threads=0, min_part_bytes=1)


def write(attempt: TaskAttempt, path: str, body: bytes = b"x") -> None:
    """Write one file."""
    with attempt.open(path) as file:
        file.write(body)


@pytest.mark.parametrize("committer", ["magic", "partitioned"])
@pytest.mark.parametrize("track", ["task", "s3"])
def test_a_commit_writes_one_pendingset(track: str, committer: str) -> None:
    """Every file of the attempt is pending, none is visible, and one pendingset names them all."""
    lake = Lake()
    job = lake.set_up(track_pending=track, committer=committer)
    committed = lake.run_task(job, FILES)
    assert (committed.files, committed.bytes, committed.rows) == (3, 5, 5)
    assert committed.location == f"s3://{BUCKET}/{lake.pendingset_key()}"
    fetched = lake.store.get(BUCKET, lake.pendingset_key())
    assert committed.sha256 == sha256(fetched.body)
    pendingset = decode(PendingSet, fetched.body, "x")
    expected = [ROOT + named(path) for path in FILES]
    assert [upload.destinationKey for upload in pendingset.commits] == expected
    assert sorted(lake.pending()) == sorted(expected)
    assert lake.visible() == {}
    assert pendingset.jobId == OURS


def test_an_empty_task_commits_an_empty_pendingset() -> None:
    """A task without output is committed like any other."""
    lake = Lake()
    committed = lake.run_task(lake.set_up(), {})
    assert (committed.files, committed.bytes, committed.rows) == (0, 0, 0)
    assert decode(PendingSet, lake.get(lake.pendingset_key()), "x").commits == []


def test_rows_are_unknown_if_one_file_s_are() -> None:
    """The rows of an attempt are known only if every file's are."""
    lake = Lake()
    with attempt_of(lake.set_up()) as attempt:
        attempt.open("a").close(rows=3)
        attempt.open("b").close()
        assert attempt.commit().rows is None


def test_a_second_commit_returns_the_same() -> None:
    """Committing again returns the same answer without asking the store."""
    lake = Lake()
    with attempt_of(lake.set_up()) as attempt:
        write(attempt, "a")
        committed = attempt.commit()
        calls = len(lake.store.calls)
        assert attempt.commit() == committed
        assert len(lake.store.calls) == calls


@each("committer", ["magic", "partitioned", "directory"])
@each("path", [*BAD_PATHS, "__magic_job-1/x/__base/a.parquet"])
def test_a_path_that_leads_elsewhere_is_refused(path: str, committer: str) -> None:
    """No upload is started for a path that could leave the destination or is hidden."""
    lake = Lake()
    with attempt_of(lake.set_up(committer=committer)) as attempt:
        with pytest.raises(InvalidRecord):
            attempt.open(path)
        assert lake.pending() == []
        write(attempt, "fine")
        assert attempt.commit().files == 1


def test_a_key_too_long_is_refused() -> None:
    """The job's id counts, so a path that fits without it may be too long."""
    lake = Lake()
    path = "x" * (1024 - len(ROOT) - 10)
    with (
        attempt_of(lake.set_up()) as attempt,
        pytest.raises(InvalidRecord, match="keys end at 1024: "),
    ):
        attempt.open(path)
    assert lake.pending() == []


@pytest.mark.parametrize("again", ["a.parquet", named("a.parquet")])
def test_one_key_twice_is_refused(again: str) -> None:
    """An attempt cannot write one key twice, under any name, and its first file is unharmed."""
    lake = Lake()
    with attempt_of(lake.set_up()) as attempt:
        write(attempt, "a.parquet", b"first")
        with pytest.raises(DuplicateOutput):
            attempt.open(again)
        assert attempt.commit().bytes == 5


@pytest.mark.parametrize("value", ["", "a/b", "..", "a b"])
def test_ids_that_cannot_be_part_of_a_key_are_refused(value: str) -> None:
    """An attempt with an id that would lead elsewhere does not begin."""
    lake = Lake()
    job = lake.set_up()
    before = lake.everything()
    for ids in (
        (value, "1", "t", "1"),
        ("s", value, "t", "1"),
        ("s", "1", value, "1"),
        ("s", "1", "t", value),
    ):
        with pytest.raises(InvalidRecord):
            job.task_attempt(*ids)
    assert lake.everything() == before


@pytest.mark.parametrize("committer", ["magic", "partitioned"])
def test_a_file_that_failed_cannot_be_left_out(committer: str) -> None:
    """An attempt that goes on after a file was aborted commits nothing, because output would be missing."""
    lake = Lake()
    with attempt_of(lake.set_up(committer=committer)) as attempt:
        write(attempt, "a")
        with suppress(ZeroDivisionError), attempt.open("b"):
            raise ZeroDivisionError
        with pytest.raises(JobClosed, match="not closed"):
            attempt.commit()
    assert lake.pending() == []
    assert lake.pendingset_key() not in lake.keys("")


def test_staged_files_are_sent_only_for_an_open_job() -> None:
    """A staging attempt that commits after its job has ended sends no byte."""
    lake = Lake()
    job = lake.set_up(committer="directory")
    with pytest.raises((JobClosed, NoSuchJob)), attempt_of(job) as late:  # noqa: PT012 - its end counts
        write(late, "a")
        lake.job().abort()
        lake.store.calls.clear()
        late.commit()
    assert {call.verb for call in lake.store.calls} <= {"get", "delete"}
    assert lake.left() == []


def test_staged_files_leave_the_disk(tmp_path: Path) -> None:
    """Files of a staging attempt are gone from the disk whether it has committed or not."""
    job = Lake().set_up(committer="partitioned")
    for commits in (True, False):
        attempt = job.task_attempt(
            "spark",
            "1",
            str(commits),
            "1",
            part_bytes=1,
            threads=0,
            min_part_bytes=1,
            local_dir=str(tmp_path),
        )
        with attempt:
            write(attempt, "a", b"1")
            assert [path.read_bytes() for path in tmp_path.rglob("0*")] == [b"1"]
            if commits:
                attempt.commit()
        assert list(tmp_path.iterdir()) == []


def test_an_open_file_cannot_be_committed() -> None:
    """A commit with an open file is refused and writes nothing, and after closing it succeeds."""
    lake = Lake()
    with attempt_of(lake.set_up()) as attempt:
        file = attempt.open("a")
        with pytest.raises(JobClosed, match="not closed"):
            attempt.commit()
        assert lake.pendingset_key() not in lake.keys("")
        file.close()
        assert attempt.commit().files == 1


@pytest.mark.parametrize("committer", ["magic", "partitioned"])
@pytest.mark.parametrize("track", ["task", "s3"])
def test_leaving_without_a_commit_leaves_nothing(track: str, committer: str) -> None:
    """An uncommitted attempt has nothing pending when its block is left, however it is left."""
    lake = Lake()
    job = lake.set_up(track_pending=track, committer=committer)
    with attempt_of(job) as attempt:
        write(attempt, "a")
        attempt.open("b").write(b"open")
    assert lake.pending() == []
    with pytest.raises(ZeroDivisionError), attempt_of(job, attempt="2") as attempt:  # noqa: PT012 - its end counts
        write(attempt, "a")
        raise ZeroDivisionError
    assert lake.pending() == []
    assert lake.visible() == {}
    for step in (attempt.commit, lambda: attempt.open("c")):
        with pytest.raises(JobClosed, match="is aborted"):
            step()
    attempt.abort()


def test_an_abort_after_the_commit_takes_it_back() -> None:
    """A committed attempt that is aborted leaves neither uploads nor its pendingset."""
    lake = Lake()
    with attempt_of(lake.set_up()) as attempt:
        write(attempt, "a")
        attempt.commit()
        attempt.abort()
    assert lake.pending() == []
    assert lake.pendingset_key() not in lake.keys("")


def test_a_failed_abort_tries_everything() -> None:
    """An upload that cannot be discarded does not prevent the others, and the error is raised."""
    lake = Lake()
    attempt = attempt_of(lake.set_up())
    for path in ("a", "b", "c"):
        write(attempt, path)
    lake.store.before = once("abort_upload", named("b"), Unavailable("slow down"))
    with pytest.raises(Unavailable):
        attempt.abort()
    assert lake.pending() == [ROOT + named("b")]
    lake.job().abort()
    assert lake.pending() == []


def test_the_writer_s_own_error_is_not_hidden() -> None:
    """If the abort fails too, the error that caused it is raised."""
    lake = Lake()
    job = lake.set_up()
    lake.store.before = once("abort_upload", "", Unavailable("slow down"))
    with pytest.raises(ZeroDivisionError), attempt_of(job) as attempt:  # noqa: PT012 - its end counts
        write(attempt, "a")
        raise ZeroDivisionError


@pytest.mark.parametrize("step", ["put", "get"])
@pytest.mark.parametrize("error", [Unavailable("slow down"), StoreRejected("no")], ids=str)
def test_a_commit_that_fails_leaves_nothing(step: str, error: Any) -> None:
    """An attempt whose pendingset, or look at the job, fails has nothing pending when its block is left."""
    lake = Lake()
    job = lake.set_up()
    with pytest.raises(type(error)), attempt_of(job) as attempt:  # noqa: PT012 - its end counts
        write(attempt, "a")
        ending = ".pendingset" if step == "put" else f"jobs/{OURS}.json"
        lake.store.before = once(step, ending, error)
        attempt.commit()
    assert lake.pending() == []
    assert lake.pendingset_key() not in lake.keys("")


def test_a_lost_answer_to_the_pendingset_is_resolved() -> None:
    """The attempt finds its own pendingset, and is committed."""
    lake = Lake()
    job = lake.set_up()
    lake.store.after = once("put", ".pendingset", OutcomeUnknown("lost"))
    committed = lake.run_task(job, FILES)
    lake.store.rest()
    job.seal_stage("spark", "1", [committed])
    job.seal()
    assert job.commit().counts.files == 3


def test_a_second_process_with_the_same_ids_is_refused() -> None:
    """Of two processes that claim to be one attempt the first one counts, and the second harms nothing."""
    lake = Lake()
    job = lake.set_up()
    first = lake.run_task(job, {"a": b"first"})
    with pytest.raises(DuplicateOutput), attempt_of(job) as twin:  # noqa: PT012 - its end counts
        write(twin, "b", b"twin")
        twin.commit()
    assert lake.pending() == [ROOT + named("a")]
    # A process that knows nothing reads the pendingset.
    driver = lake.job()
    driver.seal_stage("spark", "1", [first])
    driver.seal()
    driver.commit()
    assert lake.data() == {named("a"): b"first"}


def test_an_aborting_twin_harms_nothing() -> None:
    """A process that aborts does not remove what another one with its ids has committed."""
    lake = Lake()
    job = lake.set_up()
    twin = attempt_of(job)
    write(twin, "b", b"twin")
    first = lake.run_task(job, {"a": b"first"})
    twin.abort()
    driver = lake.job()
    driver.seal_stage("spark", "1", [first])
    driver.seal()
    driver.commit()
    assert lake.data() == {named("a"): b"first"}


def test_an_attempt_needs_a_job() -> None:
    """Without a job there is no attempt."""
    lake = Lake()
    with pytest.raises(NoSuchJob):
        attempt_of(lake.job())
    assert lake.everything() == Lake().everything()


@pytest.mark.parametrize("end", ["aborted", "committed"])
def test_a_job_that_ended_accepts_no_file(end: str) -> None:
    """A new attempt learns at its first file that the job accepts no more output."""
    lake = Lake()
    job = lake.set_up()
    late = attempt_of(job, "99999")
    lake.run_stage(job, {"a": b"1"})
    {"aborted": job.abort, "committed": lambda: (job.seal(), job.commit())}[end]()
    before = lake.everything()
    with pytest.raises((JobClosed, NoSuchJob, AlreadyCommitted)):
        late.open("late")
    assert lake.everything() == before


@each("committer", ["magic", "partitioned"])
@each("track", ["task", "s3"])
@each("end", ["aborted", "committed"])
def test_a_late_attempt_cannot_commit(end: str, track: str, committer: str) -> None:
    """An attempt that writes on while its job ends commits nothing and leaves nothing pending."""
    lake = Lake()
    job = lake.set_up(track_pending=track, committer=committer)
    late = attempt_of(lake.job(), "99999")
    file = late.open("late")
    lake.run_stage(job, {"a": b"1"})
    {"aborted": job.abort, "committed": lambda: (job.seal(), job.commit())}[end]()
    visible = lake.visible()
    with pytest.raises((JobClosed, AlreadyCommitted, NoSuchUpload)), late:  # noqa: PT012 - its end counts
        file.write(b"too late")
        file.close()
        late.commit()
    assert lake.visible() == visible
    assert lake.pending() == []
    if end == "aborted":
        assert lake.left() == []


@each("committer", ["magic", "partitioned"])
def test_an_attempt_that_commits_after_the_seal_does_not_count(committer: str) -> None:
    """What a job's seal does not name never becomes visible, and goes when the job is committed."""
    lake = Lake()
    job = lake.set_up(committer=committer)
    late = attempt_of(lake.job(), "99999")
    lake.run_stage(job, {"a": b"1"})
    job.seal()
    with late:
        write(late, "late")
        late.commit()
    assert ROOT + named("late") in lake.pending()
    lake.job().commit()
    assert lake.data() == {named("a"): b"1"}
    assert (lake.pending(), lake.staging()) == ([], [])


def late_attempt() -> tuple[Lake, TaskAttempt]:
    """Return a lake whose job was committed, and an attempt that had written a file before, and writes on."""
    lake = Lake()
    job = lake.set_up(track_pending="s3", committer="magic")
    lake.run_stage(job, {"a": b"1"})
    late = attempt_of(lake.job(), "99999")
    write(late, "first")
    job.seal()
    job.commit()
    return lake, late


@each("commits", [True, False])
@each("fails", [False, True])
def test_a_late_attempt_removes_the_records_of_its_uploads(fails: bool, commits: bool) -> None:
    """An attempt whose job was committed leaves no record, except while one of its uploads may be pending."""
    lake, late = late_attempt()
    # Written after the commit has removed the staging.
    for path in ("second", "third"):
        write(late, path)
    if fails:
        third = named("third")
        lake.store.before = once("abort_upload", third, Unavailable("slow down"))
    with suppress(AlreadyCommitted, Unavailable), late:
        if commits:
            late.commit()
    left = [key for key in lake.keys("") if "/99999_1" in key and not key.endswith(".pendingset")]
    assert bool(left) is fails
    assert len(lake.pending()) == fails


@pytest.mark.parametrize("committer", ["magic", "partitioned"])
@pytest.mark.parametrize("ending", ["aborted", "committed"])
def test_a_job_that_ends_during_the_commit_is_noticed(ending: str, committer: str) -> None:
    """If the job ends between an attempt's last look and its pendingset, the attempt takes itself back."""
    lake = Lake()
    job = lake.set_up(committer=committer)
    lake.run_stage(job, {"a": b"1"})
    late = attempt_of(lake.job(), "99999")
    write(late, "late")

    def end() -> None:
        lake.store.rest()
        if ending == "aborted":
            job.abort()
        else:
            job.seal()
            job.commit()

    lake.store.before = once("put", "99999_1.pendingset", end)
    with pytest.raises((JobClosed, NoSuchJob, AlreadyCommitted)), late:
        late.commit()
    assert ROOT + named("late") not in lake.pending()
    assert lake.pendingset_key("99999") not in lake.keys("")
    assert ROOT + named("late") not in lake.visible()
    assert (lake.left() == []) is (ending == "aborted")


def test_an_attempt_whose_job_ends_while_it_sends_says_so() -> None:
    """Its upload is gone because the job was aborted, and that is the error."""
    lake = Lake()
    job = lake.set_up(committer="partitioned")
    with pytest.raises(JobClosed, match="is aborted"), attempt_of(job) as late:  # noqa: PT012 - its end counts
        write(late, "a")
        lake.store.before = once("upload_part", "", lake.job().abort)
        late.commit()
    assert (lake.pending(), lake.staging(), lake.data()) == ([], [], {})


def test_one_of_many_attempts_of_a_task_counts() -> None:
    """Attempts of one task commit side by side; only the one that is sealed becomes visible."""
    lake = Lake()
    job = lake.set_up()
    lake.run_task(job, {"x": b"first"}, attempt="1")
    second = lake.run_task(job, {"y": b"second"}, attempt="2")
    job.seal_stage("spark", "1", [second])
    job.seal()
    job.commit()
    assert lake.data() == {named("y"): b"second"}
    assert lake.pending() == []


def test_a_dead_attempt_stays_dead() -> None:
    """Uploads of an attempt that died silently are aborted with its job, however that ends."""
    for end in ("commit", "abort"):
        lake = Lake()
        job = lake.set_up()
        lake.store.die("upload_part", named("dead"))
        with pytest.raises(Crash):
            write(attempt_of(job, "99999"), "dead")
        lake.store.rest()
        assert ROOT + named("dead") in lake.pending()
        lake.run_stage(job, {"a": b"1"})
        job.seal()
        getattr(job, end)()
        assert lake.pending() == []
        assert lake.data() == ({named("a"): b"1"} if end == "commit" else {})


def test_several_threads_may_send_parts() -> None:
    """With threads the same files result as without, and the threads end with the attempt."""
    lake = Lake()
    job, threads = lake.set_up(), {*enumerate_threads()}
    with job.task_attempt("spark", "1", "0", "1", part_bytes=3, threads=3, min_part_bytes=1) as attempt:
        files = [attempt.open(f"f{number}") for number in range(5)]
        for number, file in enumerate(files):
            file.write(bytes([number]) * 100)
        for file in files:
            file.close()
        committed = attempt.commit()
        assert {*enumerate_threads()} <= threads
    job.seal_stage("spark", "1", [committed])
    job.seal()
    job.commit()
    assert lake.data() == {named(f"f{number}"): bytes([number]) * 100 for number in range(5)}


def test_the_store_is_only_asked_for_what_is_needed() -> None:
    """An attempt's calls are those of its files, two looks for the receipt, and one pendingset."""
    lake = Lake()
    job = lake.set_up()
    job.record()
    assert isinstance(lake.store, WatchedStore)
    lake.store.calls.clear()
    lake.run_task(job, {"a": b"12"})
    assert [call.verb for call in lake.store.calls] == [
        "get", "create_upload", "upload_part", "upload_part", "put", "get",
    ]  # fmt: skip

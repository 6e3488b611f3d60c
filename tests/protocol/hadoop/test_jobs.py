"""The verdict on a Hadoop job follows from facts, and nothing ends such a job without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from airflow_s3commit.exceptions import AlreadyCommitted, AuditFailed, JobClosed, S3CommitError
from airflow_s3commit.protocol.hadoop.adopt import Adoption
from airflow_s3commit.protocol.hadoop.jobs import HadoopJob, classify, find_hadoop_job, find_hadoop_jobs
from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.job import JobReference
from airflow_s3commit.protocol.sweep import SweepReport, sweep
from airflow_s3commit.store.base import Part, Upload
from tests.cases import each
from tests.protocol.hadoop.dead_jobs import BUCKET, MAGIC, ROOT, TASKS, UUID, DeadJob, task_id

PLACE = Destination(BUCKET, ROOT)
FIRST = f"{ROOT}day=17/part-00000.parquet"

#: A job whose tasks committed three uploads that are pending.
JOB = HadoopJob(UUID, PLACE.uri, files=3, pendingsets=3, uploads=3, pending=3, silent=60.0)
PUBLISHED = replace(JOB, pending=0, published=3)


@each(
    ("job", "status"),
    [
        (JOB, "unpublished"),
        (replace(JOB, marker="another's"), "unpublished"),
        (replace(JOB, gaps=2, missing=(0, 1)), "partial"),
        (replace(JOB, pending=2, published=1), "half-published"),
        (replace(JOB, pending=2, published=1, gaps=1, missing=(1,)), "half-published"),
        (replace(JOB, pending=2, uncertain=1), "half-published"),
        (replace(JOB, others_published=1), "half-published"),
        (replace(JOB, pending=0, published=2, lost=1, marker="another's"), "half-published"),
        (PUBLISHED, "half-published"),
        (replace(PUBLISHED, marker="own"), "successful"),
        (replace(PUBLISHED, marker="another's"), "successful"),
        (replace(PUBLISHED, published=1, uncertain=2, marker="another's"), "successful"),
        (replace(PUBLISHED, marker="another's", damaged=("x",)), "half-published"),
        (replace(PUBLISHED, marker="another's", whole=False), "half-published"),
        (replace(JOB, uploads=0, pending=0, marker="another's"), "unpublished"),
        (replace(JOB, pending=0, lost=3, marker="own"), "successful"),
        (replace(JOB, silent=9.0), "perhaps alive"),
        (replace(JOB, pending=2, published=1, silent=9.0), "perhaps alive"),
        (replace(JOB, silent=None), "unpublished"),
    ],
)
def test_the_verdict_follows_from_the_facts(job: HadoopJob, status: str) -> None:
    """The same facts get the same verdict, with a reason; a job that is successful cannot be alive."""
    verdict = classify(job, older_than=10.0)
    assert verdict.status == status
    assert verdict.reason


def one_of_three(dead: DeadJob) -> None:
    """Complete one upload of three."""
    dead.complete(FIRST)


def lose_tasks(dead: DeadJob) -> None:
    """Remove what two of three tasks committed, as if they never had."""
    for number in (0, 1):
        dead.store.delete(BUCKET, f"{MAGIC}job-{UUID}/00/{task_id(number)}.pendingset")


def succeed_before_another(dead: DeadJob) -> None:
    """Let the job succeed, and then another one."""
    dead.succeed()
    dead.mark("another")


LIVES: dict[str, tuple[Callable[[DeadJob], None], str]] = {
    "dead before its commit": (lambda dead: None, "unpublished"),
    "dead while its tasks ran": (lose_tasks, "partial"),
    "dead in its commit": (one_of_three, "half-published"),
    "dead before its marker": (lambda dead: [dead.complete(key) for key in dead.contents], "half-published"),
    "successful": (DeadJob.succeed, "successful"),
    "successful long ago": (succeed_before_another, "successful"),
}


@pytest.fixture(params=LIVES)
def life(request: pytest.FixtureRequest) -> tuple[DeadJob, str]:
    """Return a job of the magic committer after each way to end, and its expected verdict."""
    live, status = LIVES[request.param]
    dead = DeadJob.magic()
    live(dead)
    return dead, status


def status(dead: DeadJob) -> str:
    """Return the verdict on the job."""
    [found] = find_hadoop_jobs(dead.store, PLACE)
    return classify(found).status


def end(dead: DeadJob, *, commit: bool = True, **asked: Any) -> S3CommitError | None:
    """Adopt the job; return the error."""
    adoption = Adoption(dead.store, dead.destination, job_id=UUID, **asked)
    try:
        adoption.commit() if commit else adoption.abort()
    except S3CommitError as error:
        return error
    return None


def swept(dead: DeadJob, older_than: float = 0.0) -> SweepReport:
    """Sweep the destination."""
    return sweep(dead.store, PLACE, older_than=older_than, dry_run=False, threads=0)


def ordinary_abort(dead: DeadJob) -> None:
    """Abort the job as if it were one of ours."""
    reference = JobReference(job_id=UUID, destination=PLACE.uri, staging=f"s3://{BUCKET}/{MAGIC}")
    Job.at(dead.store, reference).abort()


def test_a_job_gets_its_verdict(life: tuple[DeadJob, str]) -> None:
    """A list of Hadoop's jobs says how each ended; looking changes nothing."""
    dead, expected = life
    before = dead.everything()
    assert status(dead) == expected
    assert dead.everything() == before


@pytest.mark.parametrize(
    "asked", [{}, {"accept_partial": True}, {"expect_tasks": 3}, {"older_than": 60.0}], ids=str
)
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_a_dry_run_decides_as_the_real_run_does(
    life: tuple[DeadJob, str], asked: dict[str, Any], commit: bool
) -> None:
    """Both refuse with the same words and change nothing, or neither does."""
    dead, _ = life
    before = dead.everything()
    refusal = Adoption(dead.store, dead.destination, job_id=UUID, **asked).refusal(commit=commit)
    assert dead.everything() == before
    error = end(dead, commit=commit, **asked)
    assert type(refusal) is type(error)
    if error is not None:
        assert str(error).partition(":")[0] == str(refusal).partition(":")[0]
        assert dead.everything() == before


@pytest.mark.parametrize("live", [DeadJob.succeed, succeed_before_another])
def test_nothing_of_a_successful_job_is_taken_back(live: Callable[[DeadJob], None]) -> None:
    """Neither an abort, forced or not, nor a commit, nor a sweep touches what readers see."""
    dead = DeadJob.magic()
    live(dead)
    for commit, force in ((False, False), (False, True), (True, False)):
        error = end(dead, commit=commit, force=force)
        assert isinstance(error, AlreadyCommitted)
        assert "s3commit sweep" in str(error)
    with pytest.raises(AlreadyCommitted):
        ordinary_abort(dead)
    assert len(swept(dead).jobs) == 1
    assert dead.visible() == dead.contents
    assert dead.pending_keys() == []
    assert dead.keys(MAGIC) == []


def test_what_a_successful_job_left_is_cleaned_up() -> None:
    """Its directory and the uploads of attempts that did not count are removed; everything else stays."""
    dead = DeadJob.magic()
    dead.succeed()
    other = dead.store.create_upload(BUCKET, f"{ROOT}day=17/other", metadata={}, content_type="x")
    assert Adoption(dead.store, PLACE, job_id=UUID).clean_up() == 1
    assert Adoption(dead.store, PLACE, job_id=UUID).clean_up() == 0
    assert dead.visible() == dead.contents
    assert [upload.upload_id for upload in dead.store.list_uploads(BUCKET, "")] == [other]
    assert dead.keys(MAGIC) == []


@pytest.mark.parametrize("live", [one_of_three, lose_tasks, lambda dead: None])
def test_only_what_a_successful_job_left_is_cleaned_up(live: Callable[[DeadJob], None]) -> None:
    """Any other job is refused, and nothing is changed."""
    dead = DeadJob.magic()
    live(dead)
    before = dead.everything()
    with pytest.raises(JobClosed, match=r"Adopt it instead: s3commit adopt"):
        Adoption(dead.store, PLACE, job_id=UUID).clean_up()
    assert dead.everything() == before


@pytest.mark.parametrize("adopted", [None, "job.json", "sealed.json"])
def test_a_half_published_job_is_not_split(adopted: str | None) -> None:
    """A sweep leaves it and says what helps, and so does an abort, before it is adopted.

    Adopting finishes it or takes it back, also where an adoption of it died before its commit; then an abort
    takes it back too.
    """
    for commit in (True, False):
        dead = DeadJob.magic()
        one_of_three(dead)
        if adopted is not None:
            stop_adoption(dead, adopted)
        before = dead.everything()
        report = swept(dead)
        assert "adopt" in report.plan.left[0].reason
        assert dead.everything() == before
        if adopted is None:
            with pytest.raises(JobClosed, match="half-published"):
                ordinary_abort(dead)
            assert dead.everything() == before
        if adopted is None or commit:
            assert end(dead, commit=commit) is None
        else:
            ordinary_abort(dead)
        assert dead.visible() == (dead.contents if commit else {})
        assert dead.pending_keys() == []


def stop_adoption(dead: DeadJob, record: str) -> None:
    """Let an adoption die as soon as our job has a record."""

    class Died(BaseException):
        pass

    put, create = dead.store.put, dead.store.create_upload

    def watch(bucket: str, key: str, body: bytes, **more: Any) -> Any:
        written = put(bucket, key, body, **more)
        if key.endswith(f"/open/{UUID}/{record}"):
            raise Died
        return written

    dead.store.put = watch
    with pytest.raises(Died):
        end(dead)
    dead.store.put, dead.store.create_upload = put, create


def test_missing_tasks_are_named_and_accepted_only_on_request() -> None:
    """One of three tasks is not a job: the missing numbers are named, and nothing changes."""
    dead = DeadJob.magic()
    lose_tasks(dead)
    dead.commit_magic_task(4, {"part-4": (b"4",)})
    before = dead.everything()
    error = end(dead)
    assert isinstance(error, AuditFailed)
    assert "3 task numbers have no pendingset" in str(error)
    assert "0, 1, 3" in str(error)
    assert dead.everything() == before
    assert end(dead, accept_partial=True) is None
    assert dead.visible() == {f"{ROOT}part-4": b"4"}


def test_maps_and_reduces_are_counted_separately() -> None:
    """Each kind of task begins with number 0; of a million missing numbers only the first are named."""
    dead = DeadJob()
    for name in ("m_000000", "m_000001", "r_000000", "r_999999"):
        key = f"{MAGIC}job-{UUID}/00/task_202502170001_0003_{name}.pendingset"
        dead.put(key, dead.pendingset([], job=UUID))
    [found] = find_hadoop_jobs(dead.store, PLACE)
    assert found.gaps == 999_998
    assert found.missing == tuple(range(1, 21))
    assert found.missing_words.endswith("20, …")


def test_a_job_that_may_be_alive_is_left_alone_unless_forced() -> None:
    """One sign of life within the time that the caller names is enough, for a sweep too."""
    for commit in (True, False):
        dead = DeadJob.magic()
        before = dead.everything()
        assert isinstance(end(dead, commit=commit, older_than=60.0), JobClosed)
        assert swept(dead, older_than=60.0).jobs == []
        assert dead.everything() == before
        assert end(dead, commit=commit, older_than=60.0, force=True) is None


def test_a_marker_of_an_earlier_job_with_the_same_id_proves_nothing() -> None:
    """If ids are given by hand, a job's marker is its own only if it is as new as its pendingsets."""
    clock = iter(range(10**6))
    dead = DeadJob()
    dead.store._now = lambda: float(next(clock) * 10)
    dead.mark(UUID)
    dead.commit_magic_task(0, TASKS[0])
    assert status(dead) == "unpublished"
    dead.mark(UUID)
    assert status(dead) == "successful"


@pytest.mark.parametrize("published", [0, 1, 3])
def test_a_store_that_lists_no_uploads_gets_the_same_verdict(published: int) -> None:
    """MinIO lists uploads by exact key only, so each upload is asked about."""
    dead = DeadJob.magic()
    for key in list(dead.contents)[:published]:
        dead.complete(key)
    known = find_hadoop_job(dead.store, PLACE, UUID)
    dead.store.list_uploads = lambda bucket, prefix: iter(())
    unlisted = find_hadoop_job(dead.store, PLACE, UUID)
    assert known is not None
    assert unlisted is not None
    assert classify(unlisted) == classify(known)
    if published in (0, 3):
        assert (unlisted.pending, unlisted.published, unlisted.lost) == (3 - published, published, 0)


def test_a_store_whose_etags_prove_nothing_has_its_jobs_left_alone() -> None:
    """Under SSE-KMS no ETag follows from the parts, so any object of the upload's size may be the job's."""
    dead = DeadJob()
    dead.commit_magic_task(0, {"a": (b"abc",), "b": (b"x",)})
    dead.complete(f"{ROOT}a")
    dead.put(f"{ROOT}a", b"cba")
    [found] = find_hadoop_jobs(dead.store, PLACE)
    assert (found.pending, found.published, found.uncertain) == (1, 0, 1)
    assert classify(found).status == "half-published"
    assert swept(dead).jobs == []
    dead.put(f"{ROOT}a", b"longer")
    assert find_hadoop_jobs(dead.store, PLACE)[0].lost == 1


def test_looking_is_bounded() -> None:
    """An unpublished job takes one listing; for others no more uploads are asked about than requested."""
    dead = DeadJob()
    dead.commit_magic_task(0, {f"part-{n}": (b"x",) for n in range(50)})
    asked: list[str] = []
    list_parts = dead.store.list_parts

    def watch(bucket: str, key: str, upload_id: str) -> list[Part]:
        asked.append(key)
        return list(list_parts(bucket, key, upload_id))

    dead.store.list_parts = watch
    assert find_hadoop_job(dead.store, PLACE, UUID, most=7) is not None
    assert asked == []
    for key in dead.contents:
        dead.complete(key)
    asked.clear()
    found = find_hadoop_job(dead.store, PLACE, UUID, most=7)
    assert found is not None
    assert (len(asked), found.whole, found.published) == (7, False, 7)


def test_uploads_of_others_say_nothing_of_a_job() -> None:
    """Only uploads that a job's files name belong to it and show that it is alive."""
    dead = DeadJob.magic()
    uploads = dead.store.list_uploads
    later = Upload(f"{ROOT}other", "u", 4e9)
    dead.store.list_uploads = lambda bucket, prefix: iter([*uploads(bucket, prefix), later])
    [found] = find_hadoop_jobs(dead.store, PLACE)
    assert (found.pending, found.others) == (3, 1)
    assert classify(replace(found, silent=3600.0)).status == "unpublished"
    assert found.silent is not None
    assert found.silent < 60.0

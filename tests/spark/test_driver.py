"""What tasks upload while they are being killed, after an abort or a commit."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from airflow_s3commit import Job, JobOptions, MemoryStore
from airflow_s3commit.exceptions import InvalidDestination, InvalidOption, JobClosed, JobMismatch, Refused
from airflow_s3commit.spark import committer_conf, driver
from airflow_s3commit.spark.driver import (
    Target,
    abort_twins,
    abort_until_quiet,
    abort_write,
    check_site,
    commit_write,
    ready_job,
    target_of,
)
from airflow_s3commit.spark.options import parse_options
from airflow_s3commit.spark.session import JobInConf, job_from_conf
from airflow_s3commit.store.credentials import StoreAddress
from tests.cases import each
from tests.fakes import ManualClock
from tests.protocol.building import OURS, THEIRS

if TYPE_CHECKING:
    from collections.abc import Callable

OPTIONS = JobOptions(committer="magic", conflict_mode="append")


class Later(ManualClock):
    """A clock whose pauses let something happen, as tasks continue while an abort waits."""

    def __init__(self, happens: Callable[[int], None]) -> None:
        super().__init__()
        self._happens = happens

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self._happens(len(self.slept))


@pytest.fixture
def store() -> MemoryStore:
    """Return an empty store."""
    return MemoryStore()


@pytest.fixture
def job(store: MemoryStore) -> Job:
    """Return a job of a write's own."""
    return Job.setup(store, "s3://lake/t", options=OPTIONS, job_id=OURS)


def start_upload(store: MemoryStore, number: int) -> None:
    """Start an upload as a task does that has not noticed the abort."""
    store.create_upload("lake", f"t/part-{number}-{OURS}.parquet", metadata={}, content_type="")


def commit(job: Job) -> None:
    """Commit a job without output."""
    job.seal_stage("spark", "0", [])
    job.seal()
    job.commit()


def test_what_tasks_upload_after_an_abort_is_found(store: MemoryStore, job: Job) -> None:
    """Uploads that tasks start while the abort waits are aborted, and each find makes it wait longer."""
    start_upload(store, 0)
    clock = Later(lambda pauses: start_upload(store, pauses) if pauses in (3, 6) else None)
    abort_until_quiet(job, clock)
    assert list(store.list_uploads("lake", "t/")) == []
    assert clock.monotonic() == 10.0


def test_an_abort_ends_soon_without_late_uploads(store: MemoryStore, job: Job) -> None:
    """It looks for a few seconds, or once if no task can be left."""
    clock = ManualClock()
    start_upload(store, 0)
    abort_until_quiet(job, clock)
    assert list(store.list_uploads("lake", "t/")) == []
    assert clock.monotonic() == 4.0
    abort_until_quiet(job, clock, quiet=0.0)
    assert clock.monotonic() == 4.0


def test_an_abort_ends_even_if_uploads_never_do(store: MemoryStore, job: Job) -> None:
    """Tasks that never stop keep an abort for ten seconds, not longer."""
    clock = Later(lambda pauses: start_upload(store, pauses))
    abort_until_quiet(job, clock)
    assert clock.monotonic() == 10.0


def test_a_job_aborted_before_it_was_set_up_is_not_set_up(store: MemoryStore) -> None:
    """A task that begins after the abort cannot set the job up and leaves nothing."""
    reference = Job.setup(MemoryStore(), "s3://lake/t", options=OPTIONS, job_id=THEIRS).reference
    abort_until_quiet(Job.at(store, reference), ManualClock())
    with pytest.raises(JobClosed, match=THEIRS):
        Job.setup(store, "s3://lake/t", options=OPTIONS, job_id=THEIRS)
    assert not list(store.list_objects("lake", "t/__magic_job"))


def test_a_committed_job_is_left_alone(store: MemoryStore, job: Job) -> None:
    """If the commit succeeded after all, nothing is aborted."""
    commit(job)
    abort_until_quiet(job, ManualClock())
    assert job.manifest() is not None


def test_what_a_twin_uploads_after_the_commit_is_found(store: MemoryStore, job: Job) -> None:
    """Uploads of a speculative attempt that Spark is still killing are aborted; the commit succeeds."""
    commit(job)
    clock = Later(lambda _: start_upload(store, 0))
    abort_twins(job, clock)
    assert clock.slept == [4.0]
    assert list(store.list_uploads("lake", "t/")) == []
    assert job.manifest() is not None


def test_a_commit_succeeds_even_if_its_twins_cannot_be_aborted(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    """If a job cannot be read after its commit, that is logged with the next action."""
    abort_twins(job, ManualClock())
    assert "s3commit sweep" in caplog.text


def test_a_job_that_is_given_comes_before_the_conf_s(job: Job) -> None:
    """A stream's batch, or a second job of an application, has a job of its own beside that of the conf."""
    conf = committer_conf(Job.setup(MemoryStore(), "s3://lake/x/", job_id=THEIRS).reference, "load", "3")
    given = JobInConf(job.reference, "batch", "7")
    options = parse_options({}, overwrite=False)
    by_conf, by_hand = (target_of(options, OURS, conf, one) for one in (job_from_conf(conf.get), given))
    assert (by_conf.reference.job_id, by_conf.stage, by_conf.stage_attempt) == (THEIRS, "load", "3")
    assert (by_hand.reference, by_hand.stage, by_hand.stage_attempt) == (job.reference, "batch", "7")
    assert not by_conf.own
    assert not by_hand.own
    with pytest.raises(InvalidDestination, match=f"its job {OURS} commits to s3://lake/t/"):
        target_of(parse_options({"path": "s3://lake/x/"}, overwrite=False), OURS, conf, given)


@each(
    ("destination", "refused"),
    [
        ("s3://lake/t/", True),
        ("s3://lake/t/x/", True),
        ("s3://lake/", True),
        ("s3://lake/t/_x/", False),
        ("s3://lake/t2/", False),
    ],
)
def test_a_job_of_spark_s_own_writers_has_its_destination_alone(
    destination: str, refused: bool, job: Job
) -> None:
    """A write in Python that the job's owner could not abort is refused; one for a given job is not."""
    conf = committer_conf(job.reference, "load", "1", writer="spark")
    options = parse_options({"path": destination}, overwrite=False)
    if refused:
        with pytest.raises(InvalidDestination, match=rf"pending\.job\.{OURS}\.destination.* s3://lake/t/"):
            target_of(options, OURS, conf)
    else:
        assert target_of(options, THEIRS, conf).own
    assert not target_of(parse_options({}, overwrite=False), THEIRS, conf, JobInConf(job.reference)).own


def test_settings_of_the_session_are_those_of_the_write(job: Job) -> None:
    """For a job of its own they are its options; another owner's job is compared with them."""
    session = {"fs.s3a.bucket.lake.encryption.algorithm": "AES256", driver.OVERWRITE_MODE: "STATIC"}
    options = parse_options({"path": "s3://lake/t/"}, overwrite=False)
    own = target_of(options, OURS, session)
    assert (own.object_options.sse, own.session_static) == ("AES256", True)
    other = target_of(options, OURS, session, JobInConf(job.reference))
    assert (other.session, other.session_static) == ({"encryption.algorithm": "AES256"}, True)


def test_a_write_s_own_job_has_its_options(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its record says how it commits, with its session's encryption, and that Spark has set it up."""
    monkeypatch.setattr(driver, "store_of_process", lambda _: store)
    options = parse_options({"path": "s3://lake/t/", "committer": "magic"}, overwrite=True)
    target = target_of(options, OURS, {"fs.s3a.encryption.algorithm": "AES256"})
    record = ready_job(target, options).record()
    assert record.options == options.own_job(target.object_options)
    assert (record.options.conflict_mode, record.options.committer) == ("replace", "magic")
    assert record.options.object_options.sse == "AES256"
    assert record.context["engine"] == "spark"


@pytest.mark.parametrize("speculates", [False, True])
def test_a_write_of_its_own_knows_whether_tasks_have_twins(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, *, speculates: bool
) -> None:
    """After the commit it aborts what these upload, and without speculation it waits for none."""
    ended: list[Job] = []
    monkeypatch.setattr(driver, "store_of_process", lambda _: store)
    monkeypatch.setattr(driver, "abort_twins", ended.append)
    options = parse_options({"path": "s3://lake/t/"}, overwrite=False)
    target = target_of(options, OURS, {"spark.speculation": str(speculates).lower()})
    ready_job(target, options)
    commit_write(target, options, [])
    assert len(ended) == speculates


def test_an_abort_before_the_set_up_writes_as_its_options_say(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bucket may deny records that are not encrypted, and no job says yet how."""
    sent: list[object] = []
    put = store.put
    monkeypatch.setattr(
        store, "put", lambda *what, **how: sent.append(how.get("headers")) or put(*what, **how)
    )
    monkeypatch.setattr(driver, "store_of_process", lambda _: store)
    options = parse_options({"path": "s3://lake/t/", "sse": "AES256"}, overwrite=False)
    abort_write(target_of(options, OURS, {}), tasks_ended=True)
    assert sent
    assert all(headers == {"x-amz-server-side-encryption": "AES256"} for headers in sent)


@pytest.mark.parametrize(
    ("given", "session", "says"),
    [
        ({"publish": "delta"}, {}, "publish=delta contradicts job .* set up without it"),
        (
            {"storageClass": "STANDARD_IA"},
            {},
            "the write's options set storage_class='STANDARD_IA', unlike job",
        ),
        ({}, {"acl.default": "Private"}, r"fs.s3a.\* of the Spark session set acl='private', unlike job"),
    ],
)
def test_a_write_that_asks_for_other_objects_than_its_job_is_refused(
    job: Job, given: dict[str, str], session: dict[str, str], says: str
) -> None:
    """What another owner's job has decided is not changed by one of its stages, and not ignored."""
    target = Target(job.reference, "load", "1", own=False, store=StoreAddress(), session=session)
    with pytest.raises(JobMismatch, match=says):
        ready_job(target, parse_options(given, overwrite=False), job)
    ready_job(replace(target, session={}), parse_options({}, overwrite=False), job)


@pytest.mark.parametrize(("ended", "quiet"), [(True, 0.0), (False, 4.0)])
def test_a_failed_write_waits_only_for_tasks_that_may_be_left(
    monkeypatch: pytest.MonkeyPatch, job: Job, *, ended: bool, quiet: float
) -> None:
    """After Spark has ended them all, one look is enough."""
    waits: list[float] = []
    monkeypatch.setattr(driver, "store_of_process", lambda _: MemoryStore())
    monkeypatch.setattr(driver, "abort_until_quiet", lambda _, quiet: waits.append(quiet))
    target = driver.own_target("s3://lake/t/", OURS, StoreAddress())
    with pytest.raises(ZeroDivisionError), driver.aborting(target, tasks_ended=ended):
        raise ZeroDivisionError
    assert waits == [quiet]


@pytest.mark.parametrize("sealed", [False, True])
def test_an_abort_leaves_another_owner_s_job_and_what_it_has_sealed(
    store: MemoryStore, job: Job, monkeypatch: pytest.MonkeyPatch, *, sealed: bool
) -> None:
    """Only the stage attempt of the write ends, unless its seal says that it was complete."""
    monkeypatch.setattr(driver, "store_of_process", lambda _: store)
    with job.task_attempt("load", "1", "0", "0") as writing:
        file = writing.open("a")
        file.write(b"1")
        file.close(rows=1)
        committed = writing.commit()
    if sealed:
        job.seal_stage("load", "1", [committed])
    target = Target(job.reference, "load", "1", own=False, store=StoreAddress())
    abort_write(target, tasks_ended=False)
    assert len([*store.list_uploads("lake", "")]) == sealed
    assert job.state().state == "open"


@pytest.mark.parametrize(
    ("site", "error", "says"),
    [
        (
            {"parquet.crypto.factory.class": "keys.Factory"},
            InvalidOption,
            "sets parquet.crypto.factory.class",
        ),
        ({"fs.s3a.encryption.algorithm": "SSE-KMS"}, JobMismatch, "fs.s3a.*sse='aws:kms', unlike job"),
        (
            {"fs.s3a.bucket.lake.encryption.algorithm": "AES256"},
            JobMismatch,
            "fs.s3a.*sse='AES256', unlike job",
        ),
    ],
)
def test_a_task_refuses_settings_of_its_machine_that_the_job_lacks(
    job: Job, site: dict[str, str], error: type[Refused], says: str
) -> None:
    """Encryption in Hadoop's files of a machine that the driver cannot see is never ignored."""
    options = parse_options({}, overwrite=False)
    check_site(job, options, {"fs.s3a.connection.maximum": "8"})
    with pytest.raises(error, match=says):
        check_site(job, options, site)

"""What tasks upload while they are being killed, after an abort or a commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_s3commit import Job, JobOptions, MemoryStore
from airflow_s3commit.exceptions import InvalidOption, JobClosed, JobMismatch, Refused
from airflow_s3commit.spark.driver import abort_twins, abort_until_quiet, check_site
from airflow_s3commit.spark.options import parse_options
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

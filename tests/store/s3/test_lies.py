"""On a store with one lie, the doctor reports it, or jobs are right despite it, or are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from airflow_s3commit import Destination, Job, JobOptions, write_job
from airflow_s3commit.exceptions import PreconditionFailed, S3CommitError, Unavailable
from airflow_s3commit.protocol.doctor.examine import examine
from airflow_s3commit.store.execute import RetryPolicy
from airflow_s3commit.store.s3.store import S3Store
from tests.store.s3.fault_server import FaultServer
from tests.store.s3.lies import LIES
from tests.store.s3.lying import LyingStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_s3commit.protocol.model.job import ConflictMode

pytestmark = pytest.mark.loopback

#: Lies that cost no job anything.
HARMLESS = frozenset(
    {
        *(
            f"{name} says an unquoted ETag"
            for name in (
                *("PutObject", "UploadPart", "CompleteMultipartUpload", "HeadObject", "GetObject"),
                *("ListObjectsV2", "ListParts"),
            )
        ),
        "all ETags are unquoted",
        "AbortMultipartUpload aborts all of the key",
        "CompleteMultipartUpload keeps the upload",
        "CreateMultipartUpload names the pending upload again",
        "CompleteMultipartUpload says another ETag",
        "CompleteMultipartUpload says an upper-case ETag",
        "DeleteObject answers 200 to a false condition",
        "DeleteObject answers 304 to a false condition",
        "DeleteObject answers 404 to a false condition",
        "DeleteObject ignores If-Match",
        "DeleteObject refuses If-Match and deletes",
        "GetObject answers 304 to a condition",
        "GetObject drops metadata",
        "GetObject ignores If-Match",
        "GetObject ignores the range",
        "HeadObject names metadata in capitals",
        "HeadObject says a time in the future",
        "HeadObject says another time",
        "ListMultipartUploads ignores the prefix",
        "ListMultipartUploads is as it was before",
        "ListMultipartUploads ends after 1",
        "ListMultipartUploads is cut off, and says not where",
        "ListMultipartUploads is in reverse order",
        "ListMultipartUploads loops",
        "ListMultipartUploads misses the newest",
        "ListMultipartUploads misses the oldest",
        "ListMultipartUploads says a time in the future",
        "ListMultipartUploads says another time",
        "ListObjectsV2 ignores the delimiter",
        "ListObjectsV2 is in reverse order",
        "ListParts is as it was before",
        "ListParts is in reverse order",
    }
)

#: Harmless to a job that has begun, but a set-up refuses the store: it does not list the set-up's own upload.
NOT_LISTED = frozenset({"ListMultipartUploads misses the newest", "ListMultipartUploads misses the oldest"})

#: Completed uploads stay pending, and their parts are paid for, until a sweep or a lifecycle rule.
KEEPS_UPLOADS = "CompleteMultipartUpload keeps the upload"

#: A set-up looks at conditions and listings of uploads alone. These only the doctor finds.
FOUND_BY_THE_DOCTOR = frozenset(
    {
        "AbortMultipartUpload does nothing",
        "CompleteMultipartUpload does nothing",
        "DeleteObjects does nothing",
        "ListObjectsV2 misses the newest",
        "ListObjectsV2 misses the oldest",
        "ListObjectsV2 says another ETag",
        "UploadPart shows the object",
        "UploadPart stores less",
    }
)

#: One that is refused, that the doctor names, and that does no harm.
HELD = (
    "CompleteMultipartUpload does nothing",
    "ListObjectsV2 says another ETag",
    "PutObject refuses If-None-Match and overwrites",
    "UploadPart stores less",
    "the clock is behind",
    "all ETags are unquoted",
)


@pytest.fixture(params=[name if name in HELD else pytest.param(name, marks=pytest.mark.all) for name in LIES])
def lying(request: pytest.FixtureRequest) -> Iterator[tuple[LyingStore, S3Store]]:
    """Return a store with each lie in turn."""
    liar = LyingStore(request.param, *LIES[request.param])
    with FaultServer(decide=liar.answer) as server:
        yield liar, S3Store.connect(server.config, retry=RetryPolicy(deadline=0.0))


def test_the_doctor_calls_it_unfit_unless_it_is_harmless(lying: tuple[LyingStore, S3Store]) -> None:
    """Each lie fails a check, with a remedy, or is known to cost no job anything."""
    liar, store = lying
    diagnosis = examine(store, Destination("lake", "flights/"), clock=liar.clock)
    assert liar.told
    assert diagnosis.healthy == (liar.name in HARMLESS), diagnosis
    assert all(check.remedy for check in diagnosis.checks if check.verdict == "failed")


@pytest.mark.parametrize(
    "lying",
    [
        name if name in HELD else pytest.param(name, marks=pytest.mark.all)
        for name in LIES
        if name not in FOUND_BY_THE_DOCTOR
    ],
    indirect=True,
)
def test_no_job_claims_what_is_not_so(lying: tuple[LyingStore, S3Store]) -> None:
    """Jobs leave what they claim to, or raise an error, although the doctor was not run."""
    liar, store = lying
    expected: dict[str, bytes] = {}
    try:
        for mode, partition, content in (
            ("append", "dt=1", b"one"),
            ("replace", "dt=1", b"two"),
            ("append", "dt=2", b"three"),
        ):
            before = dict(expected)
            expected[partition] = content
            _commit(liar, store, mode, partition, content)  # type: ignore[arg-type]
            assert _data(liar) == sorted(expected.items())
        _abort(liar, store)
    except S3CommitError:
        assert liar.name not in HARMLESS - NOT_LISTED
        found = _data(liar)
        for name, body in before.items():
            assert (name, body) in found or (name, expected[name]) in found
    else:
        assert _data(liar) == sorted(expected.items())
        assert liar.name == KEEPS_UPLOADS or list(liar.memory.list_uploads("lake", "")) == []


@pytest.mark.parametrize(
    ("name", "first", "error"),
    [
        ("GetObject ignores If-Match", 0, PreconditionFailed),
        ("GetObject ignores the range", 2, Unavailable),
        ("GetObject ignores the range", 0, Unavailable),
    ],
)
def test_a_range_is_of_the_object_that_is_meant(name: str, first: int, error: type[S3CommitError]) -> None:
    """A reader gets the bytes that it asked for, of the generation that it reads, or an error."""
    liar = LyingStore(name, *LIES[name])
    old, new = (liar.memory.put("lake", "a", body).etag for body in (b"0123456789", b"9876543210"))
    with FaultServer(decide=liar.answer) as server:
        store = S3Store.connect(server.config, retry=RetryPolicy(deadline=0.0))
        with pytest.raises(error):
            store.get_range("lake", "a", first, 3, etag=old if "If-Match" in name else new)


def _commit(liar: LyingStore, store: S3Store, mode: ConflictMode, partition: str, content: bytes) -> None:
    options = JobOptions(committer="magic", conflict_mode=mode)
    with write_job("s3://lake/flights/", store=store, job_options=options, clock=liar.clock) as job:
        file = job.open(f"{partition}/part.bin")
        file.write(content)
        file.close()


def _abort(liar: LyingStore, store: S3Store) -> None:
    options: Any = JobOptions(committer="magic", conflict_mode="append")
    job = Job.setup(store, "s3://lake/flights/", options=options, clock=liar.clock)
    with job.task_attempt("stage", "1", "00000", "1") as attempt:
        with attempt.open("dt=3/left.bin") as file:
            file.write(b"left")
        attempt.commit()
    job.abort()


def _data(liar: LyingStore) -> list[tuple[str, bytes]]:
    return sorted(
        (info.key.split("/")[1], liar.memory.get("lake", info.key).body)
        for info in liar.memory.list_objects("lake", "flights/dt=")
    )

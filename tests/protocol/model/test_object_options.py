"""How a job's objects are stored is set once, checked at once, and applies to every write."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from airflow_s3commit.exceptions import (
    AccessDenied,
    InvalidOption,
    InvalidRecord,
    JobMismatch,
    Refused,
)
from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.model.codec import decode, encode
from airflow_s3commit.protocol.model.job import AbortReport, JobOptions, JobRecord, ObjectOptions
from airflow_s3commit.store.forwarding import with_headers
from tests.cases import each
from tests.protocol.building import BUCKET, OURS, ROOT, THEIRS, Crash, Lake, WatchedStore, named, once

KEY = "arn:aws:kms:eu-central-1:111122223333:key/1234abcd"
ENCRYPTED = ObjectOptions(sse="aws:kms", sse_kms_key_id=KEY, acl="bucket-owner-full-control")
FULL = ObjectOptions(
    storage_class="STANDARD_IA",
    sse="aws:kms",
    sse_kms_key_id=KEY,
    sse_bucket_key=True,
    acl="public-read",
    tags={"team": "data + maps", "empty": ""},
    headers={"Cache-Control": "max-age=60", "X-Amz-Meta-Owner": "flights"},
)


class Demanding(WatchedStore):
    """A store whose bucket policy denies writes without a key's encryption and the owner's control."""

    def __init__(self, like: WatchedStore) -> None:
        super().__init__((BUCKET, "other"), now=like.inner._now, min_part_bytes=1)

    def put(self, bucket: str, key: str, body: bytes, **arguments: Any) -> Any:
        """Write an object whose headers meet the policy."""
        demand(key, arguments.get("headers"))
        return super().put(bucket, key, body, **arguments)

    def create_upload(self, bucket: str, key: str, **arguments: Any) -> Any:
        """Begin an upload whose headers meet the policy."""
        demand(key, arguments.get("headers"))
        return super().create_upload(bucket, key, **arguments)


def demand(key: str, headers: dict[str, str] | None) -> None:
    """Refuse a write as the bucket's policy does."""
    if not ENCRYPTED.of_records.items() <= (headers or {}).items():
        raise AccessDenied(f"s3://{BUCKET}/{key}: a bucket policy denies what is not encrypted")


def demanding() -> tuple[Lake, Demanding]:
    """Return a lake whose store denies unencrypted writes."""
    lake = Lake()
    lake.store = store = Demanding(lake.store)
    return lake, store


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"committer": "file"}, "committer='file' is not 'directory' or 'partitioned' or 'magic'"),
        ({"conflict_mode": "REPLACE"}, "'fail' or 'append' or 'replace'"),
        ({"track_pending": None}, "track_pending=None is not"),
        ({"partition_success": "yes"}, "partition_success='yes' is not True or False"),
        ({"track_pending": 3}, "track_pending=3 is not 'task' or 's3'"),
        ({"track_pending": ["task"]}, "track_pending="),
        ({"staging": 7}, "staging=7 is not text or None"),
        ({"staging": "lake/private"}, "staging: 'lake/private' is not an S3 URI"),
        ({"object_options": {"sse": "AES256"}}, r"is not ObjectOptions\(…\)"),
        ({"object_options": None}, r"is not ObjectOptions\(…\)"),
    ],
)
def test_job_options_are_checked_when_they_are_made(fields: dict[str, Any], says: str) -> None:
    """A wrong field is refused by name, with its choices, before any job exists."""
    with pytest.raises(InvalidOption, match=says) as caught:
        JobOptions(**fields)
    assert isinstance(caught.value, Refused)
    with pytest.raises(InvalidOption, match=says):
        msgspec.structs.replace(JobOptions(), **fields)


@each(
    ("fields", "says"),
    [
        ({"storage_class": ""}, "x-amz-storage-class='' is empty"),
        ({"storage_class": "GLACIER\r\nx-amz-acl: public-read"}, "printable ASCII"),
        ({"storage_class": 1}, "storage_class=1 is not text or None"),
        ({"sse": "SSE-KMS"}, "'AES256' or 'aws:kms' or 'aws:kms:dsse' or None"),
        ({"sse": "SSE-C"}, "sse='SSE-C' is not"),
        ({"sse_kms_key_id": KEY}, "sse_kms_key_id goes with sse='aws:kms' or 'aws:kms:dsse', not sse=None"),
        ({"sse": "AES256", "sse_kms_key_id": KEY}, "not sse='AES256'"),
        ({"sse": "aws:kms", "sse_kms_key_id": ""}, "is empty"),
        ({"sse_bucket_key": True}, "sse_bucket_key goes with"),
        ({"sse": "aws:kms:dsse", "sse_bucket_key": False}, "sse_bucket_key goes with"),
        ({"sse": "aws:kms", "sse_bucket_key": "true"}, "'true' is not True or False or None"),
        ({"acl": "BucketOwnerFullControl"}, "'bucket-owner-full-control'"),
        ({"tags": [("a", "b")]}, "is not a dict of text by text"),
        ({"tags": {"a": 1}}, "is not a dict of text by text"),
        ({"headers": {"Content-Type": "text/plain"}}, "content-type is the file's"),
        ({"headers": {"x-amz-storage-class": "GLACIER"}}, "have options of their own"),
        ({"headers": {"x-amz-meta-s3commit-job": "forged"}}, "names that begin with s3commit- are ours"),
        ({"headers": {"x-amz-meta-": "x"}}, "no HTTP token"),
        ({"headers": {"x-amz-meta-a b": "x"}}, "no HTTP token"),
        ({"headers": {"Cache-Control": "a\r\nx-amz-acl: public-read"}}, "printable ASCII"),
        ({"headers": {"Cache-Control": ""}}, "printable ASCII"),
        ({"headers": {"x-amz-meta-a": "ü"}}, "printable ASCII"),
        ({"headers": {"Expires": "tomorrow"}}, "no HTTP date"),
        ({"headers": {"expires": "Mon, 01 Jan 99999999999 00:00:00 GMT"}}, "is no HTTP date"),
        ({"headers": {"Expires": "1 x", "expires": "1 x"}}, "names one header twice"),
        ({"tags": {"k": "\ud800"}}, "tag 'k': its name or value has"),
    ],
)  # fmt: skip
def test_object_options_are_checked_when_they_are_made(fields: dict[str, Any], says: str) -> None:
    """Options that no store accepts, that contradict each other, or that are ours are refused by name."""
    with pytest.raises(InvalidOption, match=says):
        ObjectOptions(**fields)


def test_a_record_keeps_them() -> None:
    """Options read back from a record are equal, however header names are written; bad ones are damage."""
    record = JobRecord(
        job_id=OURS,
        destination="d",
        staging="s",
        options=JobOptions(object_options=FULL),
        created=0,
        nonce="n",
    )
    assert decode(JobRecord, encode(record), "x") == record
    assert msgspec.structs.replace(FULL, headers={k.upper(): v for k, v in FULL.headers.items()}) == FULL
    damaged = encode(record).replace(b'"STANDARD_IA"', b'" STANDARD_IA"')
    with pytest.raises(InvalidRecord, match="storage-class=' STANDARD_IA'"):
        decode(JobRecord, damaged, "x")


def test_a_job_set_up_again_must_come_with_the_same() -> None:
    """The same options are the same job, and other options another."""
    lake = Lake()
    lake.set_up(object_options=FULL)
    assert lake.set_up(object_options=msgspec.structs.replace(FULL)).record().options.object_options == FULL
    for other in (ObjectOptions(), ENCRYPTED):
        with pytest.raises(JobMismatch):
            lake.set_up(object_options=other)


@pytest.mark.parametrize("committer", ["magic", "partitioned"])
def test_data_gets_all_of_them_and_records_encryption_alone(committer: str) -> None:
    """Data has class, tags and headers; records have the encryption and no ACL for others."""
    lake = Lake()
    sent: dict[str, dict[str, str]] = {}
    put, create_upload = lake.store.put, lake.store.create_upload

    def note_put(bucket: str, key: str, body: bytes, **more: Any) -> Any:
        sent[key] = more.get("headers") or {}
        return put(bucket, key, body, **more)

    def note_upload(bucket: str, key: str, **more: Any) -> Any:
        sent[key] = more.get("headers") or {}
        return create_upload(bucket, key, **more)

    lake.store.put, lake.store.create_upload = note_put, note_upload  # type: ignore[method-assign]
    job = lake.sealed({"dt=1/a": b"1", "dt=1/b": b""}, committer=committer, object_options=FULL)
    job.commit()
    data = {named(f"{ROOT}dt=1/a"), named(f"{ROOT}dt=1/b")}
    # The probe of an upload tries what data gets.
    assert data < set(sent)
    for key in sent.keys() - {lake.context().layout.probe}:
        expected = FULL.of_data if key in data else FULL.of_records
        assert expected.items() <= sent[key].items(), key
        assert key in data or not {"x-amz-acl", "x-amz-tagging", "x-amz-storage-class"} & set(sent[key])
    info = lake.store.head(BUCKET, named(f"{ROOT}dt=1/a"))
    assert info.metadata["owner"] == "flights"
    assert info.metadata["s3commit-job"] == OURS
    assert info.headers["x-amz-tagging-count"] == "2"
    assert FULL.of_data["x-amz-tagging"] == "team=data%20%2B%20maps&empty="


@pytest.mark.parametrize("committer", ["magic", "directory"])
def test_a_bucket_that_demands_encryption_takes_every_write_of_a_job(committer: str) -> None:
    """Nothing is denied from set-up to clean-up, in one task or in parts, with records of each upload."""
    lake, _ = demanding()
    settings: dict[str, Any] = {"committer": committer, "track_pending": "s3", "object_options": ENCRYPTED}
    job = lake.sealed({"dt=1/a": b"1"}, {"dt=2/b": b"2"}, **settings)
    lake.job().preview()
    lake.job().commit()
    again = lake.sealed({"dt=1/c": b"3"}, job_id=THEIRS, **settings)
    for part in range(2):
        lake.job(THEIRS).complete_part(part, 2)
    again.commit()
    assert job.manifest() is not None
    kept = [] if committer == "directory" else [named("dt=2/b")]
    assert sorted(lake.data()) == [named("dt=1/c", THEIRS), *kept]


def test_a_bucket_that_demands_encryption_takes_every_write_of_an_abort() -> None:
    """A half-published job is undone, and other processes agree after its records are gone."""
    lake, store = demanding()
    store_success = with_headers(store, ENCRYPTED.of_records)
    store_success.put(BUCKET, f"{ROOT}_SUCCESS", b"{}")
    job = lake.sealed({"dt=1/a": b"1"}, object_options=ENCRYPTED)
    store.after = once("complete_upload", "", Crash())
    with pytest.raises(Crash):
        job.commit()
    store.rest()
    assert lake.job().abort().objects == 1
    assert lake.get(f"{ROOT}_SUCCESS") == b"{}"
    # Processes that have seen the job's record, and that have not.
    assert job.abort() == lake.job().abort() == AbortReport(uploads=0, objects=0)


def test_a_bucket_that_demands_encryption_is_swept() -> None:
    """A dead job is ended with its own encryption, and probes have what the sweep's caller passes."""
    lake, store = demanding()
    lake.run_task(lake.set_up(object_options=ENCRYPTED), {"a": b"1"})
    bound = with_headers(store, ENCRYPTED.of_records)
    bound.create_upload(BUCKET, f"{ROOT}stray", metadata={}, content_type="x")
    lake.store_clock.advance(1_000_000)
    report = lake.sweep(bound, older_than=10.0)
    assert (report.failures, lake.pending()) == ([], [])


def test_missing_rights_show_at_set_up() -> None:
    """If the store rejects an upload's headers, the job's set-up fails, and not its tasks."""
    lake, _ = demanding()
    with pytest.raises(AccessDenied, match="denies what is not encrypted"):
        lake.set_up(object_options=ObjectOptions(storage_class="STANDARD_IA"))


def test_a_job_s_reference_is_enough_for_its_tasks() -> None:
    """A task that only knows the job's reference writes with the job's options."""
    lake, store = demanding()
    lake.set_up(object_options=ENCRYPTED)
    job = Job.at(store, lake.reference(), clock=lake.clock)
    assert lake.run_task(job, {"a": b"1"}).files == 1

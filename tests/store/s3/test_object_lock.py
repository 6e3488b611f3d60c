"""Jobs on a bucket with Object Lock and a default retention, which refuses a write without a checksum."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from moto.server import ThreadedMotoServer

from airflow_s3commit import RetryPolicy, S3Config, S3Store
from airflow_s3commit.exceptions import AccessDenied, S3CommitError, StoreRejected
from airflow_s3commit.protocol.doctor.examine import examine
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.store.s3.config import new_client
from airflow_s3commit.store.s3.store import TransportName
from tests.cases import each
from tests.fakes import ManualClock
from tests.store.s3.fault_server import Cut, Say, Seen
from tests.store.s3.relay import relay
from tests.store.s3.test_conditions import run_jobs
from tests.store.s3.wire import Answer, Wire, error_body

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_s3commit.testing import S3Server

pytestmark = pytest.mark.loopback

#: moto's buckets are those of the whole process, and one with objects cannot be locked.
LOCKED = "locked"

#: What S3 says to a write without a checksum.
REFUSAL = (
    "Content-MD5 OR x-amz-checksum- HTTP header is required for Put Part requests with Object Lock parameters"
)


def lock(config: S3Config, bucket: str) -> None:
    """Create a bucket whose objects are retained for a day."""
    client = new_client(config)
    client.create_bucket(Bucket=bucket, ObjectLockEnabledForBucket=True)
    client.put_object_lock_configuration(
        Bucket=bucket,
        ObjectLockConfiguration={
            "ObjectLockEnabled": "Enabled",
            "Rule": {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 1}},
        },
    )


@pytest.fixture(scope="module")
def locked() -> Iterator[S3Config]:
    """Run moto's server with a locked bucket in this process."""
    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        config = S3Config(f"http://{host}:{port}", "us-east-1", access_key="any", secret_key="any")
        lock(config, LOCKED)
        yield config
    finally:
        server.stop()


def needs_checksums(seen: Seen) -> Say | Cut | None:
    """Refuse a write without a checksum, as S3 does and moto only for small objects."""
    parts = seen.method == "PUT" and "partNumber=" in seen.path
    has_one = bool({"content-md5", "x-amz-trailer"} & seen.headers.keys()) or any(
        name.startswith("x-amz-checksum-") for name in seen.headers
    )
    return Say(400, error_body("InvalidRequest", REFUSAL)) if parts and not has_one else None


@pytest.mark.parametrize("transport", ["boto3", "curl"])
def test_whole_jobs(transport: TransportName, locked: S3Config, prefix: str) -> None:
    """Jobs set up, write, replace and commit in a locked bucket, where parts need checksums too."""
    with relay(locked.endpoint_url or "", needs_checksums) as server:
        config = replace(locked, endpoint_url=server.endpoint_url)
        run_jobs(
            S3Store.connect(config, retry=RetryPolicy(deadline=0.0), transport=transport), prefix, LOCKED
        )


def test_the_doctor(locked: S3Config, prefix: str) -> None:
    """What the doctor checks in a locked bucket fails for no want of a checksum."""
    store = S3Store.connect(locked, retry=RetryPolicy(deadline=0.0))
    found = examine(store, Destination(LOCKED, prefix))
    failed = [check for check in found.checks if check.verdict == "failed"]
    # moto does not keep concurrent writers of one key apart, as S3 does: now and then two succeed.
    assert [check for check in failed if check.name != "fencing"] == []


@pytest.mark.seaweedfs
def test_a_real_server(seaweed: S3Server, prefix: str) -> None:
    """Jobs commit in a locked bucket of a real server, which keeps what they delete as older versions."""
    bucket = f"locked-{prefix.strip('/')}"[:60]
    lock(seaweed.config, bucket)
    run_jobs(S3Store.connect(seaweed.config, retry=RetryPolicy(deadline=20.0)), prefix, bucket)


def test_a_refused_part_is_sent_with_a_checksum() -> None:
    """Only the first part of a bucket is refused for its missing checksum: the next ones have one."""
    created = b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>"
    wire = Wire(
        Answer(200, created),
        Answer(400, error_body("InvalidRequest", REFUSAL)),
        Answer(200, headers={"etag": '"e"'}),
    )
    store = S3Store(wire.client, retry=RetryPolicy(clock=ManualClock()), transport="boto3")
    upload_id = store.create_upload("lake", "k", metadata={}, content_type="a/b")
    for number in (1, 2):
        assert store.upload_part("lake", "k", upload_id, number, b"content") == "e"
    sent = [request.headers.get("content-md5") for request in wire.requests]
    assert sent == [None, None, b"mgNkuembtIDdJeHwKEyFVQ==", b"mgNkuembtIDdJeHwKEyFVQ=="]


@each(
    ("status", "code", "message", "expected"),
    [
        (400, "InvalidRequest", REFUSAL, StoreRejected),
        (403, "AccessDenied", "Access Denied because object protected by object lock.", AccessDenied),
    ],
)
def test_a_refusal_names_the_cure(
    status: int, code: str, message: str, expected: type[S3CommitError]
) -> None:
    """A store that refuses a write or a delete for its Object Lock all the same has an error with a cure."""
    wire = Wire(Answer(status, error_body(code, message)))
    store = S3Store(wire.client, retry=RetryPolicy(clock=ManualClock()), transport="boto3")
    for call in (lambda: store.put("lake", "k", b"x"), lambda: store.delete("lake", "k")):
        with pytest.raises(expected, match="a bucket without a default retention"):
            call()


def test_no_digest_for_a_directory_bucket() -> None:
    """A small object has a Content-MD5, but for directory buckets, which take none."""
    config = S3Config("https://s3.example.test", "eu-west-1", "a", "s")
    wire = Wire(Answer(200, headers={"etag": '"e"'}), config=config)
    store = S3Store(wire.client, retry=RetryPolicy(clock=ManualClock()), transport="boto3")
    for bucket in ("lake", "lake--euw1-az1--x-s3"):
        store.put(bucket, "k", b"content")
    sent = [request.headers.get("content-md5") for request in wire.requests]
    assert sent == [b"mgNkuembtIDdJeHwKEyFVQ==", None]

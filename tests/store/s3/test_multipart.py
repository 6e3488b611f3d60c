"""A part is sent as its writer's buffer holds it, protected by TLS or its signature."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree as ET

import pytest

from airflow_s3commit.exceptions import OutcomeUnknown
from airflow_s3commit.store.base import CheckedEtag, Complete
from airflow_s3commit.store.execute import RetryPolicy
from airflow_s3commit.store.s3.config import S3Config
from airflow_s3commit.store.s3.store import S3Store
from tests.fakes import ManualClock
from tests.store.s3.fault_server import COMPLETED, FaultServer, Say, Seen
from tests.store.s3.wire import Answer, Wire, error_body

pytestmark = pytest.mark.loopback

CREATED = b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>"
PART = Answer(200, headers={"etag": '"e"'})


def sent_by(*script: Answer, config: S3Config | None = None) -> list[Any]:
    """Start an upload and send a part; return the requests."""
    wire = Wire(*script, config=config)
    store = S3Store(wire.client, retry=RetryPolicy(clock=ManualClock()), transport="boto3")
    upload_id = store.create_upload("lake", "k", metadata={}, content_type="a/b")
    assert store.upload_part("lake", "k", upload_id, 1, bytearray(b"content")) == "e"
    return wire.requests


@pytest.mark.parametrize(
    "content", [b"", bytearray(), b"12345678", bytearray(b"12345678"), memoryview(b"12345678").cast("I")]
)
def test_any_buffer_is_its_bytes(content: bytes | bytearray | memoryview) -> None:
    """What is sent, and sent again after a redirect, are the buffer's bytes, whatever its items are."""

    def decide(seen: Seen) -> Say:
        region = {"x-amz-bucket-region": "eu-west-1"}
        if "/eu-west-1/" in seen.headers["authorization"]:
            return Say(headers={"ETag": '"e"'})
        return Say(301, error_body("PermanentRedirect"), region)

    with FaultServer(decide=decide) as server:
        store = S3Store.connect(server.config, transport="boto3")
        assert store.upload_part("lake", "k", "u", 1, content) == "e"
        puts = [seen for seen in server.seen if seen.method == "PUT"]
    assert [seen.body for seen in puts] == [bytes(content)] * 2
    assert puts[-1].headers["content-length"] == str(memoryview(content).nbytes)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_what_protects_a_part(scheme: str) -> None:
    """No checksum is computed: TLS protects a part, or without it the hash in the signature."""
    config = S3Config(f"{scheme}://store.example.test", "eu-west-1", "a", "s")
    start, part = sent_by(Answer(200, CREATED), PART, config=config)
    for request in (start, part):
        assert [name for name in request.headers if "checksum" in name.lower()] == []
    is_unsigned = part.headers["x-amz-content-sha256"] == b"UNSIGNED-PAYLOAD"
    assert is_unsigned == (scheme == "https")


def test_a_part_that_was_damaged_on_its_way() -> None:
    """A part that the store received damaged is sent again."""
    damaged = Answer(400, error_body("BadDigest"))
    assert len(sent_by(Answer(200, CREATED), damaged, damaged, PART)) == 4


def test_a_lost_answer_starts_no_second_upload() -> None:
    """An upload whose start is not confirmed may be there: its outcome is unknown."""
    wire = Wire(Answer(500, error_body("InternalError")))
    store = S3Store(wire.client, retry=RetryPolicy(deadline=0.0), transport="boto3")
    with pytest.raises(OutcomeUnknown):
        store.create_upload("lake", "k", metadata={}, content_type="a/b")
    assert len(wire.requests) == 1


@pytest.mark.parametrize("transport", ["boto3", "curl"])
def test_a_completion_says_the_checksums_of_its_parts(transport: str) -> None:
    """A part with a checksum has it beside its ETag; a part without one has only its ETag."""
    pytest.importorskip("pycurl")
    etags = ["a-1", CheckedEtag('"b"', "CRC32C", "yZRlqg=="), CheckedEtag("c", "SHA256", "x+/=")]
    with FaultServer(COMPLETED) as server:
        store = S3Store.connect(server.config, transport=transport)
        assert list(store.perform([(0, Complete("lake", "k", "u", etags))])) == [(0, "e-1")]
        [seen] = server.seen
    said = [{part.tag.partition("}")[2]: part.text for part in parts} for parts in ET.fromstring(seen.body)]
    assert said == [
        {"PartNumber": "1", "ETag": '"a-1"'},
        {"PartNumber": "2", "ETag": '"b"', "ChecksumCRC32C": "yZRlqg=="},
        {"PartNumber": "3", "ETag": '"c"', "ChecksumSHA256": "x+/="},
    ]

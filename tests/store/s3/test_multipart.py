"""A part's body is its writer's buffer, counted in bytes, read without copies, and can be sent again."""

from __future__ import annotations

import io
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from airflow_s3commit.exceptions import OutcomeUnknown
from airflow_s3commit.store.base import CheckedEtag, Complete
from airflow_s3commit.store.execute import RetryPolicy
from airflow_s3commit.store.s3.client import BufferBody
from airflow_s3commit.store.s3.config import S3Config
from airflow_s3commit.store.s3.store import S3Store
from tests.fakes import ManualClock
from tests.store.s3.fault_server import COMPLETED, FaultServer
from tests.store.s3.wire import Answer, Wire, error_body


@pytest.mark.parametrize(
    "content",
    [
        b"abcdefgh",
        bytearray(b"abcdefgh"),
        memoryview(b"abcdefgh").cast("I"),
        memoryview(b"abcdefgh").cast("b"),
    ],
)
def test_any_buffer_is_its_bytes(content: bytes) -> None:
    """The length and content are those in bytes, whatever the buffer's items are."""
    body = BufferBody(content)
    assert len(body) == 8
    assert bytes(body.read()) == b"abcdefgh"


@pytest.mark.parametrize("content", [b"", bytearray(), memoryview(b"")])
def test_nothing(content: bytes) -> None:
    """A body of nothing has no length and nothing to read."""
    body = BufferBody(content)
    assert (len(body), bytes(body.read(1))) == (0, b"")


def test_it_is_read_block_by_block() -> None:
    """Blocks follow one another and end with an empty one."""
    body = BufferBody(b"abcde")
    assert [bytes(body.read(2)) for _ in range(4)] == [b"ab", b"cd", b"e", b""]
    assert body.tell() == 5


def test_blocks_are_views() -> None:
    """What is read is the buffer itself, not a copy of it."""
    buffer = bytearray(b"before")
    block = BufferBody(buffer).read(6)
    buffer[:] = b"after."
    assert bytes(block) == b"after."


def test_it_can_be_sent_again() -> None:
    """A body that was rewound is read from its beginning or its new position."""
    body = BufferBody(b"abcde")
    body.read()
    assert (body.seek(0), bytes(body.read(None))) == (0, b"abcde")
    assert (body.seek(-2, io.SEEK_END), bytes(body.read())) == (3, b"de")
    body.seek(1)
    assert (body.seek(1, io.SEEK_CUR), bytes(body.read(1))) == (2, b"c")


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

"""A part's body is its writer's buffer, counted in bytes, read without copies, and can be sent again."""

from __future__ import annotations

import io
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from airflow_s3commit.exceptions import AccessDenied, OutcomeUnknown
from airflow_s3commit.store.base import CheckedEtag, Complete
from airflow_s3commit.store.execute import RetryPolicy
from airflow_s3commit.store.s3.client import BufferBody, crc32_text
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


def created(kind: str | None = None) -> Answer:
    """Return the answer to the start of an upload, which names the kind of checksum it will have."""
    return Answer(200, CREATED, {} if kind is None else {"x-amz-checksum-type": kind})


def named(upload_id: str) -> Answer:
    """Return the same for an upload of that id, from a store that mentions no checksums."""
    return Answer(200, CREATED.replace(b">u<", f">{upload_id}<".encode()))


def sent_by(*script: Answer, config: S3Config | None = None) -> list[Any]:
    """Start an upload and send a part; return the requests."""
    wire = Wire(*script, config=config)
    store = S3Store(wire.client, retry=RetryPolicy(clock=ManualClock()), transport="boto3")
    upload_id = store.create_upload("lake", "k", metadata={}, content_type="a/b")
    assert store.upload_part("lake", "k", upload_id, 1, bytearray(b"content")) == "e"
    return wire.requests


def checksums(request: Any) -> list[str]:
    """Return the names of a request's headers that are about checksums."""
    return sorted(name.lower() for name in request.headers if "x-amz-checksum" in name.lower())


def test_a_store_that_verifies() -> None:
    """A full checksum is agreed on at the start of an upload, and each part is sent with its own."""
    start, part = sent_by(created("FULL_OBJECT"), PART)
    assert start.headers["x-amz-checksum-type"] == b"FULL_OBJECT"
    assert start.headers["x-amz-checksum-algorithm"] == b"CRC32"
    assert part.headers["x-amz-checksum-crc32"] == crc32_text(b"content").encode()
    assert part.headers["x-amz-content-sha256"] == b"UNSIGNED-PAYLOAD"


def test_a_known_checksum() -> None:
    """The checksum is the one that the algorithm's check value says."""
    assert crc32_text(memoryview(b"123456789")) == "y/Q5Jg=="


def test_a_store_that_ignores_it() -> None:
    """A store that does not say what checksum it will keep gets parts without one, in the same upload."""
    start, part = sent_by(created(), PART)
    assert checksums(start)
    assert checksums(part) == []


def test_a_store_that_refuses_it() -> None:
    """A store that refuses the start of an upload for its checksum is asked again without."""
    _, again, part = sent_by(Answer(501, error_body("NotImplemented")), created(), PART)
    assert checksums(again) == checksums(part) == []


def test_a_store_with_another_kind() -> None:
    """An upload that only someone with its parts' checksums could complete is dropped for another."""
    _, dropped, again, part = sent_by(created("COMPOSITE"), Answer(204), created(), PART)
    assert dropped.method == "DELETE"
    assert checksums(again) == checksums(part) == []


def test_another_refusal_is_the_answer() -> None:
    """Credentials that may not write are not tried again without a checksum."""
    with pytest.raises(AccessDenied):
        sent_by(Answer(403, error_body("AccessDenied")), created(), PART)


def test_what_is_learnt_is_remembered() -> None:
    """A store that knows no checksums is asked for one once."""
    wire = Wire(created())
    store = S3Store(wire.client, transport="boto3")
    for _ in range(3):
        store.create_upload("lake", "k", metadata={}, content_type="a/b")
    assert [bool(checksums(request)) for request in wire.requests] == [True, False, False]


def test_a_part_that_was_damaged_on_its_way() -> None:
    """A part whose checksum does not fit is sent again."""
    damaged = Answer(400, error_body("BadDigest"))
    assert len(sent_by(created("FULL_OBJECT"), damaged, damaged, PART)) == 4


def test_without_tls_the_body_is_signed_instead() -> None:
    """Over plain HTTP no checksums are sent: the hash in the signature is stronger."""
    config = S3Config("http://store.example.test", "eu-west-1", "a", "s")
    start, part = sent_by(created(), PART, config=config)
    assert checksums(start) == checksums(part) == []
    assert part.headers["x-amz-content-sha256"] != b"UNSIGNED-PAYLOAD"


def test_a_lost_answer_starts_no_second_upload_without_checksum() -> None:
    """Only a refusal says that a store knows no checksums; a lost answer says nothing."""
    wire = Wire(Answer(500, error_body("InternalError")))
    store = S3Store(wire.client, retry=RetryPolicy(deadline=0.0), transport="boto3")
    with pytest.raises(OutcomeUnknown):
        store.create_upload("lake", "k", metadata={}, content_type="a/b")
    assert len(wire.requests) == 1


def test_uploads_of_one_store_keep_what_each_was_begun_with() -> None:
    """A bucket that knows no checksum, or another upload that got none, takes nothing from the first."""
    refused = Answer(501, error_body("NotImplemented"))
    script = [created("FULL_OBJECT"), refused, named("v"), PART, PART, named("w"), PART, PART]
    wire = Wire(*script)
    store = S3Store(wire.client, retry=RetryPolicy(clock=ManualClock()), transport="boto3")
    first = store.create_upload("lake", "k", metadata={}, content_type="a/b")
    other = store.create_upload("pond", "k", metadata={}, content_type="a/b")
    store.upload_part("lake", "k", first, 1, b"content")
    store.upload_part("pond", "k", other, 1, b"content")
    later = store.create_upload("lake", "k", metadata={}, content_type="a/b")
    store.upload_part("lake", "k", later, 1, b"content")
    store.upload_part("lake", "k", first, 2, b"content")
    sent = [bool(checksums(request)) for request in wire.requests]
    assert sent == [True, True, False, True, False, True, False, True]


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

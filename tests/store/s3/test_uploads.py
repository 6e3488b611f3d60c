"""libcurl starts uploads and sends small parts as boto3 would, and leaves the rest to boto3."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from typing import Any

import pytest

from airflow_s3commit.exceptions import NoSuchUpload, OutcomeUnknown, StoreRejected
from airflow_s3commit.store.execute import RetryPolicy
from airflow_s3commit.store.s3.store import S3Store, TransportName
from tests.fakes import ManualClock
from tests.store.s3.fault_server import Cut, FaultServer, Say, Seen
from tests.store.s3.test_connections import KEY_CHARACTERS, signed_by_botocore
from tests.store.s3.wire import error_body

pytest.importorskip("pycurl")

from airflow_s3commit.store.s3.fast_path import SMALL

pytestmark = pytest.mark.loopback

STARTED = Say(
    body=b'<?xml version="1.0"?><InitiateMultipartUploadResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
    b"<UploadId>u-1</UploadId></InitiateMultipartUploadResult>"
)
STORED = Say(headers={"ETag": '"e-1"'})
#: Headers of one attempt, or of one client.
PASSING = {
    "amz-sdk-invocation-id",
    "amz-sdk-request",
    "authorization",
    "x-amz-date",
    "accept",
    "accept-encoding",
}


def decide(seen: Seen) -> Say:
    """Answer either request with its success."""
    return STARTED if seen.method == "POST" else STORED


def store_on(server: FaultServer, transport: TransportName = "curl", deadline: float = 60.0) -> S3Store:
    """Return a store whose pauses take no time."""
    retry = RetryPolicy(deadline=deadline, clock=ManualClock())
    return S3Store.connect(server.config, transport=transport, retry=retry)


def upload(store: S3Store, key: str, body: bytes = b"rows", **options: Any) -> tuple[str, str]:
    """Start an upload and send its first part; return their names."""
    named = {"metadata": {"job": "j-1"}, "content_type": "application/parquet"} | options
    upload_id = store.create_upload("lake", key, **named)
    return upload_id, store.upload_part("lake", key, upload_id, 1, body)


def is_curls(seen: Seen) -> bool:
    """Return whether libcurl sent a request: boto3 numbers its attempts."""
    return "amz-sdk-request" not in seen.headers


def test_requests_are_boto3s() -> None:
    """For keys with all that URLs quote, libcurl sends what boto3 sends, signed as botocore signs it."""
    draw = random.Random(20261127)
    headers = {
        "x-amz-server-side-encryption": "aws:kms",
        "x-amz-server-side-encryption-bucket-key-enabled": "true",
    }
    with FaultServer(decide=decide) as server:
        stores = [store_on(server, name) for name in ("curl", "boto3")]
        for _ in range(40):
            key = "".join(draw.choices(KEY_CHARACTERS, k=draw.randint(1, 30))) + "k"
            for store in stores:
                assert upload(store, key, headers=headers) == ("u-1", "e-1")
        sent = [server.seen[at : at + 4] for at in range(0, len(server.seen), 4)]
        assert len(sent) == 40
        for curl_start, curl_part, boto3_start, boto3_part in sent:
            for ours, theirs in ((curl_start, boto3_start), (curl_part, boto3_part)):
                assert (is_curls(ours), is_curls(theirs)) == (True, False)
                assert (ours.method, ours.path, ours.body) == (theirs.method, theirs.path, theirs.body)
                rest = [
                    {n: v for n, v in seen.headers.items() if n not in PASSING} for seen in (ours, theirs)
                ]
                assert rest[0] == {n: v for n, v in rest[1].items() if n != "expect"}
                expected = signed_by_botocore(ours, server.endpoint_url, "the-access-key", "the-secret-key")
                assert ours.headers["authorization"] == expected


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(Say(400, error_body("AuthorizationHeaderMalformed")), id="another region"),
        pytest.param(Say(503, error_body("SlowDown")), id="busy"),
        pytest.param(Say(200, b"<InitiateMultipartUploadResult/>"), id="no id"),
        pytest.param(Say(200, b"<x><UploadId>a&amp;b</UploadId></x>"), id="odd id"),
    ],
)
def test_boto3_asks_where_an_answer_is_not_plain(answer: Say) -> None:
    """After any answer but a plain success boto3 starts the upload, and its result counts."""
    answers = iter([answer])

    def second(seen: Seen) -> Say:
        return next(answers, STARTED)

    with FaultServer(decide=second) as server:
        store = store_on(server)
        assert store.create_upload("lake", "k", metadata={}, content_type="a/b") == "u-1"
        assert [is_curls(seen) for seen in server.seen] == [True, False]


def test_an_error_is_boto3s() -> None:
    """A part of an upload that is gone raises `NoSuchUpload`, as boto3's answer says."""
    with FaultServer(Say(404, error_body("NoSuchUpload"))) as server, pytest.raises(NoSuchUpload):
        store_on(server).upload_part("lake", "k", "u", 1, b"rows")


def test_what_a_store_lacks_is_its_refusal() -> None:
    """A header that the store does not implement is refused at once, in the store's words, not unknown."""
    with FaultServer(Say(501, error_body("NotImplemented"))) as server:
        with pytest.raises(StoreRejected, match="NotImplemented"):
            store_on(server).create_upload("lake", "k", metadata={}, content_type="a/b")
        assert [is_curls(seen) for seen in server.seen] == [True, False]


@pytest.mark.parametrize(
    "answer",
    [Cut(), replace(STORED, missing=3), Say(500, error_body("InternalError"))],
    ids=["cut", "short", "error"],
)
def test_a_lost_answer_is_unknown(answer: Say | Cut) -> None:
    """Without retries, a part whose answer is lost or the store's failure may have been stored."""
    with FaultServer(answer) as server, pytest.raises(OutcomeUnknown):
        store_on(server, deadline=0.0).upload_part("lake", "k", "u", 1, b"rows")


def test_a_lost_answer_is_asked_again() -> None:
    """A part whose answer is lost is sent again."""
    with FaultServer(Cut(), STORED) as server:
        assert store_on(server).upload_part("lake", "k", "u", 1, b"rows") == "e-1"


@pytest.mark.parametrize(
    "options",
    [{"body": bytes(SMALL + 1)}, {"metadata": {"job": ""}}, {"metadata": {"job": "a\tb"}}, {"key": "a/../k"}],
    ids=["large", "empty", "tab", "dots"],
)
def test_boto3_sends_what_libcurl_may_not(options: dict[str, Any]) -> None:
    """A large part, a header that libcurl would drop or change, and dot segments are left to boto3."""
    with FaultServer(decide=decide) as server:
        assert upload(store_on(server), **({"key": "k"} | options)) == ("u-1", "e-1")
        assert not all(map(is_curls, server.seen))


def test_a_connection_serves_both_requests_of_many_files() -> None:
    """One thread's files take one connection of libcurl."""
    with FaultServer(decide=decide) as server:
        store = store_on(server)
        for number in range(20):
            upload(store, f"k-{number}")
        assert len(server.seen) == 40
        assert len(server.open) == 1


def test_a_forked_process_uploads_on_a_connection_of_its_own() -> None:
    """A store that sent a file before a fork sends in both processes, each on its own connection."""
    with FaultServer(decide=decide) as server:
        store = store_on(server)
        upload(store, "before")
        child = os.fork()
        if child == 0:
            os._exit(0 if upload(store, "child") == ("u-1", "e-1") else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert upload(store, "after") == ("u-1", "e-1")
        assert all(map(is_curls, server.seen))
        assert len(server.open) == 2

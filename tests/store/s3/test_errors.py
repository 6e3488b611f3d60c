"""Every failure of a request becomes an error that says what happened and shows no secret."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from typing import Any

import botocore.session
import pytest
from botocore import exceptions as botocore_errors
from botocore.credentials import RefreshableCredentials
from botocore.exceptions import ClientError
from botocore.parsers import ResponseParserError
from urllib3.exceptions import ProtocolError

from airflow_s3commit.exceptions import (
    AccessDenied,
    NoSuchBucket,
    NoSuchKey,
    NoSuchUpload,
    OutcomeUnknown,
    PreconditionFailed,
    S3CommitError,
    StoreRejected,
    Unavailable,
)
from airflow_s3commit.store.base import Head
from airflow_s3commit.store.execute import RetryPolicy
from airflow_s3commit.store.s3.config import client_config
from airflow_s3commit.store.s3.request import Request, translate
from airflow_s3commit.store.s3.store import S3Store, TransportName
from tests.cases import each
from tests.store.s3.wire import Answer, Wire

PUT = Request("PutObject", "lake", "flights/_SUCCESS")
GET = Request("GetObject", "lake", "flights/_SUCCESS")
HEAD = Request("HeadObject", "lake", "flights/_SUCCESS")
HEAD_BUCKET = Request("HeadBucket", "lake")
COMPLETE = Request("CompleteMultipartUpload", "lake", "flights/a.parquet", "upload-1")

URL = "https://s3.example.test/lake/flights"


def answer(
    status: int, code: str, request: Request, *, headers: dict[str, str] | None = None, by: str = ""
) -> S3CommitError:
    """Translate an answer of the store, or of the service ``by``, to a request."""
    response: Any = {
        "Error": {"Code": code, "Message": "said\n  the store"},
        "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": headers or {}},
    }
    return translate(ClientError(response, by or request.operation), request)


@each(
    ("status", "code", "request_", "expected"),
    [
        (404, "NoSuchKey", GET, NoSuchKey),
        (404, "NoSuchBucket", PUT, NoSuchBucket),
        (404, "NoSuchUpload", COMPLETE, NoSuchUpload),
        (404, "404", HEAD, NoSuchKey),
        (404, "404", HEAD_BUCKET, NoSuchBucket),
        (404, "NoSuchLifecycleConfiguration", GET, StoreRejected),
        (412, "PreconditionFailed", PUT, PreconditionFailed),
        (412, "412", HEAD, PreconditionFailed),
        (409, "ConditionalRequestConflict", PUT, Unavailable),
        (409, "OperationAborted", PUT, Unavailable),
        (409, "ConditionalRequestConflict", COMPLETE, StoreRejected),
        (403, "AccessDenied", PUT, AccessDenied),
        (403, "403", HEAD, AccessDenied),
        (401, "Unauthorized", GET, AccessDenied),
        (403, "InvalidAccessKeyId", GET, AccessDenied),
        (403, "SignatureDoesNotMatch", GET, AccessDenied),
        (403, "RequestTimeTooSkewed", PUT, AccessDenied),
        (400, "ExpiredToken", PUT, AccessDenied),
        (400, "InvalidToken", PUT, AccessDenied),
        (403, "InvalidObjectState", GET, StoreRejected),
        (503, "SlowDown", PUT, Unavailable),
        (503, "503", HEAD, Unavailable),
        (503, "ServiceUnavailable", COMPLETE, Unavailable),
        (429, "TooManyRequests", PUT, Unavailable),
        (400, "RequestTimeout", PUT, Unavailable),
        (500, "SlowDown", COMPLETE, Unavailable),
        (500, "InternalError", PUT, OutcomeUnknown),
        (500, "InternalError", GET, Unavailable),
        (502, "502", COMPLETE, OutcomeUnknown),
        (504, "504", COMPLETE, OutcomeUnknown),
        (504, "504", HEAD, Unavailable),
        (501, "NotImplemented", PUT, StoreRejected),
        (400, "InvalidPart", COMPLETE, StoreRejected),
        (405, "MethodNotAllowed", PUT, StoreRejected),
    ],
)
def test_answers(status: int, code: str, request_: Request, expected: type[S3CommitError]) -> None:
    """What a store answers becomes the error that says whether the request took effect."""
    error = answer(status, code, request_)
    assert type(error) is expected
    assert str(request_) in str(error)


@each(
    ("error", "reading", "changing"),
    [
        (botocore_errors.ReadTimeoutError(endpoint_url=URL), Unavailable, OutcomeUnknown),
        (botocore_errors.ConnectionClosedError(endpoint_url=URL), Unavailable, OutcomeUnknown),
        (botocore_errors.HTTPClientError(error=OSError()), Unavailable, OutcomeUnknown),
        (botocore_errors.ResponseStreamingError(error=OSError()), Unavailable, OutcomeUnknown),
        (botocore_errors.IncompleteReadError(actual_bytes=1, expected_bytes=2), Unavailable, OutcomeUnknown),
        (botocore_errors.SSLError(endpoint_url=URL, error=ssl.SSLError("EOF")), Unavailable, OutcomeUnknown),
        (ResponseParserError("cut off"), Unavailable, OutcomeUnknown),
        (ProtocolError("reset"), Unavailable, OutcomeUnknown),
        (botocore_errors.EndpointConnectionError(endpoint_url=URL), Unavailable, Unavailable),
        (botocore_errors.ConnectTimeoutError(endpoint_url=URL), Unavailable, Unavailable),
        (botocore_errors.ProxyConnectionError(proxy_url=URL), Unavailable, Unavailable),
        (
            botocore_errors.SSLError(
                endpoint_url=URL, error=ssl.SSLCertVerificationError("[SSL: CERTIFICATE_VERIFY_FAILED] no")
            ),
            StoreRejected,
            StoreRejected,
        ),
        (botocore_errors.NoCredentialsError(), AccessDenied, AccessDenied),
        (botocore_errors.PartialCredentialsError(provider="env", cred_var="key"), AccessDenied, AccessDenied),
        (
            botocore_errors.CredentialRetrievalError(provider="process", error_msg="exit 1"),
            AccessDenied,
            AccessDenied,
        ),
        (botocore_errors.ParamValidationError(report="Body is wrong"), StoreRejected, StoreRejected),
    ],
)
def test_failures_on_the_way(
    error: Exception, reading: type[S3CommitError], changing: type[S3CommitError]
) -> None:
    """A lost answer is an unknown outcome of what changes something; what was not sent did not happen."""
    assert type(translate(error, GET)) is reading
    assert type(translate(error, COMPLETE)) is changing


def test_a_failure_of_the_credentials_service_touched_nothing() -> None:
    """When the service that hands out credentials fails the request itself was never sent."""
    assert type(answer(500, "InternalFailure", PUT, by="AssumeRole")) is Unavailable
    assert type(answer(400, "ExpiredTokenException", PUT, by="AssumeRoleWithWebIdentity")) is AccessDenied


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        (
            {"retry-after": "Sun, 06 Nov 1994 08:50:07 GMT", "date": "Sun, 06 Nov 1994 08:49:37 GMT"},
            30.0,
        ),
        ({"retry-after": "Sun, 06 Nov 1994 08:49:00 GMT", "date": "Sun, 06 Nov 1994 08:49:37 GMT"}, 0.0),
        ({"retry-after": "Sun, 06 Nov 1994 08:50:07 GMT"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
    ],
)
def test_the_wait_that_was_asked_for(headers: dict[str, str], seconds: float | None) -> None:
    """A throttled request knows how long the store asks to wait, in seconds or until a time of its clock."""
    error = answer(503, "SlowDown", PUT, headers=headers)
    assert isinstance(error, Unavailable)
    assert error.retry_after == seconds


@pytest.mark.parametrize(
    ("code", "status", "hint"),
    [
        ("ExpiredToken", 400, "renew"),
        ("InvalidAccessKeyId", 403, "access key, secret key and session token"),
        ("RequestTimeTooSkewed", 403, "clock"),
        ("AccessDenied", 403, r"allow s3:PutObject"),
    ],
)
def test_a_refusal_says_what_to_check(code: str, status: int, hint: str) -> None:
    """Refused credentials say which bucket and key it was and what to look at."""
    with pytest.raises(AccessDenied, match=hint) as caught:
        raise answer(status, code, PUT)
    assert "s3://lake/flights/_SUCCESS" in str(caught.value)


def test_a_missing_bucket_says_what_to_check() -> None:
    """The error names what was asked for, the prefix of a listing too, and the next action."""
    request = Request("ListObjectsV2", "lake", prefix="flights/")
    error = answer(404, "NoSuchBucket", request)
    assert isinstance(error, NoSuchBucket)
    assert "ListObjectsV2 of s3://lake/flights/: " in str(error)
    assert "check its name, the endpoint and the region" in str(error)


def test_rejections_carry_the_stores_code() -> None:
    """A rejection keeps the store's own code, or the HTTP status without one."""
    errors = [answer(400, "InvalidPart", COMPLETE), answer(405, "", PUT)]
    assert [error.code for error in errors if isinstance(error, StoreRejected)] == ["InvalidPart", "405"]


def test_messages_are_short_lines() -> None:
    """A store's message is repeated in one line and not without end."""
    response: Any = {"Error": {"Code": "Odd", "Message": "a\n" * 5000}}
    text = str(translate(ClientError(response, "PutObject"), PUT))
    assert "\n" not in text
    assert len(text) < 500


def test_what_a_credential_process_printed_stays_out() -> None:
    """Messages of errors that may quote secrets or content are not repeated."""
    error = botocore_errors.CredentialRetrievalError(provider="process", error_msg="SecretAccessKey=hunter2")
    assert "hunter2" not in str(translate(error, PUT))
    wrong = botocore_errors.ParamValidationError(report="value: b'row of a customer'")
    assert "customer" not in str(translate(wrong, PUT))


@pytest.mark.parametrize(("key", "upload_id"), [("", None), ("", "u"), ("k", "")])
def test_requests_without_a_name_are_never_made(key: str, upload_id: str | None) -> None:
    """An empty key or upload id, which would make it another request on the wire, is rejected."""
    with pytest.raises(StoreRejected):
        Request("AbortMultipartUpload", "lake", key, upload_id)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"<Size>1</Size>", b""),
        (b"<Size>1</Size>", b"<Size>many</Size>"),
        (b"<Size>1</Size>", b"<Size>1</Size><Size>2</Size>"),
        (b"2020-01-01T00:00:00Z", b"yesterday"),
        (b"2020-01-01T00:00:00Z", b"99999999999999999"),
        (b"<Key>a</Key>", b""),
    ],
)
def test_an_entry_that_cannot_be_read_is_no_listing(old: bytes, new: bytes) -> None:
    """A listing whose entries lack something, or have no numbers or times, is an error of ours."""
    entry = (
        b"<Contents><Key>a</Key><Size>1</Size><ETag>e</ETag>"
        b"<LastModified>2020-01-01T00:00:00Z</LastModified></Contents>"
    )
    body = b"<ListBucketResult><IsTruncated>false</IsTruncated>%b</ListBucketResult>" % entry.replace(
        old, new
    )
    store = S3Store(Wire(Answer(200, body)).client, retry=RetryPolicy(deadline=0.0))
    with pytest.raises(Unavailable, match=r"cannot be read|has no"):
        list(store.list_objects("lake", ""))


@pytest.mark.parametrize("mistake", [ValueError("bad argument"), OverflowError(), TypeError(), KeyError("x")])
def test_a_mistake_in_the_program_is_raised_as_it_is(mistake: Exception) -> None:
    """An error that no response and no credentials caused is neither an unknown outcome nor retried."""
    attempts = []

    def attempt() -> None:
        attempts.append(1)
        raise mistake

    store = S3Store(Wire(Answer(200)).client)
    with pytest.raises(type(mistake)) as caught:
        store._send(PUT, attempt)
    assert caught.value is mistake
    assert len(attempts) == 1


def test_a_key_that_cannot_be_sent_is_no_unknown_outcome() -> None:
    """A key that UTF-8 cannot encode fails before anything is sent."""
    wire = Wire(Answer(200))
    with pytest.raises(UnicodeEncodeError):
        S3Store(wire.client).put("lake", "a\ud800", b"x")
    assert wire.requests == []


def test_a_write_whose_response_cannot_be_read_may_have_happened() -> None:
    """A response with a size that is no number leaves the outcome of a write unknown."""
    answer = Answer(200, headers={"etag": '"e"', "x-amz-object-size": "many"})
    store = S3Store(Wire(answer).client, retry=RetryPolicy(deadline=0.0))
    with pytest.raises(OutcomeUnknown, match="cannot be read"):
        store.put("lake", "a", b"x")


@pytest.mark.parametrize("transport", ["boto3", "curl"])
def test_credentials_that_cannot_be_read_are_no_credentials(transport: TransportName) -> None:
    """Where renewed credentials have no valid time, nothing was sent, and the error names the credentials."""
    if transport == "curl":
        pytest.importorskip("pycurl")
    session = botocore.session.Session()
    session._credentials = RefreshableCredentials(
        *("key", "secret", "token"),
        expiry_time=datetime(2020, 1, 1, tzinfo=UTC),
        refresh_using=lambda: dict.fromkeys(("access_key", "secret_key", "token", "expiry_time"), "never"),
        method="process",
    )
    endpoint = "http://127.0.0.1:9"
    client = session.create_client(
        "s3", endpoint_url=endpoint, region_name="eu-west-1", config=client_config(endpoint, 10, None)
    )
    store = S3Store(client, transport=transport)
    ((_, outcome),) = store.perform([(0, Head("lake", "a"))])
    assert isinstance(outcome, AccessDenied)
    assert "no usable credentials" in str(outcome)

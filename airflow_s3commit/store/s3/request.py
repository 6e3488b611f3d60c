"""S3 requests, and how botocore's parsed responses and errors become this package's values and errors.

A store rejects a request with a specific status (4xx, 503). After an internal or gateway error or a lost
connection the effect is unknown: `OutcomeUnknown` if it changes something, `Unavailable` if it only reads.
"""

from __future__ import annotations

import base64
import hashlib
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

from botocore import exceptions as raised
from botocore.parsers import ResponseParserError
from msgspec import Struct
from urllib3.exceptions import HTTPError

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
from airflow_s3commit.store.base import ObjectInfo, object_headers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from airflow_s3commit.store.base import PartEtag


class Request(Struct, frozen=True):
    """What a request is about, without its options.

    Attributes:
        operation: Its name in S3's API, such as ``PutObject``.
        key: Its object; None for a request on a bucket.
        prefix: The prefix of a listing, for messages.

    Raises:
        StoreRejected: The key or the upload id is empty. On the wire that would be another request: deleting
            the object ``""`` deletes the bucket, aborting the upload ``""`` deletes the object.
    """

    operation: str
    bucket: str
    key: str | None = None
    upload_id: str | None = None
    prefix: str = ""

    def __post_init__(self) -> None:
        if self.key == "" or self.upload_id == "":
            raise StoreRejected(f"{self} has an empty key or upload id", code="InvalidArgument")

    def __str__(self) -> str:
        where = f"s3://{self.bucket}/{self.key or self.prefix}"
        upload = f" (upload {self.upload_id})" if self.upload_id else ""
        return f"{self.operation} of {where}{upload}"

    @property
    def parameters(self) -> dict[str, str]:
        """Bucket, key and upload as boto3 takes them."""
        named = {"Bucket": self.bucket, "Key": self.key, "UploadId": self.upload_id}
        return {name: value for name, value in named.items() if value is not None}

    @property
    def permission(self) -> str:
        """The permission that a policy must grant for this request."""
        return CHANGES.get(self.operation) or READS.get(self.operation, "it")

    def unconfirmed(self, why: str) -> OutcomeUnknown | Unavailable:
        """Return the error for a request whose response is missing or incomplete."""
        if self.operation in CHANGES:
            return OutcomeUnknown(
                f"{self}: {why}; it may or may not have taken effect, so check before you repeat it"
            )
        return Unavailable(f"{self}: {why}")


#: Requests that change something, and the permission of each.
CHANGES = {
    "PutObject": "s3:PutObject",
    "DeleteObject": "s3:DeleteObject and, for conditional deletes, s3:GetObject",
    "DeleteObjects": "s3:DeleteObject and, for conditional deletes, s3:GetObject",
    "CreateMultipartUpload": "s3:PutObject",
    "UploadPart": "s3:PutObject",
    "CompleteMultipartUpload": "s3:PutObject",
    "AbortMultipartUpload": "s3:AbortMultipartUpload",
}

#: Requests that change nothing. Without s3:ListBucket a missing object gets "access denied".
READS = {
    "HeadBucket": "s3:ListBucket",
    "HeadObject": "s3:GetObject and s3:ListBucket",
    "GetObject": "s3:GetObject and s3:ListBucket",
    "ListObjectsV2": "s3:ListBucket",
    "ListMultipartUploads": "s3:ListBucketMultipartUploads",
    "ListParts": "s3:ListMultipartUploadParts",
    "GetBucketLifecycleConfiguration": "s3:GetLifecycleConfiguration",
}


def response_time(response: Mapping[str, Any]) -> float | None:
    """Return a response's Date, in seconds since the epoch by the store's clock; None if it has none."""
    return _http_date(_header(response, "date"))


def retry_after(response: Mapping[str, Any]) -> float | None:
    """Return a response's Retry-After in seconds; None if it has none.

    The header holds seconds or a date, which is relative to the response's own Date.
    """
    asked = _header(response, "retry-after").strip()
    if asked.isdecimal() and asked.isascii():
        return float(asked)
    until, now = _http_date(asked), response_time(response)
    return None if until is None or now is None else max(0.0, until - now)


def etag_of(request: Request, response: Mapping[str, Any]) -> str:
    """Return the ETag of a response, without quotes.

    Without one raises `OutcomeUnknown` if the request changes something, and `Unavailable` if it only reads.
    """
    raw = str(response.get("ETag", ""))
    etag = raw.strip('"')
    # An unpaired quote is left where a header was cut off.
    if not etag or raw.startswith('"') != raw.endswith('"'):
        raise request.unconfirmed("the response has no ETag")
    return etag


def quoted(etag: str) -> str:
    """Return an ETag in quotes, whether it has them or not."""
    return '"{}"'.format(etag.strip('"'))


def unquoted(etag: str) -> str:
    """Return an ETag without quotes, whether it has them or not."""
    return etag.strip('"')


def completed_part(number: int, etag: PartEtag) -> dict[str, Any]:
    """Return one part of a completion, as boto3 expects it."""
    if isinstance(etag, str):
        return {"PartNumber": number, "ETag": quoted(etag)}
    return {"PartNumber": number, "ETag": quoted(etag.etag), f"Checksum{etag.algorithm}": etag.checksum}


def content_md5(body: bytes | bytearray | memoryview) -> str:
    """Return the value of a body's Content-MD5 header, by which the store detects damage.

    Buckets with a default retention (Object Lock) refuse a write without a checksum.
    """
    return base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()


def object_info(request: Request, response: Mapping[str, Any]) -> ObjectInfo:
    """Return the object of a HEAD's or GET's response.

    Raises `Unavailable` if headers are missing.
    """
    if "ContentLength" not in response or "LastModified" not in response:
        raise request.unconfirmed("the response has no length or time")
    return ObjectInfo(
        request.key or "",
        response["ContentLength"],
        etag_of(request, response),
        response["LastModified"].timestamp(),
        *object_headers(response.get("ResponseMetadata", {}).get("HTTPHeaders", {})),
    )


def entries(
    request: Request, page: Mapping[str, Any], name: str, fields: Sequence[str]
) -> Iterator[Mapping[str, Any]]:
    """Yield the entries of a page of a listing, in its field ``name``.

    Raises `Unavailable` if an entry lacks one of ``fields``.
    """
    for entry in page.get(name, ()):
        for field in fields:
            if field not in entry:
                raise request.unconfirmed(f"an entry of the response has no {field}")
        yield entry


def _header(response: Mapping[str, Any], name: str) -> str:
    return str(response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get(name, ""))


def _http_date(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None


#: The errors that boto3 documents for calling a client, and those of reading the body that it returns.
CLIENT_ERRORS = (raised.BotoCoreError, raised.ClientError, HTTPError, ResponseParserError)

#: botocore expects responses, and the output of sources of credentials, to be well-formed. If they are not,
#: these modules, here by name, raise errors of any kind.
PARSERS = "botocore.parsers"
CREDENTIALS = frozenset({"botocore.credentials", "botocore.tokens"})

#: Error codes for an element or a header that the store does not support.
NOT_KNOWN = frozenset({"InvalidArgument", "InvalidRequest", "MalformedXML", "NotImplemented", "400", "501"})

MISSING = {"NoSuchKey": NoSuchKey, "NoSuchBucket": NoSuchBucket, "NoSuchUpload": NoSuchUpload}

#: Another request wrote the same key. A completion is not retried: it needs its parts uploaded again.
CONFLICTS = frozenset({"ConditionalRequestConflict", "OperationAborted"})

THROTTLED = frozenset({
    "BandwidthLimitExceeded", "RequestLimitExceeded", "RequestThrottled", "RequestThrottledException",
    "RequestTimeout", "ServiceUnavailable", "SlowDown", "SlowDownRead", "SlowDownWrite", "ThrottledException",
    "Throttling", "ThrottlingException", "TooManyRequests", "TooManyRequestsException",
})  # fmt: skip

THROTTLED_STATUS = frozenset(
    {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}
)

EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"})

UNKNOWN_KEYS = frozenset({
    "AuthFailure", "InvalidAccessKeyId", "InvalidClientTokenId", "InvalidIdentityToken", "InvalidToken",
    "SignatureDoesNotMatch", "UnrecognizedClientException",
})  # fmt: skip

SKEWED = "RequestTimeTooSkewed"

FORBIDDEN = frozenset({"AccessDenied", "AccessDeniedException", "AllAccessDisabled", SKEWED})

#: The body was damaged on the way: a part or a small object is sent again.
DAMAGED = frozenset({"BadDigest", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch"})

#: Messages of OpenSSL and urllib3 about a certificate that is not trusted.
NOT_TRUSTED = ("CERTIFICATE_VERIFY_FAILED", "doesn't match")

#: Maximum number of characters of a store's message that our error repeats.
LONGEST_MESSAGE = 300

#: Words of a store's message about a bucket with a default retention.
OBJECT_LOCK = "object lock"

#: The 403 of an archived object, which valid credentials get too.
ARCHIVED = "InvalidObjectState"

NO_CREDENTIALS = (
    raised.CredentialRetrievalError, raised.NoAuthTokenError, raised.NoCredentialsError,
    raised.PartialCredentialsError, raised.ProfileNotFound, raised.SSOError, raised.TokenRetrievalError,
)  # fmt: skip

NOT_CONNECTED = (raised.ConnectTimeoutError, raised.EndpointConnectionError, raised.ProxyConnectionError)

BROKEN_RESPONSE = (
    raised.ChecksumError, raised.FlexibleChecksumError, raised.HTTPClientError, HTTPError,
    raised.IncompleteReadError, ResponseParserError, raised.SSLError,
)  # fmt: skip


def translate(error: Exception, request: Request) -> S3CommitError:
    """Translate an error raised by calling a boto3 client, or by reading its response, into one of ours.

    Its message shows no credentials and nothing of the request's body. Pass the error as caught: its
    traceback matters too. It is raised again if it is one of ours or a mistake in the program: neither one
    of `CLIENT_ERRORS` nor about a response or credentials that cannot be read.
    """
    if isinstance(error, raised.ClientError):
        return _from_response(error, request)
    # botocore's messages may show the whole request, or the output of a credential process.
    name, passed = type(error).__name__, _passed(error)
    if isinstance(error, NO_CREDENTIALS) or passed & CREDENTIALS:
        return AccessDenied(
            f"{request}: no usable credentials ({name}); check the environment, profile, role or Airflow "
            "connection they should come from"
        )
    if isinstance(error, NOT_CONNECTED):
        return Unavailable(f"{request}: the store could not be reached ({name}); check the endpoint's URL")
    if isinstance(error, raised.SSLError) and any(words in str(error) for words in NOT_TRUSTED):
        return StoreRejected(
            f"{request}: the store's certificate is not trusted; name its authority's file as verify, or in "
            "AWS_CA_BUNDLE",
            code="CertificateVerifyFailed",
        )
    if isinstance(error, BROKEN_RESPONSE) or PARSERS in passed:
        return request.unconfirmed(f"the response was lost, or cannot be read ({name})")
    if isinstance(error, CLIENT_ERRORS):
        return StoreRejected(f"{request}: the request could not be made ({name})", code=name)
    raise error


def _passed(error: Exception) -> set[str]:
    """Return the modules that an error passed through; none for one of `CLIENT_ERRORS`."""
    if isinstance(error, CLIENT_ERRORS):
        return set()
    return {frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__)}


def _from_response(error: raised.ClientError, request: Request) -> S3CommitError:
    """Translate an error response of the store, or of the credentials service."""
    response = error.response
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    code = str(response.get("Error", {}).get("Code", "")) or str(status)
    message = " ".join(str(response.get("Error", {}).get("Message", "")).split())[:LONGEST_MESSAGE]
    text = f"{request}: {code} {message}".rstrip()
    if OBJECT_LOCK in message.lower():
        text += (
            "; the bucket's Object Lock refuses it: write to a bucket without a default retention, or without"
            " Object Lock"
        )
    if request.operation.startswith("Head") and code == str(HTTPStatus.NOT_FOUND):
        # The response to a HEAD has no body, hence no error code.
        code = "NoSuchBucket" if request.key is None else "NoSuchKey"
    if request.upload_id is not None and code == "NoSuchKey":
        # Ceph's name for an upload that is gone.
        code = "NoSuchUpload"
    if code == "NoSuchBucket":
        text += "; check its name, the endpoint and the region"
    if code in MISSING:
        return MISSING[code](text)
    if code == "PreconditionFailed" or status == HTTPStatus.PRECONDITION_FAILED:
        return PreconditionFailed(text)
    if _is_denied(code, status):
        return AccessDenied(f"{text}; {_advice(code, request)}")
    elsewhere = error.operation_name != request.operation
    if _is_retryable(code, status, request) or (elsewhere and _is_failure(status)):
        return Unavailable(text, retry_after=retry_after(response))
    if _is_failure(status):
        return request.unconfirmed(f"the store failed ({status} {code} {message})")
    return StoreRejected(text, code=code)


def _is_retryable(code: str, status: int, request: Request) -> bool:
    if code in CONFLICTS:
        return request.operation != "CompleteMultipartUpload"
    if code in DAMAGED:
        return request.operation in {"UploadPart", "PutObject"}
    return code in THROTTLED or status in THROTTLED_STATUS


def _is_denied(code: str, status: int) -> bool:
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return code != ARCHIVED and code not in THROTTLED
    return code in EXPIRED | UNKNOWN_KEYS | FORBIDDEN


def _is_failure(status: int) -> bool:
    """Return whether the store or a gateway failed, so that the effect is unknown."""
    return status >= HTTPStatus.INTERNAL_SERVER_ERROR and status != HTTPStatus.NOT_IMPLEMENTED


def _advice(code: str, request: Request) -> str:
    if code in EXPIRED:
        return "the credentials have expired: renew them and run this step again"
    if code in UNKNOWN_KEYS:
        return "check that the access key, secret key and session token belong together, and to this endpoint"
    if code == SKEWED:
        return "set this machine's clock"
    return f"check that the policies of these credentials and of the bucket allow {request.permission}"

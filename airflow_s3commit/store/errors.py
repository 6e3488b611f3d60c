"""From botocore's errors to ours: what kind of failure it was decides what may be done next.

The question is always the same: did the request take effect? A store that turned a request away says so
with a status of its own (4xx, 503). An internal error, a gateway's error or a lost connection says nothing:
harmless for a request that only reads, an unknown outcome for one that changes something.
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus

from botocore.exceptions import (
    BotoCoreError,
    ChecksumError,
    ClientError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    FlexibleChecksumError,
    HTTPClientError,
    IncompleteReadError,
    NoAuthTokenError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    ProxyConnectionError,
    SSLError,
    SSOError,
    TokenRetrievalError,
)
from botocore.parsers import ResponseParserError
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
    TooLarge,
    Unavailable,
)
from airflow_s3commit.store.answers import retry_after

__all__ = ["CLIENT_ERRORS", "NOT_KNOWN", "Request", "translate"]

#: What a call to a boto3 client, and reading the body it returned, may raise.
CLIENT_ERRORS = (BotoCoreError, ClientError, HTTPError)

#: Codes with which a store refuses an element or a header that it does not know.
NOT_KNOWN = frozenset({"InvalidArgument", "InvalidRequest", "MalformedXML", "NotImplemented", "400", "501"})

#: Requests that change something, with the permission that each needs.
CHANGES = {
    "PutObject": "s3:PutObject",
    "DeleteObject": "s3:DeleteObject and, for conditional deletes, s3:GetObject",
    "DeleteObjects": "s3:DeleteObject and, for conditional deletes, s3:GetObject",
    "CreateMultipartUpload": "s3:PutObject",
    "UploadPart": "s3:PutObject",
    "CompleteMultipartUpload": "s3:PutObject",
    "AbortMultipartUpload": "s3:AbortMultipartUpload",
}

#: Requests that change nothing. Without s3:ListBucket a missing object answers "access denied".
READS = {
    "HeadBucket": "s3:ListBucket",
    "HeadObject": "s3:GetObject and s3:ListBucket",
    "GetObject": "s3:GetObject and s3:ListBucket",
    "ListObjectsV2": "s3:ListBucket",
    "ListMultipartUploads": "s3:ListBucketMultipartUploads",
    "ListParts": "s3:ListMultipartUploadParts",
    "GetBucketLifecycleConfiguration": "s3:GetLifecycleConfiguration",
}

MISSING = {"NoSuchKey": NoSuchKey, "NoSuchBucket": NoSuchBucket, "NoSuchUpload": NoSuchUpload}

#: Another writer of the same key was busy. Not for a completion: its parts would have to be sent again.
CONFLICTS = frozenset({"ConditionalRequestConflict", "OperationAborted"})

THROTTLED = frozenset(
    {
        "BandwidthLimitExceeded",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "RequestTimeout",
        "ServiceUnavailable",
        "SlowDown",
        "SlowDownRead",
        "SlowDownWrite",
        "ThrottledException",
        "Throttling",
        "ThrottlingException",
        "TooManyRequests",
        "TooManyRequestsException",
    }
)
THROTTLED_STATUS = frozenset(
    {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}
)

EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"})
UNKNOWN_KEYS = frozenset(
    {
        "AuthFailure",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "InvalidIdentityToken",
        "InvalidToken",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)
SKEWED = "RequestTimeTooSkewed"
FORBIDDEN = frozenset({"AccessDenied", "AccessDeniedException", "AllAccessDisabled", SKEWED})

#: What arrived is not what was sent: a part is sent again.
DAMAGED = frozenset({"BadDigest", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch"})

#: How OpenSSL and urllib3 word it that a certificate is not the store's.
NOT_TRUSTED = ("CERTIFICATE_VERIFY_FAILED", "doesn't match")

#: Characters of a store's message that an error of ours repeats.
LONGEST_MESSAGE = 300

#: An archived object answers 403 too, to credentials that are good.
ARCHIVED = "InvalidObjectState"

NO_CREDENTIALS = (
    CredentialRetrievalError,
    NoAuthTokenError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    SSOError,
    TokenRetrievalError,
)
NOT_CONNECTED = (ConnectTimeoutError, EndpointConnectionError, ProxyConnectionError)
BROKEN_ANSWER = (
    ChecksumError,
    FlexibleChecksumError,
    HTTPClientError,
    HTTPError,
    IncompleteReadError,
    ResponseParserError,
    SSLError,
)


@dataclass(frozen=True, slots=True)
class Request:
    """Which request it is: what its errors name.

    Attributes:
        operation: Its name in S3's API, such as ``PutObject``.
        bucket: The bucket it is for.
        key: The object it is for; None for requests that are for a bucket.
        upload_id: The multipart upload it is for, if it is for one.

    Raises:
        StoreRejected: The key or the upload id is empty. On the wire these would be other requests: deleting
            the object ``""`` is deleting the bucket, aborting the upload ``""`` is deleting the object.

    """

    operation: str
    bucket: str
    key: str | None = None
    upload_id: str | None = None

    def __post_init__(self) -> None:
        if self.key == "" or self.upload_id == "":
            raise StoreRejected(f"{self} has an empty key or upload id", code="InvalidArgument")

    def __str__(self) -> str:
        where = f"s3://{self.bucket}/{self.key or ''}"
        upload = f" (upload {self.upload_id})" if self.upload_id else ""
        return f"{self.operation} of {where}{upload}"

    def check_size(self, size: int, limit: int | None) -> None:
        """Refuse an object that is longer than is to be read of it.

        Raises:
            TooLarge: It is.

        """
        if limit is not None and size > limit:
            raise TooLarge.of(f"s3://{self.bucket}/{self.key}", size, limit)

    @property
    def permission(self) -> str:
        """What a policy must allow for this request."""
        return CHANGES.get(self.operation) or READS.get(self.operation, "it")

    def unanswered(self, why: str) -> OutcomeUnknown | Unavailable:
        """Return the error for a request whose answer did not arrive, or arrived without what it is for."""
        if self.operation in CHANGES:
            return OutcomeUnknown(
                f"{self}: {why}; it may or may not have taken effect, look before redoing it"
            )
        return Unavailable(f"{self}: {why}")


def translate(error: Exception, request: Request) -> S3CommitError:
    """Return our error for one that a boto3 client raised.

    Args:
        error: One of `CLIENT_ERRORS`.
        request: The request that met it.

    Returns:
        The error to raise. Its message holds no credential and none of the request's content.

    """
    if isinstance(error, ClientError):
        return _answered(error, request)
    # Their own messages may show the whole request, or what a credential process printed.
    name = type(error).__name__
    if isinstance(error, NO_CREDENTIALS):
        return AccessDenied(
            f"{request}: no usable credentials ({name}); check the environment, profile, role or Airflow "
            "connection they should come from"
        )
    if isinstance(error, NOT_CONNECTED):
        return Unavailable(f"{request}: the store could not be reached ({name}); check the endpoint's URL")
    if isinstance(error, SSLError) and any(words in str(error) for words in NOT_TRUSTED):
        return StoreRejected(
            f"{request}: the store's certificate is not trusted; name its authority's file as verify, or in "
            "AWS_CA_BUNDLE",
            code="CertificateVerifyFailed",
        )
    if isinstance(error, BROKEN_ANSWER):
        return request.unanswered(f"the answer was lost ({name})")
    return StoreRejected(f"{request}: the request could not be made ({name})", code=name)


def _answered(error: ClientError, request: Request) -> S3CommitError:
    """Translate an answer of the store, or of the service that credentials come from."""
    answer = error.response
    status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    code = str(answer.get("Error", {}).get("Code", "")) or str(status)
    message = " ".join(str(answer.get("Error", {}).get("Message", "")).split())[:LONGEST_MESSAGE]
    text = f"{request}: {code} {message}".rstrip()
    if request.operation.startswith("Head") and code == str(HTTPStatus.NOT_FOUND):
        # The answer to a HEAD has no body, hence no code of the store's.
        code = "NoSuchBucket" if request.key is None else "NoSuchKey"
    if code in MISSING:
        return MISSING[code](text)
    if code == "PreconditionFailed" or status == HTTPStatus.PRECONDITION_FAILED:
        return PreconditionFailed(text)
    if _denied(code, status):
        return AccessDenied(f"{text}; {_check(code, request)}")
    elsewhere = error.operation_name != request.operation
    if _turned_away(code, status, request) or (elsewhere and _failed(status)):
        return Unavailable(text, retry_after=retry_after(answer))
    if _failed(status):
        return request.unanswered(f"the store failed ({status} {code} {message})")
    return StoreRejected(text, code=code)


def _turned_away(code: str, status: int, request: Request) -> bool:
    if code in CONFLICTS:
        return request.operation != "CompleteMultipartUpload"
    if code in DAMAGED:
        return request.operation == "UploadPart"
    return code in THROTTLED or status in THROTTLED_STATUS


def _denied(code: str, status: int) -> bool:
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return code != ARCHIVED and code not in THROTTLED
    return code in EXPIRED | UNKNOWN_KEYS | FORBIDDEN


def _failed(status: int) -> bool:
    """Tell whether something broke on the way or at the store, at a moment that nobody knows."""
    return status >= HTTPStatus.INTERNAL_SERVER_ERROR and status != HTTPStatus.NOT_IMPLEMENTED


def _check(code: str, request: Request) -> str:
    if code in EXPIRED:
        return "the credentials have expired: renew them and run this step again"
    if code in UNKNOWN_KEYS:
        return "check that the access key, secret key and session token belong together and to this endpoint"
    if code == SKEWED:
        return "set this machine's clock"
    return f"check that the policies of these credentials and of the bucket allow {request.permission}"

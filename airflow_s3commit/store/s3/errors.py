"""Translates botocore's errors into ours, by whether the request took effect.

A store that rejects a request responds with a specific status (4xx, 503). After an internal error, a gateway
error or a lost connection the effect is unknown: harmless for a request that only reads, `OutcomeUnknown` for
one that changes something.
"""

from __future__ import annotations

from http import HTTPStatus
from traceback import walk_tb
from typing import TYPE_CHECKING

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
    PreconditionFailed,
    S3CommitError,
    StoreRejected,
    Unavailable,
)
from airflow_s3commit.store.s3.request import retry_after

if TYPE_CHECKING:
    from airflow_s3commit.store.s3.request import Request

#: The errors that boto3 documents for calling a client, and those of reading the body that it returns.
CLIENT_ERRORS = (BotoCoreError, ClientError, HTTPError, ResponseParserError)

#: botocore expects responses, and what sources of credentials say, to be well-formed. It raises errors of any
#: kind otherwise: of these modules, by their names.
PARSERS = "botocore.parsers"
CREDENTIALS = frozenset({"botocore.credentials", "botocore.tokens"})

#: Error codes for an element or a header that the store does not support.
NOT_KNOWN = frozenset({"InvalidArgument", "InvalidRequest", "MalformedXML", "NotImplemented", "400", "501"})

MISSING = {"NoSuchKey": NoSuchKey, "NoSuchBucket": NoSuchBucket, "NoSuchUpload": NoSuchUpload}

#: Another request wrote the same key. Not for a completion: its parts would have to be uploaded again.
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

#: The body was damaged on the way: a part or a small object is sent again.
DAMAGED = frozenset({"BadDigest", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch"})

#: Messages of OpenSSL and urllib3 about a certificate that is not trusted.
NOT_TRUSTED = ("CERTIFICATE_VERIFY_FAILED", "doesn't match")

#: Characters of a store's message that our error repeats.
LONGEST_MESSAGE = 300

#: Words of a store's message about a bucket with a default retention.
OBJECT_LOCK = "object lock"

#: The 403 of an archived object, which valid credentials get too.
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

BROKEN_RESPONSE = (
    ChecksumError,
    FlexibleChecksumError,
    HTTPClientError,
    HTTPError,
    IncompleteReadError,
    ResponseParserError,
    SSLError,
)


def translate(error: Exception, request: Request) -> S3CommitError:
    """Return our error for one that calling a boto3 client, or reading its response, raised.

    Its message shows no credentials and nothing of the request's body.

    Args:
        error: The error, as caught, because the place where it was raised matters too.

    Raises:
        Exception: The given error, if it is neither one of `CLIENT_ERRORS` nor about a response or
            credentials that cannot be read: one of ours, or a mistake in the program.
    """
    if isinstance(error, ClientError):
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
    if isinstance(error, SSLError) and any(words in str(error) for words in NOT_TRUSTED):
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
    """Return the modules that an error passed through which is not one of `CLIENT_ERRORS`."""
    if isinstance(error, CLIENT_ERRORS):
        return set()
    return {frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__)}


def _from_response(error: ClientError, request: Request) -> S3CommitError:
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

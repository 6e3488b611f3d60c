"""Decodes the fast path's responses by the same rules as boto3's.

Errors go through botocore's parser and `errors.translate`. Success is decoded here, because there are
thousands of them: a completion succeeded if its response is a 200 with a complete
``CompleteMultipartUploadResult`` that has an ETag.
"""

from __future__ import annotations

import re
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from botocore.awsrequest import HeadersDict
from botocore.exceptions import ClientError
from botocore.parsers import create_parser
from msgspec import Struct

from airflow_s3commit.exceptions import S3CommitError, Unavailable
from airflow_s3commit.store.base import Fetched
from airflow_s3commit.store.s3.errors import translate
from airflow_s3commit.store.s3.request import delete_failures, etag_of, object_info, response_time

if TYPE_CHECKING:
    from airflow_s3commit.store.base import DeleteFailure, Outcome
    from airflow_s3commit.store.s3.request import Request

#: A plain int: comparing an enum member costs more, on the hot path.
OK = int(HTTPStatus.OK)

METADATA = "x-amz-meta-"
THROTTLED_STATUS = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})
REDIRECTS = frozenset(
    {
        HTTPStatus.MOVED_PERMANENTLY,
        HTTPStatus.FOUND,
        HTTPStatus.TEMPORARY_REDIRECT,
        HTTPStatus.PERMANENT_REDIRECT,
    }
)
#: Error codes of requests that were signed for another region.
WRONG_REGION = (b"AuthorizationHeaderMalformed", b"IllegalLocationConstraintException", b"PermanentRedirect")

_parser: Any = create_parser("rest-xml")

#: The usual result of a completion: elements without attributes or children, one of them an ETag of letters,
#: digits and hyphens. Anything else is left to the XML parser. Possessive quantifiers prevent backtracking;
#: the usual declaration and namespace are literal, which match several times as fast as character sets.
_DECLARATION = rb"(?:<\?xml version=\"1\.0\" encoding=\"UTF-8\"\?>|<\?xml [^<>&]*\?>)"
_NAMESPACE = rb"(?: xmlns=\"(?:http://s3\.amazonaws\.com/doc/2006-03-01/|[^\"<>&]*+)\")"
_LEAF = rb"\s*+<(?!ETag>)([A-Za-z0-9]++)>[^<>&]*+</\%d>"
_WHOLE_RESULT = re.compile(
    rb"\s*+(?:%b\s*+)?+<CompleteMultipartUploadResult%b?+>(?:%b)*+"
    rb"\s*+<ETag>(&quot;|&#34;|\"|)([A-Za-z0-9-]++)\2</ETag>(?:%b)*+"
    rb"\s*+</CompleteMultipartUploadResult>\s*+" % (_DECLARATION, _NAMESPACE, _LEAF % 1, _LEAF % 4)
).fullmatch


class Response(Struct, frozen=True, gc=False):
    """One HTTP response.

    Attributes:
        status: The HTTP status.
        head: The status line and the headers, as bytes.
        body: The body.

    """

    status: int
    head: bytes
    body: bytes

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the last response in ``head``, by name in lower case."""
        block = self.head.rstrip(b"\r\n").rpartition(b"\r\n\r\n")[2].decode("latin-1")
        pairs = (line.partition(":") for line in block.split("\r\n")[1:])
        return {name.strip().lower(): value.strip() for name, _, value in pairs}


def completed_etag(response: Response | Exception) -> str | None:
    """Return the ETag of a plainly successful completion; None if only `read_response` can say."""
    if isinstance(response, Exception) or response.status != OK:
        return None
    found = _WHOLE_RESULT(response.body)
    return found[3].decode() if found else None


def read_response(
    request: Request, response: Response | Exception, now: float, limit: int | None = None
) -> Outcome:
    """Return the result of the `ObjectStore` method that a request belongs to.

    Args:
        request: The request.
        response: Its response, or the error that took its place.
        now: The time of a response without a Date, in seconds since the epoch.
        limit: Maximum bytes of the object that were read; the body ends there.

    Raises:
        S3CommitError: The method fails, as `ObjectStore` documents it.

    """
    if isinstance(response, Exception):
        raise translate(response, request)
    if not HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES:
        raise _refusal(request, response, response.status)
    match request.operation:
        case "CompleteMultipartUpload":
            return _completed(request, response)
        case "AbortMultipartUpload":
            if response.body and _root(request, response).tag.endswith("Error"):
                raise _refusal(request, response, HTTPStatus.INTERNAL_SERVER_ERROR)
            return None
        case "DeleteObjects":
            return _deleted(request, response)
        case "HeadObject":
            return object_info(request, _description(request, response))
        case _:
            parsed = _description(request, response)
            info = object_info(request, parsed)
            request.check_size(info.size, limit)
            if len(response.body) != info.size:
                raise request.unconfirmed("the response was cut off")
            date = response_time(parsed)
            return Fetched(info, response.body, now if date is None else date)


def is_redirect(response: Response | Exception) -> bool:
    """Return whether the store says that the bucket is in another region."""
    if isinstance(response, Exception):
        return False
    if response.status == HTTPStatus.BAD_REQUEST:
        return "x-amz-bucket-region" in response.headers or any(
            code in response.body for code in WRONG_REGION
        )
    return response.status in REDIRECTS


def is_throttled(response: Response | Exception, error: S3CommitError) -> bool:
    """Return whether the store rejected a request because it gets too many."""
    if isinstance(response, Exception):
        return False
    # A completion may get "SlowDown" in the body of a 200.
    return response.status in THROTTLED_STATUS or (
        response.status == HTTPStatus.OK and isinstance(error, Unavailable)
    )


def _completed(request: Request, response: Response) -> str:
    root = _root(request, response)
    if root.tag.endswith("Error"):
        raise _refusal(request, response, HTTPStatus.INTERNAL_SERVER_ERROR)
    namespace, _, name = root.tag.rpartition("}")
    if name != "CompleteMultipartUploadResult":
        raise request.unconfirmed(f"the response is a {name}")
    return etag_of(
        request, {"ETag": root.findtext(f"{namespace}}}ETag" if namespace else "ETag", "").strip()}
    )


def _deleted(request: Request, response: Response) -> list[DeleteFailure]:
    root = _root(request, response)
    if root.tag.endswith("Error"):
        raise _refusal(request, response, HTTPStatus.INTERNAL_SERVER_ERROR)
    entries: dict[str, list[dict[str, str]]] = {"Deleted": [], "Error": []}
    for element in root:
        fields = {_name(child): child.text or "" for child in element}
        entries.setdefault(_name(element), []).append(fields)
    return delete_failures(request, entries["Deleted"], entries["Error"])


def _name(element: ET.Element) -> str:
    return element.tag.rpartition("}")[2]


def _root(request: Request, response: Response) -> ET.Element:
    try:
        # The parser that botocore uses. A slow store sends white space first, to keep the connection open.
        return ET.fromstring(response.body.strip())  # noqa: S314
    except ET.ParseError as error:
        raise request.unconfirmed("the response is empty, cut off or not XML") from error


def _description(request: Request, response: Response) -> dict[str, Any]:
    headers = response.headers
    parsed: dict[str, Any] = {"ResponseMetadata": {"HTTPHeaders": headers}, "ETag": headers.get("etag", "")}
    try:
        if "content-length" in headers:
            parsed["ContentLength"] = int(headers["content-length"])
        if "last-modified" in headers:
            parsed["LastModified"] = parsedate_to_datetime(headers["last-modified"])
    except (ValueError, OverflowError) as error:
        raise request.unconfirmed("the response's length or time is invalid") from error
    parsed["Metadata"] = {
        name.removeprefix(METADATA): value for name, value in headers.items() if name.startswith(METADATA)
    }
    return parsed


def _refusal(request: Request, response: Response, status: int) -> S3CommitError:
    raw = {
        "status_code": status,
        "headers": HeadersDict(response.headers),
        "body": response.body,
        "context": {},
    }
    failure: Exception
    try:
        failure = ClientError(_parser.parse(raw, None), request.operation)
    except Exception as error:
        failure = error
    return translate(failure, request)

"""What a store's answers on the fast path say, read by the rules of the reference path.

Errors are put into the words of botocore, by its own parser, and translated like all others. Success is read
here, because it comes by the thousand: a completion's is a 200 whose body is a whole
``CompleteMultipartUploadResult`` with an ETag, and nothing else.
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
from airflow_s3commit.store.answers import answered_at, described, etag_of, left_in_place
from airflow_s3commit.store.base import Fetched
from airflow_s3commit.store.errors import CLIENT_ERRORS, translate

if TYPE_CHECKING:
    from airflow_s3commit.store.base import DeleteFailure, Outcome
    from airflow_s3commit.store.errors import Request

__all__ = ["Reply", "completed_etag", "is_misdirected", "is_too_much", "read_reply"]

#: As a plain number: an enumeration's is compared slowly, for what is done by the thousand.
OK = int(HTTPStatus.OK)

METADATA = "x-amz-meta-"
TOO_MUCH = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})
REDIRECTS = frozenset(
    {
        HTTPStatus.MOVED_PERMANENTLY,
        HTTPStatus.FOUND,
        HTTPStatus.TEMPORARY_REDIRECT,
        HTTPStatus.PERMANENT_REDIRECT,
    }
)
#: Codes of answers that name another region than the request was signed for.
ELSEWHERE = (b"AuthorizationHeaderMalformed", b"IllegalLocationConstraintException", b"PermanentRedirect")

_parser: Any = create_parser("rest-xml")


#: A whole result of a completion as S3 and its kin write it: elements without attributes or inner elements,
#: one of them an ETag of letters, digits and hyphens. Whatever looks otherwise is left to the XML parser.
#: Possessive quantifiers keep it from trying twice what cannot match otherwise; and how nearly all stores
#: begin stands there in full, for literal text is compared several times as fast as sets of characters.
_DECLARATION = rb"(?:<\?xml version=\"1\.0\" encoding=\"UTF-8\"\?>|<\?xml [^<>&]*\?>)"
_NAMESPACE = rb"(?: xmlns=\"(?:http://s3\.amazonaws\.com/doc/2006-03-01/|[^\"<>&]*+)\")"
_LEAF = rb"\s*+<(?!ETag>)([A-Za-z0-9]++)>[^<>&]*+</\%d>"
_WHOLE_RESULT = re.compile(
    rb"\s*+(?:%b\s*+)?+<CompleteMultipartUploadResult%b?+>(?:%b)*+"
    rb"\s*+<ETag>(&quot;|&#34;|\"|)([A-Za-z0-9-]++)\2</ETag>(?:%b)*+"
    rb"\s*+</CompleteMultipartUploadResult>\s*+" % (_DECLARATION, _NAMESPACE, _LEAF % 1, _LEAF % 4)
).fullmatch


class Reply(Struct, frozen=True, gc=False):
    """One answer, as it came over the wire.

    Attributes:
        status: The HTTP status.
        head: The status line and the headers.
        body: The body.

    """

    status: int
    head: bytes
    body: bytes

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the last answer in ``head``, by name in lower case."""
        block = self.head.rstrip(b"\r\n").rpartition(b"\r\n\r\n")[2].decode("latin-1")
        pairs = (line.partition(":") for line in block.split("\r\n")[1:])
        return {name.strip().lower(): value.strip() for name, _, value in pairs}


def completed_etag(reply: Reply | Exception) -> str | None:
    """Return the ETag in a completion's answer, where that is seen at a glance; None says nothing."""
    if isinstance(reply, Exception) or reply.status != OK:
        return None
    found = _WHOLE_RESULT(reply.body)
    return found[3].decode() if found else None


def read_reply(request: Request, reply: Reply | Exception, now: float, limit: int | None = None) -> Outcome:
    """Return what a call's verb returns.

    Args:
        request: Which request it was.
        reply: Its answer; or, as one of `CLIENT_ERRORS`, why there is none.
        now: The time of an answer that does not say its own, in seconds since the epoch.
        limit: Bytes that are read of an object at most; the answer's body is cut off beyond.

    Raises:
        S3CommitError: What the call's verb raises.

    """
    if isinstance(reply, Exception):
        raise translate(reply, request)
    if not HTTPStatus.OK <= reply.status < HTTPStatus.MULTIPLE_CHOICES:
        raise _refusal(request, reply, reply.status)
    match request.operation:
        case "CompleteMultipartUpload":
            return _completed(request, reply)
        case "AbortMultipartUpload":
            if reply.body and _root(request, reply).tag.endswith("Error"):
                raise _refusal(request, reply, HTTPStatus.INTERNAL_SERVER_ERROR)
            return None
        case "DeleteObjects":
            return _deleted(request, reply)
        case "HeadObject":
            return described(request, _description(request, reply))
        case _:
            answer = _description(request, reply)
            info = described(request, answer)
            request.check_size(info.size, limit)
            if len(reply.body) != info.size:
                raise request.unanswered("the answer's end is missing")
            date = answered_at(answer)
            return Fetched(info, reply.body, now if date is None else date)


def is_misdirected(reply: Reply | Exception) -> bool:
    """Tell whether the store says that the bucket is elsewhere."""
    if isinstance(reply, Exception):
        return False
    if reply.status == HTTPStatus.BAD_REQUEST:
        return "x-amz-bucket-region" in reply.headers or any(code in reply.body for code in ELSEWHERE)
    return reply.status in REDIRECTS


def is_too_much(reply: Reply | Exception, error: S3CommitError) -> bool:
    """Tell whether the store turned a call away because it gets too many."""
    if isinstance(reply, Exception):
        return False
    # A completion may be told to slow down in the body of a 200.
    return reply.status in TOO_MUCH or (reply.status == HTTPStatus.OK and isinstance(error, Unavailable))


def _completed(request: Request, reply: Reply) -> str:
    root = _root(request, reply)
    if root.tag.endswith("Error"):
        raise _refusal(request, reply, HTTPStatus.INTERNAL_SERVER_ERROR)
    namespace, _, name = root.tag.rpartition("}")
    if name != "CompleteMultipartUploadResult":
        raise request.unanswered(f"the answer is a {name}")
    return etag_of(
        request, {"ETag": root.findtext(f"{namespace}}}ETag" if namespace else "ETag", "").strip()}
    )


def _deleted(request: Request, reply: Reply) -> list[DeleteFailure]:
    root = _root(request, reply)
    if root.tag.endswith("Error"):
        raise _refusal(request, reply, HTTPStatus.INTERNAL_SERVER_ERROR)
    entries: dict[str, list[dict[str, str]]] = {"Deleted": [], "Error": []}
    for element in root:
        fields = {_name(child): child.text or "" for child in element}
        entries.setdefault(_name(element), []).append(fields)
    return left_in_place(request, entries["Deleted"], entries["Error"])


def _name(element: ET.Element) -> str:
    return element.tag.rpartition("}")[2]


def _root(request: Request, reply: Reply) -> ET.Element:
    try:
        # The parser that botocore reads the same answers with. A store that takes long sends blanks first.
        return ET.fromstring(reply.body.strip())  # noqa: S314
    except ET.ParseError as error:
        raise request.unanswered("the answer is empty, cut off or no XML") from error


def _description(request: Request, reply: Reply) -> dict[str, Any]:
    headers = reply.headers
    answer: dict[str, Any] = {"ResponseMetadata": {"HTTPHeaders": headers}, "ETag": headers.get("etag", "")}
    try:
        if "content-length" in headers:
            answer["ContentLength"] = int(headers["content-length"])
        if "last-modified" in headers:
            answer["LastModified"] = parsedate_to_datetime(headers["last-modified"])
    except ValueError as error:
        raise request.unanswered("the answer's length or time is none") from error
    answer["Metadata"] = {
        name.removeprefix(METADATA): value for name, value in headers.items() if name.startswith(METADATA)
    }
    return answer


def _refusal(request: Request, reply: Reply, status: int) -> S3CommitError:
    answer = {"status_code": status, "headers": HeadersDict(reply.headers), "body": reply.body, "context": {}}
    try:
        return translate(ClientError(_parser.parse(answer, None), request.operation), request)
    except CLIENT_ERRORS as error:
        return translate(error, request)

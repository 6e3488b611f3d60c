"""Calls as HTTP requests, and the responses that settle a call by themselves.

Those are plain successes, and the answer that an upload is gone, which a repeated commit gets by the million.
Whatever else a store may say is left to the boto3 store, which makes the call again: it knows redirects,
renewed credentials, throttling and errors.
"""

from __future__ import annotations

import re
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote
from xml.sax.saxutils import escape

from msgspec import Struct

from airflow_s3commit.exceptions import NoSuchUpload, S3CommitError
from airflow_s3commit.store.base import Abort, Complete, Fetched, Get, Head, ObjectInfo
from airflow_s3commit.store.s3.request import Request, object_info, quoted, response_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_s3commit.store.base import Call, Outcome, PartEtag


class SingleCall(Struct, frozen=True, gc=False):
    """A request that starts an upload, which has no id yet, or sends a part of one.

    Attributes:
        bucket: Its bucket.
        key: Its object.
        upload_id: Its upload; empty to start one.
        query: What the URL says besides.
        headers: Its headers, as ``Name: value``.
        body: Its body.
    """

    bucket: str
    key: str
    upload_id: str
    query: str
    headers: list[str]
    body: bytes


#: The calls of `ObjectStore.perform` that libcurl makes.
FastCall: TypeAlias = Complete | Abort | Head | Get

#: S3's names of the operations that libcurl sends.
OPERATIONS: dict[type[Call], str] = {
    Complete: "CompleteMultipartUpload",
    Abort: "AbortMultipartUpload",
    Head: "HeadObject",
    Get: "GetObject",
}

#: Path segments that HTTP clients and servers resolve instead of taking literally.
DOT_SEGMENTS = frozenset({".", ".."})

#: Directories whose quoted form is cached: a job's files are in few.
CACHED_FOLDERS = 4096

METADATA = "x-amz-meta-"
OK, NO_CONTENT, NOT_FOUND = 200, 204, 404
NO_UPLOAD = b"<Code>NoSuchUpload</Code>"

#: Statuses of a store that gets too many requests; with one of these it has not done what was asked for.
BUSY = frozenset({429, 503})
FAILED = 500

# Templates: a completion around its parts, a part, and a completion of one part.
_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_COMPLETION = f'<CompleteMultipartUpload xmlns="{_NAMESPACE}">%s</CompleteMultipartUpload>'
_PART = "<Part><PartNumber>%d</PartNumber><ETag>%s</ETag>%s</Part>"
_ONE_PART = _COMPLETION % _PART % (1, '"%s"', "")

_is_unreserved = re.compile(r"[A-Za-z0-9._~-]*", re.ASCII).fullmatch

# The usual result of a completion: elements without attributes or children, one of them an ETag of letters,
# digits and hyphens. Possessive quantifiers prevent backtracking; the usual declaration and namespace are
# literal, which match several times as fast as character sets.
_DECLARATION = rb"(?:<\?xml version=\"1\.0\" encoding=\"UTF-8\"\?>|<\?xml [^<>&]*\?>)"
_XMLNS = rb"(?: xmlns=\"(?:http://s3\.amazonaws\.com/doc/2006-03-01/|[^\"<>&]*+)\")"
_LEAF = rb"\s*+<(?!ETag>)([A-Za-z0-9]++)>[^<>&]*+</\%d>"
_WHOLE_RESULT = re.compile(
    rb"\s*+(?:%b\s*+)?+<CompleteMultipartUploadResult%b?+>(?:%b)*+"
    rb"\s*+<ETag>(&quot;|&#34;|\"|)([A-Za-z0-9-]++)\2</ETag>(?:%b)*+"
    rb"\s*+</CompleteMultipartUploadResult>\s*+" % (_DECLARATION, _XMLNS, _LEAF % 1, _LEAF % 4)
).fullmatch


class Response(Struct, frozen=True, gc=False):
    """One HTTP response.

    Attributes:
        status: The HTTP status; 0 if nothing of the request was sent.
        head: The status line and the headers, as bytes; empty where nobody needs them.
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


class NotPlain(Exception):
    """A response does not settle the outcome of its call by itself."""


def is_sendable(call: FastCall | SingleCall) -> bool:
    """Return whether libcurl sends this call to the right place.

    It would resolve dot segments, and a call without a key or an upload is another request on the wire.
    """
    if not call.key or (isinstance(call, Complete | Abort) and not call.upload_id):
        return False
    return "/." not in f"/{call.key}" or DOT_SEGMENTS.isdisjoint(call.key.split("/"))


def path_of(call: FastCall | SingleCall) -> str:
    """Return a call's key, and its query if it has one, quoted for a URL."""
    folder, slash, name = call.key.rpartition("/")
    if not _is_unreserved(name):
        name = quote(name, safe="~")
    path = f"{_folder(folder)}/{name}" if slash else name
    if isinstance(call, Head | Get):
        return path
    upload = call.upload_id
    query = f"uploadId={upload if _is_unreserved(upload) else quote(upload, safe='-._~')}" if upload else ""
    if isinstance(call, SingleCall):
        query = "&".join(filter(None, [query, call.query]))
    return f"{path}?{query}"


@lru_cache(CACHED_FOLDERS)
def _folder(folder: str) -> str:
    return quote(folder, safe="/~")


def part_list(etags: Sequence[PartEtag]) -> bytes:
    """Return the body of a completion's request."""
    if len(etags) == 1 and isinstance(etags[0], str) and etags[0].isalnum():
        # The usual case: a file of one part, whose ETag is an MD5 in hexadecimal.
        return (_ONE_PART % etags[0]).encode()
    parts = [_part(number, etag) for number, etag in enumerate(etags, start=1)]
    return (_COMPLETION % "".join(parts)).encode()


def _part(number: int, etag: PartEtag) -> str:
    if isinstance(etag, str):
        return _PART % (number, escape(quoted(etag)), "")
    name = f"Checksum{etag.algorithm}"
    return _PART % (number, escape(quoted(etag.etag)), f"<{name}>{escape(etag.checksum)}</{name}>")


def completed_etag(response: Response | None) -> str | None:
    """Return the ETag of a plainly successful completion; None for any other response."""
    if response is None or response.status != OK:
        return None
    found = _WHOLE_RESULT(response.body)
    return found[3].decode() if found else None


def plain_outcome(call: FastCall, response: Response, now: float) -> Outcome:
    """Return the outcome that a response settles by itself; a completion's success is `completed_etag`.

    Args:
        now: The time of a response without a Date, in seconds since the epoch.

    Raises:
        NotPlain: It settles none.
    """
    if isinstance(call, Head | Get):
        try:
            return _found(call, response, now)
        except (S3CommitError, ValueError, OverflowError) as error:
            raise NotPlain from error
    is_gone = response.status == NOT_FOUND and NO_UPLOAD in response.body
    if isinstance(call, Complete) and is_gone:
        request = Request(OPERATIONS[Complete], call.bucket, call.key, call.upload_id)
        return NoSuchUpload(f"{request}: NoSuchUpload")
    _require(isinstance(call, Abort) and (is_gone or response.status == NO_CONTENT))
    return None


def _require(is_plain: bool) -> None:
    if not is_plain:
        raise NotPlain


def _found(call: Head | Get, response: Response, now: float) -> ObjectInfo | Fetched:
    _require(response.status == OK)
    headers, body = response.headers, response.body
    metadata = {name.removeprefix(METADATA): v for name, v in headers.items() if name.startswith(METADATA)}
    parsed: dict[str, Any] = {
        "ResponseMetadata": {"HTTPHeaders": headers},
        "ETag": headers.get("etag", ""),
        "ContentLength": int(headers.get("content-length", "")),
        "LastModified": parsedate_to_datetime(headers.get("last-modified", "")),
        "Metadata": metadata,
    }
    info = object_info(Request(OPERATIONS[type(call)], call.bucket, call.key), parsed)
    if isinstance(call, Head):
        return info
    _require(len(body) == info.size and (call.limit is None or info.size <= call.limit))
    date = response_time(parsed)
    return Fetched(info, body, now if date is None else date)

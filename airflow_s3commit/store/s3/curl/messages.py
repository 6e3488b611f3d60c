"""Calls as HTTP requests, and the responses that need no judgement.

Those are plain successes, and a missing object or upload. Whatever else a store may say is left to the boto3
store, which sends the call again: it knows redirects, renewed credentials, throttling and errors.
"""

from __future__ import annotations

import re
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

from msgspec import Struct

from airflow_s3commit.exceptions import NoSuchKey, NoSuchUpload, S3CommitError
from airflow_s3commit.store.base import Abort, Complete, DeleteMany, Fetched, Get, Head, ObjectInfo
from airflow_s3commit.store.s3.request import Request, delete_failures, object_info, quoted, response_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_s3commit.store.base import Call, DeleteFailure, ObjectToDelete, Outcome, PartEtag

#: S3's names of the operations that libcurl sends.
OPERATIONS: dict[type[Call], str] = {
    Complete: "CompleteMultipartUpload",
    Abort: "AbortMultipartUpload",
    Head: "HeadObject",
    Get: "GetObject",
    DeleteMany: "DeleteObjects",
}

#: Path segments that HTTP clients and servers resolve instead of taking literally.
DOT_SEGMENTS = frozenset({".", ".."})

#: Directories whose quoted form is cached: a job's files are in few.
CACHED_FOLDERS = 4096

#: White space that an XML parser would normalise.
LINE_BREAKS = {"\r": "&#xD;", "\n": "&#xA;"}

METADATA = "x-amz-meta-"
OK, NO_CONTENT, NOT_FOUND = 200, 204, 404
NO_UPLOAD = b"<Code>NoSuchUpload</Code>"

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


def is_sendable(call: Call) -> bool:
    """Return whether libcurl sends this call to the right place.

    It would resolve dot segments, and a call without a key or an upload is another request on the wire.
    """
    if isinstance(call, DeleteMany):
        return bool(call.objects)
    if not call.key or (isinstance(call, Complete | Abort) and not call.upload_id):
        return False
    return "/." not in f"/{call.key}" or DOT_SEGMENTS.isdisjoint(call.key.split("/"))


def path_of(call: Call) -> str:
    """Return a call's key, and its query if it has one, quoted for a URL; empty for a call on a bucket."""
    if isinstance(call, DeleteMany):
        return ""
    folder, slash, name = call.key.rpartition("/")
    if not _is_unreserved(name):
        name = quote(name, safe="~")
    path = f"{_folder(folder)}/{name}" if slash else name
    if isinstance(call, Complete | Abort):
        upload = call.upload_id
        return f"{path}?uploadId={upload if _is_unreserved(upload) else quote(upload, safe='-._~')}"
    return path


def body_of(call: Call) -> bytes:
    """Return the body of a call's request."""
    if isinstance(call, Complete):
        return _part_list(call.etags)
    if isinstance(call, DeleteMany):
        # Not quiet: an empty response to a quiet request looks like one that was cut off.
        return f'<Delete xmlns="{_NAMESPACE}">{"".join(map(_delete, call.objects))}</Delete>'.encode()
    return b""


@lru_cache(CACHED_FOLDERS)
def _folder(folder: str) -> str:
    return quote(folder, safe="/~")


def _part_list(etags: Sequence[PartEtag]) -> bytes:
    if len(etags) == 1 and isinstance(etags[0], str) and etags[0].isalnum():
        # The usual case: a file of one part, whose ETag is an MD5 in hexadecimal.
        return (_ONE_PART % etags[0]).encode()
    parts = [_part(number, etag) for number, etag in enumerate(etags, start=1)]
    return (_COMPLETION % "".join(parts)).encode()


def _part(number: int, etag: PartEtag) -> str:
    if isinstance(etag, str):
        return _PART % (number, _etag(etag), "")
    name = f"Checksum{etag.algorithm}"
    return _PART % (number, _etag(etag.etag), f"<{name}>{escape(etag.checksum)}</{name}>")


def _etag(etag: str) -> str:
    # Nearly all are letters, digits and hyphens.
    return f'"{etag}"' if _is_unreserved(etag) else escape(quoted(etag))


def _delete(target: ObjectToDelete) -> str:
    etag = "" if target.etag is None else f"<ETag>{_etag(target.etag)}</ETag>"
    return f"<Object><Key>{escape(target.key, LINE_BREAKS)}</Key>{etag}</Object>"


def completed_etag(response: Response | None) -> str | None:
    """Return the ETag of a plainly successful completion; None for any other response."""
    if response is None or response.status != OK:
        return None
    found = _WHOLE_RESULT(response.body)
    return found[3].decode() if found else None


def plain_outcome(call: Call, response: Response, now: float) -> Outcome:
    """Return the outcome that a response settles by itself.

    Args:
        call: The call.
        response: Its response.
        now: The time of a response without a Date, in seconds since the epoch.

    Raises:
        NotPlain: It settles none.

    """
    outcome: Outcome = None
    is_missing = response.status == NOT_FOUND
    try:
        if isinstance(call, Abort):
            is_gone = is_missing and NO_UPLOAD in response.body
            _require(is_gone or (response.status in (OK, NO_CONTENT) and not response.body))
        elif isinstance(call, Complete) and is_missing:
            _require(NO_UPLOAD in response.body)
            outcome = NoSuchUpload(f"{_request(call)}: NoSuchUpload")
        elif isinstance(call, Complete):
            outcome = completed_etag(response)
            _require(outcome is not None)
        elif isinstance(call, Head) and is_missing:
            outcome = NoSuchKey(f"{_request(call)}: 404")
        else:
            _require(response.status == OK)
            read = _deleted if isinstance(call, DeleteMany) else _found
            outcome = read(call, response, now)
    except (S3CommitError, ValueError, OverflowError, ET.ParseError) as error:
        raise NotPlain from error
    return outcome


def _require(is_plain: bool) -> None:
    if not is_plain:
        raise NotPlain


def _found(call: Call, response: Response, now: float) -> ObjectInfo | Fetched:
    headers, body = response.headers, response.body
    metadata = {name.removeprefix(METADATA): v for name, v in headers.items() if name.startswith(METADATA)}
    parsed: dict[str, Any] = {
        "ResponseMetadata": {"HTTPHeaders": headers},
        "ETag": headers.get("etag", ""),
        "ContentLength": int(headers.get("content-length", "")),
        "LastModified": parsedate_to_datetime(headers.get("last-modified", "")),
        "Metadata": metadata,
    }
    info = object_info(_request(call), parsed)
    if not isinstance(call, Get):
        return info
    _require(len(body) == info.size and (call.limit is None or info.size <= call.limit))
    date = response_time(parsed)
    return Fetched(info, body, now if date is None else date)


def _deleted(call: Call, response: Response, _: float) -> list[DeleteFailure]:
    root = ET.fromstring(response.body.strip())  # noqa: S314 - the parser that botocore uses
    _require(_name(root) == "DeleteResult")
    entries: dict[str, list[dict[str, str]]] = {"Deleted": [], "Error": []}
    for element in root:
        fields = {_name(child): child.text or "" for child in element}
        entries.setdefault(_name(element), []).append(fields)
    return delete_failures(_request(call), entries["Deleted"], entries["Error"])


def _name(element: ET.Element) -> str:
    return element.tag.rpartition("}")[2]


def _request(call: Call) -> Request:
    key = None if isinstance(call, DeleteMany) else call.key
    upload = call.upload_id if isinstance(call, Complete | Abort) else None
    return Request(OPERATIONS[type(call)], call.bucket, key, upload)

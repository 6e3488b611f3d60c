"""Encode calls as requests: path, query and body."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import quote
from xml.sax.saxutils import escape

from airflow_s3commit.store.base import Abort, Call, Complete, DeleteMany, Get, Head, Put
from airflow_s3commit.store.s3.responses import quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_s3commit.store.base import ObjectToDelete, PartEtag

#: S3's names of the operations.
OPERATIONS: dict[type[Call], str] = {
    Complete: "CompleteMultipartUpload",
    Abort: "AbortMultipartUpload",
    Head: "HeadObject",
    Get: "GetObject",
    DeleteMany: "DeleteObjects",
    Put: "PutObject",
}

#: Calls on a multipart upload.
UPLOAD_CALLS = (Complete, Abort)

#: The namespace of S3's documents.
NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"

#: Templates: a completion around its parts, a part, and a completion of one part.
_COMPLETION = f'<CompleteMultipartUpload xmlns="{NAMESPACE}">%s</CompleteMultipartUpload>'
_PART = "<Part><PartNumber>%d</PartNumber><ETag>%s</ETag>%s</Part>"
_ONE_PART = _COMPLETION % _PART % (1, '"%s"', "")

#: Path segments that HTTP clients and servers resolve instead of taking literally.
DOT_SEGMENTS = frozenset({".", ".."})

#: Directories whose quoted form is cached: a job's files are in few.
CACHED_FOLDERS = 4096

#: White space that an XML parser would normalise.
LINE_BREAKS = {"\r": "&#xD;", "\n": "&#xA;"}

_is_unreserved = re.compile(r"[A-Za-z0-9._~-]*", re.ASCII).fullmatch


def is_plain_path(key: str) -> bool:
    """Return whether a key has no dot segments, which libcurl would resolve."""
    return "/." not in f"/{key}" or DOT_SEGMENTS.isdisjoint(key.split("/"))


def path_of(call: Complete | Abort | Head | Get) -> str:
    """Return a call's key, and its query if it has one, quoted for a URL."""
    folder, slash, name = call.key.rpartition("/")
    if not _is_unreserved(name):
        name = quote(name, safe="~")
    path = f"{_folder(folder)}/{name}" if slash else name
    if isinstance(call, UPLOAD_CALLS):
        upload = call.upload_id
        return f"{path}?uploadId={upload if _is_unreserved(upload) else quote(upload, safe='-._~')}"
    return path


def body_of(call: Call) -> bytes:
    """Return the body of a call's request."""
    if isinstance(call, Complete):
        return _part_list(call.etags)
    if isinstance(call, DeleteMany):
        return _delete_list(call.objects)
    return b""


def content_md5(body: bytes) -> str:
    """Return the Content-MD5 header of a body, by which the store detects damage."""
    digest = hashlib.md5(body, usedforsecurity=False).digest()
    return f"Content-MD5: {base64.b64encode(digest).decode()}"


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


def _delete_list(objects: Sequence[ObjectToDelete]) -> bytes:
    # Not quiet: an empty response to a quiet request looks like one that was cut off.
    return f'<Delete xmlns="{NAMESPACE}">{"".join(map(_delete, objects))}</Delete>'.encode()


def _delete(target: ObjectToDelete) -> str:
    etag = "" if target.etag is None else f"<ETag>{_etag(target.etag)}</ETag>"
    return f"<Object><Key>{escape(target.key, LINE_BREAKS)}</Key>{etag}</Object>"

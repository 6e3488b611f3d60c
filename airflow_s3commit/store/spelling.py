"""How calls are spelled in requests that are sent by the thousand: path, query and body."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import quote
from xml.sax.saxutils import escape

from airflow_s3commit.store.answers import quoted
from airflow_s3commit.store.base import Abort, Call, Complete, DeleteMany, Get, Head

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_s3commit.store.base import Doomed, PartEtag

__all__ = ["OPERATIONS", "body_of", "content_md5", "is_plain", "path_of"]

#: S3's names of the operations.
OPERATIONS: dict[type[Call], str] = {
    Complete: "CompleteMultipartUpload",
    Abort: "AbortMultipartUpload",
    Head: "HeadObject",
    Get: "GetObject",
    DeleteMany: "DeleteObjects",
}

#: Calls that name an upload.
OF_UPLOADS = (Complete, Abort)

#: The namespace of S3's documents.
NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"

#: A completion, without its parts; a part, without its number and ETag; and a completion of one part.
_COMPLETION = f'<CompleteMultipartUpload xmlns="{NAMESPACE}">%s</CompleteMultipartUpload>'
_PART = "<Part><PartNumber>%d</PartNumber><ETag>%s</ETag>%s</Part>"
_ONE_PART = _COMPLETION % _PART % (1, '"%s"', "")

#: Path segments that a URL's reader takes for directions instead of names.
DIRECTIONS = frozenset({".", ".."})

#: Directories whose spelling is remembered: a job's files lie in few.
REMEMBERED = 4096

#: White space that a reader of XML would take for other white space.
BREAKS = {"\r": "&#xD;", "\n": "&#xA;"}

_is_unreserved = re.compile(r"[A-Za-z0-9._~-]*", re.ASCII).fullmatch


def is_plain(key: str) -> bool:
    """Tell whether a key reads in a URL as what it is."""
    return "/." not in f"/{key}" or DIRECTIONS.isdisjoint(key.split("/"))


def path_of(call: Complete | Abort | Head | Get) -> str:
    """Return a call's key, and its query if it has one, as they stand in a URL."""
    folder, slash, name = call.key.rpartition("/")
    if not _is_unreserved(name):
        name = quote(name, safe="~")
    path = f"{_folder(folder)}/{name}" if slash else name
    if isinstance(call, OF_UPLOADS):
        upload = call.upload_id
        return f"{path}?uploadId={upload if _is_unreserved(upload) else quote(upload, safe='-._~')}"
    return path


def body_of(call: Call) -> bytes:
    """Return what a call's request says in its body."""
    if isinstance(call, Complete):
        return _part_list(call.etags)
    if isinstance(call, DeleteMany):
        return _delete_list(call.doomed)
    return b""


def content_md5(body: bytes) -> str:
    """Return the header by which a store sees that a body arrived as it was sent."""
    digest = hashlib.md5(body, usedforsecurity=False).digest()
    return f"Content-MD5: {base64.b64encode(digest).decode()}"


@lru_cache(REMEMBERED)
def _folder(folder: str) -> str:
    return quote(folder, safe="/~")


def _part_list(etags: Sequence[PartEtag]) -> bytes:
    if len(etags) == 1 and isinstance(etags[0], str) and etags[0].isalnum():
        # Nearly all: a file of one part, whose ETag is its MD5 in hexadecimal.
        return (_ONE_PART % etags[0]).encode()
    parts = [_part(number, etag) for number, etag in enumerate(etags, start=1)]
    return (_COMPLETION % "".join(parts)).encode()


def _part(number: int, etag: PartEtag) -> str:
    if isinstance(etag, str):
        return _PART % (number, _etag(etag), "")
    name = f"Checksum{etag.algorithm}"
    return _PART % (number, _etag(etag.etag), f"<{name}>{escape(etag.checksum)}</{name}>")


def _etag(etag: str) -> str:
    # Letters, digits and hyphens are what nearly all are made of.
    return f'"{etag}"' if _is_unreserved(etag) else escape(quoted(etag))


def _delete_list(doomed: Sequence[Doomed]) -> bytes:
    # Not quiet: a quiet answer that says nothing cannot be told from one that was cut off.
    return f'<Delete xmlns="{NAMESPACE}">{"".join(map(_delete, doomed))}</Delete>'.encode()


def _delete(target: Doomed) -> str:
    etag = "" if target.etag is None else f"<ETag>{_etag(target.etag)}</ETag>"
    return f"<Object><Key>{escape(target.key, BREAKS)}</Key>{etag}</Object>"

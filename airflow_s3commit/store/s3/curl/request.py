"""Calls as HTTP requests (paths, queries and bodies), calls in progress, and the times of their retries."""

from __future__ import annotations

import math
import re
from functools import lru_cache
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote
from xml.sax.saxutils import escape

from msgspec import Struct

from airflow_s3commit.store.base import Abort, Call, Complete, DeleteMany, Get, Head, Put
from airflow_s3commit.store.s3.client import check_bulk
from airflow_s3commit.store.s3.request import Request, quoted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from botocore.credentials import ReadOnlyCredentials

    from airflow_s3commit.store.base import ObjectToDelete, PartEtag
    from airflow_s3commit.store.execute import Retries, RetryPolicy
    from airflow_s3commit.store.s3.curl.endpoints import Endpoint

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

#: Seconds between the retries of two calls that were cut off, once a silent store answers again.
WAKE_SECONDS = 0.0005

#: Seconds without any response after which a store counts as silent.
SILENT_SECONDS = 0.25


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


class ActiveCall(Struct, eq=False):
    """One call in progress. Created by the thousand, so error-only fields are filled lazily.

    Attributes:
        tag: The caller's tag.
        call: The call.
        began: When the first attempt began, by the retry policy's clock.
        endpoint: Where the last attempt was sent; None before the first.
        keys: The credentials that signed it.
        was_reauthenticated: Whether it was already retried with renewed credentials.

    """

    tag: Any
    call: Call
    began: float
    endpoint: Endpoint | None = None
    keys: ReadOnlyCredentials | None = None
    was_reauthenticated: bool = False
    _request: Request | None = None
    _retries: Retries | None = None

    def __repr__(self) -> str:
        """Name the request, and show no credentials."""
        return f"ActiveCall({self.request})"

    def check(self) -> None:
        """Validate the call before its first attempt.

        Raises:
            StoreRejected: A key or an upload id is empty, which would make another request on the wire.
            ValueError: It deletes too many objects.

        """
        call = self.call
        if type(call) is Complete and call.key and call.upload_id:
            return
        if isinstance(call, DeleteMany):
            check_bulk(call.bucket, call.objects)
        elif not call.key or (isinstance(call, UPLOAD_CALLS) and not call.upload_id):
            self._request = self.request

    @property
    def limit(self) -> int | None:
        """Bytes of the object to read at most; None for no limit."""
        return self.call.limit if isinstance(self.call, Get) else None

    @property
    def request(self) -> Request:
        """The request as its errors name it."""
        if self._request is None:
            call = self.call
            key = None if isinstance(call, DeleteMany) else call.key
            upload = call.upload_id if isinstance(call, UPLOAD_CALLS) else None
            self._request = Request(OPERATIONS[type(call)], call.bucket, key, upload)
        return self._request

    def retries(self, policy: RetryPolicy) -> Retries:
        """Return the call's retries so far."""
        if self._retries is None:
            self._retries = policy.begin(self.began)
        return self._retries


#: When the pause ends, a tie-breaker, the call, and whether it was cut off.
_Pause: TypeAlias = tuple[float, int, ActiveCall, bool]


class Pauses:
    """Calls that wait before they are sent again.

    A call waits until its time comes. When a silent store answers again, the calls that were cut off need not
    wait longer: they become due one after another, so that the store does not get all of them at once. A call
    that is cut off while others get responses waits its full time.
    """

    def __init__(self) -> None:
        self._heap: list[_Pause] = []
        self._order = count()
        self._from_response = -math.inf

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_due(self) -> float:
        """When the next pause ends; infinity if there is none."""
        return self._heap[0][0] if self._heap else math.inf

    def add(self, active: ActiveCall, due: float, *, cut_off: bool) -> None:
        """Let a call wait until ``due``; ``cut_off`` if its last attempt got no response at all."""
        heappush(self._heap, (due, next(self._order), active, cut_off))

    def over(self, now: float) -> Iterator[ActiveCall]:
        """Remove and yield the calls whose pause has ended, the earliest first."""
        while self._heap and self._heap[0][0] <= now:
            yield heappop(self._heap)[2]

    def store_answered(self, now: float) -> None:
        """Shorten the pauses of the calls that were cut off, if the store was silent until now."""
        if now - self._from_response >= SILENT_SECONDS and self._heap:
            turns = count(1)
            self._heap = [
                (min(due, now + next(turns) * WAKE_SECONDS) if cut_off else due, order, active, cut_off)
                for due, order, active, cut_off in sorted(self._heap)
            ]
            heapify(self._heap)
        self._from_response = now

"""As much of S3 as a job's records need, in memory: what `null_server` answers besides completions."""

from __future__ import annotations

import hashlib
import itertools
import re
from dataclasses import dataclass, field
from email.utils import formatdate
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

#: The prefix of the ids of uploads whose parts are kept.
KEPT = "kept-"

XMLNS = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
PAGE = 1000


@dataclass(frozen=True, slots=True)
class Asked:
    """A request.

    Attributes:
        method: Its method.
        target: The path with its query, as they came.
        headers: Its headers, by name in lower case.
        body: Its body.
    """

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


@dataclass(slots=True)
class _Upload:
    key: str
    metadata: dict[str, str]
    parts: dict[int, bytes] = field(default_factory=dict)


@dataclass(slots=True)
class _Object:
    body: bytes
    etag: str
    written: str
    metadata: dict[str, str]


class Records:
    """Objects of one bucket, and S3's operations on them."""

    def __init__(self) -> None:
        self._objects: dict[str, _Object] = {}
        self._uploads: dict[str, _Upload] = {}
        self._ids = itertools.count(1)

    def answer(self, asked: Asked) -> bytes:
        """Return the answer to a request, as sent over the wire."""
        url = urlsplit(asked.target)
        key = unquote(url.path).removeprefix("/").partition("/")[2]
        query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        return self._about_key(asked, key, query) if key else self._about_bucket(asked, query)

    def _about_bucket(self, asked: Asked, query: dict[str, str]) -> bytes:
        if asked.method == "HEAD":
            return _say(200)
        if "delete" in query:
            keys = [unquote(key) for key in re.findall(r"<Key>(.*?)</Key>", asked.body.decode())]
            for key in keys:
                self._objects.pop(key, None)
            deleted = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
            return _xml("DeleteResult", deleted)
        if "uploads" in query:
            uploads = "".join(
                f"<Upload><Key>{escape(upload.key)}</Key><UploadId>{name}</UploadId>"
                "<Initiated>2026-01-01T00:00:00Z</Initiated></Upload>"
                for name, upload in self._uploads.items()
                if upload.key.startswith(query.get("prefix", ""))
            )
            return _xml("ListMultipartUploadsResult", f"<IsTruncated>false</IsTruncated>{uploads}")
        if "list-type" in query:
            return self._listed(query)
        return _error(404, "NoSuchLifecycleConfiguration")

    def _listed(self, query: dict[str, str]) -> bytes:
        prefix, after = query.get("prefix", ""), query.get("continuation-token", query.get("start-after", ""))
        keys = sorted(key for key in self._objects if key.startswith(prefix) and key > after)
        if query.get("delimiter"):
            keys = [key for key in keys if "/" not in key[len(prefix) :]]
        page, more = keys[:PAGE], len(keys) > PAGE
        found = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>2026-01-01T00:00:00Z</LastModified>"
            f"<ETag>&quot;{self._objects[key].etag}&quot;</ETag><Size>{len(self._objects[key].body)}</Size></Contents>"
            for key in page
        )
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        return _xml("ListBucketResult", f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}{found}")

    def _about_key(self, asked: Asked, key: str, query: dict[str, str]) -> bytes:
        if "uploads" in query or "uploadId" in query:
            return self._about_upload(asked, key, query)
        stored = self._objects.get(key)
        if asked.method == "PUT":
            return self._put(asked, key, stored)
        if stored is not None and _differs(asked, stored):
            return _error(412, "PreconditionFailed")
        if asked.method == "DELETE":
            self._objects.pop(key, None)
            return _say(204)
        return _error(404, "NoSuchKey") if stored is None else _found(asked, stored)

    def _put(self, asked: Asked, key: str, stored: _Object | None) -> bytes:
        if asked.headers.get("if-none-match") == "*" and stored is not None:
            return _error(412, "PreconditionFailed")
        if "if-match" in asked.headers and (stored is None or _differs(asked, stored)):
            return _error(412, "PreconditionFailed")
        return self._keep(key, asked.body, {})

    def _about_upload(self, asked: Asked, key: str, query: dict[str, str]) -> bytes:
        if "uploads" in query:
            upload_id = f"{KEPT}{next(self._ids)}"
            self._uploads[upload_id] = _Upload(key, _metadata(asked))
            return _xml("InitiateMultipartUploadResult", f"<UploadId>{upload_id}</UploadId>")
        upload = self._uploads.get(query["uploadId"])
        if upload is None:
            return _error(404, "NoSuchUpload")
        if asked.method == "PUT":
            upload.parts[int(query["partNumber"])] = asked.body
            return _say(200, headers=f'ETag: "{_md5(asked.body).hexdigest()}"\r\n')
        del self._uploads[query["uploadId"]]
        if asked.method == "DELETE":
            return _say(204)
        parts = [body for _, body in sorted(upload.parts.items())]
        etag = f"{_md5(b''.join(_md5(part).digest() for part in parts)).hexdigest()}-{len(parts)}"
        self._keep(key, b"".join(parts), upload.metadata, etag)
        return _xml("CompleteMultipartUploadResult", f"<ETag>&quot;{etag}&quot;</ETag>")

    def _keep(self, key: str, body: bytes, metadata: dict[str, str], etag: str | None = None) -> bytes:
        etag = etag or _md5(body).hexdigest()
        self._objects[key] = _Object(body, etag, formatdate(usegmt=True), metadata)
        return _say(200, headers=f'ETag: "{etag}"\r\n')


def _found(asked: Asked, stored: _Object) -> bytes:
    named = "".join(f"x-amz-meta-{name}: {value}\r\n" for name, value in stored.metadata.items())
    headers = f'ETag: "{stored.etag}"\r\nLast-Modified: {stored.written}\r\n{named}'
    if asked.method == "HEAD":
        return _say(200, length=len(stored.body), headers=headers)
    wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", asked.headers.get("range", ""))
    if wanted is None:
        return _say(200, stored.body, headers=headers)
    first, last = int(wanted[1]), min(int(wanted[2]), len(stored.body) - 1)
    headers += f"Content-Range: bytes {first}-{last}/{len(stored.body)}\r\n"
    return _say(206, stored.body[first : last + 1], headers=headers)


def _differs(asked: Asked, stored: _Object) -> bool:
    return asked.headers.get("if-match", stored.etag).strip('"') != stored.etag


def _metadata(asked: Asked) -> dict[str, str]:
    start = "x-amz-meta-"
    return {
        name.removeprefix(start): value for name, value in asked.headers.items() if name.startswith(start)
    }


def _md5(body: bytes) -> hashlib._Hash:
    return hashlib.md5(body, usedforsecurity=False)


def _xml(name: str, inner: str) -> bytes:
    return _say(200, f'<?xml version="1.0"?>\n<{name} {XMLNS}>{inner}</{name}>'.encode())


def _error(status: int, code: str) -> bytes:
    return _say(status, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode())


def _say(status: int, body: bytes = b"", *, length: int | None = None, headers: str = "") -> bytes:
    head = (
        f"HTTP/1.1 {status} X\r\nDate: {formatdate(usegmt=True)}\r\n{headers}"
        f"Content-Length: {len(body) if length is None else length}\r\n\r\n"
    )
    return head.encode() + body

"""An S3 server that deviates from AWS S3 in the respects that it is given, each seen at a real store.

`MemoryStore` keeps its objects and uploads; `DeviantStore.answer` decides for a `FaultServer`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import formatdate
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

from airflow_s3commit import MemoryStore
from airflow_s3commit.exceptions import (
    NoSuchBucket,
    NoSuchKey,
    NoSuchUpload,
    PreconditionFailed,
    S3CommitError,
    StoreRejected,
)
from airflow_s3commit.store.base import ObjectInfo, ObjectToDelete
from tests.fakes import ManualClock
from tests.store.s3.fault_server import Say, Seen
from tests.store.s3.wire import error_body

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["DeviantStore", "Deviation"]

#: ``bare etags``: the right ETag in quotes is refused by PUT (Ceph RGW 16). ``delete refused``: 501 to a
#: conditional delete (LocalStack 4.12). ``delete ignored``: it deletes whatever the condition is (Ceph RGW).
#: ``bulk ignored``: so do bulk deletes (all but SeaweedFS). ``create ignored``, ``match ignored``: writes
#: ignore the condition. ``match refused``: no write with If-Match succeeds. ``markers refused``: 400 to the
#: upload id marker that a page named (versitygw 1.8). ``gone is 500``: so is completing an upload that is
#: gone (Ceph RGW). ``gone is no key``: listing its parts answers NoSuchKey (Ceph RGW). ``unknown is 400``: so
#: is aborting an upload that was never there (S3Mock 4.11).
Deviation: TypeAlias = Literal[
    "bare etags",
    "bulk ignored",
    "create ignored",
    "delete ignored",
    "delete refused",
    "gone is 500",
    "gone is no key",
    "markers refused",
    "match ignored",
    "match refused",
    "unknown is 400",
]

_ERRORS: dict[type[S3CommitError], tuple[int, str]] = {
    NoSuchBucket: (404, "NoSuchBucket"),
    NoSuchKey: (404, "NoSuchKey"),
    NoSuchUpload: (404, "NoSuchUpload"),
    PreconditionFailed: (412, "PreconditionFailed"),
}


class DeviantStore:
    """The server's objects, and its answers.

    Args:
        deviations: What it does otherwise than AWS S3.
        page: Entries on a page of pending uploads, at most.

    Attributes:
        memory: The objects and uploads.
        clock: Its time.
    """

    def __init__(self, *deviations: Deviation, page: int = 1000) -> None:
        self.clock = ManualClock()
        self.memory = MemoryStore(("lake",), now=self.clock.time, min_part_bytes=1)
        self._does = frozenset[str](deviations)
        self._page = page

    def answer(self, seen: Seen) -> Say:
        """Answer a request."""
        parts = urlsplit(seen.path)
        bucket, _, key = unquote(parts.path).removeprefix("/").partition("/")
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        try:
            said = self._decide(seen, bucket, key, query)
        except StoreRejected as error:
            said = Say(501 if error.code == "NotImplemented" else 400, error_body(error.code))
        except S3CommitError as error:
            status, code = _ERRORS[type(error)]
            said = Say(status, error_body(code))
        date = {"Date": formatdate(self.clock.time(), usegmt=True)}
        return Say(said.status, said.body, said.headers | date)

    def _decide(self, seen: Seen, bucket: str, key: str, query: Mapping[str, str]) -> Say:
        if not key:
            return self._on_bucket(seen, bucket, query)
        if "uploads" in query or "uploadId" in query:
            return self._on_upload(seen, bucket, key, query)
        if seen.method == "PUT":
            return self._put(seen, bucket, key)
        if seen.method == "DELETE":
            return self._delete(seen, bucket, key)
        found = self.memory.get(bucket, key)
        headers = _described(found.info)
        wanted = seen.headers.get("range")
        if wanted is None:
            return Say(headers=headers, body=found.body)
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        body = found.body[int(first) : int(last) + 1]
        return Say(206, body, headers | {"Content-Range": f"bytes {first}-{last}/{len(found.body)}"})

    def _put(self, seen: Seen, bucket: str, key: str) -> Say:
        condition = seen.headers.get("if-match")
        create = "if-none-match" in seen.headers and "create ignored" not in self._does
        if condition is not None:
            if "match refused" in self._does or ("bare etags" in self._does and '"' in condition):
                raise PreconditionFailed
            condition = None if "match ignored" in self._does else condition.strip('"')
        written = self.memory.put(bucket, key, seen.body, if_none_match=create, if_match=condition)
        return Say(headers={"ETag": f'"{written.etag}"'})

    def _delete(self, seen: Seen, bucket: str, key: str) -> Say:
        condition = seen.headers.get("if-match")
        if condition is not None and "delete refused" in self._does:
            raise StoreRejected("", code="NotImplemented")
        if condition is not None and "delete ignored" not in self._does:
            self.memory.delete(bucket, key, if_match=condition)
        else:
            self.memory.delete(bucket, key)
        return Say(204)

    def _on_bucket(self, seen: Seen, bucket: str, query: Mapping[str, str]) -> Say:
        if seen.method == "HEAD":
            self.memory.check_bucket(bucket)
            return Say()
        if seen.method == "POST":
            return self._delete_many(seen, bucket)
        if "lifecycle" in query:
            return Say(404, error_body("NoSuchLifecycleConfiguration"))
        if "uploads" in query:
            return self._list_uploads(bucket, query)
        recursive = "delimiter" not in query
        after = query.get("continuation-token", query.get("start-after"))
        listed = list(
            self.memory.list_objects(bucket, query["prefix"], recursive=recursive, start_after=after)
        )
        page = listed[: int(query.get("max-keys", "1000"))]
        more = len(listed) > len(page)
        token = f"<NextContinuationToken>{escape(page[-1].key)}</NextContinuationToken>" if more else ""
        entries = (
            f"<Contents><Key>{escape(info.key)}</Key><Size>{info.size}</Size><ETag>&quot;{info.etag}&quot;"
            f"</ETag><LastModified>{_iso(info.modified)}</LastModified></Contents>"
            for info in page
        )
        return _xml("ListBucketResult", f"<IsTruncated>{str(more).lower()}</IsTruncated>", token, *entries)

    def _delete_many(self, seen: Seen, bucket: str) -> Say:
        said = []
        for element in ET.fromstring(seen.body):
            fields = {child.tag.rpartition("}")[2]: child.text or "" for child in element}
            etag = None if "bulk ignored" in self._does else fields.get("ETag")
            target = ObjectToDelete(fields["Key"], None if etag is None else etag.strip('"'))
            name = f"<Key>{escape(target.key)}</Key>"
            failed = self.memory.delete_many(bucket, [target])
            said += [f"<Error>{name}<Code>{failure.code}</Code></Error>" for failure in failed]
            said += [] if failed else [f"<Deleted>{name}</Deleted>"]
        return _xml("DeleteResult", *said)

    def _list_uploads(self, bucket: str, query: Mapping[str, str]) -> Say:
        key_marker, id_marker = query.get("key-marker", ""), query.get("upload-id-marker")
        if id_marker is not None and "markers refused" in self._does:
            raise StoreRejected("", code="InvalidArgument")
        listed = list(self.memory.list_uploads(bucket, query.get("prefix", "")))
        ids = [(upload.key, upload.upload_id) for upload in listed]
        if id_marker is not None:
            listed = listed[ids.index((key_marker, id_marker)) + 1 :]
        else:
            listed = [upload for upload in listed if upload.key > key_marker]
        page, more = listed[: self._page], len(listed) > self._page
        entries = (
            f"<Upload><Key>{escape(upload.key)}</Key><UploadId>{upload.upload_id}</UploadId>"
            f"<Initiated>{_iso(upload.initiated)}</Initiated></Upload>"
            for upload in page
        )
        next_page = (
            f"<NextKeyMarker>{escape(page[-1].key)}</NextKeyMarker>"
            f"<NextUploadIdMarker>{page[-1].upload_id}</NextUploadIdMarker>"
            if more
            else ""
        )
        return _xml(
            "ListMultipartUploadsResult",
            f"<IsTruncated>{str(more).lower()}</IsTruncated>",
            next_page,
            *entries,
        )

    def _on_upload(self, seen: Seen, bucket: str, key: str, query: Mapping[str, str]) -> Say:
        memory, upload_id = self.memory, query.get("uploadId", "")
        match seen.method, "partNumber" in query:
            case "POST", _ if not upload_id:
                headers = {k: v for k, v in seen.headers.items() if k.startswith("x-amz-meta-")}
                begun = memory.create_upload(bucket, key, metadata={}, content_type="", headers=headers)
                return _xml("InitiateMultipartUploadResult", f"<UploadId>{begun}</UploadId>")
            case "PUT", _:
                etag = memory.upload_part(bucket, key, upload_id, int(query["partNumber"]), seen.body)
                return Say(headers={"ETag": f'"{etag}"'})
            case "POST", _:
                return self._complete(seen, bucket, key, upload_id)
            case "DELETE", _:
                pending = [upload.upload_id for upload in memory.list_uploads(bucket, key)]
                if upload_id not in pending:
                    if "unknown is 400" in self._does:
                        return Say(400)
                    raise NoSuchUpload
                memory.abort_upload(bucket, key, upload_id)
                return Say(204)
        return self._list_parts(bucket, key, upload_id)

    def _complete(self, seen: Seen, bucket: str, key: str, upload_id: str) -> Say:
        etags = [(e.text or "").strip('"') for e in ET.fromstring(seen.body).iter() if e.tag.endswith("ETag")]
        try:
            etag = self.memory.complete_upload(bucket, key, upload_id, etags)
        except NoSuchUpload:
            if "gone is 500" in self._does:
                return Say(500, error_body("InternalError"))
            raise
        return _xml("CompleteMultipartUploadResult", f"<ETag>&quot;{etag}&quot;</ETag>")

    def _list_parts(self, bucket: str, key: str, upload_id: str) -> Say:
        try:
            parts = list(self.memory.list_parts(bucket, key, upload_id))
        except NoSuchUpload:
            if "gone is no key" in self._does:
                raise NoSuchKey from None
            raise
        entries = (
            f"<Part><PartNumber>{part.number}</PartNumber><ETag>&quot;{part.etag}&quot;</ETag>"
            f"<Size>{part.size}</Size></Part>"
            for part in parts
        )
        return _xml("ListPartsResult", "<IsTruncated>false</IsTruncated>", *entries)


def _described(info: ObjectInfo) -> dict[str, Any]:
    metadata = {f"x-amz-meta-{name}": value for name, value in info.metadata.items()}
    modified = formatdate(info.modified, usegmt=True)
    return {"ETag": f'"{info.etag}"', "Last-Modified": modified, **metadata}


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _xml(name: str, *elements: str) -> Say:
    return Say(body=f"<{name}>{''.join(elements)}</{name}>".encode())

"""An S3 store in memory, for tests, examples and dry runs.

It follows S3's rules that matter to a committer: strong consistency, part numbers and multipart ETags
(``md5(concat(md5(part)))-n``), conditional writes, uploads that are invisible until completed, and the ways
in which real stores differ when a completed upload is completed again.
"""

from __future__ import annotations

import hashlib
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Literal, TypeVar
from urllib.parse import parse_qsl

from msgspec import Struct

from airflow_s3commit.exceptions import (
    NoSuchBucket,
    NoSuchKey,
    NoSuchUpload,
    PreconditionFailed,
    StoreRejected,
    TooLarge,
)
from airflow_s3commit.store.base import (
    MAX_PARTS,
    METADATA_PREFIX,
    MIN_PART_BYTES,
    TAG_COUNT,
    Call,
    DeleteFailure,
    Fetched,
    Load,
    ObjectInfo,
    ObjectToDelete,
    Outcome,
    Part,
    PartEtag,
    StoreProfile,
    Upload,
    Written,
    boto3_parameters,
    object_headers,
)
from airflow_s3commit.store.execute import one_by_one

T = TypeVar("T")


class _Stored(Struct):
    info: ObjectInfo
    body: bytes
    upload_id: str | None = None


class _Pending(Struct):
    key: str
    initiated: float
    headers: Mapping[str, str]
    parts: dict[int, tuple[str, bytes]] = {}


class _Bucket(Struct):
    objects: dict[str, _Stored] = {}
    uploads: dict[str, _Pending] = {}


class MemoryStore:
    """An `ObjectStore` in this process's memory; safe to use from several threads.

    It never raises `Unavailable` or `OutcomeUnknown`, so no call needs to be repeated.

    Args:
        buckets: The buckets that exist.
        now: The store's clock, in seconds since the epoch; by default it counts calls, so that times differ.
        min_part_bytes: The smallest size of a part, except the last, in bytes.
        repeat_complete: How a second completion of an upload ends while its object exists: ``"ok"`` returns
            the ETag (AWS for a while, SeaweedFS, Ceph), ``"gone"`` raises `NoSuchUpload` (MinIO).
        conditions: False ignores ``if_match`` and ``if_none_match``, as some stores do.
        stale_upload_days: The result of the method `stale_upload_days`.
    """

    endpoint = "memory:"
    load = Load(1, 0)

    def __init__(
        self,
        buckets: Iterable[str] = ("lake",),
        *,
        now: Callable[[], float] | None = None,
        min_part_bytes: int = MIN_PART_BYTES,
        repeat_complete: Literal["ok", "gone"] = "ok",
        conditions: bool = True,
        stale_upload_days: int | None = None,
    ) -> None:
        ticks = count(1_700_000_000)
        self._buckets = {name: _Bucket() for name in buckets}
        self._now = now or (lambda: float(next(ticks)))
        self._min_part_bytes = min_part_bytes
        self._repeat_complete = repeat_complete
        self._conditions = conditions
        self._stale_upload_days = stale_upload_days
        # Part of the interface; this store ignores them.
        self.profiles: defaultdict[str, StoreProfile] = defaultdict(StoreProfile)
        self._lock = threading.RLock()
        self._uploads_started = 0

    def check_bucket(self, bucket: str) -> None:
        """Implement `ObjectStore.check_bucket`."""
        self._bucket(bucket)

    def stale_upload_days(self, bucket: str, prefix: str) -> int | None:  # noqa: ARG002 - part of the interface
        """Implement `ObjectStore.stale_upload_days`."""
        self._bucket(bucket)
        return self._stale_upload_days

    def head(self, bucket: str, key: str) -> ObjectInfo:
        """Implement `ObjectStore.head`."""
        return self._object(bucket, key).info

    def get(self, bucket: str, key: str, limit: int | None = None) -> Fetched:
        """Implement `ObjectStore.get`."""
        with self._lock:
            stored = self._object(bucket, key)
            if limit is not None and stored.info.size > limit:
                raise TooLarge.of(f"s3://{bucket}/{key}", stored.info.size, limit)
            return Fetched(stored.info, stored.body, self._now())

    def get_range(self, bucket: str, key: str, first: int, size: int, *, etag: str) -> bytes:
        """Implement `ObjectStore.get_range`."""
        with self._lock:
            stored = self._object(bucket, key)
            self._match(bucket, key, stored, etag)
            return stored.body[first : first + size]

    def put(
        self,
        bucket: str,
        key: str,
        body: bytes,
        *,
        if_none_match: bool = False,
        if_match: str | None = None,
        content_type: str = "application/json",  # noqa: ARG002 - part of the interface
        headers: Mapping[str, str] | None = None,
    ) -> Written:
        """Implement `ObjectStore.put`."""
        with self._lock:
            objects = self._bucket(bucket).objects
            current = objects.get(key)
            if self._conditions and if_none_match and current is not None:
                raise PreconditionFailed(f"s3://{bucket}/{key} exists")
            if self._conditions and if_match is not None:
                self._match(bucket, key, current, if_match)
            now = self._now()
            etag = _md5(bytes(body)).hexdigest()
            info = _object_info(key, len(body), etag, now, headers or {})
            objects[key] = _Stored(info, bytes(body))
            return Written(etag, now)

    def delete(self, bucket: str, key: str, *, if_match: str | None = None) -> None:
        """Implement `ObjectStore.delete`."""
        with self._lock:
            objects = self._bucket(bucket).objects
            if key not in objects:
                return
            if self._conditions and if_match is not None:
                self._match(bucket, key, objects[key], if_match)
            del objects[key]

    def delete_many(self, bucket: str, objects: Sequence[ObjectToDelete]) -> list[DeleteFailure]:
        """Implement `ObjectStore.delete_many`."""
        failures = []
        for target in objects:
            try:
                self.delete(bucket, target.key, if_match=target.etag)
            except PreconditionFailed as error:
                failures.append(DeleteFailure(target.key, "PreconditionFailed", str(error)))
        return failures

    def list_objects(
        self,
        bucket: str,
        prefix: str,
        *,
        recursive: bool = True,
        start_after: str | None = None,
        page: int | None = None,  # noqa: ARG002 - all is one page here
    ) -> Iterator[ObjectInfo]:
        """Implement `ObjectStore.list_objects`."""
        with self._lock:
            objects = self._bucket(bucket).objects
            keys = sorted(key for key in objects if key.startswith(prefix))
            found = [objects[key].info for key in keys if start_after is None or key > start_after]
        for info in found:
            if recursive or "/" not in info.key[len(prefix) :]:
                yield ObjectInfo(info.key, info.size, info.etag, info.modified)

    def create_upload(
        self,
        bucket: str,
        key: str,
        *,
        metadata: Mapping[str, str],
        content_type: str,  # noqa: ARG002 - part of the interface
        headers: Mapping[str, str] | None = None,
    ) -> str:
        """Implement `ObjectStore.create_upload`."""
        with self._lock:
            self._uploads_started += 1
            upload_id = f"upload-{self._uploads_started:06d}"
            sent = {f"{METADATA_PREFIX}{name.lower()}": value for name, value in metadata.items()}
            _object_info(key, 0, "", 0.0, headers or {})  # rejects what a write would be rejected for
            self._bucket(bucket).uploads[upload_id] = _Pending(key, self._now(), {**(headers or {}), **sent})
            return upload_id

    def upload_part(
        self, bucket: str, key: str, upload_id: str, number: int, body: bytes | bytearray | memoryview
    ) -> str:
        """Implement `ObjectStore.upload_part`."""
        with self._lock:
            pending = self._pending(bucket, key, upload_id)
            if not 1 <= number <= MAX_PARTS:
                raise StoreRejected(f"part number {number} of s3://{bucket}/{key}", code="InvalidArgument")
            content = bytes(body)
            etag = _md5(content).hexdigest()
            pending.parts[number] = (etag, content)
            return etag

    def complete_upload(self, bucket: str, key: str, upload_id: str, etags: Sequence[PartEtag]) -> str:
        """Implement `ObjectStore.complete_upload`."""
        with self._lock:
            home = self._bucket(bucket)
            stored = home.objects.get(key)
            if stored is not None and stored.upload_id == upload_id and self._repeat_complete == "ok":
                return stored.info.etag
            pending = self._pending(bucket, key, upload_id)
            body, etag = self._assemble(bucket, pending, etags)
            info = _object_info(key, len(body), etag, self._now(), pending.headers)
            home.objects[key] = _Stored(info, body, upload_id)
            del home.uploads[upload_id]
            return etag

    def abort_upload(self, bucket: str, key: str, upload_id: str) -> None:
        """Implement `ObjectStore.abort_upload`."""
        with self._lock:
            uploads = self._bucket(bucket).uploads
            if upload_id in uploads and uploads[upload_id].key == key:
                del uploads[upload_id]

    def list_uploads(self, bucket: str, prefix: str, *, page: int | None = None) -> Iterator[Upload]:  # noqa: ARG002 - part of the interface
        """Implement `ObjectStore.list_uploads`."""
        with self._lock:
            found = [
                Upload(pending.key, upload_id, pending.initiated)
                for upload_id, pending in self._bucket(bucket).uploads.items()
                if pending.key.startswith(prefix)
            ]
        yield from sorted(found, key=lambda upload: (upload.key, upload.initiated))

    def list_parts(self, bucket: str, key: str, upload_id: str) -> Iterator[Part]:
        """Implement `ObjectStore.list_parts`."""
        with self._lock:
            parts = sorted(self._pending(bucket, key, upload_id).parts.items())
        for number, (etag, content) in parts:
            yield Part(number, etag, len(content))

    def perform(self, calls: Iterable[tuple[T, Call]]) -> Iterator[tuple[T, Outcome]]:
        """Implement `ObjectStore.perform`."""
        return one_by_one(self, calls)

    def _bucket(self, bucket: str) -> _Bucket:
        try:
            return self._buckets[bucket]
        except KeyError:
            raise NoSuchBucket(f"bucket {bucket} does not exist") from None

    def _object(self, bucket: str, key: str) -> _Stored:
        try:
            return self._bucket(bucket).objects[key]
        except KeyError:
            raise NoSuchKey(f"s3://{bucket}/{key} does not exist") from None

    def _pending(self, bucket: str, key: str, upload_id: str) -> _Pending:
        pending = self._bucket(bucket).uploads.get(upload_id)
        if pending is None or pending.key != key:
            raise NoSuchUpload(f"upload {upload_id} of s3://{bucket}/{key} is not known")
        return pending

    def _assemble(self, bucket: str, pending: _Pending, etags: Sequence[PartEtag]) -> tuple[bytes, str]:
        where = f"s3://{bucket}/{pending.key}"
        if not etags:
            raise StoreRejected(f"no parts given for {where}", code="MalformedXML")
        content: list[bytes] = []
        for number, etag in enumerate(etags, start=1):
            part, named = pending.parts.get(number), etag if isinstance(etag, str) else etag.etag
            if part is None or part[0] != named.strip('"'):
                raise StoreRejected(f"part {number} of {where} is not the one given", code="InvalidPart")
            content.append(part[1])
        if any(len(part) < self._min_part_bytes for part in content[:-1]):
            raise StoreRejected(f"a part of {where} is too small", code="EntityTooSmall")
        digest = _md5(b"".join(_md5(part).digest() for part in content))
        return b"".join(content), f"{digest.hexdigest()}-{len(content)}"

    @staticmethod
    def _match(bucket: str, key: str, current: _Stored | None, if_match: str) -> None:
        if current is None or current.info.etag != if_match.strip('"'):
            raise PreconditionFailed(f"s3://{bucket}/{key} does not have the ETag {if_match}")


def _object_info(key: str, size: int, etag: str, modified: float, sent: Mapping[str, str]) -> ObjectInfo:
    """Return the `ObjectInfo` of an object written with these headers, or reject them as S3 does."""
    if not 0 < len(key.encode("utf-8", "surrogatepass")) <= 1024:  # noqa: PLR2004 - S3's limit
        raise StoreRejected(f"the key {key[:80]!r} is empty or too long", code="KeyTooLongError")
    boto3_parameters(sent)
    metadata, headers = object_headers(sent)
    if sent.get("x-amz-tagging"):
        headers[TAG_COUNT] = str(len(parse_qsl(sent["x-amz-tagging"], keep_blank_values=True)))
    return ObjectInfo(key, size, etag, modified, metadata, headers)


def _md5(content: bytes) -> hashlib._Hash:
    return hashlib.md5(content, usedforsecurity=False)

"""A store that forwards every call to another one: the base of stores that count, bound or break calls."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from airflow_s3commit.store.base import (
    Abort,
    Call,
    Complete,
    DeleteFailure,
    DeleteMany,
    Fetched,
    Get,
    Head,
    Load,
    ObjectInfo,
    ObjectStore,
    ObjectToDelete,
    Outcome,
    Part,
    PartEtag,
    Put,
    Upload,
    Written,
)
from airflow_s3commit.store.profile import StoreProfile

T = TypeVar("T")

#: ``org.apache.hadoop.fs.s3a.Statistic`` of each method. A listing counts as one request, however many pages
#: it has; retries are not counted.
_STATISTICS = {
    "abort_upload": "object_multipart_aborted",
    "check_bucket": "op_get_file_status",
    "complete_upload": "multipart_upload_completed",
    "create_upload": "object_multipart_initiated",
    "delete": "object_delete_request",
    "delete_many": "object_bulk_delete_request",
    "get": "action_http_get_request",
    "get_range": "action_http_get_request",
    "head": "action_http_head_request",
    "list_objects": "object_list_request",
    "list_parts": "multipart_upload_list",
    "list_uploads": "object_multipart_list",
    "put": "object_put_requests",
    "stale_upload_days": "action_http_get_request",
    "upload_part": "multipart_upload_part_put",
}

_CALLS: dict[type[Call], str] = {
    Abort: "abort_upload",
    Complete: "complete_upload",
    DeleteMany: "delete_many",
    Get: "get",
    Head: "head",
    Put: "put",
}


class ForwardingStore:
    """An `ObjectStore` that forwards every method to another store through `forward`.

    Override `forward` to act on every call, or single methods. `perform` bypasses `forward` and goes to the
    inner store's `perform`: a subclass that must see those calls overrides it too.

    Args:
        inner: The store to forward to.
        headers: Headers for writes without headers of their own.

    """

    def __init__(self, inner: ObjectStore, headers: Mapping[str, str] | None = None) -> None:
        self.inner = inner
        self._headers = headers

    def forward(self, verb: str, bucket: str, key: str, make: Callable[[], T]) -> T:  # noqa: ARG002
        """Make one call.

        Args:
            verb: The method's name.
            bucket: The bucket.
            key: The key; the prefix of a listing; empty for calls on the bucket and for bulk deletes.
            make: Makes the call on the inner store and returns its result.

        """
        return make()

    @property
    def load(self) -> Load:
        """The inner store's load; sends no request."""
        return self.inner.load

    @property
    def endpoint(self) -> str:
        """The inner store's address; sends no request."""
        return self.inner.endpoint

    def profile(self, bucket: str) -> StoreProfile:
        """Return the inner store's profile of a bucket; sends no request."""
        return self.inner.profile(bucket)

    def follow(self, bucket: str, profile: StoreProfile) -> None:
        """Make the inner store follow a profile; sends no request."""
        self.inner.follow(bucket, profile)

    def check_bucket(self, bucket: str) -> None:
        """Forward `ObjectStore.check_bucket`."""
        self.forward("check_bucket", bucket, "", lambda: self.inner.check_bucket(bucket))

    def stale_upload_days(self, bucket: str, prefix: str) -> int | None:
        """Forward `ObjectStore.stale_upload_days`."""
        return self.forward(
            "stale_upload_days", bucket, prefix, lambda: self.inner.stale_upload_days(bucket, prefix)
        )

    def head(self, bucket: str, key: str) -> ObjectInfo:
        """Forward `ObjectStore.head`."""
        return self.forward("head", bucket, key, lambda: self.inner.head(bucket, key))

    def get(self, bucket: str, key: str, *, limit: int | None = None) -> Fetched:
        """Forward `ObjectStore.get`."""
        return self.forward("get", bucket, key, lambda: self.inner.get(bucket, key, limit=limit))

    def get_range(self, bucket: str, key: str, first: int, size: int, *, etag: str) -> bytes:
        """Forward `ObjectStore.get_range`."""
        return self.forward(
            "get_range", bucket, key, lambda: self.inner.get_range(bucket, key, first, size, etag=etag)
        )

    def put(
        self,
        bucket: str,
        key: str,
        body: bytes,
        *,
        if_none_match: bool = False,
        if_match: str | None = None,
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> Written:
        """Forward `ObjectStore.put`."""
        sent = self._headers if headers is None else headers
        return self.forward(
            "put",
            bucket,
            key,
            lambda: self.inner.put(
                bucket,
                key,
                body,
                if_none_match=if_none_match,
                if_match=if_match,
                content_type=content_type,
                headers=sent,
            ),
        )

    def delete(self, bucket: str, key: str, *, if_match: str | None = None) -> None:
        """Forward `ObjectStore.delete`."""
        self.forward("delete", bucket, key, lambda: self.inner.delete(bucket, key, if_match=if_match))

    def delete_many(self, bucket: str, objects: Sequence[ObjectToDelete]) -> list[DeleteFailure]:
        """Forward `ObjectStore.delete_many`."""
        return self.forward("delete_many", bucket, "", lambda: self.inner.delete_many(bucket, objects))

    def list_objects(
        self,
        bucket: str,
        prefix: str,
        *,
        recursive: bool = True,
        start_after: str | None = None,
        page: int | None = None,
    ) -> Iterator[ObjectInfo]:
        """Forward `ObjectStore.list_objects`."""
        return self.forward(
            "list_objects",
            bucket,
            prefix,
            lambda: self.inner.list_objects(
                bucket, prefix, recursive=recursive, start_after=start_after, page=page
            ),
        )

    def create_upload(
        self,
        bucket: str,
        key: str,
        *,
        metadata: Mapping[str, str],
        content_type: str,
        headers: Mapping[str, str] | None = None,
    ) -> str:
        """Forward `ObjectStore.create_upload`."""
        sent = self._headers if headers is None else headers
        return self.forward(
            "create_upload",
            bucket,
            key,
            lambda: self.inner.create_upload(
                bucket, key, metadata=metadata, content_type=content_type, headers=sent
            ),
        )

    def upload_part(
        self, bucket: str, key: str, upload_id: str, number: int, body: bytes | bytearray | memoryview
    ) -> str:
        """Forward `ObjectStore.upload_part`."""
        return self.forward(
            "upload_part", bucket, key, lambda: self.inner.upload_part(bucket, key, upload_id, number, body)
        )

    def complete_upload(self, bucket: str, key: str, upload_id: str, etags: Sequence[PartEtag]) -> str:
        """Forward `ObjectStore.complete_upload`."""
        return self.forward(
            "complete_upload", bucket, key, lambda: self.inner.complete_upload(bucket, key, upload_id, etags)
        )

    def abort_upload(self, bucket: str, key: str, upload_id: str) -> None:
        """Forward `ObjectStore.abort_upload`."""
        self.forward("abort_upload", bucket, key, lambda: self.inner.abort_upload(bucket, key, upload_id))

    def list_uploads(self, bucket: str, prefix: str, *, page: int | None = None) -> Iterator[Upload]:
        """Forward `ObjectStore.list_uploads`."""
        return self.forward(
            "list_uploads", bucket, prefix, lambda: self.inner.list_uploads(bucket, prefix, page=page)
        )

    def list_parts(self, bucket: str, key: str, upload_id: str) -> Iterator[Part]:
        """Forward `ObjectStore.list_parts`."""
        return self.forward("list_parts", bucket, key, lambda: self.inner.list_parts(bucket, key, upload_id))

    def perform(self, calls: Iterable[tuple[T, Call]]) -> Iterator[tuple[T, Outcome]]:
        """Pass the calls to the inner store's `ObjectStore.perform`."""
        return self.inner.perform(calls)


class CountingStore(ForwardingStore):
    """An `ObjectStore` that counts every call and forwards it.

    Args:
        inner: The store to forward to.

    """

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    @property
    def counters(self) -> dict[str, int]:
        """Calls so far, by statistic name."""
        with self._lock:
            return dict(sorted(self._counts.items()))

    def forward(self, verb: str, bucket: str, key: str, make: Callable[[], T]) -> T:
        """Count the call and make it."""
        if verb in _STATISTICS:
            self._add(_STATISTICS[verb])
        return super().forward(verb, bucket, key, make)

    def perform(self, calls: Iterable[tuple[T, Call]]) -> Iterator[tuple[T, Outcome]]:
        """Count each call as it is drawn."""
        return self.inner.perform(self._counted(calls))

    def _counted(self, calls: Iterable[tuple[T, Call]]) -> Iterator[tuple[T, Call]]:
        for tag, call in calls:
            self._add(_STATISTICS[_CALLS[type(call)]])
            yield tag, call

    def _add(self, statistic: str) -> None:
        with self._lock:
            self._counts[statistic] += 1


def total_requests(metrics: Mapping[str, int]) -> int | None:
    """Return the number of requests in a commit's metrics; None if they hold no request counts."""
    counted = [metrics[name] for name in set(_STATISTICS.values()) if name in metrics]
    return sum(counted) if counted else None

"""A store that saves requests: it remembers the objects that its process has written under a condition.

An object written with ``If-None-Match: *`` never changes, so its writer need not read it again, nor check for
it. An object swapped with ``If-Match`` may change; it is trusted until the next swap is refused. No other
object is remembered, nor that an object is missing. A listing or a HEAD that contradicts the memory wins: all
may have been deleted and begun again. Without this store the protocol is the same, with more requests.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from airflow_s3commit.exceptions import PreconditionFailed
from airflow_s3commit.store.base import (
    Call,
    DeleteFailure,
    DeleteMany,
    Fetched,
    Get,
    ObjectInfo,
    ObjectStore,
    ObjectToDelete,
    Outcome,
    Written,
)
from airflow_s3commit.store.forwarding import ForwardingStore

T = TypeVar("T")

#: The most objects that are remembered, and the most bytes of one.
_OBJECTS, _BYTES = 64, 256 * 1024

#: What is known of each store, by bucket and key.
_known: WeakKeyDictionary[ObjectStore, OrderedDict[tuple[str, str], Fetched]] = WeakKeyDictionary()
_lock = threading.Lock()


class RememberingStore(ForwardingStore):
    """An `ObjectStore` that answers reads of objects that it has written itself, until it deletes them.

    All stores around one inner store share what they remember.

    Args:
        but: Objects whose keys end with one of these are not remembered.
    """

    def __init__(self, inner: ObjectStore, but: tuple[str, ...] = ()) -> None:
        super().__init__(inner)
        self._but = but
        self._known = _known.setdefault(inner, OrderedDict())

    def get(self, bucket: str, key: str, limit: int | None = None) -> Fetched:
        """Return what is known, or forward the call."""
        return self._known.get((bucket, key)) or super().get(bucket, key, limit)

    def head(self, bucket: str, key: str) -> ObjectInfo:
        """Forward the call; forget the object if it is gone or was replaced."""
        found = self._known.pop((bucket, key), None)
        info = super().head(bucket, key)
        if found is not None and found.info.etag == info.etag:
            # Another thread may have written it meanwhile.
            self._known.setdefault((bucket, key), found)
        return info

    def put(self, bucket: str, key: str, body: bytes, **options: Any) -> Written:
        """Forward the call, but refuse to create an object that is known; remember a conditional write."""
        is_new = options.get("if_none_match", False)
        if is_new and (bucket, key) in self._known:
            raise PreconditionFailed(f"s3://{bucket}/{key} is there: this process has written it")
        self._forget(bucket, [key])
        written = super().put(bucket, key, body, **options)
        is_conditional = is_new or options.get("if_match") is not None
        if is_conditional and len(body) <= _BYTES and not key.endswith(self._but):
            info = ObjectInfo(key=key, size=len(body), etag=written.etag, modified=written.date)
            with _lock:
                self._known[bucket, key] = Fetched(info, body, written.date)
                if len(self._known) > _OBJECTS:
                    self._known.popitem(last=False)
        return written

    def list_objects(self, bucket: str, prefix: str, **options: Any) -> Iterator[ObjectInfo]:
        """Forward the call; at its end, forget the objects that it shows to be gone or replaced."""
        shown: set[str] = set()
        after, is_deep = options.get("start_after") or "", options.get("recursive", True)
        for info in super().list_objects(bucket, prefix, **options):
            found = self._known.get((bucket, info.key))
            if found is not None and found.info.etag == info.etag:
                shown.add(info.key)
            yield info
        for where, key in list(self._known):
            is_listed = where == bucket and key.startswith(prefix) and key > after
            if is_listed and key not in shown and (is_deep or "/" not in key[len(prefix) :]):
                self._forget(bucket, [key])

    def delete(self, bucket: str, key: str, *, if_match: str | None = None) -> None:
        """Forget the object, and forward the call."""
        self._forget(bucket, [key])
        super().delete(bucket, key, if_match=if_match)

    def delete_many(self, bucket: str, objects: Sequence[ObjectToDelete]) -> list[DeleteFailure]:
        """Forget the objects, and forward the call."""
        self._forget(bucket, (one.key for one in objects))
        return super().delete_many(bucket, objects)

    def perform(self, calls: Iterable[tuple[T, Call]]) -> Iterator[tuple[T, Outcome]]:
        """Answer reads of known objects, and pass on the other calls; forget the objects that they delete."""
        held: list[tuple[T, Outcome]] = []

        def rest() -> Iterator[tuple[T, Call]]:
            for tag, call in calls:
                if isinstance(call, DeleteMany):
                    self._forget(call.bucket, (one.key for one in call.objects))
                found = self._known.get((call.bucket, call.key)) if isinstance(call, Get) else None
                if found is None:
                    yield tag, call
                else:
                    held.append((tag, found))

        yield from self.inner.perform(rest())
        yield from held

    def _forget(self, bucket: str, keys: Iterable[str]) -> None:
        with _lock:
            for key in keys:
                self._known.pop((bucket, key), None)

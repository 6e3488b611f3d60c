"""A saving of requests: remember the objects that this process has created once and for all.

What was written with ``If-None-Match: *`` never changes, so a process that wrote it need not read it again,
and need not ask whether it is there. Nothing else is remembered: not what is missing, not what others wrote.
A listing that shows otherwise is believed: somebody may have deleted everything, and begun again. The
protocol is the same without this store, with more requests.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from threading import Lock
from typing import TypeVar
from weakref import WeakKeyDictionary

from airflow_s3commit.exceptions import PreconditionFailed
from airflow_s3commit.store.base import (
    Call,
    DeleteFailure,
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

#: What was created in each store, by bucket and key.
_created: WeakKeyDictionary[ObjectStore, OrderedDict[tuple[str, str], Fetched]] = WeakKeyDictionary()


class RememberingStore(ForwardingStore):
    """An `ObjectStore` that answers for objects that it has created itself, until it deletes them.

    Those of one inner store share what they remember.

    Args:
        inner: The store to forward to.
        but: Endings of the keys of objects that are not remembered, as others change them.

    """

    def __init__(self, inner: ObjectStore, but: tuple[str, ...] = ()) -> None:
        super().__init__(inner)
        self._but = but
        self._created = _created.setdefault(inner, OrderedDict())
        self._lock = Lock()

    def get(self, bucket: str, key: str, *, limit: int | None = None) -> Fetched:
        """Return what was created here, or forward the call."""
        found = self._created.get((bucket, key))
        return found if found is not None else super().get(bucket, key, limit=limit)

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
        """Forward the call, unless it is to create what was created here; remember what it creates."""
        if if_none_match and (bucket, key) in self._created:
            raise PreconditionFailed(f"s3://{bucket}/{key} is there: this process has created it")
        written = super().put(
            bucket,
            key,
            body,
            if_none_match=if_none_match,
            if_match=if_match,
            content_type=content_type,
            headers=headers,
        )
        if if_none_match and len(body) <= _BYTES and not key.endswith(self._but):
            info = ObjectInfo(key=key, size=len(body), etag=written.etag, modified=written.date)
            with self._lock:
                self._created[bucket, key] = Fetched(info, body, written.date)
                if len(self._created) > _OBJECTS:
                    self._created.popitem(last=False)
        else:
            self._forget(bucket, [key])
        return written

    def list_objects(
        self,
        bucket: str,
        prefix: str,
        *,
        recursive: bool = True,
        start_after: str | None = None,
        page: int | None = None,
    ) -> Iterator[ObjectInfo]:
        """Forward the call; forget what the listing shows to be gone, or to be another object."""
        shown: set[str] = set()
        for info in super().list_objects(
            bucket, prefix, recursive=recursive, start_after=start_after, page=page
        ):
            found = self._created.get((bucket, info.key))
            if found is not None and found.info.etag == info.etag:
                shown.add(info.key)
            yield info
        for where, key in list(self._created):
            is_listed = where == bucket and key.startswith(prefix) and key > (start_after or "")
            if is_listed and key not in shown and (recursive or "/" not in key[len(prefix) :]):
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
        """Answer reads of what was created here, and pass on the other calls."""
        held: list[tuple[T, Outcome]] = []

        def rest() -> Iterator[tuple[T, Call]]:
            for tag, call in calls:
                found = self._created.get((call.bucket, call.key)) if isinstance(call, Get) else None
                if found is None:
                    yield tag, call
                else:
                    held.append((tag, found))

        for outcome in self.inner.perform(rest()):
            yield from held
            held.clear()
            yield outcome
        yield from held

    def _forget(self, bucket: str, keys: Iterable[str]) -> None:
        with self._lock:
            for key in keys:
                self._created.pop((bucket, key), None)

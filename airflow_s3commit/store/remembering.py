"""A saving of requests: remember the objects that this process has written under a condition.

What was written with ``If-None-Match: *`` never changes, so a process that wrote it need not read it again,
and need not ask whether it is there; nor if it has read it, where keys say that an object is of this kind.
What was swapped with ``If-Match`` may change, and is believed until the next swap is refused. Nothing else is
remembered, and not what is missing. A listing that shows otherwise is believed: somebody may have deleted
everything, and begun again. The protocol is the same without this store, with more requests.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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

#: What is known of each store, by bucket and key.
_known: WeakKeyDictionary[ObjectStore, OrderedDict[tuple[str, str], Fetched]] = WeakKeyDictionary()


class RememberingStore(ForwardingStore):
    """An `ObjectStore` that answers for objects that it has written itself, until it deletes them.

    Those of one inner store share what they remember.

    Args:
        inner: The store to forward to.
        but: Endings of the keys of objects that are not remembered.
        is_fixed: Tells by a key that its object is only created: if it was read, it is remembered too.

    """

    def __init__(
        self, inner: ObjectStore, but: tuple[str, ...] = (), is_fixed: Callable[[str], bool] = lambda _: False
    ) -> None:
        super().__init__(inner)
        self._but, self._is_fixed = but, is_fixed
        self._known = _known.setdefault(inner, OrderedDict())
        self._lock = Lock()

    def get(self, bucket: str, key: str, *, limit: int | None = None) -> Fetched:
        """Return what is known, or forward the call."""
        found = self._known.get((bucket, key))
        if found is None:
            found = super().get(bucket, key, limit=limit)
            self._read(bucket, key, found)
        return found

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
        """Forward the call, unless it is to create what is there; remember what it writes."""
        if if_none_match and (bucket, key) in self._known:
            raise PreconditionFailed(f"s3://{bucket}/{key} is there: this process has written or read it")
        self._forget(bucket, [key])
        written = super().put(
            bucket,
            key,
            body,
            if_none_match=if_none_match,
            if_match=if_match,
            content_type=content_type,
            headers=headers,
        )
        if if_none_match or if_match is not None:
            info = ObjectInfo(key=key, size=len(body), etag=written.etag, modified=written.date)
            self._remember(bucket, key, Fetched(info, body, written.date))
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
            found = self._known.get((bucket, info.key))
            if found is not None and found.info.etag == info.etag:
                shown.add(info.key)
            yield info
        for where, key in list(self._known):
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
        """Answer reads of what is known, and pass on the other calls."""
        held: list[tuple[T, Outcome]] = []

        def rest() -> Iterator[tuple[tuple[T, Call], Call]]:
            for tag, call in calls:
                found = self._known.get((call.bucket, call.key)) if isinstance(call, Get) else None
                if found is None:
                    yield (tag, call), call
                else:
                    held.append((tag, found))

        for (tag, call), outcome in self.inner.perform(rest()):
            yield from held
            held.clear()
            if isinstance(call, Get) and isinstance(outcome, Fetched):
                self._read(call.bucket, call.key, outcome)
            yield tag, outcome
        yield from held

    def _read(self, bucket: str, key: str, found: Fetched) -> None:
        if self._is_fixed(key):
            self._remember(bucket, key, found)

    def _remember(self, bucket: str, key: str, found: Fetched) -> None:
        if len(found.body) > _BYTES or key.endswith(self._but):
            return
        with self._lock:
            self._known[bucket, key] = found
            if len(self._known) > _OBJECTS:
                self._known.popitem(last=False)

    def _forget(self, bucket: str, keys: Iterable[str]) -> None:
        with self._lock:
            for key in keys:
                self._known.pop((bucket, key), None)

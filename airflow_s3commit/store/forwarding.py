"""A store that forwards every call to another one: the base of stores that count, bound or break calls.

And the stores of a step: one counts its requests; one saves some, by remembering the objects that its process
has written under a condition.

What was written with ``If-None-Match: *`` never changes, so a process that wrote it need not read it again,
and need not ask whether it is there; nor if it has read it, where keys say that an object is of this kind.
What was swapped with ``If-Match`` may change, and is believed until the next swap is refused. Nothing else is
remembered, and not what is missing. A listing that shows otherwise is believed: somebody may have deleted
everything, and begun again. The protocol is the same without this store, with more requests.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from airflow_s3commit.exceptions import PreconditionFailed
from airflow_s3commit.store.base import (
    Call,
    DeleteFailure,
    Fetched,
    Get,
    Load,
    ObjectInfo,
    ObjectStore,
    ObjectToDelete,
    Outcome,
    StoreProfile,
    Written,
)

P = ParamSpec("P")
T = TypeVar("T")

#: Methods that take headers which describe the object.
_DESCRIBING = frozenset({"put", "create_upload"})

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


def _forwarded(
    verb: Callable[Concatenate[ObjectStore, P], T],
) -> Callable[Concatenate[ForwardingStore, P], T]:
    """Return the method of `ForwardingStore` that forwards a method of `ObjectStore`."""
    name = verb.__name__

    @wraps(verb)
    def method(self: ForwardingStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if self.headers is not None and name in _DESCRIBING and kwargs.get("headers") is None:
            kwargs["headers"] = self.headers
        bucket, key = str(args[0]), next((text for text in args[1:2] if isinstance(text, str)), "")
        make: Callable[P, T] = getattr(self.inner, name)
        return self.forward(name, bucket, key, lambda: make(*args, **kwargs))

    return method


class ForwardingStore:
    """An `ObjectStore` that forwards every method to another store through `forward`.

    Override `forward` to act on every call, or single methods. `perform` bypasses `forward` and goes to the
    inner store's `perform`: a subclass that must see those calls overrides it too.

    Args:
        headers: Headers for writes without headers of their own.
    """

    def __init__(self, inner: ObjectStore, headers: Mapping[str, str] | None = None) -> None:
        self.inner = inner
        self.headers = headers

    def forward(self, verb: str, bucket: str, key: str, make: Callable[[], T]) -> T:  # noqa: ARG002
        """Make one call.

        Args:
            verb: The method's name.
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

    @property
    def profiles(self) -> MutableMapping[str, StoreProfile]:
        """The inner store's profiles."""
        return self.inner.profiles

    check_bucket = _forwarded(ObjectStore.check_bucket)
    stale_upload_days = _forwarded(ObjectStore.stale_upload_days)
    head = _forwarded(ObjectStore.head)
    get = _forwarded(ObjectStore.get)
    get_range = _forwarded(ObjectStore.get_range)
    put = _forwarded(ObjectStore.put)
    delete = _forwarded(ObjectStore.delete)
    delete_many = _forwarded(ObjectStore.delete_many)
    list_objects = _forwarded(ObjectStore.list_objects)
    create_upload = _forwarded(ObjectStore.create_upload)
    upload_part = _forwarded(ObjectStore.upload_part)
    complete_upload = _forwarded(ObjectStore.complete_upload)
    abort_upload = _forwarded(ObjectStore.abort_upload)
    list_uploads = _forwarded(ObjectStore.list_uploads)
    list_parts = _forwarded(ObjectStore.list_parts)

    def perform(self, calls: Iterable[tuple[T, Call]]) -> Iterator[tuple[T, Outcome]]:
        """Pass the calls to the inner store's `ObjectStore.perform`."""
        return self.inner.perform(calls)


def with_headers(store: ObjectStore, headers: Mapping[str, str]) -> ObjectStore:
    """Return a store that sends these headers with each write that has none of its own.

    They replace default headers set before; an empty mapping returns the store unchanged.
    """
    if not headers:
        return store
    return ForwardingStore(store_without_headers(store), dict(headers))


def store_without_headers(store: ObjectStore) -> ObjectStore:
    """Undo `with_headers`; any other store is returned unchanged."""
    return store.inner if isinstance(store, ForwardingStore) and store.headers is not None else store


class CountingStore(ForwardingStore):
    """An `ObjectStore` that counts every call and forwards it."""

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
        self._add(_STATISTICS[verb])
        return super().forward(verb, bucket, key, make)

    def perform(self, calls: Iterable[tuple[T, Call]]) -> Iterator[tuple[T, Outcome]]:
        """Count each call as it is drawn."""
        return self.inner.perform(self._counted(calls))

    def _counted(self, calls: Iterable[tuple[T, Call]]) -> Iterator[tuple[T, Call]]:
        for tag, call in calls:
            self._add(_STATISTICS[call.verb])
            yield tag, call

    def _add(self, statistic: str) -> None:
        with self._lock:
            self._counts[statistic] += 1


def total_requests(metrics: Mapping[str, int]) -> int | None:
    """Return the number of requests in a commit's metrics; None if they hold no request counts."""
    counted = [metrics[name] for name in set(_STATISTICS.values()) if name in metrics]
    return sum(counted) if counted else None


#: The most objects that are remembered, and the most bytes of one.
_OBJECTS, _BYTES = 64, 256 * 1024

#: What is known of each store, by bucket and key.
_known: WeakKeyDictionary[ObjectStore, OrderedDict[tuple[str, str], Fetched]] = WeakKeyDictionary()
_lock = threading.Lock()


class RememberingStore(ForwardingStore):
    """An `ObjectStore` that answers for objects that it has written itself, until it deletes them.

    Those of one inner store share what they remember.

    Args:
        but: Endings of the keys of objects that are not remembered.
        is_fixed: Tells by a key that its object is only created: if it was read, it is remembered too.
    """

    def __init__(
        self, inner: ObjectStore, but: tuple[str, ...] = (), is_fixed: Callable[[str], bool] = lambda _: False
    ) -> None:
        super().__init__(inner)
        self._but, self._is_fixed = but, is_fixed
        self._known = _known.setdefault(inner, OrderedDict())

    def get(self, bucket: str, key: str, limit: int | None = None) -> Fetched:
        """Return what is known, or forward the call."""
        found = self._known.get((bucket, key))
        if found is None:
            found = super().get(bucket, key, limit)
            self._read(bucket, key, found)
        return found

    def put(self, bucket: str, key: str, body: bytes, **options: Any) -> Written:
        """Forward the call, unless it is to create what is there; remember what it writes."""
        is_new = options.get("if_none_match", False)
        if is_new and (bucket, key) in self._known:
            raise PreconditionFailed(f"s3://{bucket}/{key} is there: this process has written or read it")
        self._forget(bucket, [key])
        written = super().put(bucket, key, body, **options)
        if is_new or options.get("if_match") is not None:
            info = ObjectInfo(key=key, size=len(body), etag=written.etag, modified=written.date)
            self._remember(bucket, key, Fetched(info, body, written.date))
        return written

    def list_objects(self, bucket: str, prefix: str, **options: Any) -> Iterator[ObjectInfo]:
        """Forward the call; forget what the listing shows to be gone, or to be another object."""
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
        with _lock:
            self._known[bucket, key] = found
            if len(self._known) > _OBJECTS:
                self._known.popitem(last=False)

    def _forget(self, bucket: str, keys: Iterable[str]) -> None:
        with _lock:
            for key in keys:
                self._known.pop((bucket, key), None)

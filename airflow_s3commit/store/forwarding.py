"""A store that forwards every call to another one: the base of stores that count, bound or break calls."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from airflow_s3commit.store.base import Call, Load, ObjectStore, Outcome, StoreProfile

P = ParamSpec("P")
T = TypeVar("T")

#: Methods that take headers which describe the object.
_DESCRIBING = frozenset({"put", "create_upload"})

#: ``org.apache.hadoop.fs.s3a.Statistic`` of each method. A whole listing counts once; retries do not count.
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

    Override `forward` to act on every call, or override single methods. `perform` bypasses `forward` and goes
    to the inner store's `perform`: a subclass that must see those calls overrides `perform` too.

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

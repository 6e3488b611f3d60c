"""Counting requests by Hadoop's statistic names, so that a commit can say what it cost."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from airflow_s3commit.store.base import Abort, Call, Complete, DeleteMany, Get, Head, ObjectStore, Outcome

__all__ = ["CountingStore", "counting", "total_requests"]

T = TypeVar("T")

#: Verb of the seam to statistic of ``org.apache.hadoop.fs.s3a.Statistic``. A listing counts as one request
#: however many pages it has; retries of a call are not counted.
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
    "upload_part": "multipart_upload_part_put",
}

_CALLS: dict[type[Call], str] = {
    Abort: "abort_upload",
    Complete: "complete_upload",
    DeleteMany: "delete_many",
    Get: "get",
    Head: "head",
}


class CountingStore:
    """An `ObjectStore` that passes every call on and counts it.

    Args:
        inner: The store that does the work.

    """

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    @property
    def counters(self) -> dict[str, int]:
        """How many calls were made so far, by statistic name."""
        with self._lock:
            return dict(sorted(self._counts.items()))

    def __getattr__(self, verb: str) -> Any:
        """Return a verb of the store, counted."""
        attribute = getattr(self._inner, verb)
        statistic = _STATISTICS.get(verb)
        return attribute if statistic is None else self._counted(attribute, statistic)

    def perform(self, calls: Iterable[tuple[T, Call]]) -> Iterator[tuple[T, Outcome]]:
        """See `ObjectStore.perform`."""
        return self._inner.perform(self._seen(calls))

    def _seen(self, calls: Iterable[tuple[T, Call]]) -> Iterator[tuple[T, Call]]:
        for tag, call in calls:
            self._add(_STATISTICS[_CALLS[type(call)]])
            yield tag, call

    def _counted(self, attribute: Callable[..., Any], statistic: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._add(statistic)
            return attribute(*args, **kwargs)

        return call

    def _add(self, statistic: str) -> None:
        with self._lock:
            self._counts[statistic] += 1


def counting(inner: ObjectStore) -> tuple[ObjectStore, CountingStore]:
    """Return a store that counts its calls, once as a store and once as what can be asked for the counts."""
    counted = CountingStore(inner)
    store: Any = counted
    return store, counted


def total_requests(metrics: Mapping[str, int]) -> int | None:
    """Return how many requests a commit's metrics count, among other things; None if they count none."""
    counted = [metrics[name] for name in set(_STATISTICS.values()) if name in metrics]
    return sum(counted) if counted else None

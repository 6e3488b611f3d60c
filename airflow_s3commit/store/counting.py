"""Count requests under Hadoop's statistic names, for the metrics of a commit."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from airflow_s3commit.store.base import (
    Abort,
    Call,
    Complete,
    DeleteMany,
    Get,
    Head,
    ObjectStore,
    Outcome,
    Put,
)
from airflow_s3commit.store.forwarding import ForwardingStore

T = TypeVar("T")

#: ``org.apache.hadoop.fs.s3a.Statistic`` of each method. A listing counts as one request however many pages
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

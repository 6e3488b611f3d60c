"""Calls in progress, and the pauses before they are sent again."""

from __future__ import annotations

import math
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct

from airflow_s3commit.store.base import Complete, DeleteMany, Get
from airflow_s3commit.store.s3.curl.encoding import OPERATIONS, UPLOAD_CALLS
from airflow_s3commit.store.s3.delete import check_bulk
from airflow_s3commit.store.s3.request import Request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from botocore.credentials import ReadOnlyCredentials

    from airflow_s3commit.store.base import Call
    from airflow_s3commit.store.retry import Retries, RetryPolicy
    from airflow_s3commit.store.s3.curl.endpoints import Endpoint

#: Seconds between the retries of two calls that were cut off, once a silent store answers again.
WAKE_SECONDS = 0.0005

#: Seconds without any response after which a store counts as silent.
SILENT_SECONDS = 0.25


class ActiveCall(Struct, eq=False):
    """One call in progress. Created by the thousand, so error-only fields are filled lazily.

    Attributes:
        tag: The caller's tag.
        call: The call.
        began: When the first attempt began, by the retry policy's clock.
        endpoint: Where the last attempt was sent; None before the first.
        keys: The credentials that signed it.
        was_reauthenticated: Whether it was already retried with renewed credentials.

    """

    tag: Any
    call: Call
    began: float
    endpoint: Endpoint | None = None
    keys: ReadOnlyCredentials | None = None
    was_reauthenticated: bool = False
    _request: Request | None = None
    _retries: Retries | None = None

    def __repr__(self) -> str:
        """Name the request, and show no credentials."""
        return f"ActiveCall({self.request})"

    def check(self) -> None:
        """Validate the call before its first attempt.

        Raises:
            StoreRejected: A key or an upload id is empty, which would make another request on the wire.
            ValueError: It deletes too many objects.

        """
        call = self.call
        if type(call) is Complete and call.key and call.upload_id:
            return
        if isinstance(call, DeleteMany):
            check_bulk(call.bucket, call.objects)
        elif not call.key or (isinstance(call, UPLOAD_CALLS) and not call.upload_id):
            self._request = self.request

    @property
    def limit(self) -> int | None:
        """Bytes of the object to read at most; None for no limit."""
        return self.call.limit if isinstance(self.call, Get) else None

    @property
    def request(self) -> Request:
        """The request as its errors name it."""
        if self._request is None:
            call = self.call
            key = None if isinstance(call, DeleteMany) else call.key
            upload = call.upload_id if isinstance(call, UPLOAD_CALLS) else None
            self._request = Request(OPERATIONS[type(call)], call.bucket, key, upload)
        return self._request

    def retries(self, policy: RetryPolicy) -> Retries:
        """Return the call's retries so far."""
        if self._retries is None:
            self._retries = policy.begin(self.began)
        return self._retries


#: When the pause ends, a tie-breaker, the call, and whether it was cut off.
_Pause: TypeAlias = tuple[float, int, ActiveCall, bool]


class Pauses:
    """Calls that wait before they are sent again.

    A call waits until its time comes. When a silent store answers again, the calls that were cut off need not
    wait longer: they become due one after another, so that the store is not met by all of them at once. A
    call that is cut off while others get responses waits its full time.
    """

    def __init__(self) -> None:
        self._heap: list[_Pause] = []
        self._order = count()
        self._from_response = -math.inf

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_due(self) -> float:
        """When the next pause ends; infinity if there is none."""
        return self._heap[0][0] if self._heap else math.inf

    def add(self, active: ActiveCall, due: float, *, cut_off: bool) -> None:
        """Let a call wait until ``due``; ``cut_off`` if its last attempt got no response at all."""
        heappush(self._heap, (due, next(self._order), active, cut_off))

    def over(self, now: float) -> Iterator[ActiveCall]:
        """Remove and yield the calls whose pause has ended, the earliest first."""
        while self._heap and self._heap[0][0] <= now:
            yield heappop(self._heap)[2]

    def store_answered(self, now: float) -> None:
        """Shorten the pauses of the calls that were cut off, if the store was silent until now."""
        if now - self._from_response >= SILENT_SECONDS and self._heap:
            turns = count(1)
            self._heap = [
                (min(due, now + next(turns) * WAKE_SECONDS) if cut_off else due, order, active, cut_off)
                for due, order, active, cut_off in sorted(self._heap)
            ]
            heapify(self._heap)
        self._from_response = now

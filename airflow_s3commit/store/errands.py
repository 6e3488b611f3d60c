"""Calls on their way, and those that pause between two attempts."""

from __future__ import annotations

import math
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct

from airflow_s3commit.store.base import Complete, DeleteMany, Get
from airflow_s3commit.store.bulk_delete import check_bulk
from airflow_s3commit.store.errors import Request
from airflow_s3commit.store.spelling import OF_UPLOADS, OPERATIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from botocore.credentials import ReadOnlyCredentials

    from airflow_s3commit.store.addresses import Address
    from airflow_s3commit.store.base import Call
    from airflow_s3commit.store.retry import Retries, RetryPolicy

__all__ = ["Errand", "Recess"]

#: Calls that are sent again at once for each one that a store answers which had gone silent.
WOKEN_BY_AN_ANSWER = 2

#: Seconds without any answer after which a store counts as having been silent.
SILENT_SECONDS = 0.25


class Errand(Struct, eq=False):
    """A call on its way. Made by the thousand: what only a failure needs is made then.

    Args:
        tag: The caller's name for it.
        call: The call.
        began: When its first attempt began, by the retry policy's clock.

    Attributes:
        address: How it was sent, once it was.
        keys: Whose it was.
        was_renewed: Whether it was sent again because the credentials had changed.

    """

    tag: Any
    call: Call
    began: float
    address: Address | None = None
    keys: ReadOnlyCredentials | None = None
    was_renewed: bool = False
    _request: Request | None = None
    _retries: Retries | None = None

    def __repr__(self) -> str:
        """Return which request it is; of whose keys, nothing."""
        return f"Errand({self.request})"

    def check(self) -> None:
        """Refuse what would be another request on the wire; see `Request`.

        Raises:
            StoreRejected: It would.
            ValueError: It deletes too many objects.

        """
        call = self.call
        if type(call) is Complete and call.key and call.upload_id:
            return
        if isinstance(call, DeleteMany):
            check_bulk(call.bucket, call.doomed)
        elif not call.key or (isinstance(call, OF_UPLOADS) and not call.upload_id):
            self._request = self.request

    @property
    def limit(self) -> int | None:
        """How many bytes are read of an object at most."""
        return self.call.limit if isinstance(self.call, Get) else None

    @property
    def request(self) -> Request:
        """What its errors name."""
        if self._request is None:
            call = self.call
            key = None if isinstance(call, DeleteMany) else call.key
            upload = call.upload_id if isinstance(call, OF_UPLOADS) else None
            self._request = Request(OPERATIONS[type(call)], call.bucket, key, upload)
        return self._request

    def retries(self, policy: RetryPolicy) -> Retries:
        """Return its attempts so far."""
        if self._retries is None:
            self._retries = policy.begin(self.began)
        return self._retries


#: When it is over, a number that no other has, and whose it is.
_Pause: TypeAlias = tuple[float, int, Errand]


class Recess:
    """Calls that pause before they are sent again.

    A pause is over when its time is. Those of calls that were cut off end sooner if the store was silent and
    answers again: nothing is left to wait for. Each answer wakes two, so that a store which comes back is not
    met by all of them in the same moment; and a call that is cut off while others are answered has to wait.
    """

    def __init__(self) -> None:
        self._paused: list[_Pause] = []
        self._cut_off: list[_Pause] = []
        self._waking: list[_Pause] = []
        self._heaps = (self._paused, self._cut_off, self._waking)
        self._order = count()
        self._answered = -math.inf
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def ends(self) -> float:
        """When the next pause is over; infinity if there is none."""
        return min((heap[0][0] for heap in self._heaps if heap), default=math.inf)

    def add(self, errand: Errand, due: float, *, cut_off: bool) -> None:
        """Let a call pause until ``due``; ``cut_off`` if it had no answer at all."""
        self._size += 1
        heappush(self._cut_off if cut_off else self._paused, (due, next(self._order), errand))

    def over(self, now: float) -> Iterator[Errand]:
        """Take out the calls whose pause is over."""
        for heap in self._heaps:
            while heap and heap[0][0] <= now:
                self._size -= 1
                yield heappop(heap)[2]

    def cut_short(self, answers: int, now: float) -> Iterator[Errand]:
        """Take out calls whose pause need not last, now that the store gave so many answers."""
        if now - self._answered >= SILENT_SECONDS:
            for pause in self._cut_off:
                heappush(self._waking, pause)
            self._cut_off.clear()
        self._answered = now
        for _ in range(min(WOKEN_BY_AN_ANSWER * answers, len(self._waking))):
            self._size -= 1
            yield heappop(self._waking)[2]

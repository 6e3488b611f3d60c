"""Requests that take effect late, after their process died or a second time; listings that lag."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, Literal, TypeAlias, TypeVar

from airflow_s3commit.exceptions import S3CommitError
from airflow_s3commit.store.base import Call, Outcome
from airflow_s3commit.store.execute import one_by_one
from airflow_s3commit.store.forwarding import ForwardingStore
from airflow_s3commit.testing import Crash

T = TypeVar("T")

#: ``late``: the process dies, and the request takes effect later. ``twice``: now, and again later.
Delay: TypeAlias = Literal["late", "twice"]

_WRITES = frozenset(
    {"put", "delete", "delete_many", "create_upload", "upload_part", "complete_upload", "abort_upload"}
)


class LaggingLog(ForwardingStore):
    """Forwards to a store; the first listings of the log lack its newest entries.

    Args:
        listings: How many of them.
        lacks: How many entries each lacks.

    Attributes:
        listings: How many of the next listings lack entries.
    """

    def __init__(self, inner: Any, listings: int, lacks: int) -> None:
        super().__init__(inner)
        self.listings, self._lacks = listings, lacks

    def forward(self, verb: str, bucket: str, key: str, make: Callable[[], Any]) -> Any:
        """Make a call; for a while a listing lacks the newest entries."""
        answer = super().forward(verb, bucket, key, make)
        if verb != "list_objects" or not self.listings or not key.endswith("/_s3commit/log/"):
            return answer
        self.listings -= 1
        return iter(list(answer)[: -self._lacks])


class LateStore(ForwardingStore):
    """Forwards to a store; one write of a process takes effect when `land` is called.

    Args:
        nth: Number of the write, from 1.
        delay: What becomes of it.
    """

    def __init__(self, inner: Any, nth: int, delay: Delay) -> None:
        super().__init__(inner)
        self.writes = 0
        self._nth, self._delay = nth, delay
        self._in_flight: Callable[[], object] | None = None

    def perform(self, calls: Iterable[tuple[T, Call]]) -> Iterator[tuple[T, Outcome]]:
        """Make the calls one by one."""
        return one_by_one(self, calls)

    def forward(self, verb: str, bucket: str, key: str, make: Callable[[], T]) -> T:
        """Make a call, unless it is the late one."""
        self.writes += verb in _WRITES
        if verb in _WRITES and self.writes == self._nth:
            self._in_flight = make
        if self.writes >= self._nth and self._delay == "late":
            raise Crash
        return make()

    def land(self, _: Any = None) -> None:
        """Let the request take effect; the store's answer is lost."""
        if self._in_flight is not None:
            with suppress(S3CommitError):
                self._in_flight()

"""Where a process can be stopped: at every call to its store, in every way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

from airflow_s3commit.exceptions import S3CommitError
from airflow_s3commit.store.base import Call, Outcome
from airflow_s3commit.store.execute import one_by_one
from airflow_s3commit.store.forwarding import ForwardingStore
from airflow_s3commit.testing import Effect, FaultyStore

T = TypeVar("T")

#: The ways in which a process is stopped at a call; after the last two it lives on.
FAULTS: tuple[Effect, ...] = ("crash-before", "crash-after", "lose-answer", "refuse")


def count_calls(inner: Any, take: Callable[[Any], object]) -> int:
    """Return how many calls a function makes to the store that it gets."""
    store = FaultyStore(inner)
    take(store)
    return len(store.calls)


class SentTwice(ForwardingStore):
    """Forwards to a store; one call is made twice, as by a client that got no answer the first time.

    Args:
        nth: Number of the call, from 1.
    """

    def __init__(self, inner: Any, nth: int) -> None:
        super().__init__(inner)
        self._nth, self._calls = nth, 0

    def perform(self, calls: Iterable[tuple[T, Call]]) -> Iterator[tuple[T, Outcome]]:
        """Make the calls one by one."""
        return one_by_one(self, calls)

    def forward(self, verb: str, bucket: str, key: str, make: Callable[[], T]) -> T:
        """Make a call, or make it twice and return the second answer."""
        self._calls += 1
        if self._calls == self._nth:
            with suppress(S3CommitError):
                make()
        return make()

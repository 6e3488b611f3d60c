"""A store that stops its caller at the n-th call: before it, after it, or with its answer lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, TypeAlias

from airflow_s3commit.exceptions import OutcomeUnknown, StoreRejected, Unavailable
from airflow_s3commit.store.base import Call, Outcome
from airflow_s3commit.store.calls import one_by_one

#: ``before`` and ``after``: the process dies there. ``lost``: the call is made and its answer lost.
#: ``refused``: the call is turned away. ``rejected``: the store says no for good. After the last three the
#: process lives on.
Fault: TypeAlias = Literal["before", "after", "lost", "refused", "rejected"]
FAULTS: tuple[Fault, ...] = ("before", "after", "lost", "refused")

_PAGED = ("list_objects", "list_uploads", "list_parts")

#: Verbs after which everything is as before.
_READS = ("check_bucket", "stale_upload_days", "head", "get", *_PAGED)


def count_calls(inner: Any, take: Callable[[Any], object]) -> int:
    """Return how many calls whoever takes a store makes to it."""
    counting = FaultyStore(inner)
    take(counting)
    return counting.calls


class Crash(BaseException):
    """The process is dead: no handler of errors sees this, and no call goes through any more."""


class FaultyStore:
    """Passes calls on to a real store until the n-th, where the fault happens once.

    Args:
        inner: The store.
        at: Which call, from 1; 0 for none.
        fault: What happens there.
        observe: Called after every call that went through and may have changed something.
        gate: Called before every call, with its name.
        name: What the fault's error calls it, to tell it from another store's.

    Attributes:
        calls: How many calls were made.
        hit: Whether the fault happened.

    """

    def __init__(
        self,
        inner: Any,
        *,
        at: int = 0,
        fault: Fault = "before",
        observe: Callable[[], None] = lambda: None,
        gate: Callable[[str], None] = lambda _: None,
        name: str = "the fault",
    ) -> None:
        self._inner = inner
        self._name = name
        self._at = at
        self._fault = fault
        self._observe = observe
        self._gate = gate
        self._dead = False
        self.calls = 0
        self.hit = False

    def __getattr__(self, verb: str) -> Any:
        attribute = getattr(self._inner, verb)
        if not callable(attribute):
            return attribute

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._call(verb, lambda: attribute(*args, **kwargs))

        return call

    def perform(self, calls: Iterable[tuple[Any, Call]]) -> Iterator[tuple[Any, Outcome]]:
        """Make the calls one by one, each of which may be the n-th."""
        return one_by_one(self, calls)  # type: ignore[arg-type]

    def _call(self, verb: str, make: Callable[[], Any]) -> Any:
        if self._dead:
            raise Crash
        self._gate(verb)
        self.calls += 1
        if self.calls != self._at:
            return self._made(verb, make)
        self.hit = True
        if self._fault == "refused":
            raise Unavailable(f"{verb} was turned away by {self._name}")
        if self._fault == "rejected":
            raise StoreRejected(f"{verb} was rejected by {self._name}", code="InvalidPart")
        if self._fault == "before":
            self._dead = True
            raise Crash
        self._made(verb, make)
        if self._fault == "after":
            self._dead = True
            raise Crash
        raise OutcomeUnknown(f"the answer of {verb} was lost to {self._name}")

    def _made(self, verb: str, make: Callable[[], Any]) -> Any:
        made = make()
        if verb in _PAGED:
            made = iter(list(made))
        if verb not in _READS:
            self._observe()
        return made

"""A store whose calls fail, lose their responses, are delayed or end the process, as a test chooses."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from functools import partial
from typing import Literal, NoReturn, TypeAlias, TypeVar, cast

from msgspec import Struct

from airflow_s3commit.exceptions import (
    AccessDenied,
    OutcomeUnknown,
    S3CommitError,
    StoreRejected,
    Unavailable,
)
from airflow_s3commit.store.base import Call, ObjectStore, Outcome
from airflow_s3commit.store.execute import one_by_one
from airflow_s3commit.store.forwarding import ForwardingStore

T = TypeVar("T")

#: The effects of a `Fault`.
Effect: TypeAlias = Literal["refuse", "deny", "reject", "lose-answer", "crash-before", "crash-after", "delay"]

#: The effects that replace a call, and the error that each raises.
_REFUSALS: dict[str, Callable[[str], S3CommitError]] = {
    "refuse": Unavailable,
    "deny": AccessDenied,
    "reject": partial(StoreRejected, code="InvalidPart"),
}

_LISTINGS = frozenset({"list_objects", "list_uploads", "list_parts"})

_READS = _LISTINGS | {"check_bucket", "stale_upload_days", "head", "get", "get_range"}


class Crash(BaseException):
    """Simulates the death of the process: ``except Exception`` does not catch it; later calls raise it."""


class StoreCall(Struct, frozen=True):
    """One call of a verb of an `ObjectStore`.

    Attributes:
        verb: The name of the verb, such as ``complete_upload``.
        bucket: The bucket.
        key: The key; the prefix of a listing; empty for calls on the bucket and for bulk deletes.
    """

    verb: str
    bucket: str
    key: str

    @property
    def reads(self) -> bool:
        """Whether the call changes nothing in the store."""
        return self.verb in _READS

    def __str__(self) -> str:
        return f"{self.verb} of s3://{self.bucket}/{self.key}"


class Fault(Struct, frozen=True):
    """An effect, and the calls on which it acts.

    - ``refuse``: the call is not made, and raises `Unavailable`, as with an overloaded store.
    - ``deny``: it is not made, and raises `AccessDenied`.
    - ``reject``: it is not made, and raises `StoreRejected`.
    - ``lose-answer``: it is made, and raises `OutcomeUnknown`; `Unavailable` for a read.
    - ``crash-before``: it is not made; this call and all later ones raise `Crash`.
    - ``crash-after``: it is made; this call and all later ones raise `Crash`.
    - ``delay``: it is made ``seconds`` later, and returns its result.

    Attributes:
        effect: The effect.
        verb: The verb of these calls, such as ``complete_upload``; None for any verb.
        key: The keys of these calls, as a pattern in which ``*`` stands for any text, including slashes.
        nth: The first matching call on which it acts, from 1.
        times: The number of matching calls from then on; None for all of them.
        seconds: Length of a ``delay``, in seconds.
        name: Name of the fault in the error's message.
    """

    effect: Effect
    verb: str | None = None
    key: str = "*"
    nth: int = 1
    times: int | None = 1
    seconds: float = 0.0
    name: str = "a fault"


class FaultyStore(ForwardingStore):
    """An `ObjectStore` that passes calls on to another store, with faults at chosen calls.

    Without faults it behaves as the inner store, with two differences: `perform` makes its calls one by one
    in order, so that each has a number, and a listing is read completely at its call. If several faults match
    a call, the first one that ends the call takes effect. It is safe to use from several threads.

    Args:
        inner: The store with the objects: a `MemoryStore`, or a real one.
        *faults: The faults, in order of precedence.
        before: Called before every call; may block, or raise in place of the call. It may be replaced.
        after: Called after every call that took effect, before its result is returned. It may be replaced.
        sleep: Waits for a ``delay``, in seconds.

    Attributes:
        calls: Every call so far, failed ones included, in order.
        crashed: Whether a call has raised `Crash`. To simulate the next process, wrap the inner store again.
        struck: The calls at which a fault took effect, in order.
    """

    def __init__(
        self,
        inner: ObjectStore,
        *faults: Fault,
        before: Callable[[StoreCall], object] = lambda _: None,
        after: Callable[[StoreCall], object] = lambda _: None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        super().__init__(inner)
        self._faults = faults
        self._matched = [0] * len(faults)
        self.before = before
        self.after = after
        self._sleep = sleep
        self.crashed = False
        self._lock = threading.Lock()
        self.calls: list[StoreCall] = []
        self.struck: list[StoreCall] = []

    def perform(self, calls: Iterable[tuple[T, Call]]) -> Iterator[tuple[T, Outcome]]:
        """Make the calls one by one in the caller's thread, each with the faults of its verb."""
        return one_by_one(self, calls)

    def forward(self, verb: str, bucket: str, key: str, make: Callable[[], T]) -> T:
        """Make one call, with the faults that match it.

        Raises:
            Crash: A fault crashed this call or an earlier one.
        """
        if self.crashed:
            raise Crash
        call = StoreCall(verb, bucket, key)
        strikes = self._strikes(call)
        self.before(call)
        for fault in strikes:
            if fault.effect in _REFUSALS:
                raise _REFUSALS[fault.effect](f"{call} was not made, because of {fault.name}")
            if fault.effect == "crash-before":
                self.crash()
            if fault.effect == "delay":
                self._sleep(fault.seconds)
        made = make()
        if verb in _LISTINGS:
            made = cast("T", iter(list(cast("Iterator[object]", made))))
        self.after(call)
        for fault in strikes:
            if fault.effect == "crash-after":
                self.crash()
            if fault.effect == "lose-answer":
                error = Unavailable if call.reads else OutcomeUnknown
                raise error(f"the response to {call} was lost to {fault.name}")
        return made

    def _strikes(self, call: StoreCall) -> list[Fault]:
        with self._lock:
            self.calls.append(call)
            found = []
            for number, fault in enumerate(self._faults):
                if fault.verb in (None, call.verb) and fnmatchcase(call.key, fault.key):
                    self._matched[number] += 1
                    past = self._matched[number] - fault.nth
                    if past >= 0 and (fault.times is None or past < fault.times):
                        found.append(fault)
            if found:
                self.struck.append(call)
            return found

    def crash(self) -> NoReturn:
        """Raise `Crash`, at this call and at all later ones; for hooks."""
        self.crashed = True
        raise Crash

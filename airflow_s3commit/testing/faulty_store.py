"""A store whose calls fail, lose their answers, wait or end the process, where a test chooses."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, TypeAlias, TypeVar, cast

from airflow_s3commit.exceptions import AccessDenied, OutcomeUnknown, StoreRejected, Unavailable
from airflow_s3commit.store.base import Call, ObjectStore, Outcome
from airflow_s3commit.store.execute import one_by_one
from airflow_s3commit.store.forwarding import ForwardingStore

T = TypeVar("T")

#: What a fault does; see `Fault`.
Effect: TypeAlias = Literal["refuse", "deny", "reject", "lose-answer", "crash-before", "crash-after", "delay"]

_LISTINGS = frozenset({"list_objects", "list_uploads", "list_parts"})

_READS = _LISTINGS | {"check_bucket", "stale_upload_days", "head", "get", "get_range"}


class Crash(BaseException):
    """The process is gone. No handler of errors catches this, and the store takes no further call."""


@dataclass(frozen=True, slots=True)
class StoreCall:
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
        """Whether the store is the same before and after it."""
        return self.verb in _READS

    def __str__(self) -> str:
        return f"{self.verb} of s3://{self.bucket}/{self.key}"


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong, and at which calls.

    - ``refuse``: the call is not made; `Unavailable`, as from a store that is overloaded.
    - ``deny``: it is not made; `AccessDenied`.
    - ``reject``: it is not made; `StoreRejected`.
    - ``lose-answer``: it is made, and its answer lost; `OutcomeUnknown`, or `Unavailable` for a read.
    - ``crash-before``: it is not made; `Crash`, from this call and from all later ones.
    - ``crash-after``: it is made; `Crash`, from this call and from all later ones.
    - ``delay``: it is made ``seconds`` later, and returns its result.

    Attributes:
        effect: What happens.
        verb: The verb that it happens to; None for any.
        key: The keys that it happens to, as a pattern in which ``*`` stands for any text, slashes included.
        nth: The matching call at which it happens first, from 1.
        times: At how many matching calls from then on; None for all of them.
        seconds: How long a ``delay`` waits.
        name: What the error's message calls it.

    """

    effect: Effect
    verb: str | None = None
    key: str = "*"
    nth: int = 1
    times: int | None = 1
    seconds: float = 0.0
    name: str = "a fault"

    def matches(self, call: StoreCall) -> bool:
        """Whether this is a call that the fault counts."""
        return self.verb in (None, call.verb) and fnmatchcase(call.key, self.key)

    def strikes(self, matching: int) -> bool:
        """Whether it happens at the matching call of this number, from 1."""
        return self.nth <= matching and (self.times is None or matching < self.nth + self.times)


class FaultyStore(ForwardingStore):
    """An `ObjectStore` that passes calls on to another one, and has faults where they are asked for.

    Without faults it behaves as the inner store does, with two differences: `perform` makes its calls one by
    one in their order, so that each can be the n-th, and a listing is read whole when it is asked for. Faults
    are looked at in their order; of several at one call the first one that ends it counts. It is safe to use
    from several threads.

    Args:
        inner: The store that keeps the objects: a `MemoryStore`, or a real one.
        *faults: What goes wrong.
        before: Called before every call; may block, or raise in its place.
        after: Called after every call that took effect, before its answer is returned.
        sleep: How a ``delay`` waits.

    Attributes:
        calls: Every call so far, those that failed included, in order.
        struck: The calls at which a fault happened, in order.

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
        self._before = before
        self._after = after
        self._sleep = sleep
        self._crashed = False
        self._lock = threading.Lock()
        self.calls: list[StoreCall] = []
        self.struck: list[StoreCall] = []

    @property
    def crashed(self) -> bool:
        """Whether the process is gone. For the next process, wrap the inner store in a new `FaultyStore`."""
        return self._crashed

    def perform(self, calls: Iterable[tuple[T, Call]]) -> Iterator[tuple[T, Outcome]]:
        """Make the calls one by one in the caller's thread, each with the faults of its verb."""
        return one_by_one(self, calls)

    def forward(self, verb: str, bucket: str, key: str, make: Callable[[], T]) -> T:
        """Make one call, with the faults that it meets.

        Raises:
            Crash: The process is gone, now or since an earlier call.

        """
        if self._crashed:
            raise Crash
        call = StoreCall(verb, bucket, key)
        self._before(call)
        strikes = self._strikes(call)
        for fault in strikes:
            self._prevent(call, fault)
        made = make()
        if verb in _LISTINGS:
            made = cast("T", iter(list(cast("Iterator[object]", made))))
        self._after(call)
        for fault in strikes:
            self._lose(call, fault)
        return made

    def _strikes(self, call: StoreCall) -> list[Fault]:
        with self._lock:
            self.calls.append(call)
            found = []
            for number, fault in enumerate(self._faults):
                if fault.matches(call):
                    self._matched[number] += 1
                    if fault.strikes(self._matched[number]):
                        found.append(fault)
            if found:
                self.struck.append(call)
            return found

    def _prevent(self, call: StoreCall, fault: Fault) -> None:
        """Do what happens in place of the call, or ahead of it."""
        match fault.effect:
            case "refuse":
                raise Unavailable(f"{call} was turned away by {fault.name}")
            case "deny":
                raise AccessDenied(f"{call} was denied by {fault.name}")
            case "reject":
                raise StoreRejected(f"{call} was rejected by {fault.name}", code="InvalidPart")
            case "crash-before":
                self._crash()
            case "delay":
                self._sleep(fault.seconds)

    def _lose(self, call: StoreCall, fault: Fault) -> None:
        """Do what happens in place of the answer."""
        if fault.effect == "crash-after":
            self._crash()
        if fault.effect == "lose-answer":
            lost = Unavailable if call.reads else OutcomeUnknown
            raise lost(f"the answer of {call} was lost to {fault.name}")

    def _crash(self) -> None:
        self._crashed = True
        raise Crash

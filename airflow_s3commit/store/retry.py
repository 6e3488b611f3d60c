"""Our own retries: full jitter, a deadline, and an honest outcome at the end of them.

The jitter is the "full jitter" of Marc Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog,
2015: each pause is drawn evenly from zero to a doubling, capped bound.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from airflow_s3commit.clock import Clock, SystemClock
from airflow_s3commit.exceptions import OutcomeUnknown, Unavailable

__all__ = ["Retries", "RetryPolicy"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often, and for how long, a call is sent again.

    A call is sent again when the store turned it away (`Unavailable`) or its answer was lost
    (`OutcomeUnknown`); every verb of the store bears that, or its caller settles what it left behind by
    reading back.

    Attributes:
        deadline: Seconds after which no further attempt begins.
        first_pause: Upper bound of the first pause, in seconds; later bounds double.
        longest_pause: Upper bound of any pause, in seconds.
        clock: Where time comes from.
        draw: Returns a number from its first argument to its second.
        told: Called with the error of each attempt after which the call is sent again; from any thread.

    """

    deadline: float = 60.0
    first_pause: float = 0.1
    longest_pause: float = 5.0
    clock: Clock = field(default_factory=SystemClock)
    draw: Callable[[float, float], float] = random.uniform
    told: Callable[[OutcomeUnknown | Unavailable], None] = lambda _: None

    def begin(self, at: float | None = None) -> Retries:
        """Return the retries of a call whose first attempt began ``at`` that time, or begins now."""
        return Retries(self, self.clock.monotonic() if at is None else at)

    def run(self, attempt: Callable[[], T]) -> T:
        """Run ``attempt`` until it ends, is refused, or the deadline passes.

        Raises:
            OutcomeUnknown: Time ran out and at least one attempt may have taken effect.
            Unavailable: Time ran out and none did.

        """
        retries = self.begin()
        while True:
            try:
                return attempt()
            except (OutcomeUnknown, Unavailable) as error:
                pause = retries.pause_after(error)
            self.clock.sleep(pause)


class Retries:
    """One call's attempts so far, for callers that wait in a way of their own.

    Args:
        policy: How often and how long the call is sent again.
        began: When its first attempt began, by the policy's clock.

    """

    __slots__ = ("_began", "_bound", "_policy", "_unknown")

    def __init__(self, policy: RetryPolicy, began: float) -> None:
        self._policy = policy
        self._began = began
        self._bound = policy.first_pause
        self._unknown: OutcomeUnknown | None = None

    def pause_after(self, error: OutcomeUnknown | Unavailable) -> float:
        """Return the seconds to wait before the next attempt, after one that ended in ``error``.

        Raises:
            OutcomeUnknown: Time ran out and at least one attempt may have taken effect.
            Unavailable: Time ran out and none did.

        """
        policy = self._policy
        asked = error.retry_after if isinstance(error, Unavailable) else None
        if isinstance(error, OutcomeUnknown):
            self._unknown = error
        pause = asked if asked is not None else policy.draw(0.0, self._bound)
        if policy.clock.monotonic() + pause - self._began > policy.deadline:
            raise self._unknown or error
        self._bound = min(self._bound * 2, policy.longest_pause)
        policy.told(error)
        return pause

"""Retries with full jitter and a deadline.

Full jitter (Marc Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015) draws each pause
evenly between zero and a bound that doubles up to a cap.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from airflow_s3commit._clock import Clock, SystemClock
from airflow_s3commit.exceptions import OutcomeUnknown, Unavailable

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When, and for how long, a call is retried.

    A call is retried when it did not happen (`Unavailable`) or may have happened (`OutcomeUnknown`). Every
    method of `ObjectStore` may be repeated, or its caller finds out the effect by reading back. A pause that
    the store asks for takes precedence over a drawn one.

    Attributes:
        deadline: Seconds after the first attempt's start after which no further attempt begins.
        first_pause: Upper bound of the first pause, in seconds; later bounds double.
        longest_pause: Upper bound of any pause, in seconds.
        clock: Source of time.
        draw: Returns a number from its first argument to its second.
        on_retry: Called before each retry with the error of the attempt that failed; from any thread.

    """

    deadline: float = 60.0
    first_pause: float = 0.1
    longest_pause: float = 5.0
    clock: Clock = field(default_factory=SystemClock)
    draw: Callable[[float, float], float] = random.uniform
    on_retry: Callable[[OutcomeUnknown | Unavailable], None] = lambda _: None

    def begin(self, at: float | None = None) -> Retries:
        """Return the retries of a call whose first attempt began at this monotonic time, by default now."""
        return Retries(self, self.clock.monotonic() if at is None else at)

    def run(self, attempt: Callable[[], T]) -> T:
        """Run ``attempt`` until it returns, raises another error, or the deadline passes.

        Raises:
            OutcomeUnknown: The deadline passed and at least one attempt may have taken effect.
            Unavailable: The deadline passed and no attempt took effect.

        """
        retries = self.begin()
        while True:
            try:
                return attempt()
            except (OutcomeUnknown, Unavailable) as error:
                pause = retries.pause_after(error)
            self.clock.sleep(pause)


class Retries:
    """The retries of one call, for callers that do the waiting themselves.

    Args:
        policy: The policy.
        began: When the first attempt began, by the policy's monotonic clock.

    """

    __slots__ = ("_began", "_bound", "_policy", "_unknown")

    def __init__(self, policy: RetryPolicy, began: float) -> None:
        self._policy = policy
        self._began = began
        self._bound = policy.first_pause
        self._unknown: OutcomeUnknown | None = None

    def pause_after(self, error: OutcomeUnknown | Unavailable) -> float:
        """Return the seconds to wait before the next attempt, after one that raised ``error``.

        Raises:
            OutcomeUnknown: The deadline passed and at least one attempt may have taken effect.
            Unavailable: The deadline passed and no attempt took effect.

        """
        policy = self._policy
        asked = error.retry_after if isinstance(error, Unavailable) else None
        if isinstance(error, OutcomeUnknown):
            self._unknown = error
        pause = asked if asked is not None else policy.draw(0.0, self._bound)
        if policy.clock.monotonic() + pause - self._began > policy.deadline:
            raise self._unknown or error
        self._bound = min(self._bound * 2, policy.longest_pause)
        policy.on_retry(error)
        return pause

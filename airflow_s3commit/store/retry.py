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

__all__ = ["RetryPolicy"]

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

    """

    deadline: float = 60.0
    first_pause: float = 0.1
    longest_pause: float = 5.0
    clock: Clock = field(default_factory=SystemClock)
    draw: Callable[[float, float], float] = random.uniform

    def run(self, attempt: Callable[[], T]) -> T:
        """Run ``attempt`` until it ends, is refused, or the deadline passes.

        Raises:
            OutcomeUnknown: Time ran out and at least one attempt may have taken effect.
            Unavailable: Time ran out and none did.

        """
        began = self.clock.monotonic()
        bound = self.first_pause
        unknown: OutcomeUnknown | None = None
        last: OutcomeUnknown | Unavailable
        while True:
            try:
                return attempt()
            except OutcomeUnknown as error:
                unknown, last, asked = error, error, None
            except Unavailable as error:
                last, asked = error, error.retry_after
            pause = asked if asked is not None else self.draw(0.0, bound)
            if self.clock.monotonic() + pause - began > self.deadline:
                raise unknown or last
            self.clock.sleep(pause)
            bound = min(bound * 2, self.longest_pause)

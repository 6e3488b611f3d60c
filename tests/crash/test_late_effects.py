"""Every write of a step takes effect late or twice, at any moment of what another process does."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any

import pytest

from tests.crash.interleave import ALL
from tests.crash.jobs import Cast
from tests.crash.late import Delay, LateStore

#: The step whose write is late, and what other processes do meanwhile.
CASTS = [
    Cast(("commit 0", "recover 0"), ("replace", "append")),
    Cast(("commit 0", "commit 1"), ("replace", "replace")),
    Cast(("commit 0", "abort 0"), ("append", "replace")),
    Cast(("commit 0", "commit 1"), ("replace", "replace"), publishes=True),
    Cast(("abort 0", "commit 0"), ("replace", "append")),
    Cast(("parts 0", "commit 1"), ("append", "replace all")),
    Cast(("attempt 0", "commit 0"), ("replace", "append")),
    Cast(("sweep", "commit 0"), ("replace", "replace")),
    Cast(("rollback", "patient"), ("replace", "replace"), retain="1s"),
    # The request arrives after all jobs have ended, and another has committed.
    Cast(("commit 0", "abort 0", "whole 2"), ("replace", "replace")),
    Cast(("abort 0", "commit 1", "whole 2"), ("replace", "replace")),
    Cast(("whole 2", "abort 2", "commit 1"), ("append", "append")),
]


@cache
def _writes(cast: Cast) -> int:
    """Return how many calls of the first process write."""
    world = cast.world()
    late = LateStore(world.observed, ALL, "late")
    world.actor(cast.steps[0])(late)
    return late.writes


@pytest.mark.parametrize("delay", ["late", "twice"])
@pytest.mark.parametrize(
    ("cast", "count"),
    [
        *(pytest.param(cast, 20, id=f"{cast}, some") for cast in CASTS),
        *(pytest.param(cast, 1500, id=f"{cast}, many", marks=pytest.mark.all) for cast in CASTS),
    ],
)
def test_a_write_that_lands_late_or_twice_changes_nothing(
    cast: Cast, delay: Delay, count: int, record_property: Callable[[str, object], None]
) -> None:
    """Whenever a request of a dead process, or a repeated one, arrives, every rule holds, and at rest too."""
    last = len(cast.steps) - 1
    moments = [(nth, at) for nth in range(1, _writes(cast) + 1) for at in range(cast.calls()[last] + 2)]
    chosen = Random(0).sample(moments, min(count, len(moments)))
    for nth, at in chosen:
        flight: list[LateStore] = []

        def delayed(store: Any, number: int, nth: int = nth, flight: list[LateStore] = flight) -> Any:
            if number:
                return store
            flight.append(LateStore(store, nth, delay))
            return flight[0]

        def land(_: Any, flight: list[LateStore] = flight) -> None:
            flight[0].land()

        # The process that lands the request makes no calls of its own, so an empty turn is enough.
        schedule = (*((number, ALL) for number in range(last)), (last, at), (last + 1, 0), (last, ALL))
        cast.play(schedule, through=delayed, also=[land], swept=True)
    record_property("schedules", len(chosen))

"""Every write of a step takes effect late or twice, at any moment of what another process does."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any

import pytest

from tests.crash.faulty import count_calls
from tests.crash.interleave import Actor, Schedule
from tests.crash.jobs import Jobs
from tests.crash.late import Delay, LateStore

Step = tuple[str, int]

#: More calls than any process makes.
ALL = 1_000_000

#: Modes of two jobs, the step whose write is late, and what another process does meanwhile.
Pair = tuple[tuple[Any, Any], Step, Step]
PAIRS: list[Pair] = [
    (("replace", "append"), ("commit", 0), ("recover", 0)),
    (("replace", "replace"), ("commit", 0), ("commit", 1)),
    (("append", "replace"), ("commit", 0), ("abort", 0)),
    (("replace", "append"), ("abort", 0), ("commit", 0)),
    (("append", "replace"), ("shards", 0), ("commit", 1)),
    (("replace", "replace"), ("sweep", 0), ("commit", 0)),
]


@cache
def _length(modes: tuple[Any, Any], step: Step) -> tuple[int, int]:
    """Return how many calls a step makes alone, and how many of them write."""
    world = Jobs(modes)
    late = LateStore(world.store, ALL, "late")
    name, number = step
    # A recovery makes the calls of the commit that it continues.
    return count_calls(late, world.actor("commit" if name == "recover" else name, number)), late.writes


def _play(world: Jobs, first: Step, write: tuple[int, Delay], others: tuple[Actor, ...], at: int) -> None:
    """Play one life: a request of the first process lands after some calls of the last one of the others."""
    flight: list[LateStore] = []

    def delayed(store: Any) -> None:
        flight.append(LateStore(store, *write))
        world.actor(*first)(flight[0])

    def land(_: Any) -> None:
        flight[0].land()

    *earlier, last = range(1, len(others) + 1)
    # The actor that lands the request makes no calls of its own, so an empty turn is enough.
    schedule: Schedule = (*((actor, ALL) for actor in (0, *earlier)), (last, at), (last + 1, 0), (last, ALL))
    try:
        world.play((delayed, *others, land), schedule, end=True)
    except Exception as error:
        error.add_note(f"write {write} of {first}")
        raise


@pytest.mark.parametrize("count", [20, pytest.param(1000, marks=pytest.mark.all)])
@pytest.mark.parametrize("delay", ["late", "twice"])
@pytest.mark.parametrize(
    "pair",
    PAIRS,
    ids=[f"{'-'.join(modes)} {first[0]}{first[1]} {second[0]}{second[1]}" for modes, first, second in PAIRS],
)
def test_a_write_that_lands_late_or_twice_changes_nothing(
    pair: Pair, delay: Delay, count: int, record_property: Callable[[str, object], None]
) -> None:
    """Whenever a request of a dead process, or a repeated one, arrives, data and marker are right at rest."""
    modes, first, second = pair
    calls, writes = _length(modes, second)[0], _length(modes, first)[1]
    moments = [(nth, at) for nth in range(1, writes + 1) for at in range(calls + 2)]
    for nth, at in Random(0).sample(moments, min(count, len(moments))):
        world = Jobs(modes)
        _play(world, first, (nth, delay), (world.actor(*second),), at)
    record_property("schedules", min(count, len(moments)))


@pytest.mark.parametrize("delay", ["late", "twice"])
@pytest.mark.parametrize("step", ["commit", "abort"])
def test_a_write_that_lands_after_everything_changes_nothing(
    step: str, delay: Delay, record_property: Callable[[str, object], None]
) -> None:
    """A request that arrives after its job has ended and another has committed leaves the data alone."""
    modes = ("replace", "replace")
    writes = _length(modes, (step, 0))[1]
    for nth in range(1, writes + 1):
        world = Jobs(modes)
        _play(world, (step, 0), (nth, delay), (world.end_all, world.actor("commit", 1)), ALL)
    record_property("schedules", writes)

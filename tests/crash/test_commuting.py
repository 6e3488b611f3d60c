"""Calls that commute: a schedule that is left out equals one that is played."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.crash.commuting import Touch, commute
from tests.crash.faulty import count_calls
from tests.crash.interleave import Pair
from tests.crash.jobs import Jobs

PUT, GET, LIST = Touch("put", ("t/a",)), Touch("get", ("t/a",)), Touch("list_objects", ("t/",))
UPLOADS, COMPLETE = Touch("list_uploads", ("t/",)), Touch("complete_upload", ("t/a",))
STAGING = "t/__magic_job-1/"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (GET, GET),
        (LIST, UPLOADS),
        (PUT, UPLOADS),
        (PUT, Touch("get", ("t/b",))),
        (PUT, Touch("list_objects", ("u/",))),
        (PUT, Touch("put", (f"{STAGING}job.json",))),
        (Touch("put", (f"{STAGING}a",)), Touch("delete_many", (f"{STAGING}b", f"{STAGING}c"))),
    ],
)
def test_calls_on_different_things_commute(one: Touch, other: Touch) -> None:
    """Two reads can be swapped, and so can calls that do not see each other's writes."""
    assert commute(one, other)
    assert commute(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (PUT, GET),
        (PUT, PUT),
        (PUT, LIST),
        (COMPLETE, UPLOADS),
        (COMPLETE, LIST),
        (COMPLETE, Touch("abort_upload", ("t/a",))),
        (PUT, Touch("delete_many", ("t/b", "t/a"))),
        (PUT, Touch("check_bucket", ("",))),
        (Touch("put", (f"{STAGING}a",)), Touch("list_objects", (STAGING,))),
        # The rules look at both.
        (PUT, Touch("put", ("t/b",))),
        (PUT, Touch("put", (f"{STAGING}state.json",))),
        # The clock.
        (GET, Touch("get", ("t/b",), ticks=True)),
    ],
)
def test_calls_on_one_thing_keep_their_order(one: Touch, other: Touch) -> None:
    """A call that sees the other's write, and two writes that a rule sees, cannot be swapped."""
    assert not commute(one, other)
    assert not commute(other, one)


def _without_ids(touches: list[Touch]) -> list[tuple[str, Any]]:
    return [(verb, [re.sub(r"id-\d+", "id", key) for key in keys]) for verb, keys, _ in touches]


@pytest.mark.parametrize("second", [("commit", 1), ("abort", 0)], ids=lambda step: step[0])
def test_a_schedule_that_is_left_out_equals_a_played_one(second: tuple[str, int]) -> None:
    """Both processes make the same calls in both, and end alike, with the same log and data."""
    modes, steps = ("replace", "append"), (("commit", 0), second)

    def play(own: int, other: int) -> tuple[Any, Pair]:
        world, schedule = Jobs(modes), Pair(0, own, other)
        outcomes = world.play([world.actor(*step) for step in steps], schedule)
        return ([type(one) for one in outcomes], world.log(), world.visible().keys()), schedule

    most = tuple(count_calls(world.store, world.actor(*step)) for step in steps for world in [Jobs(modes)])
    left_out = 0
    for place in ((2, 6), (6, 9), (12, 9), (20, 12)):
        end, schedule = play(*place)
        for own, other in sorted(schedule.equals(most)):
            its_end, again = play(own, other)
            assert its_end == end, (place, own, other)
            for mine, theirs in zip(schedule.calls, again.calls, strict=True):
                assert _without_ids(mine) == _without_ids(theirs), (place, own, other)
            left_out += (own, other) != place
    assert left_out >= 5

"""Processes whose listings of the log lag: entries are created, and found, by their keys."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any

import pytest

from airflow_s3commit.exceptions import AlreadyCommitted
from tests.crash.faulty import count_calls
from tests.crash.interleave import Actor, shuffles
from tests.crash.jobs import Jobs, ended_by_another
from tests.crash.late import LaggingLog

Step = tuple[str, int]

MODES = ("replace", "append", "replace")
STEPS: list[tuple[Step, ...]] = [
    (("commit", 0), ("commit", 1), ("commit", 2)),
    (("commit", 0), ("abort", 0), ("commit", 1)),
    (("commit", 0), ("commit", 0), ("commit", 1), ("abort", 1)),
    (("shards", 0), ("commit", 1), ("commit", 2), ("abort", 2)),
]


@cache
def _calls(step: Step) -> int:
    world = Jobs(MODES)
    return count_calls(world.store, world.actor(*step))


def _lagging(act: Actor, listings: int, lacks: int) -> Actor:
    return lambda store: act(LaggingLog(store, listings, lacks))


@pytest.mark.parametrize("count", [40, pytest.param(2000, marks=pytest.mark.all)])
@pytest.mark.parametrize("steps", STEPS, ids=lambda steps: "-".join(f"{name}{job}" for name, job in steps))
def test_a_lagging_listing_of_the_log_only_costs_retries(
    steps: tuple[Step, ...], count: int, record_property: Callable[[str, object], None]
) -> None:
    """However old the listed entries are, data and marker are those of the log at rest."""
    chance = Random(0)
    for schedule in shuffles([_calls(step) for step in steps], count, changes=5):
        world = Jobs(MODES)
        lags = [(chance.randint(0, 3), chance.randint(1, 4)) for _ in steps]
        actors = [_lagging(world.actor(*step), *lag) for step, lag in zip(steps, lags, strict=True)]
        outcomes: list[Any] = world.play(actors, schedule)
        assert all(outcome is None or ended_by_another(outcome) for outcome in outcomes), (lags, outcomes)
    record_property("schedules", count)


def test_an_abort_that_lists_an_older_log_leaves_the_newest_marker() -> None:
    """Its own entry shows how long the log is at least, so an older commit's marker does not come back."""
    world = Jobs(MODES)
    abort = _lagging(world.actor("abort", 0), 9, 2)
    outcomes = world.play([world.actor("commit", 1), world.actor("half_commit", 0), abort], ())
    assert (outcomes[0], outcomes[2]) == (None, None)


def test_an_abort_that_does_not_list_a_commit_leaves_the_records_that_it_needs() -> None:
    """A commit that died after its entry can be finished after an abort whose listings lacked that entry."""
    world = Jobs(MODES)
    abort = _lagging(world.actor("abort", 0), 9, 3)
    outcomes = world.play([world.actor("entering_commit", 0), abort], (), end=True)
    assert isinstance(outcomes[1], AlreadyCommitted)

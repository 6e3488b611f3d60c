"""A sharded commit is stopped at every call, run twice, out of order, and by two workers at once."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from airflow_s3commit.exceptions import JobClosed
from tests.crash.faulty import FAULTS, count_calls
from tests.crash.interleave import play, schedules
from tests.crash.world import Case, World, held_by, run_with_fault

CASES = [Case(), Case(repeat_complete="gone"), Case("magic", "append")]

#: Every way to continue.
HELD = [*product(CASES[1:2], ("shards", "commit", "abort"))]

SHARDS = 2


def _ready(case: Case) -> World:
    world = World(case)
    world.advance_to("commit")
    return world


def _in_shards(world: World, store: Any) -> None:
    job = world.job(store)
    for shard in job.begin(SHARDS):
        job.complete(shard)
    job.finish()


@pytest.mark.parametrize(
    ("case", "going_on"), held_by(product(CASES, ("shards", "commit", "abort")), HELD), ids=str
)
def test_a_stopped_sharded_commit_can_be_resumed_or_undone(
    case: Case, going_on: str, record_property: Callable[[str, object], None]
) -> None:
    """Wherever it stops, shards again or a plain commit finish it, and an abort undoes it."""
    sample = _ready(case)
    calls = count_calls(sample.store, lambda store: _in_shards(sample, store))
    stops = 0
    for at, fault in product(range(1, calls + 1), FAULTS):
        world = _ready(case)
        run_with_fault(world, lambda store: _in_shards(world, store), at, fault)  # noqa: B023
        if going_on == "shards":
            _in_shards(world, world.store)
        elif going_on == "commit":
            world.commit(world.store)
        elif world.abort_or_commit():
            continue
        world.check_committed()
        stops += 1
    record_property("stops", stops)


def test_a_shard_may_run_twice_anywhere_and_in_any_order() -> None:
    """Shards completed backwards, and each of them twice, end like one commit."""
    world = _ready(Case())
    assert world.job().begin(SHARDS) == [0, 1]
    for shard in (1, 0, 0, 1):
        world.job().complete(shard)
    world.job().finish()
    world.job().complete(0)
    world.check_committed()


def test_finish_refuses_while_a_shard_is_missing() -> None:
    """A commit is not finished before all of its shards are, and asking loses nothing."""
    world = _ready(Case())
    world.job().begin(SHARDS)
    world.job().complete(1)
    with pytest.raises(JobClosed, match=r"shards \[0\]"):
        world.job().finish()
    world.job().complete(0)
    world.job().finish()
    world.check_committed()


def test_a_shard_that_does_not_exist_is_refused() -> None:
    """A number that begin did not return is not a shard."""
    world = _ready(Case())
    world.job().begin(SHARDS)
    with pytest.raises(JobClosed, match="no shard 2"):
        world.job().complete(2)


def test_two_workers_on_one_shard_agree(record_property: Callable[[str, object], None]) -> None:
    """However two workers complete the same shard, and the last one finishes, the output exists once."""
    sample = _ready(Case(repeat_complete="gone"))
    sample.job().begin(1)
    calls = count_calls(sample.store, lambda store: sample.job(store).complete(0))
    played = 0
    for schedule in schedules(calls, calls):
        world = _ready(Case(repeat_complete="gone"))
        world.job().begin(1)

        def work(store: Any, world: World = world) -> None:
            world.job(store).complete(0)
            world.job(store).finish()

        assert play(world.observed(), (work, work), schedule) == [None, None], schedule
        world.check_committed()
        played += 1
    record_property("schedules", played)

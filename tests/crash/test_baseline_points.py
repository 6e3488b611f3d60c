"""A baseline that lists its files is stopped at every call, and run beside commits in many orders."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any

import pytest

from airflow_s3commit import baseline
from airflow_s3commit.exceptions import DestinationChanged
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.job import ConflictMode
from airflow_s3commit.reader.listing import Choice, find_table
from tests.crash.faulty import FAULTS, count_calls
from tests.crash.interleave import Actor, schedules
from tests.crash.jobs import DESTINATION, Jobs
from tests.crash.world import BUCKET, ROOT, Case, World, run_with_fault
from tests.history import is_data

Record = Callable[[str, object], None]


def _listed(store: Any) -> set[str]:
    """Return the keys that a reader finds."""
    found = find_table(store, Destination.parse(DESTINATION), Choice()).files
    return {file.path.removeprefix(f"{BUCKET}/") for file in found}


def _close(world: World) -> Callable[[Any], None]:
    def close(store: Any) -> None:
        baseline(store, DESTINATION, dry_run=False, clock=world.clock, threads=0)

    return close


def test_a_baseline_that_stops_is_repeated(record_property: Record) -> None:
    """Wherever it stops, the next one lists the same files, and no file is touched."""
    stops = 0
    world = World(Case())
    for at, fault in product(range(1, count_calls(world.store, _close(world)) + 1), FAULTS):
        world = World(Case())
        before = {key: body for key, body in world.visible().items() if not key.endswith("_SUCCESS")}
        run_with_fault(world, _close(world), at, fault)
        _close(world)(world.store)
        assert _listed(world.store) == {k for k in before if k.startswith(ROOT) and is_data(k[len(ROOT) :])}
        assert before.items() <= world.visible().items()
        stops += 1
    record_property("stops", stops)


@cache
def _calls(mode: ConflictMode, step: str) -> int:
    return count_calls(Beside(mode).store, Beside(mode).step(step))


class Beside(Jobs):
    """A table without a log, one sealed job, and a baseline."""

    def __init__(self, mode: ConflictMode) -> None:
        World.__init__(self, Case(mode=mode))
        self.modes = (mode,)
        self.reach("sealed", lambda: self.take_until("plan"))

    def step(self, step: str) -> Actor:
        """Return a process that takes a step."""
        return _close(self) if step == "close" else self.actor("commit", 0)


@pytest.mark.parametrize(
    "every", [pytest.param(19, id="some"), pytest.param(1, id="all", marks=pytest.mark.all)]
)
@pytest.mark.parametrize("mode", ["append", "replace"])
def test_a_baseline_beside_a_commit(mode: ConflictMode, every: int, record_property: Record) -> None:
    """However the two interleave, a reader finds each file of the destination once."""
    calls, played = [_calls(mode, "close"), _calls(mode, "commit")], 0
    for number, schedule in enumerate(schedules(*calls, 2)):
        if number % every == 0:
            world = Beside(mode)
            outcomes = world.play([world.step("close"), world.step("commit")], schedule)
            assert outcomes[1] is None
            assert isinstance(outcomes[0], DestinationChanged | None)
            found = {key for key in world.visible() if key.startswith(ROOT) and is_data(key[len(ROOT) :])}
            assert _listed(world.store) == found, schedule
            played += 1
    record_property("schedules", played)

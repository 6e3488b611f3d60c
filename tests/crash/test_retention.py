"""Jobs that retain what they replace, beside rollbacks and sweeps, in many orders of their calls.

Every play is watched: what is retained is not deleted before its release, and what is released never comes
back (`tests/crash/observed.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from airflow_s3commit import rollback
from airflow_s3commit.exceptions import DestinationChanged, NotReversible, PreconditionFailed
from airflow_s3commit.testing import Crash, Fault, FaultyStore
from tests.crash.faulty import count_calls
from tests.crash.interleave import Outcome, schedules, shuffles
from tests.crash.jobs import DESTINATION, FIRST, JOBS, WRITTEN, Jobs
from tests.crash.world import Case, World

SECOND = "55555555-aaaa-4bbb-8ccc-000000000005"

Step = tuple[str, Any]


class Table(Jobs):
    """A table whose second generation retains what it replaced; two sealed jobs replace more of it.

    Args:
        retain: The retention of the two jobs.

    """

    def __init__(self, retain: str) -> None:
        World.__init__(self, Case(mode="fail"))
        self.modes = ("replace", "replace")
        self.reach(f"table {retain}", lambda: self._fill(retain))
        self.clock.advance(10)

    def _fill(self, retain: str) -> None:
        self._write(FIRST, "append", {"dt=1/first.parquet": b"1", "dt=3/first.parquet": b"3"})
        self.job(self.store, FIRST).commit()
        self._write(SECOND, "replace", {"dt=1/second.parquet": b"2"}, "1s")
        self.job(self.store, SECOND).commit()
        for number in range(2):
            self._write(JOBS[number], "replace", WRITTEN[number], retain)

    def act(self, step: Step) -> Callable[[Any], object]:
        """Return a process that takes a step."""
        name, argument = step
        return lambda store: getattr(self, f"take_{name}")(argument, store)

    def take_commit(self, number: int, store: Any) -> None:
        self.job(store, JOBS[number]).commit()

    def take_rollback(self, retain: str, store: Any) -> None:
        rollback(store, DESTINATION, to=1, retain=retain, clock=self.clock, threads=0)

    def take_dying_rollback(self, retain: str, store: Any) -> None:
        """Roll back, and die right after the entry."""
        self.take_rollback(retain, FaultyStore(store, Fault("crash-after", "put", "*_s3commit/log/*")))

    def take_sweep(self, _: object, store: Any) -> None:
        """Sweep after everything that was committed earlier has been retained for long enough."""
        self.clock.advance(10)
        self.patient_sweep_of("", store)

    def patient_sweep_of(self, job_id: str, store: Any) -> None:
        report = self.sweep_of(job_id, store, 3600)
        assert all("came first" in failure.reason for failure in report.failures)

    def end_all(self, store: Any) -> None:
        super().end_all(store)
        self.clock.advance(10)
        self.take_sweep(None, store)
        # A rollback that died did not write this.
        rollback(store, DESTINATION, to=store.history.newest, clock=self.clock, threads=0)


@cache
def _calls(retain: str, step: Step) -> int:
    world = Table(retain)
    return count_calls(world.store, world.act(step))


def _none_lost(outcomes: list[Outcome]) -> None:
    refused = (NotReversible, DestinationChanged, PreconditionFailed, Crash)
    assert all(outcome is None or isinstance(outcome, refused) for outcome in outcomes), outcomes


PAIRS: list[tuple[Step, Step]] = [
    (("rollback", "0s"), ("sweep", None)),
    (("rollback", "1s"), ("sweep", None)),
    (("rollback", "0s"), ("commit", 0)),
    (("commit", 0), ("sweep", None)),
    (("sweep", None), ("sweep", None)),
]


@pytest.mark.parametrize(
    "share", [pytest.param(0.05, id="some"), pytest.param(1.0, id="all", marks=pytest.mark.all)]
)
@pytest.mark.parametrize(
    "pair", PAIRS, ids=lambda pair: "-".join(f"{name}{value or ''}" for name, value in pair)
)
def test_two_steps_on_a_table_that_retains(
    pair: tuple[Step, Step], share: float, record_property: Callable[[str, object], None]
) -> None:
    """However two of them interleave, nothing retained is lost, and nothing released comes back."""
    played = 0
    for schedule in schedules(*(_calls("1s", step) for step in pair), share):
        world = Table("1s")
        _none_lost(world.play([world.act(step) for step in pair], schedule, end=True))
        played += 1
    record_property("schedules", played)


@pytest.mark.parametrize("count", [40, pytest.param(2000, marks=pytest.mark.all)])
@pytest.mark.parametrize("retain", ["0s", "1s"])
@pytest.mark.parametrize("rolling", ["rollback", "dying_rollback"])
def test_replaces_beside_a_rollback_and_a_sweep(
    rolling: str, retain: str, count: int, record_property: Callable[[str, object], None]
) -> None:
    """However two replaces, a rollback and a sweep interleave, the table is that of the log's order."""
    steps: tuple[Step, ...] = (("commit", 0), ("commit", 1), (rolling, retain), ("sweep", None))
    calls = [_calls(retain, step if step[0] != "dying_rollback" else ("rollback", retain)) for step in steps]
    for schedule in shuffles(calls, count, changes=6):
        world = Table(retain)
        _none_lost(world.play([world.act(step) for step in steps], schedule, end=True))
    record_property("schedules", count)

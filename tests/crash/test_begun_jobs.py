"""Jobs with fixed file names beside other jobs, and a lifecycle rule, in many orders of their calls.

Every play is watched: no job enters the log beside an open `begin` on its partitions, nobody abandons a begun
job, and outside of its partitions every file of the newest generation is there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import cache
from typing import Any

import pytest

from airflow_s3commit.exceptions import JobClosed, JobFailed, NoSuchJob
from airflow_s3commit.testing import Crash
from tests.crash.faulty import count_calls
from tests.crash.interleave import Outcome, Schedule, schedules, shuffles
from tests.crash.jobs import Jobs, ended_by_another
from tests.crash.world import held_by

Record = Callable[[str, object], None]
Step = tuple[str, int]

#: Pairs of jobs that `make test` plays with three processes and more.
HELD = ("fixed beside replace", "two fixed")

#: Modes of the jobs, and which have fixed names.
BESIDE: dict[str, tuple[tuple[Any, ...], tuple[int, ...]]] = {
    "fixed beside append": (("replace", "append"), (0,)),
    "fixed beside replace": (("replace", "replace"), (0,)),
    "two fixed": (("replace", "replace"), (0, 1)),
    "fixed append beside replace": (("append", "replace"), (0,)),
}


@cache
def _calls(modes: tuple[Any, ...], fixed: tuple[int, ...], step: Step) -> int:
    world, (name, number) = Jobs(modes, fixed=fixed), step
    name = "commit" if name in ("half_commit", "recover") else name
    return count_calls(world.store, world.actor(name, number))


def _play(
    beside: str,
    steps: Collection[Step],
    chosen: Iterable[Schedule],
    judge: Callable[[list[Outcome]], None],
    *,
    end: bool = False,
) -> int:
    modes, fixed = BESIDE[beside]
    played = 0
    for schedule in chosen:
        world = Jobs(modes, fixed=fixed)
        judge(world.play([world.actor(*step) for step in steps], schedule, end=end))
        played += 1
    return played


def _shuffled(beside: str, steps: Iterable[Step], count: int, *, changes: int) -> Iterable[Schedule]:
    modes, fixed = BESIDE[beside]
    return shuffles([_calls(modes, fixed, step) for step in steps], count, changes=changes)


def _all_committed(outcomes: list[Outcome]) -> None:
    assert set(outcomes) == {None}


def _none_lost(outcomes: list[Outcome]) -> None:
    assert all(ended_by_another(o) or isinstance(o, Crash | None) for o in outcomes), outcomes


@pytest.mark.parametrize("share", [0.06, pytest.param(1.0, marks=pytest.mark.all)])
@pytest.mark.parametrize("beside", BESIDE)
def test_a_begun_job_beside_another_job(beside: str, share: float, record_property: Record) -> None:
    """However the two interleave, both commit, and the data is that of a serial run by the log."""
    modes, fixed = BESIDE[beside]
    steps = (("commit", 0), ("commit", 1))
    chosen = schedules(*(_calls(modes, fixed, step) for step in steps), share)
    record_property("schedules", _play(beside, steps, chosen, _all_committed))


@pytest.mark.parametrize("count", [40, pytest.param(1000, marks=pytest.mark.all)])
@pytest.mark.parametrize("beside", held_by(BESIDE, HELD))
@pytest.mark.parametrize(
    "steps",
    [
        (("commit", 0), ("commit", 0), ("commit", 1)),
        (("shards", 0), ("commit", 0), ("commit", 1)),
        (("commit", 0), ("abort", 0), ("commit", 1)),
        (("half_commit", 0), ("commit", 1), ("commit", 1)),
        (("half_commit", 0), ("abort", 0), ("recover", 0), ("commit", 1)),
    ],
    ids=lambda steps: "-".join(f"{step}{number}" for step, number in steps),
)
def test_processes_of_begun_jobs_and_helpers(
    steps: tuple[Step, ...], beside: str, count: int, record_property: Record
) -> None:
    """However twins, a dead committer, an abort and a helper interleave, each job ends once."""
    chosen = _shuffled(beside, steps, count, changes=6)
    record_property("schedules", _play(beside, steps, chosen, _none_lost, end=True))


@pytest.mark.parametrize("count", [60, pytest.param(1500, marks=pytest.mark.all)])
@pytest.mark.parametrize("beside", held_by(BESIDE, HELD))
@pytest.mark.parametrize(
    "steps",
    [
        (("commit", 0), ("expire", 0), ("commit", 1)),
        (("commit", 0), ("commit", 0), ("expire", 0), ("commit", 1)),
    ],
    ids=lambda steps: "-".join(f"{step}{number}" for step, number in steps),
)
def test_uploads_that_expire_at_any_moment(
    steps: tuple[Step, ...], beside: str, count: int, record_property: Record
) -> None:
    """A begun job whose uploads expire ends as lost in any process; one that has not begun is rolled back."""
    ends: set[str] = set()

    def judge(outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            assert outcome is None or isinstance(outcome, JobClosed | JobFailed | NoSuchJob), outcome
            lost = outcome is not None and "is lost" in str(outcome)
            ends.add("lost" if lost else "rolled back" if isinstance(outcome, JobFailed) else "other")

    record_property(
        "schedules", _play(beside, steps, _shuffled(beside, steps, count, changes=6), judge, end=True)
    )
    assert ends >= {"rolled back", "other"}
    # A second committer finds most of them before the job begins.
    assert "lost" in ends or len(steps) > 3

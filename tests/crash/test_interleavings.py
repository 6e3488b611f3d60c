"""Two concurrent processes, in every order of their calls up to a fixed number of changes between them.

`make test` plays a part of the orders in the case that most jobs have. `make test-all` plays every one of
them, in its variants too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from airflow_s3commit.exceptions import AlreadyCommitted, JobClosed, NoSuchJob
from tests.crash.faulty import count_calls
from tests.crash.interleave import Outcome, play, schedules
from tests.crash.world import Case, World, run_with_fault

Record = Callable[[str, object], None]

REPLACE = Case()

#: The part of the schedules that is tried.
SHARES = [0.2, pytest.param(1.0, marks=pytest.mark.all)]

#: Pending uploads of a job that is ready to commit: three that count, and one of a speculative twin.
PENDING = 4
VARIANTS = [Case(repeat_complete="gone"), Case(mode="append"), Case(committer="directory")]
RACES = [
    pytest.param(REPLACE, 0.2, id=f"{REPLACE}-a fifth"),
    *(pytest.param(case, 1.0, id=f"{case}-all", marks=pytest.mark.all) for case in [REPLACE, *VARIANTS]),
]


def _calls(step: str, case: Case) -> int:
    world = World(case)
    world.advance_to("commit")
    return count_calls(world.store, getattr(world, step))


def _race(
    case: Case, first: str, second: str, judge: Callable[[World, list[Outcome]], None], share: float
) -> int:
    played = 0
    for schedule in schedules(_calls(first, case), _calls(second, case), share):
        world = World(case)
        world.advance_to("commit")
        store = world.observed()
        try:
            outcomes = play(store, (getattr(world, first), getattr(world, second)), schedule)
            judge(world, outcomes)
            store.at_rest()
        except Exception as error:
            error.add_note(f"schedule {schedule}, log {world.log()}")
            raise
        played += 1
    return played


@pytest.mark.parametrize(("case", "share"), RACES)
def test_two_processes_committing_one_job_both_succeed(
    case: Case, share: float, record_property: Record
) -> None:
    """However two committers of one job interleave, both return and the output exists once."""

    def judge(world: World, outcomes: list[Outcome]) -> None:
        assert outcomes == [None, None]
        world.check_committed()

    record_property("schedules", _race(case, "commit", "commit", judge, share))


@pytest.mark.parametrize(("case", "share"), RACES)
def test_of_a_commit_and_an_abort_exactly_one_wins(case: Case, share: float, record_property: Record) -> None:
    """However a commit and an abort interleave, the destination ends fully committed, or untouched."""

    def judge(world: World, outcomes: list[Outcome]) -> None:
        committing, aborting = outcomes
        if committing is None:
            assert isinstance(aborting, AlreadyCommitted)
            world.check_committed()
        else:
            assert isinstance(committing, JobClosed | NoSuchJob)
            assert aborting is None
            world.check_untouched()

    record_property("schedules", _race(case, "commit", "abort", judge, share))


@pytest.mark.parametrize("share", SHARES)
def test_two_concurrent_aborts_leave_no_trace(share: float, record_property: Record) -> None:
    """However two aborts interleave, both return and nothing is left."""

    def judge(world: World, outcomes: list[Outcome]) -> None:
        assert outcomes == [None, None]
        world.check_untouched()

    record_property("schedules", _race(REPLACE, "abort", "abort", judge, share))


@pytest.mark.parametrize("share", SHARES)
def test_a_late_task_attempt_never_outlives_an_abort(share: float, record_property: Record) -> None:
    """However a task commit and an abort interleave, nothing of the task stays pending or is sealed."""
    case = REPLACE
    world = World(case)
    world.advance_to("run_tasks")
    calls = count_calls(world.store, lambda store: world.run_task(store, "00000", "0"))
    played = 0
    for schedule in schedules(calls, _calls("abort", case), share):
        world = World(case)
        world.advance_to("run_tasks")
        play(world.observed(), (lambda store: world.run_task(store, "00000", "0"), world.abort), schedule)  # noqa: B023
        assert world.pending() == [], schedule
        world.abort(world.store)
        world.check_untouched()
        played += 1
    record_property("schedules", played)


def _stop(world: World, at: int) -> None:
    world.advance_to("commit")
    run_with_fault(world, world.commit, at, "crash-after", watch=False)


@cache
def _call_in_the_middle(case: Case) -> int:
    """Return the first call after which a commit is under way and an upload is complete."""
    for at in range(1, _calls("commit", case)):
        world = World(case)
        _stop(world, at)
        state = world.job().state()
        if state is not None and state.state == "committing" and len(world.pending()) < PENDING:
            return at
    raise AssertionError("a commit never is half done")


def _half_committed(case: Case) -> World:
    """Return a world whose committer died after it completed one upload."""
    at = _call_in_the_middle(case)
    world = World(case)
    world.reach("half committed", lambda: _stop(world, at))
    return world


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("second", ["recover", "roll_back"])
def test_a_commit_and_a_recovery_of_a_half_published_job_agree(
    second: str, share: float, record_property: Record
) -> None:
    """However a commit and a recovery of it interleave, it ends committed, or undone."""

    def calls(step: str) -> int:
        world = _half_committed(REPLACE)
        return count_calls(world.store, getattr(world, step))

    played = 0
    for schedule in schedules(calls("commit"), calls(second), share):
        world = _half_committed(REPLACE)
        committing, recovering = play(world.observed(), (world.commit, getattr(world, second)), schedule)
        if committing is None:
            assert recovering is None or isinstance(recovering, AlreadyCommitted), (schedule, recovering)
            world.check_committed()
        else:
            assert second == "roll_back", (schedule, committing)
            assert isinstance(committing, JobClosed | NoSuchJob), (schedule, committing)
            assert recovering is None, (schedule, recovering)
            world.check_untouched()
        played += 1
    record_property("schedules", played)

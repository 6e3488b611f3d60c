"""Every call of every step is stopped before it, after it, with its answer lost or refused, then resumed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count, product

import pytest

from airflow_s3commit.testing import Effect
from tests.crash.faulty import FAULTS, count_calls
from tests.crash.world import STEPS, Case, World, held_by, run_with_fault

CASES = [
    Case(committer, mode, repeat)
    for committer, mode, repeat in product(
        ("directory", "partitioned", "magic"),
        ("fail", "append", "replace"),
        ("ok", "gone"),
    )
] + [
    Case("magic", "replace", track="s3", repeat_complete="gone"),
    Case("partitioned", "append", track="s3"),
    Case("directory", "replace", marks=True),
    Case("magic", "append", apart=True),
    Case("partitioned", "replace", repeat_complete="gone", apart=True),
    Case("magic", "replace", marks=True),
]

#: Every committer, mode, answer to a second completion, tracking and form of the list of
#: files, once at least.
HELD = [
    Case("partitioned", "replace"),
    Case("partitioned", "replace", repeat_complete="gone", apart=True),
    Case("magic", "replace", repeat_complete="gone"),
    Case("directory", "replace", repeat_complete="gone"),
    Case("magic", "append", repeat_complete="gone"),
    Case("directory", "fail"),
    Case("magic", "replace", track="s3", repeat_complete="gone"),
    Case("magic", "replace", marks=True),
]

#: What a second completion gets only matters to the commit.
POINTS = held_by(
    (
        (step, case)
        for step, case in product(STEPS, CASES)
        if step == "commit" or case.repeat_complete == "ok" or case.track == "s3" or case.marks or case.apart
    ),
    list(product(STEPS, HELD)),
)


def _points(case: Case, step: str) -> int:
    """Count the calls of a step without a fault."""
    world = World(case)
    world.advance_to(step)
    return count_calls(world.store, getattr(world, step))


def _stopped(case: Case, step: str, at: int, fault: Effect) -> World:
    world = World(case)
    world.advance_to(step)
    run_with_fault(world, getattr(world, step), at, fault)
    return world


@pytest.mark.parametrize(("step", "case"), POINTS, ids=str)
def test_the_same_step_again_ends_committed(
    case: Case, step: str, record_property: Callable[[str, object], None]
) -> None:
    """Wherever a step stops, repeating it and going on commits exactly the sealed output."""
    stops = 0
    for at, fault in product(range(1, _points(case, step) + 1), FAULTS):
        world = _stopped(case, step, at, fault)
        world.finish_from(step)
        world.check_committed()
        stops += 1
    record_property("stops", stops)


@pytest.mark.parametrize(("step", "case"), POINTS, ids=str)
def test_an_abort_after_any_stop_leaves_no_trace(
    case: Case, step: str, record_property: Callable[[str, object], None]
) -> None:
    """Wherever a step stops, an abort restores everything, unless the job can no longer be undone."""
    stops = 0
    for at, fault in product(range(1, _points(case, step) + 1), FAULTS):
        world = _stopped(case, step, at, fault)
        world.abort_or_commit()
        stops += 1
    record_property("stops", stops)


@pytest.mark.parametrize(
    "case",
    held_by(
        [
            Case(repeat_complete="gone"),
            Case("magic", "append"),
            Case("directory", "fail", repeat_complete="gone"),
        ],
        [Case(repeat_complete="gone")],
    ),
    ids=str,
)
def test_a_stopped_abort_is_taken_up_again(
    case: Case, record_property: Callable[[str, object], None]
) -> None:
    """An abort of a half-published job, stopped anywhere and run again, restores everything."""
    publishing, stops = _points(case, "commit"), 0
    for at in range(1, publishing + 1):
        world = _stopped(case, "commit", at, "crash-after")
        state = world.job().state()
        if state is None or state.state != "committing" or world.log():
            continue
        for stop, fault in ((stop, fault) for stop in count(1) for fault in FAULTS):
            again = _stopped(case, "commit", at, "crash-after")
            if not run_with_fault(again, again.abort, stop, fault).hit:
                break
            again.abort(again.store)
            again.check_untouched()
            stops += 1
    record_property("stops", stops)

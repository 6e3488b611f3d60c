"""Every call of every step is stopped before it, after it, with its answer lost or refused, then resumed.

At every effect the store is held to the rules of `tests/crash/observed.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import count, islice, product
from typing import Any

import pytest

from airflow_s3commit.exceptions import AlreadyCommitted
from airflow_s3commit.testing import Effect
from tests.crash.faulty import FAULTS, count_calls
from tests.crash.world import STEPS, Case, World, held_by, run_with_fault

Record = Callable[[str, object], None]

#: Every committer, mode, answer to a second completion, tracking, and form of the list of files; markers in
#: partitions; several stages; Spark's own writers.
CASES = [
    *(Case(*kind, "gone") for kind in product(("directory", "partitioned"), ("fail", "replace"))),
    Case("partitioned", "append"),
    Case("magic", "append", "gone", track="s3", stages=True),
    Case("magic", "replace", track="s3", apart=True),
    Case("magic", "replace", "gone", marks=True),
    Case("directory", "replace", marks=True, stages=True),
    Case("partitioned", "replace", "gone", apart=True, stages=True),
    Case("directory", "replace", publishes=True),
    Case("magic", "fail", apart=True, stages=True, publishes=True),
    Case("partitioned", "replace", "gone", s3a=True),
    Case("directory", "append", stages=True, s3a=True),
]  # fmt: skip

STREAMED, MARKED, STAGED = CASES[5], CASES[7], CASES[9]

POINTS = held_by(
    product(STEPS, CASES),
    [
        *((step, STREAMED) for step in STEPS),
        ("commit", MARKED),
        ("commit", STAGED),
        *(("commit", case) for case in CASES[10:13:2]),
    ],
)


def some(cases: list[Case], held: list[Case], every: int) -> list[Any]:
    """Return cases with how many of their stops to pass over: `make test` takes some, `make test-all` all."""
    return [
        *(pytest.param(case, every, id=f"{case}, some") for case in held),
        *(pytest.param(case, 1, id=f"{case}, all", marks=pytest.mark.all) for case in cases),
    ]


def _points(case: Case, step: str) -> int:
    """Count the calls of a step without a fault."""
    world = World(case)
    world.advance_to("commit" if step == "commit_in_parts" else step)
    return count_calls(world.observed, getattr(world, step))


def _stopped(case: Case, step: str, at: int, fault: Effect = "crash-after") -> World:
    world = World(case)
    world.advance_to("commit" if step == "commit_in_parts" else step)
    run_with_fault(world, getattr(world, step), at, fault)
    return world


@pytest.mark.parametrize(("step", "case"), POINTS, ids=str)
def test_the_same_step_again_ends_committed(case: Case, step: str, record_property: Record) -> None:
    """Wherever a step stops, repeating it and going on commits exactly the sealed output."""
    stops = 0
    for at, fault in product(range(1, _points(case, step) + 1), FAULTS):
        world = _stopped(case, step, at, fault)
        world.finish_from(step)
        world.check_committed()
        stops += 1
    record_property("stops", stops)


@pytest.mark.parametrize(("step", "case"), POINTS, ids=str)
def test_an_abort_after_any_stop_leaves_no_trace(case: Case, step: str, record_property: Record) -> None:
    """Wherever a step stops, an abort restores everything, unless the job can no longer be undone."""
    stops = 0
    for at, fault in product(range(1, _points(case, step) + 1), FAULTS):
        _stopped(case, step, at, fault).abort_or_commit()
        stops += 1
    record_property("stops", stops)


@pytest.mark.parametrize(("case", "every"), some(CASES, [CASES[1], CASES[6]], 3))
def test_a_stopped_abort_is_taken_up_again(case: Case, every: int, record_property: Record) -> None:
    """An abort of a half-published job, stopped anywhere and run again, restores everything."""
    stops = 0
    for at in range(1, _points(case, "commit") + 1):
        published = _stopped(case, "commit", at)
        if published.ended() or published.visible() == published.before:
            continue
        tries = ((stop, fault) for stop in count(1) for fault in FAULTS)
        for stop, fault in islice(tries, at % every, None, every):
            world = _stopped(case, "commit", at)
            if not run_with_fault(world, world.abort, stop, fault).hit:
                break
            world.abort(world.observed)
            world.check_untouched()
            stops += 1
    assert stops
    record_property("stops", stops)


@pytest.mark.parametrize("again", ["commit", "abort", "recover", "commit_in_parts"])
@pytest.mark.parametrize(("case", "every"), some(CASES, [STREAMED], 5))
def test_a_commit_that_stops_twice_ends_either_way(
    case: Case, every: int, again: str, record_property: Record
) -> None:
    """After a commit and what went on from it have both stopped, a third process ends the job."""
    stops = 0
    for first in range(1, _points(case, "commit") + 1):
        for second in count(1 + first % every, every):
            world = _stopped(case, "commit", first)
            if not run_with_fault(world, getattr(world, again), second, "crash-after").hit:
                break
            if again == "abort":
                world.abort_or_commit()
            else:
                world.commit(world.observed)
                world.check_committed()
            stops += 1
    record_property("stops", stops)


@pytest.mark.parametrize(("case", "every"), some(CASES, [CASES[3], STREAMED], 2))
@pytest.mark.parametrize("going_on", ["commit_in_parts", "commit", "abort_or_commit"])
def test_a_commit_in_parts_that_stops_can_be_resumed_or_undone(
    case: Case, every: int, going_on: str, record_property: Record
) -> None:
    """Wherever parts stop, parts again or a plain commit finish the job, and an abort undoes it."""
    stops = 0
    for at, fault in product(range(1, _points(case, "commit_in_parts") + 1, every), FAULTS):
        world = _stopped(case, "commit_in_parts", at, fault)
        if going_on == "abort_or_commit":
            world.abort_or_commit()
        else:
            with suppress(AlreadyCommitted):
                getattr(world, going_on)(world.observed)
            world.commit(world.observed)
            world.check_committed()
        stops += 1
    record_property("stops", stops)

"""A crash, and a second crash in the recovery from it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from airflow_s3commit.exceptions import AlreadyCommitted
from tests.crash.faulty import count_calls
from tests.crash.world import Case, World, held_by, run_with_fault

CASES = [Case(repeat_complete="gone"), Case("magic", "append")]
Record = Callable[[str, object], None]


def _stopped_twice(case: Case, step: str, again: str, first: int, second: int) -> World:
    world = World(case)
    world.advance_to(step)
    run_with_fault(world, getattr(world, step), first, "crash-after")
    run_with_fault(world, getattr(world, again), second, "crash-after")
    return world


def _calls(case: Case, step: str, *, stopped_at: int = 0, again: str | None = None) -> int:
    """Count the calls of a step, or of the step that continues after it was stopped."""
    world = World(case)
    world.advance_to(step)
    if stopped_at:
        run_with_fault(world, getattr(world, step), stopped_at, "crash-after")

    def take(store: Any) -> None:
        with suppress(AlreadyCommitted):
            getattr(world, again or step)(store)

    return count_calls(world.store, take)


@pytest.mark.parametrize("case", held_by(CASES, CASES[:1]), ids=str)
def test_a_commit_that_crashes_twice_is_committed_by_the_third(case: Case, record_property: Record) -> None:
    """Two crashes at any two calls of two commits leave what a third commit finishes."""
    stops = 0
    for first in range(1, _calls(case, "commit") + 1):
        for second in range(1, _calls(case, "commit", stopped_at=first) + 1):
            world = _stopped_twice(case, "commit", "commit", first, second)
            world.commit(world.store)
            world.check_committed()
            stops += 1
    record_property("stops", stops)


@pytest.mark.parametrize("case", held_by(CASES, CASES[:1]), ids=str)
def test_a_commit_and_its_abort_that_both_crash_end_either_way(case: Case, record_property: Record) -> None:
    """After a commit and its abort were both stopped, another abort undoes, or a commit finishes."""
    stops = 0
    for first in range(1, _calls(case, "commit") + 1):
        for second in range(1, _calls(case, "commit", stopped_at=first, again="abort") + 1):
            world = _stopped_twice(case, "commit", "abort", first, second)
            world.abort_or_commit()
            stops += 1
    record_property("stops", stops)

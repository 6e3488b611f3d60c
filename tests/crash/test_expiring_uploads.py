"""Jobs whose uploads a lifecycle rule aborts, beside other jobs, in many orders of their calls."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from airflow_s3commit.exceptions import JobClosed, JobFailed, NoSuchJob
from airflow_s3commit.protocol.model.job import ConflictMode
from tests.crash.faulty import count_calls
from tests.crash.interleave import shuffles
from tests.crash.jobs import Jobs

Step = tuple[str, int]
Modes = tuple[ConflictMode, ConflictMode]


@cache
def _calls(modes: Modes, step: Step) -> int:
    world = Jobs(modes)
    return count_calls(world.store, world.actor(*step))


@pytest.mark.parametrize("count", [60, pytest.param(1500, marks=pytest.mark.all)])
@pytest.mark.parametrize("modes", [("replace", "append"), ("replace", "replace")], ids="-".join)
@pytest.mark.parametrize(
    "steps",
    [
        (("commit", 0), ("expire", 0), ("commit", 1)),
        (("commit", 0), ("commit", 0), ("expire", 0), ("commit", 1)),
    ],
    ids=lambda steps: "-".join(f"{step}{number}" for step, number in steps),
)
def test_uploads_that_expire_at_any_moment(
    steps: tuple[Step, ...], modes: Modes, count: int, record_property: Callable[[str, object], None]
) -> None:
    """A job whose uploads expire is committed whole or rolled back, and the other one is committed."""
    ends: set[str] = set()
    played = 0
    for schedule in shuffles([_calls(modes, step) for step in steps], count, changes=6):
        world = Jobs(modes)
        *ours, theirs = world.play([world.actor(*step) for step in steps], schedule, end=True)
        assert theirs is None
        for outcome in ours:
            assert outcome is None or isinstance(outcome, JobClosed | JobFailed | NoSuchJob), outcome
            ends.add("rolled back" if isinstance(outcome, JobFailed) else "other")
        played += 1
    record_property("schedules", played)
    assert ends == {"rolled back", "other"}

"""Retries wait with jitter, keep their deadline, and end in an honest outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_s3commit.exceptions import AccessDenied, OutcomeUnknown, S3CommitError, Unavailable
from airflow_s3commit.store.retry import RetryPolicy
from tests.fakes import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable


def scripted(*steps: S3CommitError | str) -> Callable[[], str]:
    """Return an attempt that meets each of these in turn, the last one again and again."""
    left = list(steps)

    def attempt() -> str:
        step = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(step, S3CommitError):
            raise step
        return step

    return attempt


def policy(clock: ManualClock, deadline: float = 60.0) -> RetryPolicy:
    """Return a policy that always draws the longest pause."""
    return RetryPolicy(deadline=deadline, clock=clock, draw=lambda _, most: most)


def test_a_good_answer_is_not_waited_for() -> None:
    """An attempt that succeeds is made once, without a pause."""
    clock = ManualClock()
    assert policy(clock).run(scripted("fine")) == "fine"
    assert clock.slept == []


def test_pauses_double_up_to_a_bound() -> None:
    """The bounds of the pauses double from the first to the longest."""
    clock = ManualClock()
    steps = [Unavailable("busy")] * 8
    assert policy(clock).run(scripted(*steps, "fine")) == "fine"
    assert clock.slept == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


def test_pauses_are_drawn_from_zero_on() -> None:
    """Each pause is drawn between nothing and its bound, so that many clients spread out."""
    drawn: list[tuple[float, float]] = []

    def draw(least: float, most: float) -> float:
        drawn.append((least, most))
        return 0.0

    RetryPolicy(clock=ManualClock(), draw=draw).run(scripted(Unavailable("a"), OutcomeUnknown("b"), "fine"))
    assert drawn == [(0.0, 0.1), (0.0, 0.2)]


def test_the_store_says_how_long() -> None:
    """A pause that the store asks for replaces the drawn one."""
    clock = ManualClock()
    policy(clock).run(scripted(Unavailable("busy", retry_after=7.0), Unavailable("busy"), "fine"))
    assert clock.slept == [7.0, 0.2]


def test_no_attempt_begins_after_the_deadline() -> None:
    """When the next attempt would begin too late the last error is raised at once, without waiting."""
    clock = ManualClock()
    with pytest.raises(Unavailable, match="busy"):
        policy(clock, deadline=10.0).run(scripted(Unavailable("busy", retry_after=6.0)))
    assert clock.slept == [6.0]


def test_time_spent_in_attempts_counts() -> None:
    """A slow attempt uses up the deadline as a pause does."""
    clock = ManualClock()

    def slow() -> None:
        clock.advance(61.0)
        raise Unavailable("busy")

    with pytest.raises(Unavailable):
        policy(clock).run(slow)
    assert clock.slept == []


def test_one_unknown_outcome_outweighs_refusals() -> None:
    """If any attempt may have taken effect, running out of time is an unknown outcome."""
    steps = [OutcomeUnknown("lost"), Unavailable("busy")]
    with pytest.raises(OutcomeUnknown, match="lost"):
        policy(ManualClock(), deadline=5.0).run(scripted(*steps))


def test_other_errors_are_final() -> None:
    """An error that would come again is raised at once."""
    clock = ManualClock()
    with pytest.raises(AccessDenied):
        policy(clock).run(scripted(AccessDenied("no"), "fine"))
    assert clock.slept == []

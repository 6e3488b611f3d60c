"""One call fails, then each call that a step makes because of it: the first error is reported."""

from __future__ import annotations

from itertools import count

import pytest

from airflow_s3commit._causes import whole_text
from airflow_s3commit.exceptions import JobClosed, JobFailed, OutcomeUnknown, S3CommitError
from airflow_s3commit.testing import Effect, Fault, FaultyStore
from tests.crash.faulty import count_calls
from tests.crash.world import STEPS, Case, World, held_by

CASES = [
    Case("partitioned", "append", repeat_complete="gone"),
    Case("magic", "replace", repeat_complete="gone"),
    Case("directory", "replace"),
]


def _calls(case: Case, step: str) -> int:
    world = World(case)
    world.advance_to(step)
    return count_calls(world.observed, getattr(world, step))


def _failed(
    case: Case, step: str, at: int, fault: Effect, *, then: int = 0, by: Effect = "refuse"
) -> tuple[World, S3CommitError | None, bool]:
    """Take a step whose call ``at`` fails, and of the calls that still go through the one ``then``.

    Returns:
        The world, the step's error, and whether the second fault happened.
    """
    world = World(case)
    world.advance_to(step)
    second = FaultyStore(world.observed, Fault(by, nth=then, name="the second fault"))
    first = FaultyStore(second, Fault(fault, nth=at, name="the first fault"))
    world.observed.attempts_fail = step == "run_tasks"
    try:
        getattr(world, step)(first)
    except S3CommitError as error:
        return world, error, bool(second.struck)
    return world, None, bool(second.struck)


def _check_claims(world: World, error: S3CommitError) -> None:
    """Check that the error's claims about the destination are true."""
    text = whole_text(error)
    claims_nothing = isinstance(error, JobFailed) or "nothing of" in text
    assert not (claims_nothing and "may be visible" in text), text
    if world.visible() != world.before:
        assert not claims_nothing, text
        assert "visible" in text or "is committed" in text, text


@pytest.mark.parametrize("by", ["refuse", "lose-answer"])
@pytest.mark.parametrize("fault", ["refuse", "reject"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("case", held_by(CASES, [CASES[1]]), ids=str)
def test_the_first_error_is_raised_and_the_second_is_its_note(
    case: Case, step: str, fault: Effect, by: Effect
) -> None:
    """Of two failures the first is raised, or an unknown outcome that names it; the text has both."""
    pairs = 0
    for at in range(1, _calls(case, step) + 1):
        world, alone, _ = _failed(case, step, at, fault)
        if alone is None or "the first fault" not in whole_text(alone):
            continue  # the step continues without the result of that call
        _check_claims(world, alone)
        for then in count(at):
            world, error, hit = _failed(case, step, at, fault, then=then, by=by)
            if not hit:
                break
            assert error is not None
            if _is_by_itself(case, step, then, by, error):
                continue
            pairs += 1
            assert type(error) in (type(alone), OutcomeUnknown), (at, then, error)
            assert "the first fault" in whole_text(error), (at, then, whole_text(error))
            _check_claims(world, error)
            if step == "commit":
                _check_what_follows(world)
    assert pairs > 0


def _is_by_itself(case: Case, step: str, then: int, by: Effect, error: S3CommitError) -> bool:
    """Return whether the second failure comes before the first is known, as calls run ahead."""
    _, second_alone, _ = _failed(case, step, then + 1, by)
    return str(second_alone).replace("first fault", "second fault") == str(error)


def _check_what_follows(world: World) -> None:
    """Check that another commit tells the truth, and that a recovery ends the job either way."""
    try:
        world.commit(world.observed)
    except S3CommitError as error:
        _check_claims(world, error)
        if isinstance(error, JobClosed):
            assert "the first fault" in str(error)  # noqa: PT017 - one of several outcomes
            world.recover(world.observed)
            world.check_untouched()
    else:
        world.check_committed()


@pytest.mark.parametrize("by", ["refuse", "lose-answer"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_undo_that_fails_says_what_is_left(case: Case, by: Effect) -> None:
    """The error of a failed undo after a rejected completion has cause, state and remedy."""
    seen = 0
    for at in range(1, _calls(case, "commit") + 1):
        _, alone, _ = _failed(case, "commit", at, "reject")
        if not isinstance(alone, JobFailed):
            continue
        for then in count(at):
            _, error, hit = _failed(case, "commit", at, "reject", then=then, by=by)
            if not hit:
                break
            assert error is not None
            assert "the second fault" in whole_text(error) or by == "lose-answer"
            if isinstance(error, OutcomeUnknown):
                seen += 1
                assert isinstance(error.__cause__, JobFailed)
                assert "s3commit abort" in str(error)
                assert "up to 3 files" in str(error)
    assert seen

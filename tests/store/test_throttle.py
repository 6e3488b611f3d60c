"""A store is pressed as hard as it bears, and no harder than is allowed."""

from __future__ import annotations

from airflow_s3commit.store.throttle import FIRST_WINDOW, Throttle
from tests.fakes import ManualClock


def succeed(throttle: Throttle, times: int) -> None:
    """Let so many calls succeed."""
    for _ in range(times):
        throttle.succeeded()


def test_the_window_opens_quickly_up_to_its_bound() -> None:
    """Until the store objects every success makes room for another call."""
    throttle = Throttle(ManualClock(), most=100, per_second=None)
    assert throttle.window == FIRST_WINDOW
    succeed(throttle, 10)
    assert throttle.window == FIRST_WINDOW + 10
    succeed(throttle, 1000)
    assert throttle.window == 100


def test_the_window_halves_once_a_second() -> None:
    """However many calls are turned away at the same time, the window is halved once."""
    clock = ManualClock()
    throttle = Throttle(clock, most=64, per_second=None)
    succeed(throttle, 64)
    for _ in range(20):
        throttle.slow_down()
    assert throttle.window == 32
    clock.advance(1.0)
    throttle.slow_down()
    assert throttle.window == 16


def test_the_window_never_closes() -> None:
    """One call at a time is always let through."""
    clock = ManualClock()
    throttle = Throttle(clock, most=64, per_second=None)
    for _ in range(20):
        throttle.slow_down()
        clock.advance(1.0)
    assert throttle.window == 1


def test_the_window_grows_back_by_one_a_windowful() -> None:
    """After the store has objected the window grows by one with every windowful of successes."""
    throttle = Throttle(ManualClock(), most=64, per_second=None)
    throttle.slow_down()
    assert throttle.window == FIRST_WINDOW // 2
    succeed(throttle, FIRST_WINDOW // 2 + 1)
    assert throttle.window == FIRST_WINDOW // 2 + 1


def test_requests_keep_the_rate() -> None:
    """In ten seconds no more requests are let through than ten seconds' worth and a short burst."""
    clock = ManualClock()
    throttle = Throttle(clock, most=64, per_second=1000.0)
    sent = 0
    while clock.monotonic() < 10.0:
        pause = throttle.pause()
        if pause:
            clock.advance(pause)
        else:
            throttle.sent()
            sent += 1
    assert 9_900 <= sent <= 10_100


def test_a_lull_is_not_made_up_for() -> None:
    """After a lull only a short burst goes out at once."""
    clock = ManualClock()
    throttle = Throttle(clock, most=64, per_second=1000.0)
    clock.advance(60.0)
    sent = 0
    while not throttle.pause():
        throttle.sent()
        sent += 1
    assert sent <= 25

"""A store is pressed as hard as it bears, and no harder than is allowed."""

from __future__ import annotations

from airflow_s3commit.store.s3.fast_path import FIRST_WINDOW, Throttle
from tests.fakes import ManualClock


def test_the_window_doubles_every_round_trip() -> None:
    """While the store takes everything, each window of successes doubles the window, up to its bound."""
    throttle = Throttle(ManualClock(), most=300, per_second=None)
    seen = []
    for _ in range(5):
        seen.append(throttle.window)
        throttle.succeeded(throttle.window)
    assert seen == [FIRST_WINDOW, 64, 128, 256, 300]


def test_a_narrow_bound_is_kept() -> None:
    """A window that may not be as wide as the first one is as wide as it may be, and no wider."""
    throttle = Throttle(ManualClock(), most=7, per_second=None)
    throttle.succeeded(1_000)
    assert throttle.window == 7


def test_the_window_halves_once_a_second() -> None:
    """However many calls are turned away at the same time, the window is halved once."""
    clock = ManualClock()
    throttle = Throttle(clock, most=64, per_second=None)
    throttle.succeeded(64)
    assert throttle.window == 64
    for _ in range(20):
        throttle.slow_down()
    assert throttle.window == 32
    clock.advance(1.0)
    throttle.slow_down()
    assert throttle.window == 16


def test_the_window_never_closes() -> None:
    """One call at a time is always allowed."""
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
    for _ in range(FIRST_WINDOW // 2 + 1):
        throttle.succeeded(1)
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
            sent += 1
    assert 9_900 <= sent <= 10_100


def test_a_lull_is_not_made_up_for() -> None:
    """After a lull only a short burst goes out at once."""
    clock = ManualClock()
    throttle = Throttle(clock, most=64, per_second=1000.0)
    clock.advance(60.0)
    sent = 0
    while not throttle.pause():
        sent += 1
    assert sent <= 25

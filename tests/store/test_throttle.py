"""A store is pressed as hard as it bears, and no harder than is allowed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_s3commit.store.throttle import Throttle
from airflow_s3commit.store.window import FIRST_WINDOW
from tests.fakes import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable


def succeed(throttle: Throttle, times: int) -> None:
    """Let so many calls succeed."""
    for _ in range(times):
        throttle.succeeded()


def rounds(throttle: Throttle, clock: ManualClock, rate: Callable[[int], float], seconds: float) -> None:
    """Let a store answer for so long, as many calls a second as it does with a window so wide."""
    until = clock.monotonic() + seconds
    while clock.monotonic() < until:
        clock.advance(0.03)
        throttle.succeeded(max(throttle.window, round(rate(throttle.window) * 0.03)))


def test_the_window_is_as_wide_as_brings_answers() -> None:
    """Rounds of calls are measured by the clock: where answers take time the window opens, else not."""
    clock = ManualClock()
    slow, quick = (Throttle(clock, most=300, per_second=None) for _ in range(2))
    assert slow.window == FIRST_WINDOW
    rounds(slow, clock, lambda window: window / 0.03, 0.5)
    quick.begin()
    rounds(quick, clock, lambda window: 20_000.0, 1.0)
    assert (slow.window, quick.window) == (300, FIRST_WINDOW)


def test_a_lull_says_nothing_of_the_store() -> None:
    """The time in which nobody asked anything is not counted against a window."""
    clock = ManualClock()
    throttle = Throttle(clock, most=512, per_second=None)
    for _ in range(6):
        clock.advance(600.0)
        throttle.begin()
        clock.advance(0.06)
        throttle.succeeded(throttle.window)
    assert throttle.window == 512


def test_the_window_halves_once_a_second() -> None:
    """However many calls are turned away at the same time, the window is halved once."""
    clock = ManualClock()
    throttle = Throttle(clock, most=64, per_second=None)
    rounds(throttle, clock, lambda window: window / 0.03, 0.5)
    assert throttle.window == 64
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

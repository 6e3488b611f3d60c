"""As many calls are under way as bring the most answers, whatever else changes meanwhile."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

from airflow_s3commit.store.window import FIRST_WINDOW, Window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Seconds that a round lasts at least, as `Throttle` counts them.
ROUND = 0.02


def widths(window: Window, rate: Callable[[int, float], float], seconds: float) -> Iterator[int]:
    """Let rounds end for so long, each with the rate of its width and time; yield the width of each."""
    now = 0.0
    while now < seconds:
        width = window.width
        now += max(ROUND, width / rate(width, now))
        window.round_ended(rate(width, now), now)
        yield width


def latency(seconds: float) -> Callable[[int, float], float]:
    """Return the rate of a store whose every answer takes so long."""
    return lambda width, _: width / seconds


def bound(rate: float) -> Callable[[int, float], float]:
    """Return the rate of a store, or a client, that can do no more."""
    return lambda width, _: min(width / 0.0005, rate)


def test_it_doubles_with_every_round_where_answers_take_time() -> None:
    """From the second round on each one doubles the window, up to its bound."""
    window = Window(300)
    assert list(widths(window, latency(0.06), 0.36)) == [32, 32, 64, 128, 256, 300]


def test_it_is_no_wider_than_brings_more_answers() -> None:
    """Where more calls bring no more answers, the window is mostly the first one."""
    seen = list(widths(Window(512), bound(20_000.0), 20.0))
    assert set(seen) == {FIRST_WINDOW, 2 * FIRST_WINDOW}
    assert seen.count(FIRST_WINDOW) > 0.9 * len(seen)


def test_it_is_as_wide_as_brings_more_answers() -> None:
    """Where a window of 170 calls brings all answers there are, it is the next wider one."""
    seen = list(widths(Window(512), lambda width, _: min(width / 0.06, 2_850.0), 30.0))
    assert seen[4] == 256
    assert seen.count(256) > 0.7 * len(seen)


def test_a_wider_one_is_tried_again() -> None:
    """A store that can do more than before is asked more within seconds."""
    window = Window(512)
    seen = list(widths(window, lambda width, now: 20_000.0 if now < 3.0 else 700.0 * width, 9.0))
    assert seen[-1] == 512


def test_it_is_narrowed_when_latency_falls() -> None:
    """Where half of the window comes to bring as many answers, half is kept, down to the first window."""
    window = Window(512)
    seen = list(widths(window, lambda width, now: 700.0 * width if now < 3.0 else 20_000.0, 9.0))
    assert max(seen) == 512
    assert window.width == FIRST_WINDOW


def test_it_is_kept_while_it_is_needed() -> None:
    """Where half of the window brings half of the answers it is wide again after two rounds."""
    window = Window(512)
    seen = list(widths(window, latency(0.06), 60.0))[10:]
    assert set(seen) == {256, 512}
    assert seen.count(512) > 0.95 * len(seen)


def of_two_speeds(seed: int, seconds: float) -> Counter[int]:
    """Return how many rounds each width had on a machine whose speed doubles and halves within seconds.

    Rounds vary by a sixth besides, a wider window costs the client time, and every answer takes so long.
    """
    draw = random.Random(seed)
    speeds = [draw.choice((14_000.0, 28_000.0)) for _ in range(200)]

    def rate(width: int, now: float) -> float:
        able = speeds[int(now / 0.7)] * (1 - width / 3_000)
        return min(able, width / seconds) * draw.gauss(1.0, 0.16)

    return Counter(widths(Window(512), rate, 120.0))


def test_a_machine_of_two_speeds_does_not_widen_it() -> None:
    """What happens to be faster meanwhile is not taken for the window's doing."""
    seen = sum((of_two_speeds(seed, seconds=0.0005) for seed in range(12)), Counter())
    assert seen[FIRST_WINDOW] > 0.7 * seen.total()
    assert seen[FIRST_WINDOW] + seen[2 * FIRST_WINDOW] > 0.9 * seen.total()


def test_a_machine_of_two_speeds_does_not_hide_latency() -> None:
    """Where answers take their time the window is wide, however the machine's speed varies."""
    seen = sum((of_two_speeds(seed, seconds=0.06) for seed in range(12)), Counter())
    assert seen[512] > 0.9 * seen.total()


def test_a_narrow_bound_is_kept() -> None:
    """A window that may not be as wide as the first one is as wide as it may be, and no wider."""
    assert set(widths(Window(7), latency(0.06), 20.0)) == {7}

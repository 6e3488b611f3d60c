"""Three and more processes on one destination, in many orders of their calls."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from random import Random
from typing import Any

import pytest

from airflow_s3commit.testing import StoreCall
from tests.crash.interleave import ALL, Schedule, Until, shuffles
from tests.crash.jobs import Cast
from tests.crash.late import LaggingLog

Record = Callable[[str, object], None]

CASTS = [
    Cast(("commit 0", "commit 1", "commit 2")),
    Cast(("commit 0", "abort 0", "commit 1")),
    Cast(("commit 0", "commit 0", "commit 1", "abort 1")),
    Cast(("commit 0", "commit 1", "commit 2", "abort 2", "attempt 0")),
    Cast(("parts 0", "parts 0", "commit 1", "abort 0")),
    # A job that is set up after an entry replaces its files, even if its process has died.
    Cast(("entering 0", "commit 1", "whole 2"), ("append", "append")),
    Cast(("marking 0", "commit 1", "abandoning 2", "whole 2"), ("replace", "append")),
    Cast(("halfway 0", "recover 0", "commit 1", "abort 0")),
    Cast(("commit 0", "commit 1", "sweep")),
    Cast(("entering 0", "abandoning 1", "commit 2", "repair"), marks=True),
    Cast(("commit 0", "entering 1", "whole 2", "patient"), ("replace", "append")),
    Cast(("commit 0", "expire 0", "commit 1"), ("replace", "append")),
    Cast(("commit 0", "commit 0", "expire 0", "commit 1"), ("replace", "replace")),
    Cast(("commit 0", "commit 1", "rollback", "patient"), ("replace", "replace"), retain="1s"),
    Cast(("commit 0", "commit 1", "returning", "patient"), ("replace", "replace"), retain="1s"),
    Cast(("commit 0", "commit 1", "commit 2", "abort 1"), ("append", "replace all", "append"), marks=True),
    Cast(("entering 0", "abandoning 1", "commit 2", "repair"), publishes=True),
    Cast(("commit 0", "entering 1", "whole 2", "patient"), ("replace", "append"), publishes=True),
    Cast(
        ("commit 0", "commit 1", "returning", "patient"), ("replace", "append"), retain="1s", publishes=True
    ),
]
MORE = [
    *(Cast(CASTS[0].steps, modes) for modes in product(("replace", "append"), repeat=3)),
    Cast(("commit 0", "commit 1", "commit 2"), ("fail", "append", "replace all")),
    Cast(("commit 0", "whole 1", "rollback", "returning", "patient", "patient"), ("replace",), retain="1s"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("cast", "count"),
    [
        *(pytest.param(cast, 35, id=f"{cast}, some") for cast in CASTS),
        *(pytest.param(cast, 1500, id=f"{cast}, many", marks=pytest.mark.all) for cast in CASTS + MORE),
    ],
)
def test_processes_keep_the_rules_in_any_order(cast: Cast, count: int, record_property: Record) -> None:
    """However processes interleave, and however old a log they list, every rule holds, and nobody is lost."""
    chance = Random(0)
    dead = {"halfway 0"} & {*cast.steps}
    for schedule in shuffles(cast.calls(), count, changes=6):
        lags = [chance.choice([(0, 1), (chance.randint(1, 3), chance.randint(1, 4))]) for _ in cast.steps]

        def lagging(store: Any, number: int, lags: Any = lags) -> Any:
            return LaggingLog(store, *lags[number])

        cast.play(schedule, through=lagging, swept=bool(dead))
    record_property("schedules", count)


def _before(verb: str, ending: str = "") -> Until:
    return lambda call: call.verb == verb and call.key.endswith(ending)


def _entering(call: StoreCall) -> bool:
    return call.verb == "put" and "/_s3commit/log/" in call.key


MODES = ("append", "replace", "replace")

SLOW: dict[str, tuple[tuple[str, ...], Schedule]] = {
    # The newest commit has written its marker, but it is still cleaned up.
    "a commit that ends": (
        ("commit 0", "commit 1", "abort 0"),
        ((1, _before("delete", "job.json")), (0, _before("complete_upload")), (2, ALL)),
    ),
    # It finds the marker of an older generation, and another process overwrites that first.
    "an older commit, about to write over a marker": (
        ("commit 0", "commit 1", "commit 2"),
        (
            (1, _before("complete_upload")),
            (2, _before("complete_upload")),
            (0, ALL),
            (1, _before("put", "_SUCCESS")),
            (2, ALL),
        ),
    ),
    # What it takes is worked out at each try, not once.
    "a replace that loses its number twice": (
        ("commit 1", "commit 0", "commit 2"),
        ((0, _entering), (1, ALL), (0, 1), (0, _entering), (2, ALL)),
    ),
    "a commit that still deletes": (
        ("commit 0", "commit 1", "abort 0"),
        ((0, _before("complete_upload")), (1, _before("delete_many")), (2, ALL)),
    ),
}


@pytest.mark.parametrize("slow", SLOW)
def test_a_slow_process_keeps_the_rules(slow: str) -> None:
    """However slow a process is at the calls where it matters most, every rule holds."""
    steps, schedule = SLOW[slow]
    Cast(steps, MODES).play(schedule)

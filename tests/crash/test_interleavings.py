"""Two processes on one destination, in every order of their calls up to two changes between them.

`make test` plays a part of the orders. `make test-all` plays every one of them, and further pairs.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.crash.interleave import schedules
from tests.crash.jobs import Cast

Record = Callable[[str, object], None]

ONE, TWO = ("replace",), ("replace", "append")

#: Pairs of which `make test` plays a part.
HELD = [
    Cast(("commit 0", "commit 0"), ONE),
    Cast(("commit 0", "abort 0"), ONE),
    Cast(("abort 0", "attempt 0"), ONE),
    Cast(("commit 0", "attempt 0"), ONE),
    Cast(("parts 0", "abort 0"), ONE),
    Cast(("whole 1", "abort 1"), ONE),
    Cast(("commit 0", "commit 1"), ("replace", "replace")),
    Cast(("commit 0", "commit 1"), ("append", "replace all")),
    Cast(("commit 0", "commit 1"), ("fail", "append")),
    Cast(("commit 0", "commit 1"), TWO, marks=True),
    Cast(("commit 0", "repair"), TWO, marks=True),
    Cast(("rollback", "patient"), TWO, retain="1s"),
    Cast(("rollback", "commit 0"), TWO, retain="1s"),
    Cast(("commit 0", "patient"), TWO, retain="1s"),
    Cast(("commit 0", "commit 0"), ONE, publishes=True),
    Cast(("commit 0", "commit 1"), TWO, publishes=True),
    Cast(("rollback", "patient"), TWO, retain="1s", publishes=True),
]
OTHERS = [
    *(Cast(("commit 0", "commit 0"), (mode,)) for mode in ("append", "replace all")),
    *(Cast(("commit 0", "abort 0"), (mode,)) for mode in ("append", "replace all")),
    Cast(("abort 0", "abort 0"), ONE),
    Cast(("commit 0", "parts 0"), ONE),
    Cast(("commit 0", "sweep"), TWO),
    Cast(("sweep", "sweep"), TWO),
    Cast(("abort 0", "repair"), TWO),
    Cast(("commit 0", "commit 1"), ("append", "append")),
    Cast(("commit 0", "commit 1"), TWO),
    Cast(("commit 0", "commit 1"), ("replace all", "append")),
    Cast(("commit 0", "commit 1"), ("fail", "fail")),
    Cast(("commit 0", "commit 1"), ("fail", "replace")),
    Cast(("commit 0", "commit 1"), ("append", "replace all"), marks=True),
    Cast(("commit 0", "rollback"), TWO, retain="1s"),
    Cast(("returning", "patient"), TWO, retain="1s"),
    Cast(("patient", "patient"), TWO, retain="1s"),
    Cast(("commit 0", "abort 0"), ONE, publishes=True),
    Cast(("commit 0", "repair"), TWO, publishes=True),
    Cast(("commit 0", "patient"), TWO, retain="1s", publishes=True),
]  # fmt: skip

EVERY_ORDER = [pytest.mark.all, pytest.mark.timeout(3600)]
CASTS = [
    *(pytest.param(cast, 0.04, id=f"{cast}, a part") for cast in HELD),
    *(pytest.param(cast, 1.0, id=f"{cast}, all", marks=EVERY_ORDER) for cast in HELD + OTHERS),
]


@pytest.mark.parametrize(("cast", "share"), CASTS)
def test_two_processes_keep_the_rules_in_any_order(cast: Cast, share: float, record_property: Record) -> None:
    """However two processes interleave, every rule holds at every effect and at rest, and nobody is lost."""
    played = 0
    for schedule in schedules(cast.calls(), share):
        cast.play(schedule)
        played += 1
    assert played
    record_property("schedules", played)

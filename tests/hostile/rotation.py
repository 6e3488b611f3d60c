"""Which mutations go through which door."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache

from tests.hostile.mutations import Mutation, mutations
from tests.hostile.scene import SCENES, GuardedLake, scene

__all__ = ["ALL", "in_turn"]

#: Whether everything goes through everything, which takes hours.
ALL = os.environ.get("S3COMMIT_HOSTILE") == "all"


@cache
def _fields() -> dict[str, list[list[Callable[[], Mutation]]]]:
    """Return each field's mutations in each scene that has its record."""
    found: dict[str, list[list[Callable[[], Mutation]]]] = {}
    for name in SCENES:
        for field, changed in mutations(scene(name)):
            found.setdefault(field, []).append(changed)
    return found


def in_turn(number: int) -> Iterator[tuple[Mutation, GuardedLake]]:
    """Yield, for one door, each field in one scene with one value, another for each; with a lake that has it.

    There are more fields than scenes and values: each of these comes too. The next door gets the next ones.

    Args:
        number: The door's.
    """
    for turn, scenes in enumerate(_fields().values(), start=number):
        chosen = scenes if ALL else [scenes[turn % len(scenes)]]
        for changed in chosen:
            for make in changed if ALL else [changed[turn % len(changed)]]:
                for pinned in (True, False) if ALL else (turn % 3 != 0,):
                    mutation = make()
                    yield mutation, scene(mutation.site.scene).spoiled(mutation, pinned=pinned)

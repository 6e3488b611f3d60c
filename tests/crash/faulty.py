"""Where a process can be stopped: at every call to its store, in every way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airflow_s3commit.testing import Effect, FaultyStore

#: The ways in which a process is stopped at a call; after the last two it lives on.
FAULTS: tuple[Effect, ...] = ("crash-before", "crash-after", "lose-answer", "refuse")


def count_calls(inner: Any, take: Callable[[Any], object]) -> int:
    """Return how many calls a function makes to the store that it gets."""
    store = FaultyStore(inner)
    take(store)
    return len(store.calls)

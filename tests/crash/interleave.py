"""Two processes on one store, stepped call by call through a schedule."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

from airflow_s3commit.exceptions import S3CommitError
from airflow_s3commit.testing import FaultyStore

__all__ = ["Schedule", "play", "schedules"]

#: The schedule of two actors: at which of their own calls each of them is interrupted, in turn.
Schedule = tuple[tuple[int, int], ...]


class _Turns:
    """Lets one actor run at a time, and changes actors where the schedule says."""

    def __init__(self, schedule: Schedule) -> None:
        self._turn = threading.Condition()
        self._segments = list(schedule)
        self._current, self._left = self._segments.pop(0)
        self._ended: set[int] = set()

    def before_call(self, actor: int) -> None:
        with self._turn:
            if self._current == actor and self._left == 0:
                self._pass_on(actor)
            self._turn.wait_for(lambda: self._current == actor)
            self._left -= 1

    def end(self, actor: int) -> None:
        with self._turn:
            self._ended.add(actor)
            if self._current == actor:
                self._current, self._left = 1 - actor, 1_000_000
                self._segments.clear()
            self._turn.notify_all()

    def start(self, actor: int) -> None:
        with self._turn:
            self._turn.wait_for(lambda: self._current == actor)

    def _pass_on(self, actor: int) -> None:
        following, calls = self._segments.pop(0) if self._segments else (1 - actor, 1_000_000)
        self._current, self._left = (actor, 1_000_000) if following in self._ended else (following, calls)
        self._turn.notify_all()


def schedules(calls_of_first: int, calls_of_second: int, interruptions: int) -> Iterator[Schedule]:
    """Yield every way to run two actors with so many changes between them, each actor going first.

    The first change comes after 1..n calls of one actor, the next after 1..m calls of the other, and so on;
    after the last the actors run to their ends.
    """
    counts = (calls_of_first, calls_of_second)
    for first in (0, 1):
        mine = combinations(range(counts[first] + 1), (interruptions + 1) // 2)
        for own in mine:
            for other in combinations(range(1, counts[1 - first] + 1), interruptions // 2):
                yield _segments(first, own, other)


def _segments(first: int, own: tuple[int, ...], other: tuple[int, ...]) -> Schedule:
    segments, done = [], [0, 0]
    for number in range(len(own) + len(other)):
        actor = first if number % 2 == 0 else 1 - first
        until = (own if number % 2 == 0 else other)[number // 2]
        segments.append((actor, until - done[number % 2]))
        done[number % 2] = until
    last = first if len(segments) % 2 == 0 else 1 - first
    segments.append((last, 1_000_000))
    return tuple(segments)


def play(
    inner: Any, actors: tuple[Callable[[Any], Any], Callable[[Any], Any]], schedule: Schedule
) -> list[S3CommitError | None]:
    """Run two actors on a store by a schedule, and return the error each of them ended with, if any."""
    turns = _Turns(schedule)
    outcomes: list[Any] = [None, None]

    def run(actor: int) -> None:
        turns.start(actor)
        store = FaultyStore(inner, before=lambda _: turns.before_call(actor))
        try:
            actors[actor](store)
        except S3CommitError as error:
            outcomes[actor] = error
        except BaseException as error:
            outcomes[actor] = error
        finally:
            turns.end(actor)

    threads = [threading.Thread(target=run, args=(actor,), daemon=True) for actor in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), f"stuck in schedule {schedule}"
    for outcome in outcomes:
        if outcome is not None and not isinstance(outcome, S3CommitError):
            raise outcome
    return outcomes

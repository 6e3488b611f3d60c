"""Several processes on one store, stepped call by call through a schedule, in one thread.

Each process is a greenlet that hands over before a call to its store. So a schedule is played the same way
every time, and a change of processes costs a microsecond.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from random import Random
from typing import Any, TypeAlias

from greenlet import getcurrent, greenlet

from airflow_s3commit.exceptions import S3CommitError
from airflow_s3commit.testing import Crash, FaultyStore, StoreCall

__all__ = ["Actor", "Outcome", "Schedule", "play", "schedules", "shuffles"]

#: What a process does with the store that it is given.
Actor: TypeAlias = Callable[[Any], object]

#: Whether a process stops before a call.
Until: TypeAlias = Callable[[StoreCall], bool]

#: Which process runs, and for how many of its own calls or until which, in turn. After the last turn they run
#: to their ends.
Schedule: TypeAlias = tuple[tuple[int, "int | Until"], ...]

#: The error that a process ended with, `Crash` if it died; None if it returned.
Outcome: TypeAlias = S3CommitError | Crash | None

_TO_ITS_END = 1_000_000


class _Process:
    """A process that runs for a number of calls at a time."""

    def __init__(self, inner: Any, act: Actor) -> None:
        self.outcome: Outcome = None
        self._left = 0
        self._until: Until | None = None
        self._scheduler = getcurrent()
        self._greenlet = greenlet(lambda: self._run(inner, act))

    def run(self, turn: int | Until) -> None:
        """Go on until it is about to make one call more, or that call, or has ended."""
        self._left, self._until = (turn, None) if isinstance(turn, int) else (_TO_ITS_END, turn)
        if not self._greenlet.dead:
            self._greenlet.switch()

    def _run(self, inner: Any, act: Actor) -> None:
        try:
            act(FaultyStore(inner, before=self._before_call))
        except (S3CommitError, Crash) as error:
            self.outcome = error

    def _before_call(self, call: StoreCall) -> None:
        # A request that arrives late is delivered by another process.
        if getcurrent() is self._greenlet:
            while self._left == 0 or (self._until is not None and self._until(call)):
                self._scheduler.switch()
            self._left -= 1


def schedules(calls_of_first: int, calls_of_second: int, interruptions: int) -> Iterator[Schedule]:
    """Yield every way to run two actors with so many changes between them, each actor going first.

    The first change comes after 0..n calls of one actor, the next after 1..m calls of the other, and so on;
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
    segments.append((last, _TO_ITS_END))
    return tuple(segments)


def shuffles(calls: Sequence[int], count: int, *, changes: int, seed: int = 0) -> Iterator[Schedule]:
    """Yield schedules of any number of actors with a number of changes, chosen at random but always the same.

    Args:
        calls: How many calls each actor makes when it is alone.
        count: How many schedules.
        changes: The most changes in one; each has between one and this.
        seed: Chooses others.

    """
    chance = Random(seed)
    for _ in range(count):
        actor, segments = chance.randrange(len(calls)), []
        for _ in range(chance.randint(1, changes)):
            segments.append((actor, chance.randint(1, calls[actor])))
            actor = chance.choice([other for other in range(len(calls)) if other != actor])
        yield (*segments, (actor, _TO_ITS_END))


def play(inner: Any, actors: Sequence[Actor], schedule: Schedule) -> list[Outcome]:
    """Run actors on a store by a schedule, and return what each of them ended with."""
    processes = [_Process(inner, act) for act in actors]
    for actor, turn in schedule:
        processes[actor].run(turn)
    for process in processes:
        process.run(_TO_ITS_END)
    return [process.outcome for process in processes]

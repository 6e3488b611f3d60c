"""Several processes on one store, stepped call by call through a schedule, in one thread.

Each process is a greenlet that hands over before a call to its store. So a schedule is played the same way
every time, and a change of processes costs a microsecond.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from random import Random
from typing import Any, TypeAlias

from greenlet import getcurrent, greenlet

from airflow_s3commit.exceptions import S3CommitError
from airflow_s3commit.testing import Crash, FaultyStore, StoreCall

__all__ = ["ALL", "Actor", "Outcome", "Schedule", "Until", "play", "schedules", "shuffles"]

#: What a process does with its store.
Actor: TypeAlias = Callable[[Any], object]

#: Whether a process stops before a call.
Until: TypeAlias = Callable[[StoreCall], bool]

#: Which process runs, and for how many of its own calls or until which, in turn. After the last turn they run
#: to their ends.
Schedule: TypeAlias = tuple[tuple[int, "int | Until"], ...]

#: The error that a process ended with, `Crash` if it died; None if it returned.
Outcome: TypeAlias = S3CommitError | Crash | None

#: More calls than any process makes.
ALL = 1_000_000


class _Process:
    """A process that runs for a number of calls at a time."""

    def __init__(self, inner: Any, act: Actor) -> None:
        self.outcome: Outcome = None
        self._left = 0
        self._until: Until | None = None
        self._scheduler = getcurrent()
        self._greenlet = greenlet(lambda: self._run(inner, act))

    def run(self, turn: int | Until) -> None:
        """Continue until it is about to make one more call, or that call, or has ended."""
        self._left, self._until = (turn, None) if isinstance(turn, int) else (ALL, turn)
        if not self._greenlet.dead:
            self._greenlet.switch()

    def _run(self, inner: Any, act: Actor) -> None:
        try:
            act(FaultyStore(inner, before=self._before_call))
        except (S3CommitError, Crash) as error:
            self.outcome = error

    def _before_call(self, call: StoreCall) -> None:
        # A request that arrives late is delivered by another process.
        if getcurrent() is not self._greenlet:
            return
        while self._left == 0 or (self._until is not None and self._until(call)):
            self._scheduler.switch()
        self._left -= 1


def schedules(calls: Sequence[int], share: float = 1.0) -> Iterator[Schedule]:
    """Yield all ways to run two actors with two changes between them, each actor going first.

    The first change comes after 0..n calls of one actor, the second after 1..m calls of the other; then they
    run to their ends.

    Args:
        calls: How many calls each actor makes when it is alone.
        share: The part of them that is tried: chosen at random, but always the same ones.
    """
    chance = Random(0)
    for first, second in ((0, 1), (1, 0)):
        for own, other in product(range(calls[first] + 1), range(1, calls[second] + 1)):
            if chance.random() < share:
                yield (first, own), (second, other), (first, ALL)


def shuffles(calls: Sequence[int], count: int, *, changes: int) -> Iterator[Schedule]:
    """Yield schedules of any number of actors with some changes, chosen at random but reproducibly.

    Args:
        calls: How many calls each actor makes when it is alone.
        count: How many schedules.
        changes: The most changes in one; each has between one and this.
    """
    chance = Random(0)
    for _ in range(count):
        actor, segments = chance.randrange(len(calls)), []
        for _ in range(chance.randint(1, changes)):
            segments.append((actor, chance.randint(1, calls[actor])))
            actor = chance.choice([other for other in range(len(calls)) if other != actor])
        yield (*segments, (actor, ALL))


def play(inner: Any, actors: Sequence[Actor], schedule: Schedule) -> list[Outcome]:
    """Run actors on a store by a schedule, and return what each ended with."""
    processes = [_Process(inner, act) for act in actors]
    for actor, turn in schedule:
        processes[actor].run(turn)
    for process in processes:
        process.run(ALL)
    return [process.outcome for process in processes]

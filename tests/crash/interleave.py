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
from airflow_s3commit.store.base import DeleteFailure, ObjectToDelete
from airflow_s3commit.testing import Crash, FaultyStore, StoreCall
from tests.crash.commuting import Touch, commute
from tests.crash.observed import Observed

__all__ = ["Actor", "Outcome", "Schedule", "play", "schedules", "shuffles"]

#: What a process does with its store.
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

    def __init__(self, inner: Any, act: Actor, note: Callable[[StoreCall, tuple[str, ...]], object]) -> None:
        self.outcome: Outcome = None
        self._left = 0
        self._until: Until | None = None
        self._note = note
        self._scheduler = getcurrent()
        self._greenlet = greenlet(lambda: self._run(inner, act))
        self._store: _Store

    def run(self, turn: int | Until) -> None:
        """Continue until it is about to make one more call, or that call, or has ended."""
        self._left, self._until = (turn, None) if isinstance(turn, int) else (_TO_ITS_END, turn)
        if not self._greenlet.dead:
            self._greenlet.switch()

    def _run(self, inner: Any, act: Actor) -> None:
        self._store = _Store(inner, before=self._before_call)
        try:
            act(self._store)
        except (S3CommitError, Crash) as error:
            self.outcome = error

    def _before_call(self, call: StoreCall) -> None:
        # A request that arrives late is delivered by another process.
        if getcurrent() is self._greenlet:
            while self._left == 0 or (self._until is not None and self._until(call)):
                self._scheduler.switch()
            self._left -= 1
        self._note(call, self._store.doomed if call.verb == "delete_many" else (call.key,))


class _Store(FaultyStore):
    """Keeps the keys of a bulk delete, which a `StoreCall` does not name."""

    doomed: tuple[str, ...] = ()

    def delete_many(self, bucket: str, objects: Sequence[ObjectToDelete]) -> list[DeleteFailure]:
        self.doomed = tuple(target.key for target in objects)
        return super().delete_many(bucket, objects)


class Pair(tuple[tuple[int, int], ...]):
    """A schedule of two processes with two changes between them, and the calls of both after the play."""

    def __new__(cls, first: int, own: int, other: int) -> Pair:
        """Change after some calls of the first process, and after some of the other."""
        return super().__new__(cls, ((first, own), (1 - first, other), (first, _TO_ITS_END)))

    def __init__(self, first: int, own: int, other: int) -> None:
        self.calls: tuple[list[Touch], list[Touch]] = ([], [])
        self._place = own, other

    def equals(self, most: tuple[int, int]) -> set[tuple[int, int]]:
        """Return where the changes come in schedules that differ only in the order of calls that commute.

        Args:
            most: The last places for a change.

        """
        if not any(self.calls):
            return {self._place}
        first = self[0][0]
        mine, theirs = self.calls[first], self.calls[1 - first]
        found, new = {self._place}, [self._place]
        while new:
            own, other = new.pop()
            after = set()
            if own < most[0] and all(commute(one, x) for one in mine[own : own + 1] for x in theirs[:other]):
                after.add((own + 1, other))
            if other < most[1] and all(
                commute(one, x) for one in theirs[other : other + 1] for x in mine[own:]
            ):
                after.add((own, other + 1))
            new += after - found
            found |= after
        return found


def schedules(calls_of_first: int, calls_of_second: int, share: float = 1.0) -> Iterator[Pair]:
    """Yield ways to run two actors with two changes between them, each actor going first.

    The first change comes after 0..n calls of one actor, the second after 1..m calls of the other; then they
    run to their ends. Left out is what equals a schedule that was yielded before and played.

    Args:
        calls_of_first: How many calls the first actor makes when it is alone.
        calls_of_second: How many the second one makes.
        share: The part of them that is tried: chosen at random, but always the same ones.

    """
    chance = Random(0)
    for first, most in ((0, (calls_of_first, calls_of_second)), (1, (calls_of_second, calls_of_first))):
        done: set[tuple[int, int]] = set()
        for place in product(range(most[0] + 1), range(1, most[1] + 1)):
            if chance.random() < share and place not in done:
                schedule = Pair(first, *place)
                yield schedule
                done |= schedule.equals(most)


def shuffles(calls: Sequence[int], count: int, *, changes: int, seed: int = 0) -> Iterator[Schedule]:
    """Yield schedules of any number of actors with some changes, chosen at random but reproducibly.

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


def play(observed: Observed, actors: Sequence[Actor], schedule: Schedule) -> list[Outcome]:
    """Run actors on a store by a schedule, record a `Pair`'s calls, and return what each ended with."""
    calls = schedule.calls if isinstance(schedule, Pair) else None
    now = observed.now()

    def note(actor: int) -> Callable[[StoreCall, tuple[str, ...]], None]:
        def keep(call: StoreCall, keys: tuple[str, ...]) -> None:
            nonlocal now
            before, now = now, observed.now()
            if calls is not None:
                calls[actor].append(Touch(call.verb, keys, now != before))

        return keep

    processes = [_Process(observed, act, note(number)) for number, act in enumerate(actors)]
    for actor, turn in schedule:
        processes[actor].run(turn)
    for process in processes:
        process.run(_TO_ITS_END)
    return [process.outcome for process in processes]

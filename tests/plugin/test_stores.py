"""Readings for a page: limited in time, shared and independent."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from airflow_s3commit import MemoryStore
from airflow_s3commit.plugin.stores import Budget, Reader, StillRunning, within

pytestmark = pytest.mark.airflow

LONG = 20.0


@dataclass
class StillClock:
    """A clock that stops until it is set."""

    now: float = 0.0

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Gate:
    """Work that says when it has begun and continues when it is allowed to."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.open = threading.Event()
        self.begins = 0
        self.budgets: list[Budget] = []
        self.ended = threading.Semaphore(0)

    def __call__(self, budget: Budget) -> int:
        self.begins += 1
        self.budgets.append(budget)
        self.begun.release()
        try:
            assert self.open.wait(LONG)
            budget.check()
            return self.begins
        finally:
            self.ended.release()

    async def reached(self) -> None:
        """Wait until the work has begun once more."""
        assert await asyncio.to_thread(self.begun.acquire, True, LONG)


def run(scenario: Callable[[], object]) -> None:
    """Run a scenario."""
    asyncio.run(scenario())  # type: ignore[arg-type]


def test_a_store_has_limited_time_to_answer() -> None:
    """This holds for single calls, the rest of a listing, and many calls at once."""
    clock, store = StillClock(), MemoryStore(buckets=("lake",))
    for number in range(3):
        store.put("lake", f"key{number}", b"")
    bounded = within(store, Budget(5.0, clock))
    listing = bounded.list_objects("lake", "")
    assert next(listing).key == "key0"
    assert bounded.head("lake", "key0").size == 0
    clock.sleep(5.1)
    for call in (
        lambda: next(listing),
        lambda: bounded.head("lake", "key0"),
        lambda: list(bounded.list_objects("lake", "")),
        lambda: list(bounded.perform([])),
    ):
        with pytest.raises(StillRunning, match="did not respond within 5 s"):
            call()


def test_requests_share_a_reading_that_is_under_way() -> None:
    """A store is asked once, however many look at the page; a new reading follows when it has ended."""
    reader, gate = Reader(seconds=LONG), Gate()

    async def scenario() -> None:
        askers = [asyncio.create_task(reader.read("lake", "key", gate)) for _ in range(3)]
        await gate.reached()
        gate.open.set()
        assert await asyncio.gather(*askers) == [1, 1, 1]
        assert await reader.read("lake", "key", gate) == 2

    run(scenario)


def test_a_reading_that_takes_too_long_is_given_up() -> None:
    """The waiting request gets the error, and the reading ends at its next call of the store."""
    reader, gate = Reader(seconds=0.05), Gate()

    async def scenario() -> None:
        with pytest.raises(StillRunning, match=r"still connecting after 0\.05 s"):
            await reader.read("lake", "key", gate)
        gate.open.set()
        assert await asyncio.to_thread(gate.ended.acquire, True, LONG)
        with pytest.raises(StillRunning):
            gate.budgets[0].check()

    run(scenario)


def test_a_slow_destination_takes_no_thread_from_another() -> None:
    """This holds however many readings are requested."""
    reader, slow, quick = Reader(seconds=LONG, lane=2, threads=3), Gate(), Gate()
    quick.open.set()

    async def scenario() -> None:
        crowd = [asyncio.create_task(reader.read("slow", number, slow)) for number in range(10)]
        await slow.reached()
        await slow.reached()
        assert [await reader.read("quick", number, quick) for number in range(3)] == [1, 2, 3]
        slow.open.set()
        assert len(await asyncio.gather(*crowd)) == 10

    run(scenario)


def test_work_continues_without_waiters() -> None:
    """The ending of a job does not stop with the page that asked for it, nor while it is queued."""
    reader, gate = Reader(seconds=0.05, lane=1), Gate()

    async def scenario() -> None:
        for key in ("begun", "queued"):
            with pytest.raises(StillRunning):
                await reader.read("lake", key, gate)
        gate.open.set()
        for _ in range(2):
            assert await asyncio.to_thread(gate.ended.acquire, True, LONG)

    run(scenario)


def test_an_error_of_a_reading_reaches_all_waiters() -> None:
    """The next reading does not get that error."""
    reader = Reader(seconds=LONG)

    def fails(_: Budget) -> None:
        raise RecursionError

    async def scenario() -> None:
        with pytest.raises(RecursionError):
            await reader.read("lake", "key", fails)
        assert await reader.read("lake", "key", lambda _: 1) == 1

    run(scenario)

"""Many waiters at few destinations, and their cost to the store."""

from __future__ import annotations

import asyncio
import threading
from itertools import pairwise
from typing import Any

import pytest

from airflow_s3commit import Destination, MemoryStore
from airflow_s3commit.exceptions import Unavailable
from airflow_s3commit.hooks import S3CommitHook
from airflow_s3commit.protocol.watch import Criteria, SearchResult, Snapshot
from airflow_s3commit.store.forwarding import CountingStore
from airflow_s3commit.triggers import S3SuccessManifestTrigger, SharedPoller, shared_poller
from tests.airflow.runs import DAY, FLIGHTS, commit
from tests.airflow.runs import commit_at as commit_at_place

WAITERS, PLACES = 1_000, 10


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def counted(store, monkeypatch) -> CountingStore:
    """The test's store, with its requests counted."""
    counting = CountingStore(store)
    monkeypatch.setattr(S3CommitHook, "store", property(lambda self: counting))
    return counting


def lookout(counted: Any, clock: Clock) -> SharedPoller:
    """Return a lookout over the flights."""
    return SharedPoller(lambda: Snapshot(counted, Destination.parse(FLIGHTS)), clock=clock)


def requests(counted: CountingStore) -> int:
    """Return how many requests were made so far."""
    return sum(counted.counters.values())


def waiting_for(**asked: Any) -> Criteria:
    """Return what a waiter wants."""
    return Criteria.of(**asked)


def test_a_thousand_triggers_at_ten_destinations(counted, store) -> None:
    """Each interval costs a few requests a destination, not a waiter; and every waiter gets its manifest."""
    places = [f"s3://lake/table-{number}/" for number in range(PLACES)]
    wanted = Criteria.of(partitions=[DAY]).to_dict()
    looks: list[int] = []

    async def wait_for_all() -> list[Any]:
        triggers = [
            S3SuccessManifestTrigger(
                destination=places[number % PLACES], wanted=wanted, poke_interval=1.0, search_depth=10
            )
            for number in range(WAITERS)
        ]
        running = [trigger.run() for trigger in triggers]
        first = [asyncio.ensure_future(anext(events)) for events in running]
        # A look at a place without a log is a listing, and a read of entry 1.
        async with asyncio.timeout(60):
            while requests(counted) < 2 * PLACES:
                await asyncio.sleep(0.01)
            looks.append(requests(counted))
            for place in places:
                commit_at_place(store, place)
            return [(await event).payload for event in first]

    found = asyncio.run(wait_for_all())
    assert {event["status"] for event in found} == {"success"}
    assert len({event["manifest"]["job_id"] for event in found}) == PLACES
    assert looks[0] == 2 * PLACES
    assert requests(counted) < WAITERS / 2


def test_one_look_serves_all_until_it_is_old(counted) -> None:
    """A search's result is valid for an interval; the first waiter after that searches again, for all."""
    clock = Clock()

    async def looks() -> list[int]:
        shared, told = lookout(counted, clock), []
        waits = [waiting_for(partitions=[DAY]), waiting_for(run_id="another"), waiting_for(job="a-job")]
        for passing in (0, 59, 1, 60):
            clock.now += passing
            for wait in waits:
                assert (await shared.look(wait, 60)).manifest is None
            told.append(requests(counted))
        return told

    # Each search lists the log, and where there is none reads entry 1, as a listing may lag.
    assert asyncio.run(looks()) == [2, 2, 4, 6]


def test_the_shorter_interval_s_looks_serve_both(counted) -> None:
    """Of two intervals at one destination, only the shorter one's looks are made."""
    clock = Clock()

    async def looks() -> None:
        shared = lookout(counted, clock)
        often, seldom = waiting_for(partitions=[DAY]), waiting_for(partitions=[DAY])
        assert shared.next_due(10) == 0
        for _ in range(6):
            await shared.look(often, 10)
            await shared.look(seldom, 60)
            clock.now += 4
            assert (shared.next_due(10), shared.next_due(60)) == (6, 56)
            clock.now += 6

    asyncio.run(looks())
    assert requests(counted) == 2 * 6


def test_a_manifest_is_read_once_for_all(counted, store) -> None:
    """Waiters with different wishes judge the same manifests, and each of these is read once."""
    for day in range(1, 4):
        commit(store, partition=f"dt=2013-01-0{day}")

    async def looks() -> list[str | None]:
        shared = lookout(counted, Clock())
        found = []
        for day in range(1, 5):
            look = await shared.look(waiting_for(partitions=[f"dt=2013-01-0{day}"]), 60)
            found.append(look.manifest and look.outcome)
        return found

    assert asyncio.run(looks()) == ["found", "found", "found", None]
    # One listing, the newest entry, the one after it, and the three before.
    assert requests(counted) == 6


def test_a_store_in_trouble_is_asked_once_an_interval(counted, store, monkeypatch) -> None:
    """All waiters get an error until the next search is due; then the store is searched again."""
    commit(store)
    asked, clock = store.list_objects, Clock()

    def unavailable(*_: object, **__: object) -> object:
        raise Unavailable("503 Slow Down")

    async def looks() -> None:
        shared = lookout(counted, clock)
        monkeypatch.setattr(store, "list_objects", unavailable)
        for _ in range(5):
            with pytest.raises(Unavailable):
                await shared.look(waiting_for(partitions=[DAY]), 60)
        assert requests(counted) == 1
        monkeypatch.setattr(store, "list_objects", asked)
        with pytest.raises(Unavailable):
            await shared.look(waiting_for(partitions=[DAY]), 60)
        clock.now += 60
        assert (await shared.look(waiting_for(partitions=[DAY]), 60)).manifest is not None

    asyncio.run(looks())


def test_a_destination_takes_one_thread(counted, monkeypatch) -> None:
    """However many look at once, the others wait for their turn without a thread."""
    threads, most = [], []

    async def to_thread(look: Any, *arguments: Any) -> Any:
        threads.append(look)
        most.append(len(threads))
        await asyncio.sleep(0)  # the others' turn
        threads.pop()
        return look(*arguments)

    monkeypatch.setattr("airflow_s3commit.triggers.asyncio.to_thread", to_thread)

    async def looks() -> None:
        shared = lookout(counted, Clock())
        await asyncio.gather(*(shared.look(waiting_for(partitions=[DAY]), 60) for _ in range(5)))

    asyncio.run(looks())
    assert most == [1] * 5


class Turns:
    """A lock that tells who comes to it, and a view that tells who comes into it beside another."""

    def __init__(self) -> None:
        self.lock, self.came, self.may_end = threading.Lock(), threading.Semaphore(0), threading.Event()
        self.inside, self.most = 0, 0

    def __enter__(self) -> None:
        self.came.release()
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()

    def refresh(self) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.came.release()
        assert self.may_end.wait(10)
        self.inside -= 1

    def search(self, wanted: Criteria) -> SearchResult:
        return SearchResult(None, "nothing", "absent")


def test_the_thread_of_a_cancelled_waiter_is_waited_for() -> None:
    """It still polls, and a snapshot is not for two threads."""
    turns = Turns()

    async def looks() -> None:
        shared = SharedPoller(lambda: turns, clock=Clock())
        shared._polling = turns
        wanted = waiting_for(partitions=[DAY])
        cancelled = asyncio.create_task(shared.look(wanted, 0))
        for _ in range(2):  # at the lock, and in the view
            assert await asyncio.to_thread(turns.came.acquire, timeout=10)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        next_one = asyncio.create_task(shared.look(wanted, 0))
        assert await asyncio.to_thread(turns.came.acquire, timeout=10)
        turns.may_end.set()
        await next_one

    asyncio.run(asyncio.wait_for(looks(), 60))
    assert turns.most == 1


def test_a_store_that_cannot_be_opened_is_tried_again_an_interval_later(counted) -> None:
    """A waiter that must search again when the next search is due does not loop."""

    def closed() -> Snapshot:
        raise Unavailable("no credentials yet")

    async def looks() -> tuple[float, float]:
        clock = Clock()
        shared = SharedPoller(closed, clock=clock)
        before = shared.next_due(60)
        with pytest.raises(Unavailable):
            await shared.look(waiting_for(partitions=[DAY]), 60)
        return before, shared.next_due(60)

    assert asyncio.run(looks()) == (0, 60)


def test_a_look_at_a_log_is_one_request(counted, store) -> None:
    """After the first search one request asks for the next entry, for all waiters."""
    commit(store)
    clock, waits = Clock(), [waiting_for(run_id="another"), waiting_for(job="a-job")]

    async def looks() -> list[int]:
        shared, told = lookout(counted, clock), []
        for _ in range(5):
            for wait in waits:
                assert (await shared.look(wait, 60)).manifest is None
            told.append(requests(counted))
            clock.now += 60
        return told

    told = asyncio.run(looks())
    assert [after - before for before, after in pairwise(told)] == [1, 1, 1, 1]


def test_triggers_with_another_connection_share_nothing(store, monkeypatch) -> None:
    """Another connection may lead to another store, or have other rights."""
    commit(store)
    stores = {"full": store, "empty": MemoryStore(("lake",))}
    monkeypatch.setattr(S3CommitHook, "store", property(lambda self: stores[self.aws_conn_id]))
    asked = {"destination": FLIGHTS, "wanted": waiting_for(partitions=[DAY]).to_dict(), "give_up_at": 0.0}

    async def outcomes() -> list[str]:
        running = [S3SuccessManifestTrigger(aws_conn_id=name, **asked).run() for name in stores]
        found = [(await anext(each)).payload["status"] for each in running]
        for each in running:
            await each.aclose()
        return found

    assert asyncio.run(outcomes()) == ["success", "timeout"]


def test_triggers_that_look_deeper_see_more(store) -> None:
    """Each search goes as deep as its own trigger asks, also beside another at the same destination."""
    commit(store)
    commit(store, partition="dt=2013-01-02")
    asked = {"destination": FLIGHTS, "wanted": waiting_for(partitions=[DAY]).to_dict(), "give_up_at": 0.0}

    async def outcomes() -> list[str]:
        running = [S3SuccessManifestTrigger(search_depth=depth, **asked).run() for depth in (1, 2)]
        found = [(await anext(each)).payload["status"] for each in running]
        for each in running:
            await each.aclose()
        return found

    assert asyncio.run(outcomes()) == ["timeout", "success"]


def test_waiters_at_one_place_share_and_leave_nothing_behind(counted) -> None:
    """The same key gives the same poller while it is in use, within one event loop."""

    def view() -> Snapshot:
        return Snapshot(counted, Destination.parse(FLIGHTS))

    async def joined() -> tuple[bool, bool, int]:
        one, other = shared_poller("flights", view), shared_poller("flights", view)
        third, number = shared_poller("weather", view), id(one)
        shared, apart = one is other, one is third
        del one, other
        return shared, apart, number

    shared, apart, _ = asyncio.run(joined())
    assert (shared, apart) == (True, False)

"""Readings for a page and steps that end jobs: limited in time, and independent of one another."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from airflow_s3commit import MemoryStore, ObjectStore
from airflow_s3commit.exceptions import InvalidRecord, OutcomeUnknown
from airflow_s3commit.plugin.service import (
    FRESH,
    DestinationService,
    StillRunning,
    TimedStore,
    connect,
    read_places,
)
from airflow_s3commit.protocol.inspect.jobs import JobSummary
from tests.plugin.scene import FLIGHTS, ORDERS

pytestmark = pytest.mark.airflow

LONG = 20.0
(FLIGHTS_HOME, ORDERS_HOME) = read_places(f'["{FLIGHTS}", {{"destination": "{ORDERS}", "aws_conn_id": "x"}}]')


class Gate:
    """Work that says when it has begun, and continues when it is allowed to."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.open = threading.Event()
        self.ended = threading.Semaphore(0)
        self.begins = 0

    def __call__(self, store: ObjectStore) -> int:
        self.begins += 1
        self.begun.release()
        try:
            assert self.open.wait(LONG)
            return len(list(store.list_objects("lake", "")))
        finally:
            self.ended.release()

    async def reached(self) -> None:
        """Wait until the work has begun once more."""
        assert await asyncio.to_thread(self.begun.acquire, True, LONG)


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a scenario."""
    asyncio.run(scenario())


def a_service(wait: float = LONG) -> DestinationService:
    """Return a service whose stores are empty."""
    return DestinationService(list, lambda *_: MemoryStore(buckets=("lake",)), wait)


def test_a_store_is_checked_before_each_call_and_item() -> None:
    """This holds for single calls, the rest of a listing, and many calls at once."""
    store, up = MemoryStore(buckets=("lake",)), False
    for number in range(3):
        store.put("lake", f"key{number}", b"")

    def check() -> None:
        if up:
            raise StillRunning("up")

    bounded = TimedStore(store, check)
    listing = bounded.list_objects("lake", "")
    assert next(listing).key == "key0"
    assert bounded.head("lake", "key0").size == 0
    up = True
    for call in (
        lambda: next(listing),
        lambda: bounded.head("lake", "key0"),
        lambda: list(bounded.list_objects("lake", "")),
        lambda: list(bounded.perform([])),
    ):
        with pytest.raises(StillRunning, match="up"):
            call()


def test_a_reading_that_takes_too_long_is_given_up() -> None:
    """The page gets the error in its time; a reading ends at its next call, a queued one never begins."""
    service, gate = a_service(0.05), Gate()

    async def scenario() -> None:
        answers = await asyncio.gather(
            *(service.read(FLIGHTS_HOME, gate) for _ in range(40)), return_exceptions=True
        )
        assert {type(answer) for answer in answers} == {StillRunning}
        assert "within 0.05 s" in str(answers[0])
        begun = gate.begins
        assert begun < 40
        gate.open.set()
        for _ in range(begun):
            assert await asyncio.to_thread(gate.ended.acquire, True, LONG)
        assert gate.begins == begun

    run(scenario)


def test_a_slow_connection_takes_no_thread_from_another() -> None:
    """This holds however many readings are requested."""
    service, slow, quick = a_service(), Gate(), Gate()
    quick.open.set()

    async def scenario() -> None:
        crowd = [asyncio.create_task(service.read(FLIGHTS_HOME, slow)) for _ in range(40)]
        await slow.reached()
        assert await service.read(ORDERS_HOME, quick) == 0
        slow.open.set()
        assert await asyncio.gather(*crowd) == [0] * 40

    run(scenario)


def test_a_failure_that_nothing_expects_is_one_of_reading(caplog: pytest.LogCaptureFixture) -> None:
    """Its text, which may be anything, is in the log alone; the next reading is not affected."""

    def fails(_: ObjectStore) -> None:
        raise RecursionError("<b>")

    async def scenario() -> None:
        service = a_service()
        with pytest.raises(InvalidRecord, match="failed with RecursionError;"):
            await service.read(FLIGHTS_HOME, fails)
        assert await service.read(FLIGHTS_HOME, lambda _: 1) == 1

    run(scenario)
    assert any(record.exc_info and "<b>" in str(record.exc_info[1]) for record in caplog.records)


def test_a_destination_that_failed_is_not_asked_at_each_page() -> None:
    """It is after half a minute, or at its own page; one whose turn did not come is asked first."""
    asked: list[float] = []

    def connect(aws_conn_id: str | None, _: float) -> ObjectStore:
        if aws_conn_id == "x":
            asked.append(clock.now)
            raise ConnectionError
        return MemoryStore(buckets=("lake",))

    clock = StillClock()
    service = DestinationService(list, connect, LONG, clock=clock)

    async def scenario() -> None:
        for now in (0, 1, FRESH - 1, FRESH + 1):
            clock.now = now
            problems = [view.problem for view in await service.views([FLIGHTS_HOME, ORDERS_HOME])]
            assert (problems[0], "ConnectionError" in str(problems[1])) == (None, True)
        await service.view(ORDERS_HOME)

    run(scenario)
    assert asked == [0, FRESH + 1, FRESH + 1]


class StillClock:
    """A clock that stops until it is set."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_connection_lasts_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store is reused for a minute, and then it is gone, with its connections and all other memory."""
    minute = [0.0]
    monkeypatch.setattr("airflow_s3commit.plugin.service.monotonic", lambda: minute[0] * 60.0)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    kept = weakref.ref(connect(None, 4.0))
    assert connect(None, 4.0) is kept() is not connect(None, 5.0)
    minute[0] = 1.0
    connect(None, 5.0)
    gc.collect()
    assert kept() is None


def test_the_end_of_a_job_continues_without_its_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page says so after its time; another step for the job gets its own answer."""
    release, ended = threading.Event(), threading.Event()

    def end_job(*asked: object) -> str:
        *_, offer, reason = asked
        if offer == "continue":
            release.wait(LONG)
            ended.set()
        return f"{offer} {reason}"

    monkeypatch.setattr("airflow_s3commit.plugin.service.end_job", end_job)
    job = JobSummary(job_id="j", destination=FLIGHTS, staging=None, state="sealed")
    service = a_service(1.0)

    async def scenario() -> None:
        with pytest.raises(StillRunning, match="continues in the background"):
            await service.end(FLIGHTS_HOME, job, "continue", "by one")
        assert await service.end(FLIGHTS_HOME, job, "undo", "by another") == "undo by another"
        release.set()
        assert await asyncio.to_thread(ended.wait, LONG)

    run(scenario)


def test_an_end_that_fails_unexpectedly_may_have_happened(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page says that the outcome is unknown, and where the details are."""

    def end_job(*_: object) -> str:
        raise OverflowError("secret")

    monkeypatch.setattr("airflow_s3commit.plugin.service.end_job", end_job)
    job = JobSummary(job_id="j", destination=FLIGHTS, staging=None, state="sealed")

    async def scenario() -> None:
        with pytest.raises(OutcomeUnknown, match="the API server's log has the details") as failed:
            await a_service().end(FLIGHTS_HOME, job, "abort", "by one")
        assert "secret" not in str(failed.value)

    run(scenario)

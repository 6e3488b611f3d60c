"""A store that is gone for a while costs a commit that while, a moment to notice its end, no more."""

from __future__ import annotations

import random
from heapq import heappop, heappush
from itertools import count
from typing import Any

import pytest
from botocore.exceptions import ConnectionClosedError, EndpointConnectionError

from airflow_s3commit.store.base import Complete
from airflow_s3commit.store.execute import RetryPolicy
from airflow_s3commit.store.s3.config import S3Config
from airflow_s3commit.store.s3.store import S3Store
from tests.fakes import ManualClock
from tests.store.s3.fault_server import COMPLETED

pytest.importorskip("pycurl")

from airflow_s3commit.store.s3.curl.decoding import Response
from airflow_s3commit.store.s3.curl.request import SILENT_SECONDS, WAKE_SECONDS, ActiveCall, Pauses

CONFIG = S3Config("http://127.0.0.1:1", "us-east-1", "an-access-key", "a-secret-key")
COUNT = 10_000
ANSWER = Response(200, b"HTTP/1.1 200 OK\r\n\r\n", COMPLETED.body)


class SimulatedConnections:
    """Connections to a simulated store, whose latency passes on a manual clock.

    Args:
        clock: The clock.
        latency: Seconds that a response takes.
        gone: Begin and end, by the clock, of an outage: new connections are refused at once, and requests in
            flight are cut off.

    Attributes:
        in_flight: Requests in flight.
        sent: Requests so far.
        idle: The share of its time that the thread waited, which is all of it.

    """

    idle = 1.0

    def __init__(self, clock: ManualClock, latency: float, gone: tuple[float, float]) -> None:
        self._clock = clock
        self._latency = latency
        self._gone = gone
        self._ends: list[tuple[float, int, object, Any]] = []
        self._order = count()
        self.in_flight = 0
        self.sent = 0

    def start(self, tag: object, *_: object, **__: object) -> None:
        """Send a request."""
        now, (gone, back) = self._clock.monotonic(), self._gone
        end: float = now + self._latency
        response: Any = ANSWER
        if gone <= now < back:
            end, response = now + 0.0005, EndpointConnectionError(endpoint_url="http://127.0.0.1:1")
        elif now < gone < end:
            end, response = gone, ConnectionClosedError(endpoint_url="http://127.0.0.1:1")
        heappush(self._ends, (end, next(self._order), tag, response))
        self.in_flight += 1
        self.sent += 1

    def wait(self, seconds: float) -> list[tuple[Any, Any]]:
        """Advance the clock until a request ends."""
        self._clock.advance(max(0.0, min(seconds, self._ends[0][0] - self._clock.monotonic())))
        ended = []
        while self._ends and self._ends[0][0] <= self._clock.monotonic():
            _, _, tag, response = heappop(self._ends)
            ended.append((tag, response))
        self.in_flight -= len(ended)
        return ended


def commit(gone: tuple[float, float], *, per_second: float | None = None) -> tuple[float, int, set[object]]:
    """Complete 10,000 uploads; return the seconds it took, the requests, and all outcomes."""
    clock = ManualClock(0.0)
    retry = RetryPolicy(clock=clock, draw=random.Random(20261121).uniform)
    store = S3Store.connect(CONFIG, retry=retry, transport="curl", requests_per_second=per_second)
    connections = SimulatedConnections(clock, 0.02, gone)
    transport: Any = store._curl
    transport._take_connections = lambda: connections
    calls = ((number, Complete("lake", f"k{number}", "u", ["e"])) for number in range(COUNT))
    outcomes = dict(store.perform(calls))
    assert len(outcomes) == COUNT
    return clock.monotonic(), connections.sent, set(outcomes.values())


@pytest.mark.parametrize("per_second", [None, 3_000.0])
def test_three_seconds_without_a_store(per_second: float | None) -> None:
    """Gone for three seconds in the middle of 10,000 completions, it fails none, and costs three seconds."""
    undisturbed, sent, _ = commit((1e9, 1e9), per_second=per_second)
    assert sent == COUNT
    gone = undisturbed / 2
    disturbed, sent, outcomes = commit((gone, gone + 3.0), per_second=per_second)
    assert outcomes == {"e-1"}
    # Requests in flight are retried with growing pauses meanwhile; the shortest notices the end.
    assert disturbed - undisturbed - 3.0 < 0.5
    assert sent < COUNT + 512 * 20


class TestPauses:
    """How long each call waits."""

    @staticmethod
    def pauses(*, cut_off: bool, count: int = 5) -> Pauses:
        pauses = Pauses()
        for number in range(count):
            pauses.add(ActiveCall(number, Complete("lake", "k", "u", ["e"]), 0.0), 10.0, cut_off=cut_off)
        return pauses

    def test_until_its_time_comes(self) -> None:
        """Pauses end at their time, in order."""
        pauses = self.pauses(cut_off=False)
        assert pauses.next_due == 10.0
        assert list(pauses.over(9.9)) == []
        assert [active.tag for active in pauses.over(10.0)] == [0, 1, 2, 3, 4]
        assert len(pauses) == 0

    def test_a_store_that_is_back_ends_pauses(self) -> None:
        """After a silence the calls that were cut off become due one after another, not all at once."""
        pauses = self.pauses(cut_off=True)
        pauses.store_answered(5.0)
        assert [active.tag for active in pauses.over(5.0 + 2.5 * WAKE_SECONDS)] == [0, 1]
        assert [active.tag for active in pauses.over(5.0 + 5.5 * WAKE_SECONDS)] == [2, 3, 4]
        assert len(pauses) == 0

    def test_what_the_store_turned_away_keeps_its_pause(self) -> None:
        """A call that the store rejected waits its full time, whichever other calls get responses."""
        pauses = self.pauses(cut_off=False)
        pauses.store_answered(5.0)
        assert pauses.next_due == 10.0

    def test_a_call_that_is_cut_off_alone_keeps_its_pause(self) -> None:
        """While other calls get responses, a call that is cut off is not retried at once."""
        pauses = Pauses()
        pauses.store_answered(5.0)
        pauses.add(ActiveCall(0, Complete("lake", "k", "u", ["e"]), 0.0), 10.0, cut_off=True)
        pauses.store_answered(5.0 + SILENT_SECONDS / 2)
        assert pauses.next_due == 10.0


def test_slow_downs_keep_their_pause() -> None:
    """A store that asks for seven seconds is given them."""
    clock = ManualClock(0.0)
    store = S3Store.connect(CONFIG, retry=RetryPolicy(clock=clock), transport="curl")
    connections = SimulatedConnections(clock, 0.02, (1e9, 1e9))
    transport: Any = store._curl
    transport._take_connections = lambda: connections
    in_flight = replace_response(connections, Response(503, b"HTTP/1.1 503 X\r\nRetry-After: 7\r\n\r\n", b""))
    assert list(store.perform([(0, Complete("lake", "k", "u", ["e"]))])) == [(0, "e-1")]
    assert in_flight == [1]
    assert clock.monotonic() == pytest.approx(7.04, abs=0.05)


def replace_response(connections: SimulatedConnections, first: Response) -> list[int]:
    """Replace the first response; return how often that happened."""
    happened: list[int] = []
    wait = connections.wait

    def once(seconds: float) -> list[tuple[Any, Any]]:
        ended = wait(seconds)
        if ended and not happened:
            happened.append(1)
            ended[0] = (ended[0][0], first)
        return ended

    connections.wait = once  # type: ignore[method-assign]
    return happened

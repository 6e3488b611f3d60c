"""A store that is gone for a while costs a commit that while, a moment to notice its end, no more."""

from __future__ import annotations

import random
from heapq import heappop, heappush
from itertools import count
from typing import Any

import pytest
from botocore.exceptions import ConnectionClosedError, EndpointConnectionError

from airflow_s3commit.store.base import Complete
from airflow_s3commit.store.retry import RetryPolicy
from airflow_s3commit.store.s3 import S3Config, S3Store
from tests.fakes import ManualClock
from tests.store.fault_server import COMPLETED

pytest.importorskip("pycurl")

from airflow_s3commit.store.errands import SILENT_SECONDS, Errand, Recess
from airflow_s3commit.store.replies import Reply

CONFIG = S3Config("http://127.0.0.1:1", "us-east-1", "an-access-key", "a-secret-key")
COUNT = 10_000
ANSWER = Reply(200, b"HTTP/1.1 200 OK\r\n\r\n", COMPLETED.body)


class SimulatedLines:
    """Exchanges with a store that takes its time by a clock that nobody waits for.

    Args:
        clock: The clock.
        latency: Seconds that an answer takes.
        gone: From when until when, by the clock, the store is gone: it refuses connections at once, and what
            was under way is cut off.

    Attributes:
        busy: Exchanges under way.
        sent: Requests so far.

    """

    def __init__(self, clock: ManualClock, latency: float, gone: tuple[float, float]) -> None:
        self._clock = clock
        self._latency = latency
        self._gone = gone
        self._ends: list[tuple[float, int, object, Any]] = []
        self._order = count()
        self.busy = 0
        self.sent = 0

    def start(self, of: object, *_: object, **__: object) -> None:
        """Begin an exchange."""
        now, (gone, back) = self._clock.monotonic(), self._gone
        end, reply = now + self._latency, ANSWER
        if gone <= now < back:
            end, reply = now + 0.0005, EndpointConnectionError(endpoint_url="http://127.0.0.1:1")
        elif now < gone < end:
            end, reply = gone, ConnectionClosedError(endpoint_url="http://127.0.0.1:1")
        heappush(self._ends, (end, next(self._order), of, reply))
        self.busy += 1
        self.sent += 1

    def turn(self, seconds: float) -> list[tuple[Any, Any]]:
        """Let time pass until an exchange ends."""
        self._clock.advance(max(0.0, min(seconds, self._ends[0][0] - self._clock.monotonic())))
        ended = []
        while self._ends and self._ends[0][0] <= self._clock.monotonic():
            _, _, of, reply = heappop(self._ends)
            ended.append((of, reply))
        self.busy -= len(ended)
        return ended


def commit(gone: tuple[float, float], *, per_second: float | None = None) -> tuple[float, int, set[object]]:
    """Complete 10,000 uploads; return the seconds it took, the requests, and all outcomes."""
    clock = ManualClock(0.0)
    retry = RetryPolicy(clock=clock, draw=random.Random(20261121).uniform)
    store = S3Store.connect(CONFIG, retry=retry, transport="curl", requests_per_second=per_second)
    lines = SimulatedLines(clock, 0.02, gone)
    transport: Any = store._curl
    transport._take_lines = lambda: lines
    calls = ((number, Complete("lake", f"k{number}", "u", ["e"])) for number in range(COUNT))
    outcomes = dict(store.perform(calls))
    assert len(outcomes) == COUNT
    return clock.monotonic(), lines.sent, set(outcomes.values())


@pytest.mark.parametrize("per_second", [None, 3_000.0])
def test_three_seconds_without_a_store(per_second: float | None) -> None:
    """Gone for three seconds in the middle of 10,000 completions, it fails none, and costs three seconds."""
    undisturbed, sent, _ = commit((1e9, 1e9), per_second=per_second)
    assert sent == COUNT
    gone = undisturbed / 2
    disturbed, sent, outcomes = commit((gone, gone + 3.0), per_second=per_second)
    assert outcomes == {"e-1"}
    # What was under way waits with growing pauses meanwhile; the shortest of them notices the end.
    assert disturbed - undisturbed - 3.0 < 0.5
    assert sent < COUNT + 512 * 20


class TestRecess:
    """Who waits how long."""

    @staticmethod
    def recess(*, cut_off: bool, count: int = 5) -> Recess:
        recess = Recess()
        for number in range(count):
            recess.add(Errand(number, Complete("lake", "k", "u", ["e"]), 0.0), 10.0, cut_off=cut_off)
        return recess

    def test_until_its_time_comes(self) -> None:
        """A pause is over when it was said to be, in order."""
        recess = self.recess(cut_off=False)
        assert recess.ends == 10.0
        assert list(recess.over(9.9)) == []
        assert [errand.tag for errand in recess.over(10.0)] == [0, 1, 2, 3, 4]
        assert len(recess) == 0

    def test_a_store_that_is_back_ends_pauses(self) -> None:
        """After a silence each answer wakes two that were cut off."""
        recess = self.recess(cut_off=True)
        assert len(list(recess.cut_short(1, 5.0))) == 2
        assert len(list(recess.cut_short(2, 5.01))) == 3
        assert len(recess) == 0

    def test_what_the_store_turned_away_keeps_its_pause(self) -> None:
        """A call that had an answer waits as long as it was told, whoever else is answered."""
        recess = self.recess(cut_off=False)
        assert list(recess.cut_short(100, 5.0)) == []
        assert len(recess) == 5

    def test_a_call_that_is_cut_off_alone_keeps_its_pause(self) -> None:
        """While the store answers others, a call that breaks its connections is not sent again at once."""
        recess = Recess()
        list(recess.cut_short(1, 5.0))
        recess.add(Errand(0, Complete("lake", "k", "u", ["e"]), 0.0), 10.0, cut_off=True)
        assert list(recess.cut_short(50, 5.0 + SILENT_SECONDS / 2)) == []
        assert len(recess) == 1


def test_slow_downs_keep_their_pause() -> None:
    """A store that asks for seven seconds is given them."""
    clock = ManualClock(0.0)
    store = S3Store.connect(CONFIG, retry=RetryPolicy(clock=clock), transport="curl")
    lines = SimulatedLines(clock, 0.02, (1e9, 1e9))
    transport: Any = store._curl
    transport._take_lines = lambda: lines
    busy = replace_reply(lines, Reply(503, b"HTTP/1.1 503 X\r\nRetry-After: 7\r\n\r\n", b""))
    assert list(store.perform([(0, Complete("lake", "k", "u", ["e"]))])) == [(0, "e-1")]
    assert busy == [1]
    assert clock.monotonic() == pytest.approx(7.04, abs=0.05)


def replace_reply(lines: SimulatedLines, first: Reply) -> list[int]:
    """Let the first exchange end in another reply; return how often that happened."""
    happened: list[int] = []
    turn = lines.turn

    def once(seconds: float) -> list[tuple[Any, Any]]:
        ended = turn(seconds)
        if ended and not happened:
            happened.append(1)
            ended[0] = (ended[0][0], first)
        return ended

    lines.turn = once  # type: ignore[method-assign]
    return happened

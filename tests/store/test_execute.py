"""Calls are made once each, not too early, and no faster than is allowed; retries keep a deadline."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from airflow_s3commit.exceptions import (
    AccessDenied,
    NoSuchBucket,
    NoSuchKey,
    NoSuchUpload,
    OutcomeUnknown,
    S3CommitError,
    StoreRejected,
    Unavailable,
)
from airflow_s3commit.store.base import Abort, Call, Complete, Get, Head, ObjectInfo
from airflow_s3commit.store.execute import (
    FIRST_WINDOW,
    RetryPolicy,
    Throttle,
    in_batches,
    in_threads,
    make_call,
    one_by_one,
    outcomes,
    with_threads,
)
from airflow_s3commit.store.memory import MemoryStore
from tests.fakes import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class SlowStore(MemoryStore):
    """A store whose HEAD waits until the expected number of calls is in flight."""

    def __init__(self, together: int) -> None:
        super().__init__()
        self.barrier = threading.Barrier(together, timeout=30)

    def head(self, bucket: str, key: str) -> ObjectInfo:
        """See `MemoryStore.head`."""
        self.barrier.wait()
        return super().head(bucket, key)


class BrokenStore(MemoryStore):
    """A store with a bug."""

    def head(self, bucket: str, key: str) -> ObjectInfo:
        """Fail as no store may."""
        raise ZeroDivisionError


def heads(count: int, key: str = "k") -> list[tuple[int, Call]]:
    """Return a number of calls, tagged by number."""
    return [(number, Head("lake", key)) for number in range(count)]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (Head("lake", "k"), NoSuchKey),
        (Get("nowhere", "k"), NoSuchBucket),
        (Complete("lake", "k", "u", ["e"]), NoSuchUpload),
    ],
)
def test_errors_are_outcomes(call: Call, error: type[Exception]) -> None:
    """A store's error is what became of a call; it is returned, not raised."""
    assert isinstance(make_call(MemoryStore(), call), error)


def test_each_call_reaches_its_verb() -> None:
    """Complete, abort, head and get do what the verb of that name does."""
    store = MemoryStore()
    first, second = (store.create_upload("lake", key, metadata={}, content_type="a/b") for key in ("a", "b"))
    etag = store.upload_part("lake", "a", first, 1, b"1")
    assert make_call(store, Complete("lake", "a", first, [etag])) == store.head("lake", "a").etag
    assert make_call(store, Abort("lake", "b", second)) is None
    assert list(store.list_uploads("lake", "")) == []
    assert make_call(store, Head("lake", "a")) == store.head("lake", "a")
    assert make_call(store, Get("lake", "a")).body == b"1"  # type: ignore[union-attr]


def test_one_by_one_keeps_the_order() -> None:
    """Without threads outcomes come in the order of the calls, each drawn when it is wanted."""
    drawn: list[int] = []

    def source() -> Iterator[tuple[int, Call]]:
        for tag, call in heads(5):
            drawn.append(tag)
            yield tag, call

    made = one_by_one(MemoryStore(), source())
    assert next(made)[0] == 0
    assert drawn == [0]
    assert [tag for tag, _ in made] == [1, 2, 3, 4]


def test_threads_work_at_the_same_time() -> None:
    """As many calls are under way at once as there are threads."""
    store = SlowStore(together=4)
    store.put("lake", "k", b"")
    made = list(with_threads(store, heads(8), threads=4))
    assert sorted(tag for tag, _ in made) == list(range(8))
    assert all(isinstance(outcome, ObjectInfo) for _, outcome in made)


def test_threads_make_every_call_once() -> None:
    """Each of many more calls than threads has one outcome."""
    made = list(with_threads(MemoryStore(), heads(500), threads=3))
    assert sorted(tag for tag, _ in made) == list(range(500))


def test_threads_draw_little_ahead() -> None:
    """No more than two calls a thread are drawn ahead of the outcomes that are taken."""
    drawn: list[int] = []
    more = threading.Event()

    class Store(MemoryStore):
        def head(self, bucket: str, key: str) -> ObjectInfo:
            assert key == "0" or more.wait(30)
            return super().head(bucket, key)

    def source() -> Iterator[tuple[int, Call]]:
        for tag in range(100):
            drawn.append(tag)
            if tag == 6:
                more.set()
            yield tag, Head("lake", str(tag))

    made = with_threads(Store(), source(), threads=3)
    assert next(made)[0] == 0
    assert len(drawn) == 6
    next(made)
    assert len(drawn) == 7
    made.close()  # type: ignore[attr-defined]
    assert len(drawn) == 7


@pytest.mark.parametrize("in_order", [True, False])
def test_calls_that_have_not_begun_are_not_made(in_order: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once nobody takes outcomes any more, calls under way are waited for, and no other is made."""
    begun, closed = threading.Event(), threading.Event()
    made: list[int] = []

    class Pool(ThreadPoolExecutor):
        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            closed.set()
            super().shutdown(wait=wait)

    def make(number: int) -> None:
        if number:
            begun.set()
            closed.wait(30)
        else:
            begun.wait(30)
        made.append(number)

    class Store(MemoryStore):
        def head(self, bucket: str, key: str) -> ObjectInfo:
            make(int(key))
            return super().head(bucket, key)

    monkeypatch.setattr("airflow_s3commit.store.execute.ThreadPoolExecutor", Pool)
    calls = ((number, Head("lake", str(number))) for number in range(9))
    results = in_threads(make, range(9), 2) if in_order else with_threads(Store(), calls, 2)
    next(results)
    results.close()  # type: ignore[attr-defined]
    assert {0, 1} <= set(made) <= {0, 1, 2}


def test_only_expected_errors_are_outcomes() -> None:
    """An error that the caller does not expect is raised, and not taken for what became of a call."""
    store = MemoryStore()
    store.put("lake", "k", b"")
    found = dict(outcomes(store, [*heads(1), (1, Head("lake", "gone"))], NoSuchKey))
    assert (type(found[0]), type(found[1])) == (ObjectInfo, NoSuchKey)
    with pytest.raises(NoSuchKey):
        list(outcomes(store, [(1, Head("lake", "gone"))], NoSuchBucket))


def test_no_item_is_left_out_of_the_batches() -> None:
    """Batches are full but for the last one, drawn one at a time."""
    drawn = iter(range(7))
    batches = in_batches(drawn, 3)
    assert (next(batches), next(drawn)) == ([0, 1, 2], 3)
    assert list(batches) == [[4, 5, 6]]
    assert list(in_batches(range(4), 3)) == [[0, 1, 2], [3]]


def test_no_calls_no_outcomes() -> None:
    """Nothing to do is nothing done."""
    assert list(with_threads(MemoryStore(), [], threads=3)) == []


def test_bugs_are_raised() -> None:
    """An error that is not a store's is raised, and not returned as an outcome."""
    with pytest.raises(ZeroDivisionError):
        list(with_threads(BrokenStore(), heads(1), threads=1))


@pytest.mark.parametrize("threads", [0, 2])
def test_results_come_in_the_order_of_the_items(threads: int) -> None:
    """Results follow the order of the arguments, drawn only slightly ahead; an error comes in its turn."""
    drawn: list[int] = []

    def items() -> Iterator[int]:
        for number in range(100):
            drawn.append(number)
            yield number

    def inverse(number: int) -> float:
        return 1 / (20 - number)

    results = in_threads(inverse, items(), threads)
    assert [next(results) for _ in range(10)] == [1 / (20 - number) for number in range(10)]
    assert len(drawn) <= 10 + 2 * threads
    with pytest.raises(ZeroDivisionError):
        list(results)
    assert len(drawn) <= 21 + 2 * threads


def test_a_function_runs_in_several_threads() -> None:
    """As many calls as there are threads wait for one another."""
    together = threading.Barrier(4, timeout=30)
    assert len(list(in_threads(lambda _: together.wait(), range(8), 4))) == 8


def scripted(*steps: S3CommitError | str) -> Callable[[], str]:
    """Return an attempt that meets each of these in turn, the last one again and again."""
    left = list(steps)

    def attempt() -> str:
        step = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(step, S3CommitError):
            raise step
        return step

    return attempt


def policy(clock: ManualClock, deadline: float = 60.0) -> RetryPolicy:
    """Return a policy that always draws the longest pause."""
    return RetryPolicy(deadline=deadline, clock=clock, draw=lambda _, most: most)


def test_a_good_answer_is_not_waited_for() -> None:
    """An attempt that succeeds is made once, without a pause."""
    clock = ManualClock()
    assert policy(clock).run(scripted("fine")) == "fine"
    assert clock.slept == []


def test_pauses_double_up_to_a_bound() -> None:
    """The bounds of the pauses double from the first to the longest."""
    clock = ManualClock()
    steps = [Unavailable("busy")] * 8
    assert policy(clock).run(scripted(*steps, "fine")) == "fine"
    assert clock.slept == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0]


def test_pauses_are_drawn_from_zero_on() -> None:
    """Each pause is drawn between nothing and its bound, so that many clients spread out."""
    drawn: list[tuple[float, float]] = []

    def draw(least: float, most: float) -> float:
        drawn.append((least, most))
        return 0.0

    RetryPolicy(clock=ManualClock(), draw=draw).run(scripted(Unavailable("a"), OutcomeUnknown("b"), "fine"))
    assert drawn == [(0.0, 0.1), (0.0, 0.2)]


def test_the_store_says_how_long() -> None:
    """A pause is as long as the store asks, but no shorter than the drawn one: 0 would be no pause at all."""
    clock = ManualClock()
    asked = [Unavailable("busy", retry_after=seconds) for seconds in (7.0, None, 0.0)]
    policy(clock).run(scripted(*asked, "fine"))
    assert clock.slept == [7.0, 0.2, 0.4]


def test_each_retry_is_told() -> None:
    """The error of an attempt is passed on if another attempt follows, and before its pause."""
    clock = ManualClock()
    told: list[tuple[str, int]] = []
    steps = [Unavailable("busy"), OutcomeUnknown("lost"), Unavailable("too late", retry_after=60.0)]
    patient = replace(policy(clock), on_retry=lambda error: told.append((str(error), len(clock.slept))))
    with pytest.raises(OutcomeUnknown):
        patient.run(scripted(*steps))
    assert told == [("busy", 0), ("lost", 1)]


def test_no_attempt_begins_after_the_deadline() -> None:
    """When the next attempt would begin too late the last error is raised at once, without waiting."""
    clock = ManualClock()
    with pytest.raises(Unavailable, match="busy"):
        policy(clock, deadline=10.0).run(scripted(Unavailable("busy", retry_after=6.0)))
    assert clock.slept == [6.0]


def test_time_spent_in_attempts_counts() -> None:
    """A slow attempt uses up the deadline as a pause does."""
    clock = ManualClock()

    def slow() -> None:
        clock.advance(61.0)
        raise Unavailable("busy")

    with pytest.raises(Unavailable):
        policy(clock).run(slow)
    assert clock.slept == []


def test_one_unknown_outcome_outweighs_refusals() -> None:
    """If any attempt may have taken effect, running out of time is an unknown outcome."""
    steps = [OutcomeUnknown("lost"), Unavailable("busy")]
    with pytest.raises(OutcomeUnknown, match="lost"):
        policy(ManualClock(), deadline=5.0).run(scripted(*steps))


@pytest.mark.parametrize("refusal", [AccessDenied, NoSuchBucket, StoreRejected])
def test_a_refusal_says_nothing_of_an_attempt_before(refusal: type[S3CommitError]) -> None:
    """Credentials that expire, or a gateway's own answer, leave the outcome of an earlier attempt unknown."""
    steps = [OutcomeUnknown("lost"), Unavailable("busy"), refusal("refused")]
    with pytest.raises(OutcomeUnknown, match=r"lost.*refused"):
        policy(ManualClock()).run(scripted(*steps))


def test_other_errors_are_final() -> None:
    """An error that would come again is raised at once."""
    clock = ManualClock()
    with pytest.raises(AccessDenied):
        policy(clock).run(scripted(AccessDenied("no"), "fine"))
    assert clock.slept == []


def test_the_window_doubles_every_round_trip() -> None:
    """While the store takes everything, each window of successes doubles the window, up to its bound."""
    throttle = Throttle(ManualClock(), most=300, per_second=None)
    seen = []
    for _ in range(5):
        seen.append(throttle.window)
        throttle.succeeded(throttle.window)
    assert seen == [FIRST_WINDOW, 64, 128, 256, 300]


def test_a_narrow_bound_is_kept() -> None:
    """A window that may not be as wide as the first one is as wide as it may be, and no wider."""
    throttle = Throttle(ManualClock(), most=7, per_second=None)
    assert throttle.window == 7
    throttle.succeeded(1_000)
    assert throttle.window == 7


def test_the_window_halves_once_a_second() -> None:
    """However many calls are turned away at the same time, the window is halved once."""
    clock = ManualClock()
    throttle = Throttle(clock, most=64, per_second=None)
    throttle.succeeded(64)
    assert throttle.window == 64
    for _ in range(20):
        throttle.slow_down()
    assert throttle.window == 32
    clock.advance(1.0)
    throttle.slow_down()
    assert throttle.window == 16


def test_the_window_never_closes() -> None:
    """One call at a time is always allowed."""
    clock = ManualClock()
    throttle = Throttle(clock, most=64, per_second=None)
    for _ in range(20):
        throttle.slow_down()
        clock.advance(1.0)
    assert throttle.window == 1


def test_the_window_grows_back_by_one_a_windowful() -> None:
    """After the store has objected the window grows by one with every windowful of successes."""
    throttle = Throttle(ManualClock(), most=64, per_second=None)
    throttle.slow_down()
    assert throttle.window == FIRST_WINDOW // 2
    for _ in range(FIRST_WINDOW // 2 + 1):
        throttle.succeeded(1)
    assert throttle.window == FIRST_WINDOW // 2 + 1


def test_requests_keep_the_rate() -> None:
    """In ten seconds no more requests are let through than ten seconds' worth and a short burst."""
    clock = ManualClock()
    throttle = Throttle(clock, most=64, per_second=1000.0)
    sent = 0
    while clock.monotonic() < 10.0:
        pause = throttle.pause()
        if pause:
            clock.advance(pause)
        else:
            sent += 1
    assert 9_900 <= sent <= 10_100


def test_a_lull_is_not_made_up_for() -> None:
    """After a lull only a short burst goes out at once."""
    clock = ManualClock()
    throttle = Throttle(clock, most=64, per_second=1000.0)
    clock.advance(60.0)
    sent = 0
    while not throttle.pause():
        sent += 1
    assert sent <= 25

"""A `FaultyStore` fails at the chosen calls, in the chosen way, and at no others."""

from __future__ import annotations

import pytest

from airflow_s3commit.exceptions import AccessDenied, OutcomeUnknown, StoreRejected, Unavailable
from airflow_s3commit.store.base import Head, ObjectInfo
from airflow_s3commit.testing import Crash, Effect, Fault, FaultyStore, MemoryStore, StoreCall


def put(store: FaultyStore, key: str) -> BaseException | None:
    """Write an object; return what was raised."""
    try:
        store.put("lake", key, b"x")
    except (Crash, Exception) as error:
        return error
    return None


@pytest.mark.parametrize(
    ("effect", "raised", "written"),
    [
        ("refuse", Unavailable, False),
        ("deny", AccessDenied, False),
        ("reject", StoreRejected, False),
        ("lose-answer", OutcomeUnknown, True),
        ("crash-before", Crash, False),
        ("crash-after", Crash, True),
    ],
)
def test_an_effect_is_what_its_error_says(
    effect: Effect, raised: type[BaseException], *, written: bool
) -> None:
    """The error of each effect shows whether the call was made, and only a crash ends later calls."""
    inner = MemoryStore()
    store = FaultyStore(inner, Fault(effect, "put", name="the outage"))
    error = put(store, "a")
    assert type(error) is raised
    assert raised is Crash or "put of s3://lake/a" in str(error)
    assert raised is Crash or "the outage" in str(error)
    assert [info.key for info in inner.list_objects("lake", "")] == (["a"] if written else [])
    assert store.crashed == (raised is Crash)
    assert isinstance(put(store, "b"), Crash if raised is Crash else type(None))


def test_a_fault_strikes_the_calls_it_names() -> None:
    """Verb and key choose the calls, ``nth`` and ``times`` which of them; the others go through."""
    store = FaultyStore(MemoryStore(), Fault("refuse", "put", "*/part-*", nth=2, times=2))
    keys = ["d/part-0", "other", "d/part-1", "d/part-2", "d/part-3"]
    errors = [put(store, key) for key in keys]
    assert [isinstance(error, Unavailable) for error in errors] == [False, False, True, True, False]
    assert store.struck == [StoreCall("put", "lake", key) for key in ("d/part-1", "d/part-2")]
    assert [call.key for call in store.calls] == keys


def test_a_fault_without_an_end_strikes_for_ever() -> None:
    """``times=None`` is an outage that does not end."""
    store = FaultyStore(MemoryStore(), Fault("deny", times=None))
    assert all(isinstance(put(store, str(number)), AccessDenied) for number in range(5))


def test_a_read_whose_answer_is_lost_did_not_change_anything() -> None:
    """The outcome of a read is never unknown: the store is only unavailable."""
    store = FaultyStore(MemoryStore(), Fault("lose-answer"))
    with pytest.raises(Unavailable, match="the response to check_bucket"):
        store.check_bucket("lake")


def test_each_call_of_many_has_its_faults() -> None:
    """What `perform` makes are calls of their verbs: the one that fails is one outcome of several."""
    store = FaultyStore(MemoryStore(), Fault("refuse", "head", nth=2))
    put(store, "a")
    outcomes = dict(store.perform((number, Head("lake", "a")) for number in range(3)))
    assert [type(outcomes[number]) for number in range(3)] == [ObjectInfo, Unavailable, ObjectInfo]


def test_a_delay_comes_before_the_call() -> None:
    """A delayed call is made when the delay is over, and its result returned."""
    inner = MemoryStore()
    waits: list[tuple[float, int]] = []

    def sleep(seconds: float) -> None:
        waits.append((seconds, len(list(inner.list_objects("lake", "")))))

    store = FaultyStore(inner, Fault("delay", "put", seconds=3.0), sleep=sleep)
    assert put(store, "a") is None
    assert waits == [(3.0, 0)]
    assert store.head("lake", "a").size == 1


def test_hooks_see_each_call_before_and_after_it() -> None:
    """``before`` sees the store as the call finds it, ``after`` as it leaves it."""
    inner = MemoryStore()
    seen: list[tuple[str, int]] = []

    def look(call: StoreCall) -> None:
        seen.append((str(call), len(list(inner.list_objects("lake", "")))))

    put(FaultyStore(inner, before=look, after=look), "a")
    assert seen == [("put of s3://lake/a", 0), ("put of s3://lake/a", 1)]

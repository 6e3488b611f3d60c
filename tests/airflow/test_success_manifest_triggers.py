"""Waiting for a manifest in the triggerer."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from itertools import count, permutations
from typing import Any

import pytest
from airflow.sdk import Asset, AssetWatcher
from airflow.sdk.module_loading import import_string
from airflow.triggers.base import BaseEventTrigger, BaseTrigger

from airflow_s3commit.exceptions import AccessDenied, Unavailable
from airflow_s3commit.hooks import S3CommitHook
from airflow_s3commit.protocol.watch import Criteria, ManifestFeed, Snapshot
from airflow_s3commit.store.forwarding import ForwardingStore
from airflow_s3commit.triggers import S3SuccessManifestEventTrigger, S3SuccessManifestTrigger, SharedPoller
from tests.airflow.runs import DAY, FLIGHTS, commit


def trigger(**arguments: object) -> S3SuccessManifestTrigger:
    """Return a trigger for the day's partition that does not pause between its looks."""
    wanted = Criteria.of(partitions=[DAY]).to_dict()
    return S3SuccessManifestTrigger(
        **{"destination": FLIGHTS, "wanted": wanted, "poke_interval": 0, **arguments}
    )


def events(waiting: BaseTrigger, number: int = 1) -> list[Any]:
    """Run a trigger in its own loop until it has yielded a number of events, or ended."""

    async def gather() -> list[Any]:
        found = []
        running = waiting.run()
        async for event in running:
            found.append(event.payload)
            if len(found) == number:
                break
        await running.aclose()
        return found

    return asyncio.run(asyncio.wait_for(gather(), 30))


def at_look(monkeypatch: pytest.MonkeyPatch, number: int, act: Callable[[], object]) -> None:
    """Let something happen right before the numbered look at the destination."""
    looks = count(1)

    def watched(look: Callable[..., Any]) -> Callable[..., Any]:
        def counted(self: object) -> Any:
            if next(looks) == number:
                act()
            return look(self)

        return counted

    monkeypatch.setattr(Snapshot, "refresh", watched(Snapshot.refresh))
    monkeypatch.setattr(ManifestFeed, "look", watched(ManifestFeed.look))


class AssetState:
    """An asset's state store: it outlives triggers."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.writes = 0

    async def aget(self, key: str, default: Any = None) -> Any:
        return json.loads(self.values[key]) if key in self.values else default

    async def aset(self, key: str, value: Any) -> None:
        self.writes += 1
        self.values[key] = json.dumps(value)


@pytest.mark.parametrize(
    "waiting",
    [
        trigger(give_up_at=12.5, search_depth=3, aws_conn_id=None),
        S3SuccessManifestEventTrigger(
            destination=FLIGHTS,
            context={"dag_id": "nightly"},
            partitions=DAY,
            newer_than="2013-01-01",
            min_files=2,
            poke_interval=7,
            aws_conn_id="lake",
        ),
    ],
)
def test_it_is_made_anew_from_plain_json(waiting) -> None:
    """Path and arguments survive JSON and build an equal trigger, as they go through the database."""
    path, arguments = waiting.serialize()
    again = import_string(path)(**json.loads(json.dumps(arguments)))
    assert again.serialize() == (path, arguments)
    assert vars(again) == vars(waiting)


def test_a_search_ends_before_the_next_is_due() -> None:
    """Its retries take a third of an interval, by the connection that the trigger names."""
    hook = trigger(aws_conn_id="lake").hook()
    assert (hook.aws_conn_id, hook.retry_deadline) == ("lake", 20.0)


@pytest.mark.parametrize("limit", [None, 600.0])
def test_it_finds_a_manifest_that_comes_later(store, monkeypatch, limit) -> None:
    """It looks again and again, long before its timeout, and its event carries the summary."""
    found: dict[str, str] = {}
    at_look(monkeypatch, 3, lambda: found.update(commit(store)))
    (event,) = events(trigger(give_up_at=limit and time.time() + limit))
    assert event["status"] == "success"
    assert event["manifest"]["job_id"] == found["job_id"]
    json.dumps(event)


def test_a_timeout_names_the_last_outcome(store) -> None:
    """The event of a fruitless wait names the last outcome."""
    (event,) = events(trigger(give_up_at=time.time() - 1))
    assert (event["status"], event["outcome"]) == ("timeout", "absent")


def test_a_timeout_does_not_wait_for_the_next_look(store) -> None:
    """A look that is due after the timeout is made at the timeout."""
    (event,) = events(trigger(poke_interval=600.0, give_up_at=time.time() + 0.05))
    assert event["status"] == "timeout"


@pytest.mark.parametrize(("interval", "age"), [(600.0, 5.0), (2.0, 2.0)])
def test_the_last_look_is_a_fresh_one(store, monkeypatch, interval, age) -> None:
    """What others saw minutes before the timeout is no outcome of it."""
    ages: list[float] = []
    look = SharedPoller.look

    async def watched(poller: SharedPoller, wanted: Criteria, max_age: float) -> Any:
        ages.append(max_age)
        return await look(poller, wanted, max_age)

    monkeypatch.setattr(SharedPoller, "look", watched)
    (event,) = events(trigger(poke_interval=interval, give_up_at=time.time() - 1))
    assert (event["status"], ages) == ("timeout", [age])


def test_yesterdays_manifest_is_stale(store) -> None:
    """Another manifest than the wanted one differs from no manifest, and so does one that is too deep."""
    commit(store)
    commit(store, partition="dt=2012-12-31")
    (event,) = events(trigger(give_up_at=time.time() - 1, search_depth=1))
    assert (event["status"], event["outcome"]) == ("timeout", "stale")


def test_a_missing_bucket_ends_the_wait(store) -> None:
    """Waiting would not create the bucket."""
    (event,) = events(trigger(destination="s3://swamp/flights/"))
    assert (event["status"], event["outcome"]) == ("error", "missing-bucket")
    assert "swamp" in event["message"]


@pytest.mark.parametrize(
    ("error", "outcome"), [(AccessDenied("403"), "no-permission"), (RuntimeError("a bug"), "error")]
)
def test_an_error_is_an_event_and_not_a_crash(store, monkeypatch, error, outcome) -> None:
    """The task learns of missing permission, and of anything unforeseen."""

    def failing(*_: object, **__: object) -> object:
        raise error

    monkeypatch.setattr(store, "list_objects", failing)
    (event,) = events(trigger())
    assert (event["status"], event["outcome"]) == ("error", outcome)


def test_a_throttled_look_is_repeated(store, monkeypatch) -> None:
    """A search that the store rejects temporarily is repeated."""
    commit(store)
    asked, answers = store.list_objects, [Unavailable("503"), Unavailable("503")]

    def throttled(*args: Any, **kwargs: Any) -> Any:
        if answers:
            raise answers.pop()
        return asked(*args, **kwargs)

    monkeypatch.setattr(store, "list_objects", throttled)
    assert events(trigger())[0]["status"] == "success"
    assert not answers


def watcher(**arguments: object) -> S3SuccessManifestEventTrigger:
    """Return a trigger for a watcher that does not pause between its looks."""
    return S3SuccessManifestEventTrigger(**{"destination": FLIGHTS, "poke_interval": 0, **arguments})


def test_watchers_of_one_asset_remember_apart() -> None:
    """Each has a key of its own for what it has seen, by all of its conditions."""
    asked = [
        {},
        {"context": {"dag_id": "a"}},
        {"newer_than": "2013-01-01"},
        {"partitions": DAY},
        {"min_files": 2},
        {"destination": "s3://lake/other/"},
    ]
    keys = {S3SuccessManifestEventTrigger(**{"destination": FLIGHTS, **each})._key for each in asked}
    assert len(keys) == len(asked)
    one, same = ({"context": dict(facts)} for facts in permutations((("dag_id", "a"), ("run_id", "b"))))
    assert watcher(**one)._key == watcher(**same)._key


def test_it_pauses_between_its_looks(store, monkeypatch) -> None:
    """After a search in vain, after one that failed, and after an event."""
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise asyncio.CancelledError

    monkeypatch.setattr("airflow_s3commit.triggers.asyncio.sleep", pause)

    def fail() -> None:
        commit(store)
        raise Unavailable("503")

    at_look(monkeypatch, 2, fail)
    with pytest.raises(asyncio.CancelledError):
        events(watcher(poke_interval=7), 9)
    assert pauses == [7, 7, 7]


def test_an_asset_can_be_watched_with_it() -> None:
    """Airflow accepts it as a watcher's trigger, and treats two equal ones as the same."""
    path, arguments = watcher().serialize()
    flights = Asset("flights", watchers=[AssetWatcher(name="commits", trigger=watcher())])
    assert len(flights.watchers) == 1
    assert BaseEventTrigger.hash(path, arguments) == BaseEventTrigger.hash(*watcher().serialize())


def test_every_commit_is_one_event(store, monkeypatch) -> None:
    """Earlier commits count as seen, and each later one comes once, in order."""
    commit(store)
    made: list[str] = []

    def two_more() -> None:
        for day in ("dt=2013-01-02", "dt=2013-01-03"):
            made.append(commit(store, partition=day)["job_id"])  # noqa: PERF401 - reads as what happens

    at_look(monkeypatch, 2, two_more)
    assert [event["job_id"] for event in events(watcher(), 2)] == made


def test_unwanted_commits_are_skipped(store, monkeypatch) -> None:
    """Only commits that meet the conditions are events."""
    made: dict[str, str] = {}

    def another_and_ours() -> None:
        commit(store, dag_id="weekly", partition="dt=2013-01-09")
        made.update(commit(store))

    at_look(monkeypatch, 2, another_and_ours)
    (event,) = events(watcher(context={"dag_id": "nightly"}, partitions=[DAY]))
    assert event["job_id"] == made["job_id"]


@pytest.mark.parametrize(
    "asked",
    [
        {"context": {"dag_id": "nightly"}},
        {"newer_than": "2013-01-01"},
        {"partitions": [DAY]},
        {"min_files": 2},
    ],
    ids=str,
)
def test_each_condition_counts_alone(asked) -> None:
    """What an asset's consumers do not want starts none of them."""
    assert watcher(**asked)._wanted() == Criteria.of(**asked)


def test_it_remembers_over_a_restart(store, monkeypatch) -> None:
    """With the asset's state store, commits made meanwhile are found, and known ones are not repeated."""
    state = AssetState()

    def watching() -> S3SuccessManifestEventTrigger:
        waiting = watcher()
        waiting.asset_state_store = state
        return waiting

    made: list[str] = []
    at_look(monkeypatch, 2, lambda: made.append(commit(store)["job_id"]))
    at_look(monkeypatch, 3, lambda: made.append(commit(store, partition="dt=2013-01-02")["job_id"]))
    # The triggerer dies right after the second event, before that is remembered.
    assert [event["job_id"] for event in events(watching(), 2)] == made
    made.append(commit(store, partition="dt=2013-01-03")["job_id"])
    assert [event["job_id"] for event in events(watching(), 2)] == made[1:]


def test_what_is_remembered_is_written_when_it_changes(store, monkeypatch) -> None:
    """A watcher looks every minute, mostly in vain; that there is no log yet is worth a write too."""
    waiting, state = watcher(), AssetState()
    waiting.asset_state_store = state
    writes: list[int] = []
    at_look(monkeypatch, 3, lambda: writes.append(state.writes) or commit(store))
    at_look(monkeypatch, 7, lambda: writes.append(state.writes) or commit(store, partition="dt=2013-01-02"))
    assert len(events(waiting, 2)) == 2
    assert writes == [1, 2]


def test_a_watcher_of_several_assets_does_without_memory(store, monkeypatch) -> None:
    """Airflow refuses to say which asset's state is meant; the watcher is told of commits all the same."""
    waiting, state = watcher(), AssetState()
    waiting.asset_state_store = state

    async def ambiguous(key: str, default: Any = None) -> Any:
        raise ValueError("the trigger has several assets")

    monkeypatch.setattr(state, "aget", ambiguous)
    at_look(monkeypatch, 2, lambda: commit(store))
    at_look(monkeypatch, 4, lambda: commit(store, partition="dt=2013-01-02"))
    assert len(events(waiting, 2)) == 2
    assert state.writes == 0


@pytest.mark.parametrize("left", [{"sha256": "a"}, {"number": 1}, ["a"], "a"])
def test_a_memory_that_says_no_commit_is_told_and_left(store, monkeypatch, left) -> None:
    """A watcher that is given what another release left begins anew, and says what that may cost."""
    commit(store)
    waiting, state = watcher(), AssetState()
    waiting.asset_state_store = state
    state.values[waiting._key] = json.dumps(left)
    told: list[str] = []
    monkeypatch.setattr(waiting.log, "warning", lambda text, *_: told.append(text))
    made: dict[str, str] = {}
    at_look(monkeypatch, 2, lambda: made.update(commit(store, partition="dt=2013-01-02")))
    assert [event["job_id"] for event in events(waiting)] == [made["job_id"]]
    assert [text for text in told if "may be missed" in text]


def test_a_watcher_survives_errors(store, monkeypatch) -> None:
    """A bucket that cannot be read for a while does not end the schedule."""
    listing, answers = store.list_objects, [AccessDenied("403"), Unavailable("503"), RuntimeError("bug")]

    def failing(*args: Any, **kwargs: Any) -> Any:
        if answers:
            raise answers.pop()
        return listing(*args, **kwargs)

    monkeypatch.setattr(store, "list_objects", failing)
    made: dict[str, str] = {}
    at_look(monkeypatch, len(answers) + 2, lambda: made.update(commit(store)))
    assert [event["job_id"] for event in events(watcher())] == [made["job_id"]]
    assert not answers


class Keys(ForwardingStore):
    """A store with keys that may be taken back."""

    valid = True

    def forward(self, verb: str, bucket: str, key: str, make: Callable[[], Any]) -> Any:
        if not self.valid:
            raise AccessDenied("403")
        return super().forward(verb, bucket, key, make)


@pytest.mark.parametrize("kind", ["watcher", "trigger"])
def test_it_uses_the_keys_that_its_connection_has_now(store, monkeypatch, kind) -> None:
    """It waits for longer than keys are valid, and misses no commit when they are changed."""
    stores = [old := Keys(store), Keys(store)]
    monkeypatch.setattr(S3CommitHook, "store", property(lambda self: stores.pop(0)))
    made: dict[str, str] = {}

    def change() -> None:
        old.valid = False
        made.update(commit(store))

    at_look(monkeypatch, 2, change)
    (event,) = events(watcher() if kind == "watcher" else trigger())
    summary = event if kind == "watcher" else event["manifest"]
    assert summary["job_id"] == made["job_id"]

"""If there is a log, waiters and a feed find each new manifest once, with one request for a look."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from airflow_s3commit import Destination, read_manifest
from airflow_s3commit.exceptions import AccessDenied, NoSuchBucket, Unavailable
from airflow_s3commit.protocol.model.codec import encode
from airflow_s3commit.protocol.model.layout import entry_key
from airflow_s3commit.protocol.watch.new_manifests import ManifestFeed, Snapshot
from airflow_s3commit.protocol.watch.search import Criteria, ManifestSearch, SearchResult
from airflow_s3commit.testing import StoreCall
from tests.cases import each
from tests.protocol.building import BUCKET, HOME, OURS, THEIRS, Lake, an_id

FILES = {"dt=1/a.parquet": b"a"}


class Wait:
    """A waiter for a job of a run, and the requests of each look."""

    def __init__(self, lake: Lake, *, shared: bool = True, **criteria: object) -> None:
        self._lake = lake
        self._view = Snapshot(lake.store, Destination.parse(lake.destination), shared=shared)
        self._search = ManifestSearch(self._view, Criteria.of(**(criteria or {"run_id": "monday"})))  # type: ignore[arg-type]
        self.requests: list[tuple[str, str]] = []

    def look(self, times: int = 1) -> SearchResult:
        """Look a number of times; return what the last look found."""
        for _ in range(times):
            self._lake.store.calls.clear()
            self._view.refresh()
            result = self._search.look()
            self.requests = [(call.verb, call.key.removeprefix(HOME)) for call in self._lake.store.calls]
        return result

    def found(self, times: int = 1) -> str | None:
        """Look a number of times; return the job that the last look found."""
        manifest = self.look(times).manifest
        return manifest.job_id if manifest is not None else None


def commit(lake: Lake, job_id: str = OURS, run_id: str = "sunday") -> None:
    """Commit a job of a run."""
    job = lake.set_up(job_id, said={"run_id": run_id})
    lake.run_stage(job, FILES)
    job.seal()
    job.commit()


def commit_without_a_log(lake: Lake, job_id: str, run_id: str = "monday") -> None:
    """Write a manifest that is in no log."""
    commit(lake, THEIRS)
    record = read_manifest(lake.store, lake.destination, THEIRS)
    older = msgspec.structs.replace(record, job_id=job_id, generation=0, context={"run_id": run_id})
    lake.store.put(BUCKET, f"{HOME}manifests/{job_id}.json", encode(older))


@each("criteria", [{"run_id": "monday"}, {"job": an_id("ours")}, {"partitions": ["dt=9"]}])
@each("shared", [True, False])
def test_a_look_is_one_request_with_a_log(criteria: dict[str, object], shared: bool) -> None:
    """From the third look on only the next entry is read, whatever the criteria are."""
    lake = Lake()
    commit(lake)
    wait = Wait(lake, shared=shared, **criteria)
    wait.look(2)
    for _ in range(10):
        assert wait.found() is None
        assert wait.requests == [("get", f"log/{2:020d}.json")]


def test_a_commit_is_found_by_its_entry() -> None:
    """The entry is enough, even if the committer died before its manifest; of several the newest is taken."""
    lake = Lake()
    commit(lake)
    wait, by_job = Wait(lake), Wait(lake, job=THEIRS)
    assert (wait.found(3), by_job.found(3)) == (None, None)
    lake.set_up(an_id("gone")).abort()
    commit(lake, an_id("first"), "monday")
    commit(lake, THEIRS, "monday")
    lake.store.delete(BUCKET, f"{HOME}manifests/{THEIRS}.json")
    assert (wait.found(), by_job.found()) == (THEIRS, THEIRS)


def test_the_newest_entry_counts_without_its_manifest() -> None:
    """The commit whose entry is the last one when the log is looked up is not missed."""
    lake = Lake()
    commit(lake)
    wait = Wait(lake)
    assert wait.found() is None
    commit(lake, THEIRS, "monday")
    lake.store.delete(BUCKET, f"{HOME}manifests/{THEIRS}.json")
    assert wait.found() == THEIRS


def test_versions_without_a_log_are_seen_now_and_then() -> None:
    """Their commits have no entry yet, so every twentieth look lists the manifests."""
    lake = Lake()
    commit(lake)
    wait = Wait(lake)
    wait.look(3)
    commit_without_a_log(lake, an_id("older"))
    assert wait.found(16) is None
    assert wait.found() == an_id("older")


def test_a_deleted_log_is_noticed() -> None:
    """A dataset that was deleted and written again has its first entries again."""
    lake = Lake()
    for name in "abc":
        commit(lake, an_id(name))
    wait = Wait(lake)
    wait.look(3)
    for key in lake.keys(""):
        lake.store.delete(BUCKET, key)
    commit(lake, OURS, "monday")
    assert wait.found(17) == OURS


def test_an_unreadable_log_does_not_end_the_wait() -> None:
    """With a damaged entry, or without permission, the manifests are listed as before."""
    lake = Lake()
    commit(lake)
    wait = Wait(lake)
    wait.look(3)
    commit(lake, THEIRS, "monday")
    lake.tamper(entry_key(Destination.parse(lake.destination), 2), cut=1)
    assert wait.found() == THEIRS


@pytest.mark.parametrize("error", [AccessDenied("403"), Unavailable("503"), NoSuchBucket("404")], ids=repr)
def test_an_error_of_the_log_does_not_last(error: Exception) -> None:
    """Permission for the log is not needed; any other error reaches all waiters, until the next look."""
    lake = Lake()
    commit(lake)
    wait = Wait(lake)
    wait.look(3)
    commit(lake, THEIRS, "monday")

    def fail(call: StoreCall) -> None:
        if "/log/" in call.key:
            raise error

    lake.store.before = fail
    if isinstance(error, AccessDenied):
        assert wait.found() == THEIRS
    else:
        with pytest.raises(type(error)):
            wait.look()
        lake.store.rest()
        assert wait.found() == THEIRS


def test_a_place_without_a_log_costs_no_more_than_before() -> None:
    """A look takes a HEAD of the marker and a listing, and the log is looked up once."""
    lake = Lake()
    wait = Wait(lake)
    for look in range(1, 20):
        assert wait.look().outcome == "absent"
        assert len(wait.requests) == (3 if look == 2 else 2)
    commit(lake, OURS, "monday")
    assert wait.found() == OURS


def feed(lake: Lake, memory: Mapping[str, Any] | None = None) -> ManifestFeed:
    """Return a feed of all commits, new or continued."""
    return ManifestFeed(lake.store, Destination.parse(lake.destination), Criteria().unmet, memory)


def jobs(watched: ManifestFeed) -> list[str]:
    """Poll once."""
    return [manifest.job_id for manifest in watched.look()]


def test_a_poll_is_one_request_with_a_log() -> None:
    """A new feed finds the end of the log and lists no manifests, and then reads the next entry."""
    lake = Lake()
    commit(lake)
    watched = feed(lake)
    lake.store.calls.clear()
    assert jobs(watched) == []
    assert lake.store.calls == [StoreCall("list_objects", BUCKET, f"{HOME}log/")]
    for _ in range(30):
        lake.store.calls.clear()
        assert jobs(watched) == []
        assert lake.store.calls == [StoreCall("get", BUCKET, f"{HOME}log/{2:020d}.json")]


def test_every_commit_is_yielded_once_and_in_order() -> None:
    """Entries of aborted jobs are left out, even after a restart from the remembered position."""
    lake = Lake()
    watched = feed(lake)
    assert jobs(watched) == []
    names = [an_id(str(number)) for number in range(4)]
    for name in names[:2]:
        commit(lake, name)
    lake.set_up(an_id("gone")).abort()
    assert jobs(watched) == names[:2]
    for name in names[2:]:
        commit(lake, name)
    again = feed(lake, json.loads(json.dumps(watched.memory)))
    assert jobs(again) == names[2:]
    assert jobs(again) == []


def test_a_commit_counts_as_seen_with_the_next_one() -> None:
    """A feed that ends in the middle yields the rest when it continues."""
    lake = Lake()
    watched = feed(lake)
    jobs(watched)
    for name in "abc":
        commit(lake, an_id(name))
    looking = watched.look()
    assert [next(looking).job_id, next(looking).job_id] == [an_id("a"), an_id("b")]
    assert jobs(feed(lake, watched.memory)) == [an_id("b"), an_id("c")]


def test_a_position_of_an_earlier_version_is_continued() -> None:
    """It knows nothing of the log, so commits since then are listed, and nothing comes twice."""
    lake = Lake()
    commit(lake)
    memory = {"job_id": OURS, "met": {OURS: lake.store.head(BUCKET, f"{HOME}manifests/{OURS}.json").modified}}
    names = [an_id(name) for name in "abc"]
    for name in names:
        lake.store_clock.advance(1)
        commit(lake, name)
    # The last committer died before it wrote its manifest.
    lake.store.delete(BUCKET, f"{HOME}manifests/{names[-1]}.json")
    watched = feed(lake, memory)
    assert jobs(watched) == names
    assert jobs(watched) == []
    assert watched.memory is not None
    assert watched.memory["log"] == 4


def test_a_feed_switches_to_a_log_that_begins() -> None:
    """Manifests are listed until then, and none is lost or repeated."""
    lake = Lake()
    watched = feed(lake)
    assert jobs(watched) == []
    older = an_id("older")
    commit_without_a_log(lake, older)
    assert jobs(watched) == [older, THEIRS]
    commit(lake, OURS)
    lake.store.calls.clear()
    assert jobs(watched) == [OURS]
    assert not any("manifests" in call.key for call in lake.store.calls)


def test_an_error_in_the_middle_of_a_listing_loses_nothing() -> None:
    """A feed switches to the log only after it has yielded everything that the listing showed."""
    lake = Lake()
    watched = feed(lake)
    jobs(watched)
    commit_without_a_log(lake, an_id("older"))
    looking = watched.look()
    assert next(looking).job_id == an_id("older")
    looking.close()
    assert jobs(watched) == [an_id("older"), THEIRS]

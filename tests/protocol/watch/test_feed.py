"""A feed yields each commit once: by listing where there is no log, then by its entries."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from airflow_s3commit import Destination
from airflow_s3commit.protocol.watch.criteria import Criteria
from airflow_s3commit.protocol.watch.feed import ManifestFeed
from airflow_s3commit.testing import StoreCall
from tests.protocol.building import BUCKET, HOME, OURS, THEIRS, Lake, an_id
from tests.protocol.watch.test_snapshot import commit, commit_without_a_log


def feed(lake: Lake, memory: Mapping[str, Any] | None = None) -> ManifestFeed:
    """Return a feed of all commits, new or continued."""
    return ManifestFeed(lake.store, Destination.parse(lake.destination), Criteria(), memory)


def jobs(watched: ManifestFeed) -> list[str]:
    """Poll once."""
    return [manifest.job_id for manifest in watched.look()]


def test_a_poll_is_one_request_where_there_is_a_log() -> None:
    """A new feed looks for the end of the log and lists no manifests; then it reads the next entry."""
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
    """Without the entries of aborted jobs; also after a restart from what was remembered."""
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
    """A feed that ends in the middle yields the rest when it goes on."""
    lake = Lake()
    watched = feed(lake)
    jobs(watched)
    for name in "abc":
        commit(lake, an_id(name))
    looking = watched.look()
    assert [next(looking).job_id, next(looking).job_id] == [an_id("a"), an_id("b")]
    assert jobs(feed(lake, watched.memory)) == [an_id("b"), an_id("c")]


def test_the_memory_of_an_earlier_version_is_continued() -> None:
    """It has no position in the log: what was committed since is listed, and nothing comes twice."""
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


def test_a_log_that_begins_is_gone_over_to() -> None:
    """Commits of versions without a log are listed until then, and none is lost or repeated."""
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
    """A feed goes over to the log only when it has yielded what the listing showed."""
    lake = Lake()
    watched = feed(lake)
    jobs(watched)
    commit_without_a_log(lake, an_id("older"))
    looking = watched.look()
    assert next(looking).job_id == an_id("older")
    looking.close()
    assert jobs(watched) == [an_id("older"), THEIRS]

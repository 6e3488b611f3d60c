"""Waiters and a feed find each new commit once, with one request for a look."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from airflow_s3commit import Destination
from airflow_s3commit.exceptions import AccessDenied, InvalidRecord, NoSuchBucket, Unavailable
from airflow_s3commit.protocol.model.delta import COMPACTION, SAME_ROWS
from airflow_s3commit.protocol.model.layout import entry_key
from airflow_s3commit.protocol.model.sealed_job import Counts
from airflow_s3commit.protocol.watch import Criteria, ManifestFeed, SearchResult, Snapshot
from airflow_s3commit.testing import StoreCall
from tests.cases import each
from tests.protocol.building import BUCKET, HOME, OURS, THEIRS, Lake, an_id, once

FILES = {"dt=1/a.parquet": b"a"}

#: Commits beyond those that one search looks at.
MANY = 12


class Wait:
    """A waiter for a job of a run, and the requests of each look."""

    def __init__(self, lake: Lake, *, depth: int = 100, **criteria: object) -> None:
        self._lake = lake
        self._view = Snapshot(lake.store, Destination.parse(lake.destination), depth=depth)
        self._wanted = Criteria.of(**(criteria or {"run_id": "monday"}))  # type: ignore[arg-type]
        self.requests: list[tuple[str, str]] = []

    def look(self, times: int = 1) -> SearchResult:
        """Look a number of times; return what the last look found."""
        for _ in range(times):
            self._lake.store.calls.clear()
            self._view.refresh()
            result = self._view.search(self._wanted)
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


def delete_everything(lake: Lake) -> None:
    """Delete the dataset with its log, as somebody who loads it anew does."""
    for key in lake.keys(""):
        lake.store.delete(BUCKET, key)


def key_of_entry(lake: Lake, number: int) -> str:
    """Return the key of an entry of the log."""
    return entry_key(Destination.parse(lake.destination), number)


@pytest.mark.parametrize("criteria", [{"run_id": "monday"}, {"job": an_id("ours")}, {"partitions": ["dt=9"]}])
def test_a_look_is_one_request(criteria: dict[str, object]) -> None:
    """From the second look on only the next entry is read, whatever the criteria are."""
    lake = Lake()
    commit(lake)
    wait = Wait(lake, **criteria)
    wait.look()
    for _ in range(10):
        assert wait.found() is None
        assert wait.requests == [("get", f"log/{3:020d}.json")]


def test_a_commit_is_found_by_its_entry() -> None:
    """The entry is enough, even if the committer died before the receipt; of several the newest is taken."""
    lake = Lake()
    commit(lake)
    wait, by_job = Wait(lake), Wait(lake, job=THEIRS)
    assert (wait.found(), by_job.found()) == (None, None)
    lake.set_up(an_id("gone")).abort()
    commit(lake, an_id("first"), "monday")
    commit(lake, THEIRS, "monday")
    lake.store.delete(BUCKET, lake.receipt_key(THEIRS))
    assert (wait.found(), by_job.found()) == (THEIRS, THEIRS)
    assert (Wait(lake).found(), Wait(lake, job=THEIRS).found()) == (THEIRS, THEIRS)


def test_an_old_job_is_found_by_its_receipt() -> None:
    """Waiting for one job costs a request for its receipt, however long the log is."""
    lake = Lake()
    for number in range(MANY):
        commit(lake, an_id(str(number)))
    wait = Wait(lake, job=an_id("0"))
    assert wait.found() == an_id("0")
    assert [request for request in wait.requests if request[1].startswith("jobs/")] == [
        ("get", f"jobs/{an_id('0')}.json")
    ]
    assert len(wait.requests) == 4


def test_an_aborted_job_is_reported() -> None:
    """Who waits for a job that was aborted reads why, rather than that it is not there yet."""
    lake = Lake()
    lake.set_up(OURS).abort(reason="a bad day")
    found = Wait(lake, job=OURS).look()
    assert found.outcome == "absent"
    assert found.seen.endswith("the job is aborted, and never commits: a bad day")


def test_the_job_that_is_wanted_must_meet_the_other_conditions_too() -> None:
    """It is named with the condition that it does not meet."""
    lake = Lake()
    commit(lake)
    found = Wait(lake, job=OURS, min_files=2).look()
    assert (found.manifest, found.outcome) == (None, "stale")
    assert "min_files: wanted 2, found 1" in found.seen


def test_only_the_newest_commits_are_looked_at() -> None:
    """A search reads older entries until it has what it wants, and at most as many commits as it was told."""
    lake = Lake()
    commit(lake, OURS, "monday")
    for number in range(MANY):
        commit(lake, an_id(str(number)))
    assert Wait(lake, depth=MANY).found() is None
    assert Wait(lake, depth=MANY + 1).found() == OURS
    wait = Wait(lake, run_id="sunday")
    assert wait.found() == an_id(str(MANY - 1))
    assert len(wait.requests) == 3


@pytest.mark.parametrize("depth", [2, 4, 9])
def test_a_snapshot_knows_no_more_commits_than_it_is_told(depth: int) -> None:
    """However many come while it is in use, it has the newest ones, without a gap."""
    lake = Lake()
    for name in ("first", "second"):
        commit(lake, an_id(name))
    view = Snapshot(lake.store, Destination.parse(lake.destination), depth=depth)
    view.refresh()
    for name in "abc":
        commit(lake, an_id(name))
        view.refresh()
    found = [manifest.job_id for manifest in view.newest()]
    assert found == [an_id(name) for name in ("c", "b", "a", "second", "first")][:depth]


def test_an_error_in_an_older_entry_ends_with_the_next_look() -> None:
    """A search that could not read on begins again at the newest commit, and misses none."""
    lake = Lake()
    commit(lake, OURS, "monday")
    commit(lake, THEIRS)
    wait = Wait(lake)
    lake.store.before = once("get", f"log/{2:020d}.json", Unavailable("503"))
    with pytest.raises(Unavailable):
        wait.look()
    assert wait.found() == OURS


def test_data_older_than_the_log_is_no_commit_of_a_job() -> None:
    """A waiter without further wishes is not content with the files that the first setup found."""
    lake = Lake()
    lake.put({"dt=1/older.parquet": b"older"})
    lake.set_up(OURS)
    found = Wait(lake, min_files=1).look()
    assert (found.manifest, found.outcome) == (None, "absent")


def test_a_deleted_log_is_noticed() -> None:
    """A dataset that was deleted and written again has its first entries again."""
    lake = Lake()
    for name in "abc":
        commit(lake, an_id(name))
    wait = Wait(lake)
    wait.look(3)
    delete_everything(lake)
    commit(lake, OURS, "monday")
    assert wait.found(16) is None
    assert wait.found() == OURS


def test_a_log_that_was_begun_anew_and_grew_is_noticed_at_once() -> None:
    """If the new log is longer, its next entry does not follow the one that was read."""
    lake = Lake()
    commit(lake, an_id("before"))
    wait = Wait(lake)
    wait.look()
    delete_everything(lake)
    commit(lake, THEIRS)
    commit(lake, OURS, "monday")
    assert wait.found() == OURS


def test_a_damaged_log_is_reported_and_does_not_end_the_wait() -> None:
    """Commits after the damage are found; without one the search says what is wrong."""
    lake = Lake()
    commit(lake)
    wait = Wait(lake)
    wait.look()
    commit(lake, THEIRS)
    whole = lake.get(key_of_entry(lake, 3))
    lake.tamper(key_of_entry(lake, 3), cut=1)
    assert wait.look().outcome == "damaged"
    lake.store.put(BUCKET, key_of_entry(lake, 3), whole)
    commit(lake, an_id("next"), "monday")
    lake.tamper(key_of_entry(lake, 3), cut=1)
    assert wait.found() == an_id("next")


def test_a_copied_log_is_not_believed() -> None:
    """The entries of a copied dataset name the original, whose commits are not here."""
    lake = Lake()
    commit(lake, OURS, "monday")
    for key in lake.keys("flights/"):
        lake.store.put(BUCKET, key.replace("flights/", "copy/"), lake.get(key))
    copy = Snapshot(lake.store, Destination.parse(f"s3://{BUCKET}/copy/"))
    copy.refresh()
    found = copy.search(Criteria.of(run_id="monday"))
    assert (found.manifest, found.outcome) == (None, "damaged")
    assert "is a copy" in found.seen


@pytest.mark.parametrize("error", [AccessDenied("403"), Unavailable("503"), NoSuchBucket("404")], ids=repr)
def test_an_error_lasts_until_the_next_look(error: Exception) -> None:
    """All waiters at one snapshot get the error of the request that one of them made."""
    lake = Lake()
    commit(lake)
    view = Snapshot(lake.store, Destination.parse(lake.destination))
    wanted = Criteria.of(run_id="monday")
    view.refresh()
    commit(lake, THEIRS, "monday")

    def fail(_: StoreCall) -> None:
        raise error

    lake.store.before = fail
    view.refresh()
    lake.store.rest()
    for _ in range(2):
        with pytest.raises(type(error)):
            view.search(wanted)
    view.refresh()
    assert view.search(wanted).manifest is not None


def test_a_place_without_a_log_is_searched_again() -> None:
    """A look lists the log and reads its first entry; another program's marker does not count."""
    lake = Lake()
    lake.put({"_SUCCESS": b""})
    wait = Wait(lake)
    for _ in range(3):
        assert wait.look().outcome == "absent"
        assert [verb for verb, _ in wait.requests] == ["list_objects", "get"]
    commit(lake, OURS, "monday")
    assert wait.found() == OURS


@each(
    ("wanted", "met"),
    [
        ({"min_files": 1}, True),
        ({"min_files": "2"}, False),
        ({"newer_than": "2023-11-14T22:13:19.999"}, True),
        ({"newer_than": "2023-11-14T22:13:20"}, False),
        ({"partitions": "dt=1"}, True),
        ({"partitions": ["dt=1", "dt=2"]}, False),
        ({"job": OURS}, True),
        ({"job": {"job_id": THEIRS}}, False),
        ({"run_id": "sunday", "context": {"run_id": "monday"}}, True),
        ({"context": {"run_id": "monday"}}, False),
    ],
)
def test_a_commit_meets_all_conditions_or_is_not_the_one(wanted: dict[str, Any], met: bool) -> None:
    """A time excludes the commit that was made at it, and a partition that was emptied was not written."""
    lake = Lake()
    commit(lake)
    manifest = lake.job().manifest()
    assert manifest.committed == 1_700_000_000_000
    manifest = replace(manifest, partitions={**manifest.partitions, "dt=2": Counts()})
    assert (Criteria.of(**wanted).unmet(manifest) == []) is met


@each(
    ("wanted", "met"),
    [
        ({"newer_than": "2000-01-01", "partitions": ["dt=1"]}, False),
        ({"run_id": "sunday"}, False),
        ({}, False),
        ({"job": OURS}, True),
        ({"context": {"name": "compaction"}}, True),
    ],
)
def test_a_compaction_only_meets_conditions_that_name_it(wanted: dict[str, Any], met: bool) -> None:
    """It writes a new commit with files of the partition, but the rows are those of before."""
    lake = Lake()
    commit(lake)
    manifest = lake.job().manifest()
    compacted = replace(manifest, context={**manifest.context, **SAME_ROWS, "name": COMPACTION})
    assert Criteria.of(run_id="sunday").unmet(manifest) == []
    assert (Criteria.of(**wanted).unmet(compacted) == []) is met


@each(
    "asked",
    [
        {"run_id": " "},
        {"context": {}},
        {"context": {"run_id": "monday", "dag_id": "None"}},
        {"partitions": []},
        {"partitions": ["dt=1", ""]},
        {"job": {}},
        {"min_files": ""},
    ],
)
def test_a_condition_without_a_value_is_refused(asked: dict[str, Any]) -> None:
    """As a template without a value renders; without the condition any commit would do."""
    with pytest.raises(ValueError, match="is empty"):
        Criteria.of(**asked)


@each("asked", [{"partitions": 20130101}, {"partitions": [20130101]}, {"newer_than": 20130101}])
def test_a_condition_that_is_a_number_is_refused(asked: dict[str, Any]) -> None:
    """Native rendering makes 20130101 a number; the error says what to write instead."""
    with pytest.raises(ValueError, match=r"is 20130101; give a time|has 20130101.*native rendering"):
        Criteria.of(**asked)


def test_a_context_that_is_no_mapping_is_refused() -> None:
    """As text a template renders, of which no entry can be compared."""
    with pytest.raises(ValueError, match="the condition context is 'run_id=monday', and not a mapping"):
        Criteria.of(context="run_id=monday")  # type: ignore[arg-type]


def feed(lake: Lake, memory: Mapping[str, Any] | None = None) -> ManifestFeed:
    """Return a feed of all commits, new or continued."""
    return ManifestFeed(lake.store, Destination.parse(lake.destination), Criteria().unmet, memory)


def jobs(watched: ManifestFeed) -> list[str]:
    """Look once."""
    return [manifest.job_id for manifest in watched.look()]


def test_a_poll_is_one_request() -> None:
    """A new feed finds the end of the log, and then reads the next entry."""
    lake = Lake()
    commit(lake)
    watched = feed(lake)
    assert jobs(watched) == []
    for _ in range(10):
        lake.store.calls.clear()
        assert jobs(watched) == []
        assert lake.store.calls == [StoreCall("get", BUCKET, f"{HOME}log/{3:020d}.json")]


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


def test_a_feed_of_jobs_leaves_out_data_older_than_the_log() -> None:
    """The first setup lists it, in an entry that no condition of a waiter is met by."""
    lake = Lake()
    watched = feed(lake)
    jobs(watched)
    lake.put({"dt=1/older.parquet": b"older"})
    commit(lake)
    assert jobs(watched) == [OURS]


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


@pytest.mark.parametrize("longer", [False, True])
def test_a_feed_goes_on_with_the_newest_commit_of_a_new_log(longer: bool) -> None:
    """Commits that a restored log had before are not yielded all over again, and the newest is not missed."""
    lake = Lake()
    watched = feed(lake)
    jobs(watched)
    commit(lake)
    assert jobs(watched) == [OURS]
    delete_everything(lake)
    names = [an_id(name) for name in ("abc" if longer else "")]
    for name in names:
        commit(lake, name)
    lake.set_up(an_id("gone")).abort()
    found = [name for _ in range(20) for name in jobs(watched)]
    assert found == names[-1:]
    commit(lake, THEIRS)
    assert jobs(watched) == [THEIRS]


def test_a_damaged_entry_stops_a_feed() -> None:
    """Nobody commits after a damaged entry, so the feed reports it and stays where it is."""
    lake = Lake()
    watched = feed(lake)
    jobs(watched)
    commit(lake)
    whole = lake.get(key_of_entry(lake, 2))
    lake.tamper(key_of_entry(lake, 2), cut=1)
    for _ in range(2):
        with pytest.raises(InvalidRecord):
            jobs(watched)
    lake.store.put(BUCKET, key_of_entry(lake, 2), whole)
    assert jobs(watched) == [OURS]

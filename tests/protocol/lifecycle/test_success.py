"""A ``_SUCCESS`` in each partition follows from the log, and never names data that is being deleted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

import pytest

from airflow_s3commit import JobOptions, repair, rollback
from airflow_s3commit.exceptions import InvalidOption
from airflow_s3commit.protocol.inspect.verify_log import LogCheck
from airflow_s3commit.protocol.inspect.verify_table import TableReport, verify
from airflow_s3commit.protocol.lifecycle.success import renew_marker
from airflow_s3commit.protocol.model.codec import decode, largest
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.manifest import SuccessData
from airflow_s3commit.store.base import Call, Get, Outcome
from airflow_s3commit.store.forwarding import ForwardingStore
from tests.cases import each
from tests.protocol.building import BUCKET, OURS, ROOT, Lake, an_id, named, once
from tests.protocol.lifecycle.test_enter import crash
from tests.protocol.metadata.test_snapshot import two_generations
from tests.protocol.sweep.test_history import swept

T = TypeVar("T")

FIRST, THIRD = an_id("first"), an_id("third")


def marked(**options: Any) -> Lake:
    """Return a lake whose first commit requested markers, in two partitions."""
    lake = Lake()
    files = {"dt=1/a": b"1", "dt=2/a": b"2", "root": b"r"}
    lake.sealed(files, job_id=FIRST, conflict_mode="append", partition_success=True, **options).commit()
    return lake


def markers(lake: Lake) -> dict[str, int | None]:
    """Return the generation that each partition's marker names; None for another program's."""
    found = {}
    for key in lake.keys(f"{ROOT}dt="):
        if key.endswith("/_SUCCESS"):
            generation = None
            with suppress(Exception):
                generation = decode(SuccessData, lake.get(key), key).generation
            found[key.removeprefix(ROOT).removesuffix("/_SUCCESS")] = generation
    return found


def test_each_partition_gets_a_marker_in_hadoops_format() -> None:
    """It names job, manifest, generation and the partition's own totals; the root has only one."""
    lake = marked()
    assert markers(lake) == {"dt=1": 1, "dt=2": 1}
    marker = decode(SuccessData, lake.get(f"{ROOT}dt=1/_SUCCESS"), "marker")
    assert (marker.jobId, marker.generation, marker.success) == (FIRST, 1, True)
    assert marker.manifest_uri == f"s3://{BUCKET}/{ROOT}_s3commit/manifests/{FIRST}.json"
    assert marker.iostatistics is not None
    assert marker.iostatistics.counters["committer_commits_completed"] == 1
    assert decode(SuccessData, lake.get(f"{ROOT}_SUCCESS"), "marker").generation == 1


def test_there_are_no_markers_unless_requested() -> None:
    """A table whose jobs never requested markers has only that of the destination."""
    lake = Lake()
    lake.sealed({"dt=1/a": b"1"}).commit()
    assert markers(lake) == {}


@each("conflict_mode", ["append", "replace"])
def test_later_commits_write_markers_unrequested(conflict_mode: str) -> None:
    """A marker names the newest commit that added files to its partition, whether its job asked or not."""
    lake = marked()
    lake.sealed({"dt=1/a": b"new", "dt=3/a": b"3"}, conflict_mode=conflict_mode).commit()
    assert markers(lake) == {"dt=1": 2, "dt=2": 1, "dt=3": 2}


def test_a_marker_goes_before_the_files_that_it_names() -> None:
    """A partition has no marker while replaced files are deleted; before the entry it has the old one."""
    lake = marked()
    job = lake.sealed({"dt=1/a": b"new"})
    crash(lake, job.commit, "put", "log/00000000000000000002.json")
    assert markers(lake) == {"dt=1": 1, "dt=2": 1}
    crash(lake, lake.job().commit, "put", "dt=1/_SUCCESS")
    assert named("dt=1/a", FIRST) not in lake.data()
    assert markers(lake) == {"dt=2": 1}
    lake.job().recover()
    assert markers(lake) == {"dt=1": 2, "dt=2": 1}


def test_an_abort_leaves_the_markers() -> None:
    """An aborted job that had published touches no marker."""
    lake = marked()
    before = lake.get(f"{ROOT}dt=1/_SUCCESS")
    job = lake.sealed({"dt=1/a": b"new"}, partition_success=True)
    crash(lake, job.commit, "put", "log/00000000000000000002.json")
    lake.job().abort()
    assert lake.get(f"{ROOT}dt=1/_SUCCESS") == before
    assert markers(lake) == {"dt=1": 1, "dt=2": 1}


def test_a_whole_replace_leaves_no_marker_in_emptied_partitions() -> None:
    """A partition without files has no marker."""
    lake = marked()
    lake.sealed({"dt=1/a": b"new"}, committer="directory").commit()
    assert markers(lake) == {"dt=1": 2}


def test_a_slow_commit_removes_its_marker_despite_a_lagging_listing() -> None:
    """Later commits, one of which emptied the partition, are found by their keys."""
    lake = marked()
    slow = lake.sealed({"dt=3/a": b"3"}, conflict_mode="append")

    def meanwhile() -> None:
        lake.store.rest()
        lake.sealed({"dt=1/x": b"x"}, job_id=THIRD, conflict_mode="append").commit()
        lake.sealed({"dt=1/y": b"y"}, job_id=an_id("fourth"), committer="directory").commit()
        real = lake.store.list_objects
        lake.store.list_objects = lambda bucket, prefix, **how: (  # type: ignore[method-assign]
            info for info in real(bucket, prefix, **how) if not info.key.endswith(f"log/{4:020}.json")
        )

    lake.store.before = once("put", "dt=3/_SUCCESS", meanwhile)
    slow.commit()
    assert markers(lake) == {"dt=1": 4}


def test_only_a_commit_replaces_another_programs_marker() -> None:
    """Another program's marker survives an abort, and gives way to that of a commit."""
    lake = marked()
    lake.put({"dt=3/_SUCCESS": b"", "dt=4/_SUCCESS": b""})
    lake.sealed({"dt=3/a": b"3"}).commit()
    assert markers(lake) == {"dt=1": 1, "dt=2": 1, "dt=3": 2, "dt=4": None}


def test_a_rollback_renews_the_markers() -> None:
    """Partitions that a rollback changes get its marker, or none if they are then empty."""
    lake = marked()
    lake.sealed({"dt=1/b": b"new", "dt=3/a": b"3"}, conflict_mode="append").commit()
    rollback(lake.store, lake.destination, to=1, clock=lake.clock, threads=0)
    assert markers(lake) == {"dt=1": 3, "dt=2": 1}


def test_a_rollback_that_died_is_completed() -> None:
    """A second rollback writes its markers; a sweep that deletes files removes theirs."""
    for again in (True, False):
        lake = marked()
        lake.sealed({"dt=1/b": b"new", "dt=3/a": b"3"}, conflict_mode="append").commit()

        def roll_back(lake: Lake = lake) -> None:
            rollback(lake.store, lake.destination, to=1, clock=lake.clock, threads=0)

        crash(lake, roll_back, "get", "dt=1/_SUCCESS")
        assert markers(lake) == {"dt=1": 2, "dt=2": 1, "dt=3": 2}
        if again:
            roll_back()
        else:
            assert problems(lake).keys() >= {"dt=1/_SUCCESS", "dt=3/_SUCCESS"}
            lake.store_clock.advance(10)
            swept(lake)
        assert markers(lake) == ({"dt=1": 3, "dt=2": 1} if again else {"dt=2": 1})


def problems(lake: Lake) -> dict[str, str]:
    """Return what a check of the table says is wrong with its log, by record."""
    report = verify(lake.store, lake.destination, threads=0)
    assert isinstance(report, TableReport)
    return {one.where.removeprefix(f"s3://{BUCKET}/{ROOT}"): one.problem for one in report.log}


def mend(lake: Lake) -> list[str]:
    """Repair the lake, and return which records were rebuilt."""
    found = repair(lake.store, lake.destination, dry_run=False, clock=lake.clock, threads=0)
    assert found.is_sound
    return [one.where.removeprefix(f"s3://{BUCKET}/{ROOT}") for one in found.repaired]


@each(
    ("harm", "problem"),
    [
        (None, "is missing; the newest commit there is generation 2, of job "),
        (b"{", "is damaged or of another program; the newest commit there is generation 2"),
        (b"", "is damaged or of another program"),
        ("too large", "is damaged or of another program"),
        ("older", f"names generation 1, of job {FIRST}; the newest commit there is generation 2"),
    ],
)
def test_a_wrong_marker_is_found_and_repaired(harm: bytes | str | None, problem: str) -> None:
    """A missing, damaged or outdated marker is named by verify, and rewritten by repair."""
    lake = marked()
    key = f"{ROOT}dt=1/_SUCCESS"
    older = lake.get(key)
    lake.sealed({"dt=1/a": b"new"}).commit()
    assert problems(lake) == {}
    if harm is None:
        lake.store.delete(BUCKET, key)
    else:
        named_ones = {"older": older, "too large": bytes(largest(SuccessData) + 1)}
        lake.store.put(BUCKET, key, named_ones[harm] if isinstance(harm, str) else harm)
    found = problems(lake)
    assert found.keys() == {"dt=1/_SUCCESS"}
    assert found["dt=1/_SUCCESS"].startswith(problem)
    assert mend(lake) == ["dt=1/_SUCCESS"]
    assert markers(lake) == {"dt=1": 2, "dt=2": 1}
    assert (problems(lake), mend(lake)) == ({}, [])


def test_a_marker_for_deleted_files_is_found_and_removed() -> None:
    """A commit's marker in an emptied partition goes; another program's stays there."""
    lake = marked()
    older = lake.get(f"{ROOT}dt=2/_SUCCESS")
    lake.sealed({"dt=1/a": b"new"}, committer="directory").commit()
    lake.put({"dt=2/_SUCCESS": older})
    assert problems(lake) == {"dt=2/_SUCCESS": "names generation 1; no commit's files are left there"}
    assert mend(lake) == ["dt=2/_SUCCESS"]
    assert markers(lake) == {"dt=1": 2}
    lake.put({"dt=2/_SUCCESS": b""})
    assert (problems(lake), mend(lake)) == ({}, [])


def test_markers_are_not_judged_beside_a_running_job() -> None:
    """While a commit deletes what it replaces its markers are missing; after its recovery all is well."""
    lake = marked()
    job = lake.sealed({"dt=1/a": b"new"})
    crash(lake, job.commit, "put", "dt=1/_SUCCESS")
    assert (problems(lake), mend(lake)) == ({}, [])
    lake.job().recover()
    assert problems(lake) == {}


def test_a_commit_that_ends_meanwhile_is_not_a_finding() -> None:
    """Markers that a commit writes while they are compared are right by the log as of then."""
    lake = marked()
    job = lake.sealed({"dt=1/a": b"new"})

    class Meanwhile(ForwardingStore):
        """Commits a job when the first marker is read."""

        done = False

        def perform(self, calls: Iterable[tuple[T, Call]]) -> Iterator[tuple[T, Outcome]]:
            for tag, call in calls:
                if not self.done and isinstance(call, Get) and call.key.endswith("dt=1/_SUCCESS"):
                    self.done = True
                    job.commit()
                yield from super().perform([(tag, call)])

    store = Meanwhile(lake.store)
    assert (LogCheck(store, Destination.parse(lake.destination)).read().findings, store.done) == ([], True)
    assert problems(lake) == {}


def test_a_repair_leaves_what_a_commit_wrote_meanwhile() -> None:
    """A marker that has changed since the check belongs to a later commit."""
    lake = marked()
    key = f"{ROOT}dt=1/_SUCCESS"
    lake.store.put(BUCKET, key, b"damaged")
    [misplaced] = LogCheck(lake.store, Destination.parse(lake.destination)).read().misplaced.values()
    lake.sealed({"dt=1/a": b"new"}).commit()
    before = lake.get(key)
    renew_marker(lake.context(), misplaced.partition, misplaced.etag, None)
    assert lake.get(key) == before


def test_readers_and_sweeps_skip_the_markers() -> None:
    """A table with markers is sound, its markers are not its files, and a sweep leaves them."""
    lake = marked()
    report = verify(lake.store, lake.destination, threads=0)
    assert isinstance(report, TableReport)
    assert (report.sound, report.files, report.log) == (True, 3, [])
    swept(lake, older_than=0.0)
    lake.sealed({"dt=1/a": b"new"}, committer="directory").plan()
    assert lake.job(OURS).commit().replaced.files == 3
    assert markers(lake) == {"dt=1": 2}


def test_a_table_has_no_markers_beside_retained_files() -> None:
    """Whichever of the two comes second is refused before it writes."""
    lake = marked()
    with pytest.raises(InvalidOption, match=r"retain='7d' is refused, because a commit of s3://"):
        lake.set_up(THIRD, retain="7d")
    lake.sealed({"dt=1/a": b"new"}, conflict_mode="append").commit()
    with pytest.raises(InvalidOption, match=r"roll back without --retain"):
        rollback(lake.store, lake.destination, to=1, retain="7d", clock=lake.clock, threads=0)
    lake = two_generations()
    before = lake.everything()
    with pytest.raises(InvalidOption, match=r"retains files that generation 2 replaced.*s3commit sweep"):
        lake.set_up(THIRD, partition_success=True)
    assert lake.everything() == before


def test_a_table_whose_retained_files_are_swept_gets_markers() -> None:
    """Once a sweep has removed what was retained, a job may ask for markers."""
    lake = two_generations()
    lake.store_clock.advance(8 * 86_400.0)
    swept(lake)
    lake.sealed({"dt=1/a": b"3"}, job_id=THIRD, partition_success=True).commit()
    assert markers(lake) == {"dt=1": 4}


def test_markers_exclude_retained_files() -> None:
    """A reader that waits for a marker lists the partition, and would see retained files."""
    with pytest.raises(InvalidOption, match=r"retain='7d' and partition_success=True exclude each other"):
        JobOptions(retain="7d", partition_success=True)

"""A ``_SUCCESS`` in each partition: it follows from the log, whoever derives it and when."""

from __future__ import annotations

import json
from unittest.mock import ANY

import pytest

from airflow_s3commit import JobOptions
from airflow_s3commit.exceptions import InvalidOption
from airflow_s3commit.protocol.model.job import Committer, ConflictMode
from airflow_s3commit.protocol.steps.finish import find_marker
from airflow_s3commit.protocol.steps.fold import read_table
from airflow_s3commit.protocol.steps.setup import set_up
from tests.cases import each
from tests.protocol.building import ROOT, named
from tests.protocol.building import Lake as Home
from tests.protocol.steps.lake import A, Actor, B, C, Lake, Watched, calls_of, play

JOBS: list[tuple[str, ConflictMode, Committer]] = [
    (A, "append", "partitioned"),
    (C, "replace", "directory"),
    (B, "append", "partitioned"),
]


def test_a_commit_that_empties_a_partition_leaves_the_marker_of_a_later_one() -> None:
    """The marker of a partition is that of the newest commit there, if another one has emptied it slowly."""

    def world() -> tuple[Lake, list[Actor]]:
        lake = Lake()
        for job_id, mode, committer in JOBS:
            options = JobOptions(conflict_mode=mode, committer=committer, partition_success=True)
            set_up(lake.context(job_id), options, {})
            lake.write(job_id)(lake.store)
        lake.commit(A)(lake.store)
        return lake, [lake.commit(C), lake.commit(B)]

    for first in (0, 1):
        lake, actors = world()
        for own in range(calls_of(lake, actors[first]) + 1):
            lake, actors = world()
            watched, _ = play(lake, actors, [(first, own), (1 - first, 1_000_000)])
            assert _marked(lake, "dt=1") == _newest(lake, watched, "dt=1")


def test_a_slow_commit_leaves_no_marker_in_what_a_rollback_has_emptied() -> None:
    """A partition that a rollback empties while a commit is finished has no marker in the end."""

    def world() -> tuple[Lake, list[Actor]]:
        lake = Lake(older=False)
        set_up(lake.context(A), JobOptions(conflict_mode="append", partition_success=True), {})
        lake.write(A)(lake.store)
        return lake, [lake.commit(A), lake.roll_back(B, 1)]

    lake, actors = world()
    for own in range(calls_of(lake, actors[0]) + 1):
        lake, actors = world()
        watched, _ = play(lake, actors, [(0, own), (1, 1_000_000)])
        is_there = bool(watched.table())
        assert [_marked(lake, name) is not None for name in ("dt=1", "dt=2")] == [is_there, is_there]


def test_a_job_that_retains_does_not_commit_beside_markers() -> None:
    """Set up before the first marker of a partition, it is refused at its commit, and aborted."""
    lake = Home()
    lake.put({"dt=1/old": b"old"})
    job = lake.sealed({"dt=1/a": b"1"}, retain="1d")
    lake.sealed({"dt=2/a": b"2"}, job_id=B, conflict_mode="append", partition_success=True).commit()
    with pytest.raises(InvalidOption, match="Set the job up without retain"):
        job.commit()
    state = job.state()
    assert state is not None
    assert state.state == "aborted"
    assert lake.data() == {"dt=1/old": b"old", "dt=2/_SUCCESS": ANY, named("dt=2/a", B): b"2"}


@each("late", [False, True])
def test_markers_do_not_begin_beside_retained_files(late: bool) -> None:
    """A job that asks for them is refused at its setup, or if the files are retained later, at its commit."""
    lake = Home()
    lake.put({"dt=1/old": b"old"})
    marking = {"conflict_mode": "append", "partition_success": True}
    job = lake.sealed({"dt=2/a": b"2"}, job_id=B, **marking) if late else None
    lake.sealed({"dt=1/a": b"1"}, retain="1d").commit()
    with pytest.raises(InvalidOption, match="retains files that generation 2 replaced"):
        job.commit() if job is not None else lake.set_up(B, **marking)
    assert lake.data() == {"dt=1/old": b"old", named("dt=1/a"): b"1"}


def test_the_marker_of_a_partition_counts_what_was_written_there() -> None:
    """It has the totals of its partition, of the last commit that changed it, and not of the whole commit."""
    lake = Home()
    lake.sealed({"dt=1/a": b"1", "dt=1/b": b"22", "dt=2/a": b"333"}, partition_success=True).commit()
    lake.sealed({"dt=2/b": b"4"}, job_id=B, conflict_mode="append").commit()
    for partition, files, size in (("dt=1", 2, 3), ("dt=2", 1, 1)):
        marker = json.loads(lake.get(f"{ROOT}{partition}/_SUCCESS"))
        counters = marker["iostatistics"]["counters"]
        found = (counters["committer_commits_completed"], counters["committer_bytes_committed"])
        assert (found, marker["metrics"]) == ((files, size), {})


def test_another_program_s_marker_stays_in_an_emptied_partition() -> None:
    """A commit removes the markers of commits from what it empties, and no other program's."""
    lake = Home()
    lake.sealed({"dt=1/a": b"1", "dt=2/a": b"1"}, partition_success=True).commit()
    lake.put({"dt=1/_SUCCESS": b""})
    lake.sealed({"dt=3/b": b"2"}, job_id=B, conflict_mode="replace", committer="directory").commit()
    assert lake.data() == {"dt=1/_SUCCESS": b"", "dt=3/_SUCCESS": ANY, named("dt=3/b", B): b"2"}


def _marked(lake: Lake, partition: str) -> int | None:
    context = lake.context(A)
    found = find_marker(context, context.layout.partition_success(partition))
    return found.generation if found is not None else None


def _newest(lake: Lake, watched: Watched, partition: str) -> int | None:
    ends = {entry["job_id"]: entry["number"] for entry in watched.entries() if "job_id" in entry}
    table = read_table(lake.store, lake.context(A).layout.destination)
    return max(ends[B], ends[C]) if table.live.get(partition) else None

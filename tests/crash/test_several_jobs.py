"""Jobs of one destination beside one another, and beside a sweep, in many orders of their calls.

Every play is watched: after each effect the invariants of the model hold (`tests/crash/observed.py`), and at
rest the data is that of a serial run in the order of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from itertools import product
from typing import Any

import pytest

from airflow_s3commit.exceptions import DestinationNotEmpty
from airflow_s3commit.testing import Crash, StoreCall
from tests.crash.faulty import count_calls
from tests.crash.interleave import Outcome, Schedule, Until, schedules, shuffles
from tests.crash.jobs import Jobs, ended_by_another

Record = Callable[[str, object], None]

#: A step of a job: its name, and which job.
Step = tuple[str, int]

#: More calls than any process makes.
ALL = 1_000_000

APPEND_BESIDE_REPLACE = ("replace", "append")


@cache
def _calls(modes: tuple[Any, ...], step: Step, **world: Any) -> int:
    jobs = Jobs(modes, **world)
    name, number = step
    return count_calls(jobs.store, jobs.actor("commit" if name == "entering_commit" else name, number))


def _play(
    modes: tuple[Any, ...],
    steps: tuple[Step, ...],
    chosen: Iterable[Schedule],
    judge: Callable[[list[Outcome]], None],
    *,
    end: bool = False,
    **world: Any,
) -> int:
    """Play schedules of some steps, each in a new world, and return how many."""
    played = 0
    for schedule in chosen:
        jobs = Jobs(modes, **world)
        judge(jobs.play([jobs.actor(*step) for step in steps], schedule, end=end))
        played += 1
    return played


def _shuffled(
    modes: tuple[Any, ...], steps: tuple[Step, ...], count: int, *, changes: int
) -> Iterable[Schedule]:
    return shuffles([_calls(modes, step) for step in steps], count, changes=changes)


def _all_committed(outcomes: list[Outcome]) -> None:
    assert set(outcomes) == {None}


def _none_lost(outcomes: list[Outcome]) -> None:
    expected = (ended_by_another(outcome) or isinstance(outcome, Crash | None) for outcome in outcomes)
    assert all(expected), outcomes


#: Modes of two jobs, whether they have planned, and their committer.
HELD = [
    (("replace", "replace"), True, "partitioned"),
    (APPEND_BESIDE_REPLACE, False, "partitioned"),
    (APPEND_BESIDE_REPLACE, False, "directory"),
]
ANY_TWO = [
    *(pytest.param(*case, 0.1, id=f"{'-'.join(case[0])}-{case[1]}-{case[2]}-a tenth") for case in HELD),
    *(
        pytest.param(*case, 1.0, id=f"{'-'.join(case[0])}-{case[1]}-{case[2]}-all", marks=pytest.mark.all)
        for case in product(
            product(("replace", "append", "fail"), repeat=2), (True, False), ("partitioned", "directory")
        )
        # The table and its partition have data, unless the first job needs none there.
        if "fail" not in case[0] or (case[0][0] == "fail" and case[2] == "partitioned")
    ),
]


@pytest.mark.parametrize(("modes", "planned", "committer", "share"), ANY_TWO)
def test_two_jobs_on_one_partition_end_in_the_order_of_the_log(
    modes: tuple[Any, Any], planned: bool, committer: Any, share: float, record_property: Record
) -> None:
    """However two jobs of any modes interleave, the data is that of a serial run in the order of the log."""

    def judge(outcomes: list[Outcome]) -> None:
        assert all(outcome is None or isinstance(outcome, DestinationNotEmpty) for outcome in outcomes)
        assert "fail" in modes or outcomes == [None, None]

    steps, world = (("commit", 0), ("commit", 1)), {"planned": planned, "committer": committer}
    chosen = schedules(*(_calls(modes, step, **world) for step in steps), share)
    record_property("schedules", _play(modes, steps, chosen, judge, **world))


@pytest.mark.parametrize("count", [60, pytest.param(2000, marks=pytest.mark.all)])
@pytest.mark.parametrize("first", ["append", "replace"])
def test_a_job_that_is_set_up_after_another_died(first: Any, count: int, record_property: Record) -> None:
    """A job that is set up after an entry replaces its files, even if its process has died."""
    modes, steps = (first, "append"), (("entering_commit", 0), ("commit", 1), ("whole_replace", 2))
    chosen = _shuffled(modes, steps, count, changes=4)
    record_property("schedules", _play(modes, steps, chosen, _none_lost, end=True))


@pytest.mark.parametrize(
    ("modes", "count"),
    [
        pytest.param(("replace", "append", "replace"), 100, id="replace-append-replace"),
        *(
            pytest.param(modes, 1000, id=f"{'-'.join(modes)}-1000", marks=pytest.mark.all)
            for modes in product(("replace", "append"), repeat=3)
        ),
    ],
)
def test_three_jobs_at_once_all_commit(modes: tuple[Any, ...], count: int, record_property: Record) -> None:
    """However three jobs interleave, all of them commit."""
    steps = (("commit", 0), ("commit", 1), ("commit", 2))
    chosen = _shuffled(modes, steps, count, changes=6)
    record_property("schedules", _play(modes, steps, chosen, _all_committed))


@pytest.mark.parametrize("count", [60, pytest.param(2000, marks=pytest.mark.all)])
@pytest.mark.parametrize(
    "steps",
    [
        (("commit", 0), ("abort", 0), ("commit", 1)),
        (("commit", 0), ("commit", 1), ("commit", 2), ("abort", 2)),
        (("commit", 0), ("commit", 0), ("commit", 1), ("abort", 1)),
    ],
    ids=lambda steps: "-".join(f"{step}{number}" for step, number in steps),
)
def test_jobs_beside_an_abort_leave_the_marker_of_the_newest_commit(
    steps: tuple[Step, ...], count: int, record_property: Record
) -> None:
    """However commits and an abort of one of the jobs interleave, data and marker are right at rest."""
    modes = ("replace", "append", "replace")
    record_property("schedules", _play(modes, steps, _shuffled(modes, steps, count, changes=5), _none_lost))


def _before(verb: str, ending: str) -> Until:
    return lambda call: call.verb == verb and call.key.endswith(ending)


def _entering(call: StoreCall) -> bool:
    return call.verb == "put" and "/_s3commit/log/" in call.key


SLOW: dict[str, tuple[tuple[Step, ...], Schedule]] = {
    # Nothing of the abort shows the committer that the marker is needed again.
    "its own commit, about to delete the marker": (
        (("commit", 0), ("abort", 0)),
        ((0, _before("delete", "_SUCCESS")), (1, ALL)),
    ),
    # The newest commit has written its marker, but its staging still exists.
    "a commit that is being cleaned up": (
        (("commit", 0), ("commit", 1), ("abort", 0)),
        ((1, _before("delete", "state.json")), (0, _before("complete_upload", "")), (2, ALL)),
    ),
    # It has not written its marker, and the record that tells the abort so is about to go.
    "a commit that ends": (
        (("commit", 0), ("commit", 1), ("abort", 0)),
        ((1, _before("delete", "job.json")), (0, _before("complete_upload", "")), (2, ALL)),
    ),
    # Its twin died before it wrote the marker, so it finds a job that has ended, and cleans up.
    "a commit whose twin died": (
        (("dying_commit", 0), ("commit", 0)),
        ((1, _before("put", "state.json")), (0, ALL), (1, ALL)),
    ),
    # It finds no marker, and writes that of a generation that is no longer the newest.
    "an older commit, about to write its marker": (
        (("commit", 0), ("commit", 1), ("commit", 2), ("abort", 2)),
        ((0, _before("put", "_SUCCESS")), (1, ALL), (2, _before("complete_upload", "")), (0, ALL), (3, ALL)),
    ),
    # It has found the marker of an older generation, and another process overwrites that first.
    "an older commit, about to write over a marker": (
        (("commit", 0), ("commit", 1), ("commit", 2)),
        (
            (1, _before("complete_upload", "")),
            (2, _before("complete_upload", "")),
            (0, ALL),
            (1, _before("put", "_SUCCESS")),
            (1, 1),
            (1, _before("put", "_SUCCESS")),
            (2, ALL),
        ),
    ),
    # Earlier events are checked each time, not once.
    "a replace that loses its number twice": (
        (("commit", 1), ("commit", 0), ("commit", 2)),
        ((0, _entering), (1, ALL), (0, 1), (0, _entering), (2, ALL)),
    ),
    # Its entry is the newest and its replaced data still exists, so it has to write the marker.
    "a commit that still deletes": (
        (("commit", 0), ("commit", 1), ("abort", 0)),
        ((0, _before("complete_upload", "")), (1, _before("delete_many", "")), (2, ALL)),
    ),
}


@pytest.mark.parametrize("slow", SLOW)
def test_a_slow_process_leaves_the_marker_of_the_newest_commit(slow: str) -> None:
    """However slow a process is beside an abort, or beside a twin that dies, the marker is right at rest."""
    steps, schedule = SLOW[slow]
    _play(("append", "replace", "replace"), steps, [schedule], _none_lost)


def test_a_commit_continues_beside_an_abort_that_died_too_late() -> None:
    """If the state says aborting, and the log says committed, the job is finished."""

    def judge(outcomes: list[Outcome]) -> None:
        assert outcomes[-1] is None

    steps = (("entering_commit", 0), ("dying_abort", 0), ("commit", 0))
    _play(("append",), steps, [((0, ALL), (1, ALL), (2, ALL))], judge)


@pytest.mark.parametrize("count", [80, pytest.param(2000, marks=pytest.mark.all)])
@pytest.mark.parametrize("sweeping", ["sweep", "patient_sweep"])
def test_a_sweep_beside_the_living_harms_no_committed_job(
    sweeping: str, count: int, record_property: Record
) -> None:
    """A sweep that takes every job for dead ends a job or loses; a patient one leaves every job alone."""
    modes = APPEND_BESIDE_REPLACE
    steps = (("commit", 0), ("commit", 1), (sweeping, 0))
    chosen = _shuffled(modes, steps, count, changes=5)
    judge = _none_lost if sweeping == "sweep" else _all_committed
    record_property("schedules", _play(modes, steps, chosen, judge))


@pytest.mark.parametrize("count", [40, pytest.param(1000, marks=pytest.mark.all)])
@pytest.mark.parametrize("modes", [("append", "replace"), ("replace", "append")], ids="-".join)
@pytest.mark.parametrize("beside", ["commit", "abort"])
def test_a_sharded_commit_beside_another_job(
    modes: tuple[Any, Any], beside: str, count: int, record_property: Record
) -> None:
    """However two sharding processes of a job and another one interleave, no committed file is lost."""
    steps = (("shards", 0), ("shards", 0), (beside, 0 if beside == "abort" else 1))
    record_property("schedules", _play(modes, steps, _shuffled(modes, steps, count, changes=5), _none_lost))

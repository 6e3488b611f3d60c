"""Two processes at once, in every order of their calls up to a stated number of changes between them.

`make test` plays a part of the orders in the case that most jobs have. `make test-all` plays every one of
them, and a part in its variants, which share most of the code.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from random import Random
from typing import Any

import pytest

from airflow_s3commit import Job, JobReference
from airflow_s3commit.exceptions import (
    AlreadyCommitted,
    DestinationChanged,
    DestinationNotEmpty,
    JobClosed,
    NoSuchJob,
    NotReversible,
    S3CommitError,
)
from tests.crash.faulty import count_calls
from tests.crash.interleave import Schedule, play, schedules
from tests.crash.world import BESIDE, BUCKET, OLD, OURS, ROOT, TASKS, Case, World, _inline, run_with_fault

Record = Callable[[str, object], None]

#: Changes between the two processes that every schedule has.
CHANGES = 2

REPLACE = Case()

#: Of the schedules this part is played: chosen at random, but always the same ones.
SHARES = [0.1, pytest.param(1.0, marks=pytest.mark.all)]

#: Pending uploads of a job that is ready to commit: three that count, and one of a speculative twin.
PENDING = 4
VARIANTS = [Case(repeat_complete="gone"), Case(mode="append"), Case(committer="directory")]
RACES = [
    pytest.param(REPLACE, 0.1, id=f"{REPLACE}-a tenth"),
    pytest.param(REPLACE, 1.0, id=f"{REPLACE}-all", marks=pytest.mark.all),
    *(pytest.param(case, 0.3, id=f"{case}-a third", marks=pytest.mark.all) for case in VARIANTS),
]


def _calls(step: str, case: Case) -> int:
    world = World(case)
    world.advance_to("commit")
    return count_calls(world.store, getattr(world, step))


def _part(share: float, first: int, second: int) -> Iterator[Schedule]:
    """Yield a share of the schedules of two actors that make this many calls."""
    chosen = Random(0)
    return (schedule for schedule in schedules(first, second, CHANGES) if chosen.random() < share)


def _race(
    case: Case, first: str, second: str, judge: Callable[[World, list[Any]], None], share: float
) -> int:
    played = 0
    for schedule in _part(share, _calls(first, case), _calls(second, case)):
        world = World(case)
        world.advance_to("commit")
        outcomes = play(world.store, (getattr(world, first), getattr(world, second)), schedule)
        try:
            judge(world, outcomes)
        except Exception as error:
            error.add_note(f"schedule {schedule}, outcomes {outcomes!r}")
            raise
        played += 1
    return played


@pytest.mark.parametrize(("case", "share"), RACES)
def test_two_processes_committing_one_job_both_succeed(
    case: Case, share: float, record_property: Record
) -> None:
    """However two committers of one job interleave, both return and the output is there once."""

    def judge(world: World, outcomes: list[S3CommitError | None]) -> None:
        assert outcomes == [None, None]
        world.check_committed()

    record_property("schedules", _race(case, "commit", "commit", judge, share))


@pytest.mark.parametrize(("case", "share"), RACES)
def test_of_a_commit_and_an_abort_exactly_one_wins(case: Case, share: float, record_property: Record) -> None:
    """However a commit and an abort interleave, the destination ends committed whole, or untouched."""

    def judge(world: World, outcomes: list[S3CommitError | None]) -> None:
        committing, aborting = outcomes
        if committing is None:
            assert isinstance(aborting, AlreadyCommitted)
            world.check_committed()
        else:
            assert isinstance(committing, JobClosed | NoSuchJob)
            assert aborting is None
            world.check_untouched()

    record_property("schedules", _race(case, "commit", "abort", judge, share))


@pytest.mark.parametrize("share", SHARES)
def test_of_a_commit_without_way_back_and_an_abort_the_commit_wins_once_begun(
    share: float, record_property: Record
) -> None:
    """With fixed names an abort is refused from the moment the commit may have overwritten something."""

    def judge(world: World, outcomes: list[S3CommitError | None]) -> None:
        committing, aborting = outcomes
        if committing is None:
            assert isinstance(aborting, AlreadyCommitted | NotReversible)
            world.check_committed()
        else:
            assert aborting is None
            world.check_untouched()

    record_property("schedules", _race(Case(unique=False), "commit", "abort", judge, share))


@pytest.mark.parametrize("share", SHARES)
def test_two_aborts_at_once_leave_no_trace(share: float, record_property: Record) -> None:
    """However two aborts interleave, both return and nothing is left."""

    def judge(world: World, outcomes: list[S3CommitError | None]) -> None:
        assert outcomes == [None, None]
        world.check_untouched()

    record_property("schedules", _race(REPLACE, "abort", "abort", judge, share))


@pytest.mark.parametrize("share", SHARES)
def test_a_late_task_attempt_never_outlives_an_abort(share: float, record_property: Record) -> None:
    """However a task commit and an abort interleave, nothing of the task stays pending or is sealed."""
    case = REPLACE
    world = World(case)
    world.advance_to("run_tasks")
    calls = count_calls(world.store, lambda store: world.run_task(store, "00000", "0"))
    played = 0
    for schedule in _part(share, calls, _calls("abort", case)):
        world = World(case)
        world.advance_to("run_tasks")
        play(world.store, (lambda store: world.run_task(store, "00000", "0"), world.abort), schedule)  # noqa: B023
        assert world.pending() == [], schedule
        world.abort(world.store)
        world.check_untouched()
        played += 1
    record_property("schedules", played)


def _stop(world: World, at: int) -> None:
    world.advance_to("commit")
    run_with_fault(world, world.commit, at, "crash-after", watch=False)


@cache
def _call_in_the_middle(case: Case) -> int:
    """Return the first call after which a commit is under way and an upload is complete."""
    for at in range(1, _calls("commit", case)):
        world = World(case)
        _stop(world, at)
        state = world.job().state()
        if state is not None and state.state == "committing" and len(world.pending()) < PENDING:
            return at
    raise AssertionError("a commit never is half done")


def _half_committed(case: Case) -> World:
    """Return a world whose committer died when it had completed one upload."""
    at = _call_in_the_middle(case)
    world = World(case)
    world.reach("half committed", lambda: _stop(world, at))
    return world


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("second", ["recover", "roll_back"])
def test_a_commit_and_a_recovery_of_what_died_half_way_agree(
    second: str, share: float, record_property: Record
) -> None:
    """However a commit and a recovery of a half-published job interleave, it ends committed, or undone."""

    def calls(step: str) -> int:
        world = _half_committed(REPLACE)
        return count_calls(world.store, getattr(world, step))

    played = 0
    for schedule in _part(share, calls("commit"), calls(second)):
        world = _half_committed(REPLACE)
        committing, recovering = play(world.store, (world.commit, getattr(world, second)), schedule)
        if committing is None:
            assert recovering is None or isinstance(recovering, AlreadyCommitted), (schedule, recovering)
            world.check_committed()
        else:
            assert second == "roll_back", (schedule, committing)
            assert isinstance(committing, JobClosed | NoSuchJob), (schedule, committing)
            assert recovering is None, (schedule, recovering)
            world.check_untouched()
        played += 1
    record_property("schedules", played)


class _TwoJobs(World):
    """A world with another sealed job that writes to the same partition.

    Args:
        modes: Conflict modes of the two jobs.
        planned: Whether both have planned.

    """

    OTHER = "33333333-aaaa-4bbb-8ccc-000000000003"

    def __init__(self, modes: tuple[Any, Any], *, planned: bool) -> None:
        super().__init__(Case(mode=modes[0]))
        self.other_mode = modes[1]
        destination = f"s3://{BUCKET}/{ROOT}"
        self.other = JobReference(
            job_id=self.OTHER, destination=destination, staging=f"{destination}__magic_job-{self.OTHER}/"
        )
        self.reach(f"two jobs {modes} {planned}", lambda: self._seal_both(planned))

    def _seal_both(self, planned: bool) -> None:
        self.advance_to("plan")
        Job.setup(
            self.store, self.other.destination, options=Case(mode=self.other_mode).options, job_id=self.OTHER,
            clock=self.clock, new_id=self._new_id,
        )  # fmt: skip
        job = self._job_of(self.other, self.store)
        with job.task_attempt("spark", "1", "00000", "0", threads=0, min_part_bytes=1) as attempt:
            for number in (0, 1):
                with attempt.open(f"dt=1/part-{number}.parquet") as file:
                    file.write(b"theirs %d" % number)
            tasks = [attempt.commit()]
        job.seal_stage("spark", "1", tasks)
        job.seal()
        if planned:
            self.plan(self.store)
            job.plan()

    def commit(self, store: Any) -> None:
        self._persist(self.reference, store)

    def commit_other(self, store: Any) -> None:
        self._persist(self.other, store)

    def abort_other(self, store: Any) -> None:
        self._job_of(self.other, store).abort()

    def _persist(self, reference: JobReference, store: Any) -> None:
        """Commit as an orchestrator does that plans again when the destination changed."""
        while True:
            job = self._job_of(reference, store)
            try:
                job.commit()
            except DestinationChanged:
                job.plan()
            else:
                return

    def _job_of(self, reference: JobReference, store: Any) -> Job:
        job = Job.at(store, reference, clock=self.clock, new_id=self._new_id)
        job._context = _inline(job._context)
        return job

    def check_serial(self) -> None:
        """The data is that of the jobs one after another in the log's order; the marker names the last."""
        data = {path: body for path, body in OLD.items() if self.case.mode != "fail"}
        written = {
            OURS: {path: body for files in TASKS.values() for path, body in files.items()},
            self.OTHER: {f"dt=1/part-{number}.parquet": b"theirs %d" % number for number in (0, 1)},
        }
        modes = {OURS: self.case.mode, self.OTHER: self.other_mode}
        last = None
        for job_id, kind in self.log():
            if kind == "abandon":
                continue
            touched = {path.rpartition("/")[0] for path in written[job_id]}
            existing = {path for path in data if path.rpartition("/")[0] in touched}
            assert modes[job_id] != "fail" or not existing
            if modes[job_id] == "replace":
                data = {path: body for path, body in data.items() if path not in existing}
            for path, body in written[job_id].items():
                data[path.replace(".", f"-{job_id}.", 1)] = body
            last = job_id
        visible = {
            key.removeprefix(ROOT): body for key, body in self.visible().items() if key.startswith(ROOT)
        }
        marker = visible.pop("_SUCCESS", b"")
        assert {path: body for path, body in visible.items() if path not in BESIDE} == data
        assert self.pending() == []
        if last is not None:
            assert json.loads(marker)["jobId"] == last


def _race_two_jobs(
    modes: tuple[Any, Any], second: str, judge: Callable[[list[Any]], None], share: float, *, planned: bool
) -> int:
    """Play our commit and a step of the other job, and return how many schedules."""
    calls = []
    for step in ("commit", second):
        sample = _TwoJobs(modes, planned=planned)
        calls.append(count_calls(sample.store, getattr(sample, step)))
    played = 0
    for schedule in _part(share, *calls):
        world = _TwoJobs(modes, planned=planned)
        outcomes = play(world.store, (world.commit, getattr(world, second)), schedule)
        try:
            judge(outcomes)
            for reference, outcome in zip((world.reference, world.other), outcomes, strict=True):
                if isinstance(outcome, DestinationNotEmpty):
                    world._job_of(reference, world.store).abort()
            world.check_serial()
        except Exception as error:
            error.add_note(f"schedule {schedule}, outcomes {outcomes!r}, log {world.log()}")
            raise
        played += 1
    return played


ANY_TWO = [
    pytest.param(("replace", "replace"), True, 0.05, id="replace-replace-planned"),
    pytest.param(("replace", "append"), False, 0.05, id="replace-append-unplanned"),
    *(
        pytest.param(
            modes,
            planned,
            0.2,
            id=f"{'-'.join(modes)}-{'planned' if planned else 'unplanned'}-a fifth",
            marks=pytest.mark.all,
        )
        for modes in product(("replace", "append", "fail"), repeat=2)
        if modes[1] != "fail" or modes[0] == "fail"  # there is old data unless the first one needs none
        for planned in (True, False)
    ),
]


@pytest.mark.parametrize(("modes", "planned", "share"), ANY_TWO)
def test_two_jobs_on_one_partition_end_in_the_order_of_the_log(
    modes: tuple[Any, Any], planned: bool, share: float, record_property: Record
) -> None:
    """However two jobs of any modes interleave, the data is that of a serial run in the order of the log."""

    def judge(outcomes: list[S3CommitError | None]) -> None:
        assert all(outcome is None or isinstance(outcome, DestinationNotEmpty) for outcome in outcomes)
        assert "fail" in modes or outcomes == [None, None]

    played = _race_two_jobs(modes, "commit_other", judge, share, planned=planned)
    record_property("schedules", played)


@pytest.mark.parametrize("share", [0.05, pytest.param(0.5, marks=pytest.mark.all)])
def test_an_abort_beside_another_jobs_commit_leaves_that_jobs_marker(
    share: float, record_property: Record
) -> None:
    """However an abort and another job's commit interleave, the marker is that of the committed job."""

    def judge(outcomes: list[S3CommitError | None]) -> None:
        assert outcomes == [None, None]

    played = _race_two_jobs(("replace", "append"), "abort_other", judge, share, planned=False)
    record_property("schedules", played)

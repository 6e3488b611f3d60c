"""Several sealed jobs of one destination whose log already has a commit, and what processes do with them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from types import NoneType
from typing import Any

from airflow_s3commit import Job, JobOptions, repair, rollback, sweep, verify
from airflow_s3commit.exceptions import (
    AlreadyCommitted,
    DestinationChanged,
    DestinationNotEmpty,
    JobClosed,
    JobFailed,
    NoSuchJob,
    NotReversible,
    S3CommitError,
)
from airflow_s3commit.testing import Crash, Fault, FaultyStore
from tests.crash.interleave import Actor, Outcome, Schedule, play
from tests.crash.world import COLUMNS, DESTINATION, TASKS, Case, World
from tests.history import partition
from tests.protocol.building import BUCKET, OURS, ROOT

#: The jobs, ours first. What each writes, by path; all of them have files in dt=1.
JOBS = (OURS, "33333333-aaaa-4bbb-8ccc-000000000003", "44444444-aaaa-4bbb-8ccc-000000000004")
WRITTEN: tuple[dict[str, bytes], ...] = (
    {path: body for files in TASKS.values() for path, body in files.items()},
    {"dt=1/part-0.parquet": b"theirs 0", "dt=1/part-1.parquet": b"theirs 1"},
    {"dt=1/part-0.parquet": b"the third's 0", "dt=2/part-1.parquet": b"the third's 1"},
)

#: The jobs that committed before: the second replaced what the first had in dt=1.
FIRST, SECOND = "00000000-aaaa-4bbb-8ccc-000000000000", "00000000-aaaa-4bbb-8ccc-000000000001"
BEFORE = {f"dt={number}/first.parquet": b"the first" for number in (1, 2, 3)}

_HOUR = 3600.0


class Jobs(World):
    """A world in which some jobs are sealed, and no process is at work.

    Args:
        modes: Their conflict modes; of a job over the whole destination with ``all``, as in ``replace all``.
            There is older data unless the first one needs none.
        retain: How long they, and the second generation, keep what they replace.
        marks: Whether the first generation asked for a marker in each partition.
        publishes: Whether it asked for versions of a Delta table.
    """

    def __init__(
        self, modes: Sequence[str], *, retain: str = "0s", marks: bool = False, publishes: bool = False
    ) -> None:
        is_empty = marks or publishes or "fail" in modes[0]
        super().__init__(Case(mode="fail" if is_empty else "append"))
        self.modes, self.retain, self.marks, self.publishes = modes, retain, marks, publishes
        self.reach(f"jobs {modes} {retain} {marks} {publishes}", lambda: self._fill(marks))
        self.clock.advance(10)

    def _fill(self, marks: bool) -> None:
        files = {"dt=3/first.parquet": b"the first"} if "fail" in self.modes[0] else BEFORE
        publish: Any = "delta" if self.publishes else None
        options = JobOptions(conflict_mode="append", partition_success=marks, publish=publish)
        self.write(FIRST, options, files)
        self.job(self.store, FIRST).commit()
        if self.retain != "0s":
            options = JobOptions(conflict_mode="replace", retain=self.retain)
            self.write(SECOND, options, {"dt=1/second.parquet": b"the second"})
            self.job(self.store, SECOND).commit()
        for number in range(len(self.modes)):
            self.write(JOBS[number], self._options(number), WRITTEN[number])

    def _options(self, number: int) -> JobOptions:
        mode, _, whole = self.modes[number].partition(" ")
        committer: Any = "directory" if whole else "partitioned"
        retain = self.retain if mode == "replace" else "0s"
        return JobOptions(committer=committer, conflict_mode=mode, retain=retain)  # type: ignore[arg-type]

    def write(self, job_id: str, options: JobOptions, files: dict[str, bytes], store: Any = None) -> None:
        store = store or self.store
        Job.setup(store, DESTINATION, options=options, job_id=job_id, clock=self.clock, new_id=self.new_id)
        task = self._attempt(job_id, files, "0", store)
        job = self.job(store, job_id)
        job.seal_stage("spark", "1", [task])
        job.seal()

    def _attempt(self, job_id: str, files: dict[str, bytes], attempt: str, store: Any) -> Any:
        job = self.job(store, job_id)
        with job.task_attempt("spark", "1", "00000", attempt, threads=0, min_part_bytes=1) as writer:
            for path, body in files.items():
                with writer.open(path) as file:
                    file.write(body)
            writer.describe(len(files) if self.publishes else 0, COLUMNS)
            return writer.commit()

    def actor(self, step: str) -> Actor:
        """Return a process that takes a step, such as ``commit 0``: that of a job by its number."""
        name, _, number = step.partition(" ")
        take = getattr(self, f"take_{name}")
        return (lambda store: take(int(number), store)) if number else take

    # What processes do with a job, by its number.

    def take_commit(self, number: int, store: Any) -> None:
        self.job(store, JOBS[number]).commit()

    def take_entering(self, number: int, store: Any) -> None:
        """Commit, and die right after the entry."""
        self.take_commit(number, FaultyStore(store, Fault("crash-after", "put", "*_s3commit/log/*")))

    def take_marking(self, number: int, store: Any) -> None:
        """Commit, and die before `_SUCCESS` is written."""
        self.take_commit(number, FaultyStore(store, Fault("crash-before", "put", f"{ROOT}_SUCCESS")))

    def take_halfway(self, number: int, store: Any) -> None:
        """Commit, and die before the second upload is completed."""
        self.take_commit(number, FaultyStore(store, Fault("crash-before", "complete_upload", nth=2)))

    def take_parts(self, number: int, store: Any) -> None:
        """Complete two parts of the commit, and commit."""
        for part in (1, 0):
            self.job(store, JOBS[number]).complete_part(part, 2)
        self.take_commit(number, store)

    def take_recover(self, number: int, store: Any) -> None:
        self.job(store, JOBS[number]).recover()

    def take_abort(self, number: int, store: Any) -> None:
        self.job(store, JOBS[number]).abort()

    def take_abandoning(self, number: int, store: Any) -> None:
        """Abort, and die right after the entry."""
        self.take_abort(number, FaultyStore(store, Fault("crash-after", "put", "*_s3commit/log/*")))

    def take_whole(self, number: int, store: Any) -> None:
        """Set a new job up, that replaces partitions, write with it and commit it."""
        options = JobOptions(conflict_mode="replace", retain=self.retain)
        self.write(JOBS[number], options, WRITTEN[number], store)
        self.take_commit(number, store)

    def take_attempt(self, number: int, store: Any) -> None:
        """Run a task attempt that comes after the seal."""
        self._attempt(JOBS[number], WRITTEN[number], "late", store)

    def take_expire(self, number: int, store: Any) -> None:
        """Abort the job's pending uploads, as a lifecycle rule of the bucket does."""
        for key in self.keys(number):
            for upload in list(store.list_uploads(BUCKET, key)):
                self.store.abort_upload(BUCKET, upload.key, upload.upload_id)

    # What processes do with the destination.

    def take_repair(self, store: Any) -> None:
        """Derive again what follows from the log, beside jobs at work."""
        repair(store, DESTINATION, dry_run=False, clock=self.clock, new_id=self.new_id, threads=0)

    def take_sweep(self, store: Any) -> None:
        """Sweep, with no patience: every job seems dead."""
        self.sweep(store, 0.0)

    def take_patient(self, store: Any) -> None:
        """Sweep after all that was committed earlier has been retained for long enough."""
        self.clock.advance(10)
        self.sweep(store, _HOUR)

    def take_rollback(self, store: Any, to: int = 2) -> None:
        rollback(
            store, DESTINATION, to=to, retain=self.retain, clock=self.clock, new_id=self.new_id, threads=0
        )

    def take_returning(self, store: Any) -> None:
        """Roll back, and die right after the entry."""
        self.take_rollback(FaultyStore(store, Fault("crash-after", "put", "*_s3commit/log/*")))

    def sweep(self, store: Any, older_than: float, *, may_fail: bool = False) -> None:
        """Sweep; with patience no job is taken for dead. Through a fault its report may have failures."""
        report = sweep(
            store, DESTINATION, older_than=older_than, dry_run=False, clock=self.clock, new_id=self.new_id,
            threads=0,
        )  # fmt: skip
        assert may_fail or not report.failures, report.failures
        for job in report.jobs:
            body = self.observed.history.bodies[self.observed.history.ends[job.job_id]]
            assert not older_than or "swept" not in json.loads(body).get("why", ""), "a living job is swept"

    def end_all(self, store: Any) -> None:
        """End each job, whether or not it was set up, and the jobs of rollbacks."""
        for job_id in sorted({*JOBS, *self.opened()}):
            self.end(job_id, store)

    def end(self, job_id: str, store: Any) -> None:
        """End a job as an operator does: recover it, or abort it if neither has begun."""
        job = self.job(store, job_id)
        try:
            job.recover()
        except (JobClosed, NoSuchJob):
            with suppress(AlreadyCommitted):
                job.abort()

    def opened(self) -> set[str]:
        """Return the jobs that have a record among those of open jobs."""
        found = self.store.list_objects(BUCKET, f"{ROOT}_s3commit/open/")
        return {info.key.split("/")[-2] for info in found}

    def keys(self, number: int) -> list[str]:
        """Return the keys of a job's files."""
        return [ROOT + path.replace(".", f"-{JOBS[number]}.", 1) for path in WRITTEN[number]]

    def markers(self) -> dict[str, int]:
        """Return the generation that each partition's marker names."""
        return {
            key.removeprefix(ROOT).removesuffix("/_SUCCESS"): int(
                json.loads(body)["diagnostics"]["s3commit.generation"]
            )
            for key, body in self.visible().items()
            if key.endswith("/_SUCCESS") and key != f"{ROOT}_SUCCESS"
        }

    def newest_in(self) -> dict[str, int]:
        """Return the newest commit that added files to each partition that has some, by the log."""
        history = self.observed.history
        return {
            partition(key.removeprefix(ROOT)): generation
            for generation, files in sorted(history.added.items())
            for key in files.keys() & history.data.keys()
        }

    def check(self, outcomes: Sequence[Outcome], *, swept: bool) -> None:
        """End all jobs, and check what holds then.

        Args:
            outcomes: How the processes ended.
            swept: Whether what a sweep alone finds may be left: a process that wrote has died, or a request
                took effect late.
        """
        if any(outcome is not None for outcome in outcomes):
            self.end_all(self.observed)
        if swept:
            self.take_sweep(self.observed)
        self.observed.at_rest(lists=not swept)
        self.check_repaired()
        report = verify(self.observed, DESTINATION)
        assert report.sound, report
        history = self.observed.history
        for number, job_id in enumerate(JOBS):
            if history.ended.get(job_id) == "commit":
                assert sorted(history.by_job[job_id]) == sorted(self.keys(number))
        assert not self.marks or self.markers() == self.newest_in()


@dataclass(frozen=True)
class Cast:
    """Processes at work on one destination.

    Attributes:
        steps: What each does, as `Jobs.actor` takes it.
        modes: The modes of the jobs that are sealed before.
        retain: As `Jobs` takes it.
        marks: As `Jobs` takes it.
        publishes: As `Jobs` takes it.
    """

    steps: tuple[str, ...]
    modes: tuple[str, ...] = ("replace", "append", "replace")
    retain: str = "0s"
    marks: bool = False
    publishes: bool = False

    def world(self) -> Jobs:
        """Return a new world, in which nobody has begun."""
        return Jobs(self.modes, retain=self.retain, marks=self.marks, publishes=self.publishes)

    def calls(self) -> list[int]:
        """Return how many calls each process makes when it is alone."""
        return [_calls(self, step) for step in self.steps]

    def play(
        self,
        schedule: Schedule,
        *,
        through: Callable[[Any, int], Any] = lambda store, _: store,
        also: Sequence[Actor] = (),
        swept: bool = False,
    ) -> list[Outcome]:
        """Play a schedule under the rules, and check what holds at rest.

        Args:
            schedule: The schedule.
            through: Returns the store through which a process goes to the one that is observed.
            also: Further processes, after those of the steps.
            swept: As `Jobs.check` takes it.
        """
        world = self.world()
        world.observed  # noqa: B018 - from here on
        actors = [self._actor(world, number, through) for number in range(len(self.steps))]
        try:
            outcomes = play(world.observed, [*actors, *also], schedule)
            for step, outcome in zip(self.steps, outcomes, strict=False):
                assert isinstance(outcome, self.expected(step)), (step, repr(outcome))
            world.check(outcomes, swept=swept)
        except Exception as error:
            error.add_note(f"{self}, schedule {schedule}, log {world.ended()}")
            raise
        return outcomes

    def expected(self, step: str) -> tuple[type[Any], ...]:
        """Return the types of what a process may end with, if it dies only where it is to die."""
        name, _, number = step.partition(" ")
        found: list[type[Any]] = [NoneType, Crash]
        if not number:
            found += [DestinationChanged, NotReversible] if name in ("rollback", "returning") else []
            return tuple(found)
        found += [JobClosed] if name == "recover" or self.steps_of(number, *_ENDING) else []
        found += [AlreadyCommitted] if name in (*_ENDING, "attempt", "parts") else []
        found += [JobClosed, JobFailed] if self.steps_of(number, "expire") else []
        found += [JobClosed, DestinationNotEmpty] if self._mode(number).startswith("fail") else []
        return tuple(found)

    def steps_of(self, number: str, *names: str) -> bool:
        """Return whether some process takes one of these steps of a job."""
        return "sweep" in {*names} & {*self.steps} or any(f"{name} {number}" in self.steps for name in names)

    def _mode(self, number: str) -> str:
        return self.modes[int(number)] if int(number) < len(self.modes) else "replace"

    def _actor(self, world: Jobs, number: int, through: Callable[[Any, int], Any]) -> Actor:
        act = world.actor(self.steps[number])
        return lambda store: act(through(store, number))

    def __str__(self) -> str:
        facts = [*self.steps, "-".join(self.modes), f"retain {self.retain}" * (self.retain != "0s")]
        return ", ".join(
            [fact for fact in [*facts, "marks" * self.marks, "publishes" * self.publishes] if fact]
        )


#: Steps that may end a job by an abort.
_ENDING = ("abort", "abandoning", "sweep")


@cache
def _calls(cast: Cast, step: str) -> int:
    world = cast.world()
    store = FaultyStore(world.observed)
    with suppress(Crash, S3CommitError):
        world.actor(step)(store)
    return len(store.calls)

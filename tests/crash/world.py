"""A small dataset, a job that refreshes it, and an independent account of the expected result."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pytest
from msgspec import structs

from airflow_s3commit import (
    CommittedTask,
    Job,
    JobOptions,
    JobReference,
    MemoryStore,
    RepairReport,
    repair,
)
from airflow_s3commit.exceptions import AlreadyCommitted, S3CommitError
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.model.job import Committer, ConflictMode
from airflow_s3commit.testing import Crash, Effect, Fault, FaultyStore
from tests.crash.observed import Observed
from tests.fakes import ManualClock
from tests.protocol.building import BUCKET, OURS, ROOT, THEIRS, apart, by_s3a
from tests.protocol.published import columns

DESTINATION = f"s3://{BUCKET}/{ROOT}"

#: The tasks of the job: what each writes, by path below the destination.
TASKS: dict[str, dict[str, bytes]] = {
    "00000": {"dt=1/part-0.parquet": b"new 1/0", "dt=2/part-0.parquet": b"new 2/0"},
    "00001": {"dt=1/part-1.parquet": b"new 1/1"},
    "00002": {},
}

#: Their columns.
COLUMNS = columns(("x", "long"), ("dt", "integer"))

#: Those of a second stage, if there is one.
MORE = ("00001",)

#: What exists before, by path. No job touches dt=3; the last two are not data of the dataset.
OLD: dict[str, bytes] = {
    "dt=1/part-0.parquet": b"old 1/0",
    "dt=1/part-9.parquet": b"old 1/9",
    "dt=2/part-9.parquet": b"old 2/9",
    "dt=3/part-0.parquet": b"old 3/0",
    "dt=1/deeper/part-0.parquet": b"old deeper",
}
BESIDE: dict[str, bytes] = {
    "dt=1/_hidden": b"hidden",
    ".checkpoint/state": b"hidden too",
}


@dataclass(frozen=True)
class Case:
    """How the job writes and commits.

    Attributes:
        committer: Its committer.
        mode: Its conflict mode.
        repeat_complete: What a second completion of an upload gets.
        track: Where it keeps its pending uploads.
        marks: Whether each partition gets a marker.
        apart: Whether its list of files is an object of its own.
        stages: Whether it has a second stage, and a lost attempt of the first that sealed the same files.
        publishes: Whether other engines see its commit; then nothing is there that it leaves in place.
        s3a: Whether Spark's own writers upload its files, by S3A.
    """

    committer: Committer = "partitioned"
    mode: ConflictMode = "replace"
    repeat_complete: Any = "ok"
    track: Any = "task"
    marks: bool = False
    apart: bool = False
    stages: bool = False
    publishes: bool = False
    s3a: bool = False

    @property
    def options(self) -> JobOptions:
        return JobOptions(
            committer=self.committer,
            conflict_mode=self.mode,
            track_pending=self.track,
            partition_success=self.marks,
            publish="delta" if self.publishes else None,
        )

    @property
    def has_older_data(self) -> bool:
        """Whether there is data before it."""
        return self.mode != "fail" and (not self.publishes or self.committer == "directory")

    def __str__(self) -> str:
        named = {"on s3": self.track == "s3", "marks": self.marks, "apart": self.apart, "stages": self.stages}
        named |= {"publishes": self.publishes, "by S3A": self.s3a}
        names = [name for name, is_so in named.items() if is_so]
        return "-".join([self.committer, self.mode, self.repeat_complete, *names])


def held_by(cases: Iterable[Any], held: Collection[Any]) -> list[Any]:
    """Return the cases as parameters: `make test` runs those that are held, `make test-all` all of them."""

    def beside(case: Any) -> Any:
        return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.all)

    return [case if case in held else beside(case) for case in cases]


@dataclass
class World:
    """The store with the dataset, and the job's progress as its orchestrator knows it."""

    case: Case = field(default_factory=Case)
    store: MemoryStore = field(init=False)
    tasks: dict[str, list[CommittedTask]] = field(default_factory=dict)
    before: dict[str, bytes] = field(default_factory=dict)
    foreign_upload: str = ""
    rounds: int = 0

    def __post_init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(
            (BUCKET,),
            repeat_complete=self.case.repeat_complete,
            min_part_bytes=1,
            now=self.clock.time,
        )
        # A range can be copied, and from Python 3.14 on `itertools.count` cannot.
        self.ids = iter(range(1_000_000))
        self.reach("nothing", self._put_old)

    def _put_old(self) -> None:
        """Put what is there before the job."""
        old = {**OLD, "_SUCCESS": b'{"an":"older marker"}'} if self.case.has_older_data else {}
        if self.case.marks:
            old["dt=1/_SUCCESS"] = b'{"an":"older marker, of a partition"}'
        for path, body in {**old, **BESIDE}.items():
            self.store.put(BUCKET, ROOT + path, body)
        self.store.put(BUCKET, "flights10/dt=1/part-0.parquet", b"a neighbour")
        other = f"{ROOT}dt=1/part-0-{THEIRS}.parquet"
        self.foreign_upload = self.store.create_upload(BUCKET, other, metadata={}, content_type="x")
        self.before = self.visible()

    @cached_property
    def observed(self) -> Observed:
        """The store, held to the rules from the first use on."""
        return Observed(self.store, BUCKET, ROOT)

    def job(self, store: Any = None, job_id: str = OURS) -> Job:
        """Return a job, by default ours, as a fresh process sees it."""
        staging = f"{DESTINATION}__magic_job-{job_id}/"
        reference = JobReference(job_id=job_id, destination=DESTINATION, staging=staging)
        job = Job.at(store or self.observed, reference, clock=self.clock, new_id=self.new_id)
        job._context = inline(job._context)
        return job

    def visible(self) -> dict[str, bytes]:
        """Return everything in the bucket that is not a record of the protocol."""
        objects = self.store._buckets[BUCKET].objects
        return {
            key: objects[key].body
            for key in sorted(objects)
            if "__magic_job-" not in key and "/_s3commit/" not in key and "/_delta_log/" not in key
        }

    def pending(self) -> list[str]:
        """Return the ids of the pending uploads of jobs."""
        uploads = self.store._buckets[BUCKET].uploads
        return [upload_id for upload_id in uploads if upload_id != self.foreign_upload]

    def ended(self) -> dict[str, str]:
        """Return the kind of the end of each job, in the order of the log."""
        return self.observed.history.ended

    # The steps, each as a process of its own would take it.

    def setup(self, store: Any) -> None:
        Job.setup(
            store,
            DESTINATION,
            options=self.case.options,
            job_id=OURS,
            clock=self.clock,
            new_id=self.new_id,
        )

    def run_tasks(self, store: Any) -> None:
        """Run every task; one has a second attempt that finishes too and does not count."""
        self.rounds += 1
        if self.case.stages:
            lost = [self.run_task(store, task, f"{self.rounds}", "spark", "0") for task in self._of("spark")]
            if self.job(store).stage_seal("spark", "0") is None:
                self.job(store).seal_stage("spark", "0", lost)
        self.tasks = {
            stage: [self.run_task(store, task, f"{self.rounds}", stage) for task in self._of(stage)]
            for stage in self._stages
        }
        self.run_task(store, "00000", f"twin{self.rounds}")

    def run_task(
        self, store: Any, task: str, attempt: str, stage: str = "spark", stage_attempt: str = "1"
    ) -> CommittedTask:
        job, counts = self.job(store), stage_attempt == "1" and not attempt.startswith("twin")
        ids = (stage, stage_attempt, task, attempt)
        with by_s3a(self.case.s3a), job.task_attempt(*ids, threads=0, min_part_bytes=1) as writer:
            for path, body in TASKS[task].items():
                with writer.open(path) as file:
                    file.write(body if counts else b"does not count")
            writer.describe(len(TASKS[task]) if self.case.publishes else 0, COLUMNS)
            return writer.commit()

    def seal(self, store: Any) -> None:
        job = self.job(store)
        for stage, tasks in self.tasks.items():
            job.seal_stage(stage, "1", tasks)
        job.seal([(stage, "1") for stage in self.tasks])

    def commit(self, store: Any) -> None:
        with apart(self.case.apart):
            self.job(store).commit()

    def recover(self, store: Any) -> None:
        with apart(self.case.apart):
            self.job(store).recover()

    def commit_in_parts(self, store: Any) -> None:
        """Commit as two mapped tasks and a last one do."""
        for part in range(2):
            self.job(store).complete_part(part, 2)
        self.commit(store)

    def abort(self, store: Any) -> None:
        self.job(store).abort()

    def advance_to(self, step: str) -> None:
        """Take every step before this one, without faults, in a new world."""
        self.reach(step, lambda: self.take_until(step))

    def take_until(self, step: str) -> None:
        """Take every step before this one, without faults."""
        for name in STEPS[: STEPS.index(step)]:
            getattr(self, name)(self.store)

    def reach(self, what: str, act: Callable[[], object]) -> None:
        """Do this to a new world; work shared by tens of thousands of worlds is done once."""
        reached = _REACHED.get((self.case, what))
        if reached is None:
            act()
            assert not self.clock.slept, "time is no part of what is kept"
            _REACHED[self.case, what] = reached = self._progress()
        self._go_on_from(reached)

    def finish_from(self, step: str) -> None:
        """Take this step and every later one, without faults, as a retrying orchestrator would."""
        for name in STEPS[STEPS.index(step) :]:
            getattr(self, name)(self.observed)

    def abort_or_commit(self) -> bool:
        """Abort the job, or commit it if it is too late; check the end, and return whether it is aborted."""
        try:
            self.abort(self.observed)
        except AlreadyCommitted:
            pass
        else:
            self.check_untouched()
            return True
        self.commit(self.observed)
        self.check_committed()
        return False

    # The expected result.

    def expected(self) -> dict[str, bytes]:
        """Return what must be visible after the commit but for markers, by the documented rules."""
        case = self.case
        after = dict(self.before)
        touched = {path.rpartition("/")[0] for files in TASKS.values() for path in files}
        if case.mode == "replace" and case.has_older_data:
            for path in OLD:
                if case.committer == "directory" or path.rpartition("/")[0] in touched:
                    del after[ROOT + path]
        for files in TASKS.values():
            for path, body in files.items():
                stem, dot, ending = path.partition(".")
                after[ROOT + f"{stem}-{OURS}{dot}{ending}"] = body
        return {key: body for key, body in after.items() if not key.endswith("_SUCCESS")}

    def check_committed(self) -> None:
        """Check that exactly the output, marker and receipt exist, and nothing is pending or staged."""
        visible = self.visible()
        marked = {key: visible.pop(key) for key in list(visible) if key.endswith("_SUCCESS")}
        assert visible == self.expected()
        named = {key for key, body in marked.items() if OURS.encode() in body}
        marks = ("", "dt=1/", "dt=2/") if self.case.marks else ("",)
        assert named == {f"{ROOT}{path}_SUCCESS" for path in marks}
        manifest = self.job().manifest()
        assert manifest is not None
        assert manifest.counts.files == 3
        assert self.ended()[OURS] == "commit"
        self.check_nothing_left()

    def check_untouched(self) -> None:
        """Check that the job left no trace, byte for byte, marker included."""
        assert self.visible() == self.before
        assert self.job().manifest() is None
        assert self.ended()[OURS] == "abandon"
        self.check_nothing_left()

    def check_nothing_left(self) -> None:
        """Check what holds at rest, and that no upload of a job is pending."""
        self.observed.at_rest()
        self.check_repaired()
        assert self.pending() == []

    def check_repaired(self) -> None:
        """Check that a repair finds nothing that does harm, and a second one nothing at all."""
        report = self._repair(dry_run=True)
        if report.repaired:
            assert all(finding.harmless for finding in report.repaired), report
            self._repair(dry_run=False)
            report = self._repair(dry_run=True)
        assert not [*report.repaired, *report.left, *report.failures], report

    def _repair(self, *, dry_run: bool) -> RepairReport:
        return repair(
            self.observed, DESTINATION, dry_run=dry_run, clock=self.clock, new_id=self.new_id, threads=0
        )

    @property
    def _stages(self) -> tuple[str, ...]:
        return ("spark", "more") if self.case.stages else ("spark",)

    def _of(self, stage: str) -> list[str]:
        """Return the tasks of a stage."""
        return [task for task in TASKS if not self.case.stages or (task in MORE) == (stage == "more")]

    def _progress(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _KEPT} | {
            "_buckets": self.store._buckets,
            "_uploads_started": self.store._uploads_started,
        }

    def _go_on_from(self, progress: dict[str, Any]) -> None:
        """Begin with copies of what the store changes in place, which are the folders, not their content."""
        for name in _KEPT:
            setattr(self, name, copy(progress[name]))
        self.store._uploads_started = progress["_uploads_started"]
        self.store._buckets = {
            name: structs.replace(
                bucket,
                objects=dict(bucket.objects),
                uploads={
                    key: structs.replace(one, parts=dict(one.parts)) for key, one in bucket.uploads.items()
                },
            )
            for name, bucket in progress["_buckets"].items()
        }

    def new_id(self) -> str:
        """Return a new id."""
        return f"id-{next(self.ids):06d}"


STEPS = ["setup", "run_tasks", "seal", "commit"]

#: The parts of a world that steps change, beside its store.
_KEPT = ("ids", "tasks", "rounds", "before", "foreign_upload")

#: How far a job of a case is before a step.
_REACHED: dict[tuple[Case, str], dict[str, Any]] = {}


def inline(context: JobContext) -> JobContext:
    """Return a context that sends everything in the caller's thread."""
    return replace(context, threads=0)


@dataclass
class Run:
    """The outcome of one step under a fault."""

    hit: bool
    error: S3CommitError | None
    crashed: bool


def run_with_fault(world: World, step: Callable[[Any], Any], at: int, fault: Effect) -> Run:
    """Take a step through a store with a fault at its n-th call."""
    world.observed.attempts_fail = step == world.run_tasks
    store = FaultyStore(world.observed, Fault(fault, nth=at))
    try:
        step(store)
    except Crash:
        return Run(bool(store.struck), None, crashed=True)
    except S3CommitError as error:
        return Run(bool(store.struck), error, crashed=False)
    finally:
        world.observed.attempts_fail = False
    return Run(bool(store.struck), None, crashed=False)

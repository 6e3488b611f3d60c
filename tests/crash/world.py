"""A small dataset, a job that refreshes it, and an independent account of the expected result."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import pytest

from airflow_s3commit import CommittedTask, Job, JobOptions, JobReference, MemoryStore
from airflow_s3commit.exceptions import AlreadyCommitted, S3CommitError
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.model.job import Committer, ConflictMode
from airflow_s3commit.testing import Crash, Effect, Fault, FaultyStore
from tests.crash.observed import Observed
from tests.fakes import ManualClock
from tests.history import is_data
from tests.protocol.building import BUCKET, OURS, ROOT, THEIRS, apart

DESTINATION = f"s3://{BUCKET}/{ROOT}"

#: The tasks of the job: what each writes, by path below the destination.
TASKS: dict[str, dict[str, bytes]] = {
    "00000": {"dt=1/part-0.parquet": b"new 1/0", "dt=2/part-0.parquet": b"new 2/0"},
    "00001": {"dt=1/part-1.parquet": b"new 1/1"},
    "00002": {},
}

#: What exists before, by path. No job touches dt=3; the last three are not data of the dataset.
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
    """How the job commits."""

    committer: Committer = "partitioned"
    mode: ConflictMode = "replace"
    repeat_complete: Any = "ok"
    track: Any = "task"
    marks: bool = False
    apart: bool = False

    @property
    def options(self) -> JobOptions:
        return JobOptions(
            committer=self.committer,
            conflict_mode=self.mode,
            track_pending=self.track,
            partition_success=self.marks,
        )

    def __str__(self) -> str:
        parts = (self.committer, self.mode, self.repeat_complete, self.track)
        return "-".join([*parts, *["marks"] * self.marks, *["apart"] * self.apart])


def held_by(cases: Iterable[Any], held: Collection[Any]) -> list[Any]:
    """Return the cases as parameters: `make test` runs those that are held, `make test-all` all of them."""

    def beside(case: Any) -> Any:
        return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.all)

    return [case if case in held else beside(case) for case in cases]


@dataclass
class World:
    """The store with the dataset, and the job's progress as its orchestrator knows it."""

    case: Case
    store: MemoryStore = field(init=False)
    tasks: list[CommittedTask] = field(default_factory=list)
    before: dict[str, bytes] = field(default_factory=dict)
    data_before: dict[str, str] = field(default_factory=dict)
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
        self.ids = count()
        self.reach("nothing", self._put_old)

    def _put_old(self) -> None:
        """Put what is there before the job."""
        old = {} if self.case.mode == "fail" else {**OLD, "_SUCCESS": b'{"an":"older marker"}'}
        if self.case.marks:
            old["dt=1/_SUCCESS"] = b'{"an":"older marker, of a partition"}'
        for path, body in {**old, **BESIDE}.items():
            self.store.put(BUCKET, ROOT + path, body)
        self.store.put(BUCKET, "flights10/dt=1/part-0.parquet", b"a neighbour")
        other = f"{ROOT}dt=1/part-0-{THEIRS}.parquet"
        self.foreign_upload = self.store.create_upload(BUCKET, other, metadata={}, content_type="x")
        self.before = self.visible()
        self.data_before = {
            info.key: info.etag
            for info in self.store.list_objects(BUCKET, ROOT)
            if is_data(info.key.removeprefix(ROOT))
        }

    def job(self, store: Any = None, job_id: str = OURS) -> Job:
        """Return a job, by default ours, as a fresh process sees it."""
        staging = f"{DESTINATION}__magic_job-{job_id}/"
        reference = JobReference(job_id=job_id, destination=DESTINATION, staging=staging)
        job = Job.at(store or self.store, reference, clock=self.clock, new_id=self.new_id)
        job._context = inline(job._context)
        return job

    def visible(self) -> dict[str, bytes]:
        """Return everything in the bucket that is not a record of the protocol."""
        return {
            info.key: self.store.get(BUCKET, info.key).body
            for info in self.store.list_objects(BUCKET, "")
            if "__magic_job-" not in info.key and "/_s3commit/" not in info.key
        }

    def observed(self) -> Observed:
        """Return the store, held to the invariants from here on."""
        return Observed(self.store, BUCKET, ROOT, self.data_before)

    def pending(self) -> list[str]:
        """Return the ids of the job's pending uploads."""
        return [
            u.upload_id for u in self.store.list_uploads(BUCKET, "") if u.upload_id != self.foreign_upload
        ]

    def log(self) -> list[tuple[str, str]]:
        """Return the job and kind of the end of each job, in the order of the log."""
        entries = [
            json.loads(self.store.get(BUCKET, info.key).body)
            for info in self.store.list_objects(BUCKET, f"{ROOT}_s3commit/log/")
        ]
        assert [entry["number"] for entry in entries] == list(range(1, len(entries) + 1))
        baselines = [entry["number"] for entry in entries if entry["kind"] == "baseline"]
        assert len(baselines) <= 1
        assert not any(entry["kind"] == "commit" for entry in entries[: sum(baselines)])
        endings = (entry for entry in entries if entry["kind"] != "baseline")
        return [(entry["job_id"], entry["kind"]) for entry in endings]

    def records(self) -> list[str]:
        """Return the keys of the job's staging."""
        return [i.key for i in self.store.list_objects(BUCKET, f"{ROOT}__magic_job-{OURS}/")]

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
        self.tasks = [self.run_task(store, task, f"{self.rounds}") for task in TASKS]
        self.run_task(store, "00001", f"twin{self.rounds}")

    def run_task(self, store: Any, task: str, attempt: str) -> CommittedTask:
        job = self.job(store)
        with job.task_attempt("spark", "1", task, attempt, threads=0, min_part_bytes=1) as writer:
            for path, body in TASKS[task].items():
                with writer.open(path) as file:
                    file.write(body)
            return writer.commit()

    def seal(self, store: Any) -> None:
        job = self.job(store)
        job.seal_stage("spark", "1", self.tasks)
        job.seal()

    def plan(self, store: Any) -> None:
        self.job(store).plan()

    def commit(self, store: Any) -> None:
        with apart(self.case.apart):
            self.job(store).commit()

    def recover(self, store: Any) -> None:
        with apart(self.case.apart):
            self.job(store).recover()

    def roll_back(self, store: Any) -> None:
        self.job(store).recover(rollback=True)

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
            getattr(self, name)(self.store)

    def abort_or_commit(self) -> bool:
        """Abort the job, or commit it if it is too late; check the end, and return whether it is aborted."""
        try:
            self.abort(self.store)
        except AlreadyCommitted:
            pass
        else:
            self.check_untouched()
            return True
        self.commit(self.store)
        self.check_committed()
        return False

    # The expected result.

    def expected(self) -> dict[str, bytes]:
        """Return what must be visible after the commit, by the documented rules."""
        case = self.case
        after = dict(self.before)
        touched = {path.rpartition("/")[0] for files in TASKS.values() for path in files}
        if case.mode == "replace":
            for path in OLD:
                if case.committer == "directory" or path.rpartition("/")[0] in touched:
                    del after[ROOT + path]
        for files in TASKS.values():
            for path, body in files.items():
                stem, dot, ending = path.partition(".")
                after[ROOT + f"{stem}-{OURS}{dot}{ending}"] = body
        return {key: body for key, body in after.items() if not key.endswith("/_SUCCESS")}

    def check_committed(self) -> None:
        """Check that exactly the output, marker and manifest exist, and nothing is pending or staged."""
        visible = self.visible()
        marker = visible.pop(f"{ROOT}_SUCCESS", None)
        marked = {key: visible.pop(key) for key in list(visible) if key.endswith("/_SUCCESS")}
        assert visible == self.expected()
        assert marker is not None
        assert OURS.encode() in marker
        for path in ("dt=1", "dt=2") if self.case.marks else ():
            assert OURS.encode() in marked[f"{ROOT}{path}/_SUCCESS"]
        manifest = self.job().manifest()
        assert manifest is not None
        assert manifest.counts.files == 3
        assert [kind for job, kind in self.log() if job == OURS] == ["commit"]
        self._check_nothing_left()

    def check_untouched(self) -> None:
        """Check that the job left no trace, byte for byte, marker included."""
        assert self.visible() == self.before
        assert self.job().manifest() is None
        assert (OURS, "commit") not in self.log()
        self._check_nothing_left()

    def check_no_loss(self) -> None:
        """Check that at every moment the old or the new data exists (promise 8)."""
        if self.case.mode != "replace":
            return
        visible, after = self.visible(), self.expected()
        old_whole = all(
            key in visible for key in self.before if key.startswith(ROOT) and not key.endswith("_SUCCESS")
        )
        new_whole = all(visible.get(key) == body for key, body in after.items())
        assert old_whole or new_whole

    def _check_nothing_left(self) -> None:
        assert self.pending() == []
        assert self.records() == []
        assert [u.upload_id for u in self.store.list_uploads(BUCKET, "")] == [self.foreign_upload]

    def _progress(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _KEPT} | {
            "_buckets": self.store._buckets,
            "_upload_ids": self.store._upload_ids,
        }

    def _go_on_from(self, progress: dict[str, Any]) -> None:
        """Begin with copies of what the store changes in place, which are the folders, not their content."""
        for name in _KEPT:
            setattr(self, name, copy(progress[name]))
        self.store._upload_ids = copy(progress["_upload_ids"])
        self.store._buckets = {
            name: replace(
                bucket,
                objects=dict(bucket.objects),
                uploads={key: replace(one, parts=dict(one.parts)) for key, one in bucket.uploads.items()},
                completed=dict(bucket.completed),
            )
            for name, bucket in progress["_buckets"].items()
        }

    def new_id(self) -> str:
        """Return a new id."""
        return f"id-{next(self.ids):06d}"


STEPS = ["setup", "run_tasks", "seal", "plan", "commit"]

#: The parts of a world that steps change, beside its store.
_KEPT = ("ids", "tasks", "rounds", "before", "data_before", "foreign_upload")

#: How far a job of a case is before a step.
_REACHED: dict[tuple[Case, str], dict[str, Any]] = {}


def inline(context: JobContext) -> JobContext:
    """Return a context that sends everything in the caller's thread."""
    return replace(context, threads=0, owner="test")


@dataclass
class Run:
    """The outcome of one step under a fault."""

    hit: bool
    error: S3CommitError | None
    crashed: bool


def run_with_fault(
    world: World, step: Callable[[Any], Any], at: int, fault: Effect, *, watch: bool = True
) -> Run:
    """Take a step through a store with a fault at its n-th call."""
    store = FaultyStore(
        world.store,
        Fault(fault, nth=at),
        after=lambda call: call.reads or not watch or world.check_no_loss(),
    )
    try:
        step(store)
    except Crash:
        return Run(bool(store.struck), None, crashed=True)
    except S3CommitError as error:
        return Run(bool(store.struck), error, crashed=False)
    return Run(bool(store.struck), None, crashed=False)

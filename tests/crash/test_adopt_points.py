"""Every call of an adoption from Hadoop is stopped before it, after it, with its answer lost or refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import count, product
from typing import Any, Literal, TypeAlias

import pytest

from airflow_s3commit import Job, JobOptions, JobReference
from airflow_s3commit.exceptions import AlreadyCommitted, JobClosed, JobMismatch, S3CommitError
from airflow_s3commit.protocol.hadoop.adopt import Adoption
from airflow_s3commit.protocol.model.job import ConflictMode
from airflow_s3commit.testing import Crash, Fault, FaultyStore, StoreCall
from tests.crash.faulty import FAULTS
from tests.crash.observed import Observed
from tests.crash.world import held_by
from tests.fakes import ManualClock
from tests.protocol.hadoop.dead_jobs import BUCKET, MAGIC, ROOT, UPLOADS_DIR, UUID, DeadJob

OLD = {
    f"{ROOT}day=17/old.parquet": b"old",
    f"{ROOT}day=16/old.parquet": b"older",
    f"{ROOT}_SUCCESS": b'{"an":"older marker"}',
}
REPLACED = f"{ROOT}day=17/old.parquet"

#: What a process does: adopt the job to commit or to abort it; or abort it, not knowing that it is Hadoop's.
Step: TypeAlias = Literal["commit", "abort", "abort as ours"]


@dataclass(frozen=True)
class Case:
    """A dead job, and how it is adopted.

    Attributes:
        layout: ``magic`` or ``staging``.
        mode: The conflict mode.
        published: How many uploads Hadoop had completed before it died.
        repeat_complete: What a second completion of an upload gets.
        whole: Whether the whole destination is replaced.
    """

    layout: str
    mode: ConflictMode
    published: int
    repeat_complete: str = "gone"
    whole: bool = False

    def __str__(self) -> str:
        return f"{self.layout}-{self.mode}{' all' * self.whole}-{self.published}-{self.repeat_complete}"


MODES: tuple[ConflictMode, ...] = ("append", "replace")
CASES = [
    *(Case(*kind) for kind in product(("magic", "staging"), MODES, (0, 1))),
    Case("magic", "replace", 1, "ok"),
    Case("staging", "replace", 0, "ok"),
    Case("staging", "replace", 0, whole=True),
]
MAGIC_CASE, STAGING_CASE = Case("magic", "append", 0), Case("staging", "replace", 1)

#: What one process does, and another after it has stopped.
STEPS: list[tuple[Step, Step]] = [
    ("commit", "commit"),
    ("commit", "abort"),
    ("abort", "abort"),
    ("abort", "commit"),
]

#: Without the adoption the job's own records name all its uploads, and Hadoop has published nothing.
AS_OURS: tuple[Step, Step] = ("commit", "abort as ours")
BARE = [case for case in CASES if case.layout == "magic" and not case.published]


class World:
    """A dead job on a destination that has data, and the required outcome."""

    def __init__(self, case: Case) -> None:
        self.case = case
        made = DeadJob.magic if case.layout == "magic" else DeadJob.staging
        self.dead = made(repeat_complete=case.repeat_complete)
        for key, body in OLD.items():
            self.dead.put(key, body)
        for key in list(self.dead.contents)[: case.published]:
            self.dead.complete(key)
        self.foreign = self.dead.store.create_upload(
            BUCKET, f"{ROOT}day=17/foreign", metadata={}, content_type="x"
        )
        self.clock = ManualClock()
        self.observed = Observed(self.dead.store, BUCKET, ROOT, dict.fromkeys(self.dead.contents, UUID))
        self._ids = count()
        self._taken: set[Step] = set()

    def take(self, step: Step, store: Any = None) -> None:
        """Take a step, as a process of its own."""
        self._taken.add(step)
        if step == "abort as ours":
            staging = f"s3://{BUCKET}/{MAGIC}"
            reference = JobReference(job_id=UUID, destination=f"s3://{BUCKET}/{ROOT}", staging=staging)
            Job.at(store or self.observed, reference, clock=self.clock).abort()
            return
        is_magic = self.case.layout == "magic"
        place: Any = {} if is_magic else {"pendingsets_uri": self.dead.pendingsets_uri}
        adoption = Adoption(
            store or self.observed,
            self.dead.destination,
            UUID,
            options=JobOptions(
                committer="magic" if is_magic else "directory" if self.case.whole else "partitioned",
                conflict_mode=self.case.mode,
            ),
            clock=self.clock,
            new_id=lambda: f"id-{next(self._ids):06d}",
            **place,
        )
        adoption.commit() if step == "commit" else adoption.abort()

    def end(self, step: Step) -> None:
        """Take a step; if the job has ended or begun to end otherwise, finish that; then check the end."""
        is_committed = step == "commit"
        try:
            self.take(step)
        except (AlreadyCommitted, JobClosed, JobMismatch) as error:
            # The record of an abort has options of its own, which nothing is committed with.
            if isinstance(error, JobMismatch) and "abort" not in self._taken:
                raise
            is_committed = isinstance(error, AlreadyCommitted)
            self.take("commit" if is_committed else "abort")
        (self.check_committed if is_committed else self.check_aborted)()

    def check_committed(self) -> None:
        """Check that exactly the job's output exists and nothing is left over."""
        expected = {key: body for key, body in OLD.items() if not key.endswith("_SUCCESS")}
        if self.case.whole:
            expected.clear()
        elif self.case.mode == "replace":
            del expected[REPLACED]
        assert self.dead.visible() == {**expected, **self.dead.contents}
        assert UUID.encode() in self.dead.store.get(BUCKET, f"{ROOT}_SUCCESS").body
        self.check_nothing_left()

    def check_aborted(self) -> None:
        """Check that the destination is as before Hadoop's job, marker included."""
        visible = self.dead.visible()
        assert visible == {key: body for key, body in OLD.items() if not key.endswith("_SUCCESS")}
        assert self.dead.store.get(BUCKET, f"{ROOT}_SUCCESS").body == OLD[f"{ROOT}_SUCCESS"]
        self.check_nothing_left()

    def check_nothing_left(self) -> None:
        """Check that no upload or record of the job is left, while other uploads stay."""
        assert [upload.upload_id for upload in self.dead.store.list_uploads(BUCKET, "")] == [self.foreign]
        assert self.dead.keys(MAGIC) == []
        assert bool(self.dead.keys(UPLOADS_DIR)) == (self.case.layout == "staging")
        self.observed.at_rest()


def stopped(case: Case, step: Step) -> Iterator[World]:
    """Yield the world after every fault at every call of a step."""
    for at, fault in ((at, fault) for at in count(1) for fault in FAULTS):
        world = World(case)
        store = FaultyStore(world.observed, Fault(fault, nth=at))
        with suppress(Crash, S3CommitError):
            world.take(step, store)
        if not store.struck:
            return
        yield world


@pytest.mark.parametrize(
    ("case", "steps"),
    held_by(
        [*product(CASES, STEPS), *((case, AS_OURS) for case in BARE)],
        [*((STAGING_CASE, steps) for steps in STEPS), (MAGIC_CASE, AS_OURS)],
    ),
    ids=str,
)
def test_a_stopped_adoption_is_ended_by_another_process(
    case: Case, steps: tuple[Step, Step], record_property: Callable[[str, object], None]
) -> None:
    """Wherever an adoption stopped, another process ends it as it wishes, or as the first one began to."""
    stops = 0
    for world in stopped(case, steps[0]):
        world.end(steps[1])
        stops += 1
    assert stops > len(FAULTS) * 20
    record_property("stops", stops)


@pytest.mark.parametrize(
    ("case", "steps"),
    held_by(product(CASES, STEPS), [(MAGIC_CASE, STEPS[0]), (STAGING_CASE, STEPS[1])]),
    ids=str,
)
def test_another_process_may_end_the_job_at_any_moment(
    case: Case, steps: tuple[Step, Step], record_property: Callable[[str, object], None]
) -> None:
    """The outcome of a second process that acts before the first continues is final."""
    for at in count(1):
        world, calls = World(case), count(1)

        def step_in(_: StoreCall, world: World = world, calls: Iterator[int] = calls, at: int = at) -> None:
            if next(calls) == at:
                with suppress(AlreadyCommitted, JobClosed, JobMismatch):
                    world.take(steps[1])

        with suppress(AlreadyCommitted, JobClosed):
            world.take(steps[0], FaultyStore(world.observed, before=step_in))
        world.end(steps[0])
        if next(calls) <= at:
            break
    assert at > 20
    record_property("schedules", at)

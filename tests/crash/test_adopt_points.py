"""Every call of an adoption from Hadoop is stopped before it, after it, with its answer lost or refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import count, product
from typing import Any

import pytest

from airflow_s3commit import Job, JobOptions, JobReference
from airflow_s3commit.exceptions import AlreadyCommitted, S3CommitError
from airflow_s3commit.protocol.adoption.adopt import adopt
from airflow_s3commit.protocol.model.job import ConflictMode
from airflow_s3commit.testing import Crash, Effect, Fault, FaultyStore, StoreCall
from tests.crash.faulty import FAULTS
from tests.crash.world import held_by
from tests.fakes import ManualClock
from tests.protocol.hadoop.dead_jobs import BUCKET, MAGIC, ROOT, UPLOADS_DIR, UUID, DeadJob

OLD = {
    f"{ROOT}day=17/old.parquet": b"old",
    f"{ROOT}day=16/old.parquet": b"older",
    f"{ROOT}_SUCCESS": b'{"an":"older marker"}',
}
REPLACED = f"{ROOT}day=17/old.parquet"


@dataclass(frozen=True)
class Case:
    """A dead job, and how it is adopted.

    Attributes:
        layout: ``magic`` or ``staging``.
        mode: The conflict mode.
        published: How many uploads Hadoop had completed before it died.
        repeat_complete: What a second completion of an upload gets.

    """

    layout: str
    mode: ConflictMode
    published: int
    repeat_complete: str

    def __str__(self) -> str:
        return f"{self.layout}-{self.mode}-{self.published}-{self.repeat_complete}"


CASES = [
    Case(layout, mode, published, repeat)
    for layout, mode, published, repeat in product(
        ("magic", "staging"), ("append", "replace"), (0, 1), ("ok", "gone")
    )
    if repeat == "gone" or mode == "replace"
]

#: Both layouts and modes, with and without what Hadoop had published.
HELD = [Case("magic", "append", 0, "gone"), Case("staging", "replace", 1, "gone")]


class World:
    """A dead job on a destination that has data, and the required outcome."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.dead = DeadJob.magic(repeat_complete=case.repeat_complete)
        if case.layout == "staging":
            self.dead = DeadJob.staging(repeat_complete=case.repeat_complete)
        for key, body in OLD.items():
            self.dead.put(key, body)
        for key in list(self.dead.contents)[: case.published]:
            self.dead.complete(key)
        self.foreign = self.dead.store.create_upload(
            BUCKET, f"{ROOT}day=17/foreign", metadata={}, content_type="x"
        )
        self.clock = ManualClock()
        self._ids = count()

    def adopt(self, store: Any, *, commit: bool) -> None:
        """Adopt the job, as a process of its own."""
        adopt(
            store,
            self.dead.destination,
            commit=commit,
            options=JobOptions(
                committer="magic" if self.case.layout == "magic" else "partitioned",
                conflict_mode=self.case.mode,
            ),
            clock=self.clock,
            new_id=lambda: f"id-{next(self._ids):06d}",
            **self._place,
        )

    def run(self, at: int, fault: Effect, *, commit: bool) -> bool:
        """Run adopt through a store with one fault; return whether the fault happened."""
        store = FaultyStore(
            self.dead.store, Fault(fault, nth=at), after=lambda call: call.reads or self.check_no_loss()
        )
        with suppress(Crash, S3CommitError):
            self.adopt(store, commit=commit)
        return bool(store.struck)

    def abort_as_ours(self) -> None:
        """Abort the job without knowing that it was Hadoop's."""
        staging = f"s3://{BUCKET}/{MAGIC}"
        reference = JobReference(job_id=UUID, destination=f"s3://{BUCKET}/{ROOT}", staging=staging)
        Job.at(self.dead.store, reference, clock=self.clock).abort()

    def check_committed(self) -> None:
        """Check that exactly the job's output exists and nothing is left over."""
        expected = {key: body for key, body in OLD.items() if not key.endswith("_SUCCESS")}
        if self.case.mode == "replace":
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
        """Check that no upload, record or lock of the job is left, while other uploads stay."""
        assert [upload.upload_id for upload in self.dead.store.list_uploads(BUCKET, "")] == [self.foreign]
        assert self.dead.keys(MAGIC) == []
        assert bool(self.dead.keys(UPLOADS_DIR)) == (self.case.layout == "staging")

    def check_no_loss(self) -> None:
        """Check that replaced data stays until its replacement exists."""
        visible = self.dead.visible()
        assert REPLACED in visible or self.dead.contents.items() <= visible.items()

    @property
    def _place(self) -> dict[str, Any]:
        if self.case.layout == "magic":
            return {"job_id": UUID}
        return {"pendingsets_uri": self.dead.pendingsets_uri}


def stopped(case: Case, *, commit: bool) -> Iterator[World]:
    """Yield the world after every fault at every call of an adoption."""
    points = 0
    for at, fault in ((at, fault) for at in count(1) for fault in FAULTS):
        world = World(case)
        if not world.run(at, fault, commit=commit):
            break
        points += 1
        yield world
    assert points > len(FAULTS) * 20
    print(f"{case}, commit={commit}: {points} points")


@pytest.mark.parametrize("case", held_by(CASES, HELD), ids=str)
def test_a_stopped_commit_is_finished_by_a_second_adoption(case: Case) -> None:
    """Wherever it stopped, a second adoption ends with exactly the committed tasks' files."""
    for world in stopped(case, commit=True):
        world.adopt(world.dead.store, commit=True)
        world.check_committed()


@pytest.mark.parametrize("case", held_by(CASES, HELD[1:]), ids=str)
def test_a_stopped_commit_can_be_aborted(case: Case) -> None:
    """Wherever it stopped, an abort takes everything back, unless the job committed."""
    for world in stopped(case, commit=True):
        try:
            world.adopt(world.dead.store, commit=False)
        except AlreadyCommitted:
            world.adopt(world.dead.store, commit=True)
            world.check_committed()
        else:
            world.check_aborted()


@pytest.mark.parametrize("case", held_by(CASES, HELD[1:]), ids=str)
def test_a_stopped_abort_is_finished_by_a_second_abort(case: Case) -> None:
    """Wherever it stopped, a second abort leaves no trace of the job, published objects included."""
    for world in stopped(case, commit=False):
        world.adopt(world.dead.store, commit=False)
        world.check_aborted()


@pytest.mark.parametrize(
    "case", held_by([c for c in CASES if c.layout == "magic" and not c.published], HELD), ids=str
)
def test_an_ordinary_abort_ends_a_stopped_adoption(case: Case) -> None:
    """An abort of the job as one of ours, at any point of its adoption, forgets none of its uploads."""
    for world in stopped(case, commit=True):
        try:
            world.abort_as_ours()
        except AlreadyCommitted:
            world.adopt(world.dead.store, commit=True)
            world.check_committed()
        else:
            world.check_aborted()


@pytest.mark.parametrize("case", held_by([c for c in CASES if c.mode == "replace"], HELD), ids=str)
@pytest.mark.parametrize(("first", "second"), [(True, True), (True, False), (False, True), (False, False)])
def test_another_process_may_adopt_the_job_at_any_moment(case: Case, first: bool, second: bool) -> None:
    """The outcome of a second process that acts before the first continues is final."""
    for at in count(1):
        world = World(case)
        ended, errors, calls = [], [], count(1)

        def step_in(_: StoreCall) -> None:
            if next(calls) == at:  # noqa: B023 - called in this turn only
                with suppress(S3CommitError):
                    world.adopt(world.dead.store, commit=second)  # noqa: B023
                    ended.append(second)  # noqa: B023

        try:
            world.adopt(FaultyStore(world.dead.store, before=step_in), commit=first)
        except S3CommitError as error:
            errors.append(error)
        if next(calls) <= at:
            break
        if first == second and errors:
            # Its job changed underneath it; a second run finds what the other process did.
            with suppress(S3CommitError):
                world.adopt(world.dead.store, commit=first)
        if not errors and ended and first != second:
            raise AssertionError(f"at {at} both ended as they wished")
        outcome = ended[0] if ended else first
        if not outcome:
            world.abort_as_ours()
        (world.check_committed if outcome else world.check_aborted)()
    assert at > 20

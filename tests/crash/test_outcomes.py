"""At every call of every step an error tells the truth, and the step again, by anybody, ends well."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from typing import Any
from uuid import UUID

import pytest

from airflow_s3commit import Job, JobOptions, exceptions
from airflow_s3commit import sweep as sweep_destination
from airflow_s3commit._causes import whole_text
from airflow_s3commit.exceptions import DidNotHappen, Refused, S3CommitError
from airflow_s3commit.protocol.metadata.sealed_job import committed_attempts
from airflow_s3commit.testing import Crash, Fault, FaultyStore
from tests.crash.faulty import SentTwice, count_calls
from tests.crash.interleave import Outcome
from tests.crash.jobs import JOBS, WRITTEN, Jobs
from tests.crash.world import DESTINATION
from tests.protocol.building import BUCKET, ROOT, apart

#: What becomes of a call, by name: the faults of a store, from the number of the call.
FAULTS: dict[str, Callable[[int], list[Fault]]] = {
    "refused": lambda nth: [Fault("refuse", nth=nth)],
    "lost": lambda nth: [Fault("lose-answer", nth=nth)],
    "lost, and then nothing works": lambda nth: [
        Fault("lose-answer", nth=nth),
        Fault("refuse", nth=nth + 1, times=None),
    ],
    "dead": lambda nth: [Fault("crash-after", nth=nth)],
    "sent twice": lambda _: [],
}

OURS, _, NEW = JOBS

#: A process takes a step, as often as it is called.
Process = Callable[[], object]


@dataclass(frozen=True)
class Step:
    """A step, and what it does.

    Attributes:
        world: Returns a world before the step.
        process: Returns a process that takes the step through a store.
        has_happened: Whether the step has had its effect, which none of its errors may deny.
        withdraws: The errors that leave nothing of its job, because nobody else has the job's id.
    """

    world: Callable[[], Jobs]
    process: Callable[[Jobs, Any], Process]
    has_happened: Callable[[Jobs], bool]
    withdraws: tuple[type[S3CommitError], ...] = ()


def _is_there(key: str) -> Callable[[Jobs], bool]:
    return lambda world: bool(list(world.store.list_objects(BUCKET, ROOT + key)))


def _has_ended(job_id: str, kind: str) -> Callable[[Jobs], bool]:
    return lambda world: world.ended().get(job_id) == kind


def _new(progress: str) -> Callable[[], Jobs]:
    """Return a world in which a new job has made this progress."""

    def make() -> Jobs:
        world = Jobs(("replace",))
        _set_up(world, world.observed)()
        world._attempt(NEW, WRITTEN[2], "0", world.observed)
        if progress == "sealed stage":
            _seal_stage(world, world.observed)()
        return world

    return make


def _halfway() -> Jobs:
    """Return a world in which a commit died before its second file."""
    world = Jobs(("replace", "append"), retain="1s")
    with suppress(Crash):
        world.take_halfway(0, world.observed)
    return world


def _set_up(world: Jobs, store: Any, job_id: str | None = NEW) -> Process:
    options = JobOptions(conflict_mode="replace")

    def new_id() -> str:
        return str(UUID(int=next(world.ids)))

    return lambda: Job.setup(
        store,
        DESTINATION,
        options=options,
        job_id=job_id,
        clock=world.clock,
        new_id=new_id,
        alone="" if job_id else "driver",
    )


def _seal_stage(world: Jobs, store: Any) -> Process:
    tasks = committed_attempts(world.job(world.observed, NEW)._context, "spark", "1")
    job = world.job(store, NEW)
    return lambda: job.seal_stage("spark", "1", tasks)


def _of_ours(method: str, *arguments: Any) -> Callable[[Jobs, Any], Process]:
    def process(world: Jobs, store: Any) -> Process:
        job = world.job(store, OURS)
        return lambda: getattr(job, method)(*arguments)

    return process


def _commit_apart(world: Jobs, store: Any) -> Process:
    return apart()(_of_ours("commit")(world, store))


def _commit(*modes: str, **options: Any) -> Step:
    return Step(lambda: Jobs(modes, **options), _of_ours("commit"), _has_ended(OURS, "commit"))


STEPS: dict[str, Step] = {
    "setup": Step(lambda: Jobs(("replace",)), _set_up, _is_there(f"_s3commit/open/{NEW}/job.json")),
    "setup of a job that nobody else knows": Step(
        lambda: Jobs(("replace",)),
        lambda world, store: _set_up(world, store, None),
        lambda world: world.opened() != {OURS},
        withdraws=(S3CommitError,),
    ),
    "stage seal": Step(_new("task"), _seal_stage, _is_there(f"__magic_job-{NEW}/stages/spark-1/sealed.json")),
    "seal": Step(
        _new("sealed stage"),
        lambda world, store: world.job(store, NEW).seal,
        _is_there(f"_s3commit/open/{NEW}/sealed.json"),
    ),
    "append": _commit("append"),
    "replace": _commit("replace"),
    "replace that retains": _commit("replace", retain="1s"),
    "replace with markers": _commit("replace", marks=True),
    "replace of everything": Step(lambda: Jobs(("replace all",)), _commit_apart, _has_ended(OURS, "commit")),
    "part": Step(lambda: Jobs(("replace",)), _of_ours("complete_part", 0, 1), lambda _: False),
    "abort": Step(_halfway, _of_ours("abort"), _has_ended(OURS, "abandon")),
    "recovery": Step(_halfway, _of_ours("recover"), _has_ended(OURS, "commit")),
    "rollback": Step(
        lambda: Jobs(("append",), retain="1s"),
        lambda world, store: lambda: world.take_rollback(store),
        lambda world: world.observed.history.newest > 3,
        withdraws=(DidNotHappen, Refused),
    ),
}


def _stopped(step: Step, fault: str, nth: int) -> tuple[Jobs, Process, FaultyStore, Outcome]:
    """Return a world, a process in it, its store, and what it ended with after a fault at its n-th call."""
    world = step.world()
    inner = SentTwice(world.observed, nth) if fault == "sent twice" else world.observed
    store = FaultyStore(inner, *FAULTS[fault](nth))
    process = step.process(world, store)
    try:
        process()
    except (S3CommitError, Crash) as error:
        return world, process, store, error
    return world, process, store, None


def _check_claims(step: Step, world: Jobs, before: dict[str, bytes], error: S3CommitError) -> None:
    """Check that the type of an error does not deny what has happened, and its text not what is visible."""
    if isinstance(error, DidNotHappen | Refused):
        assert not step.has_happened(world), repr(error)
        assert world.visible() == before or "visible" in whole_text(error), repr(error)


def _stops(step: Step, every: int) -> list[tuple[int, str]]:
    world = step.world()
    calls = count_calls(world.observed, lambda store: step.process(world, store)())
    return list(product(range(1, calls + 1), FAULTS))[::every]


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize(
    "every", [pytest.param(3, id="some"), pytest.param(1, id="all", marks=pytest.mark.all)]
)
def test_an_error_tells_the_truth_and_the_step_again_ends_well(
    name: str, every: int, record_property: Callable[[str, object], None]
) -> None:
    """No error denies what has happened; the same process and another one go on, and leave nothing."""
    step = STEPS[name]
    stops = _stops(step, every)
    before, known = step.world().visible(), step.world().opened()
    for nth, fault in stops:
        world, same, store, outcome = _stopped(step, fault, nth)
        try:
            if isinstance(outcome, S3CommitError):
                _check_claims(step, world, before, outcome)
            if isinstance(outcome, step.withdraws) and "nothing works" not in fault:
                assert world.opened() == known
                assert not [key for key in _keys(world) if "/probe-" in key]
            store._faults = ()
            another = step.process(world, world.observed)
            # A dead process does nothing again.
            for process in [another] if store.crashed else [same, another] if nth % 2 else [another, same]:
                process()
            # What nobody else knows, and could not be withdrawn, is left to a sweep.
            is_left = bool(step.withdraws) and "nothing works" in fault
            world.check([Crash()], swept=store.crashed or is_left or fault == "sent twice")
            assert world.pending() == []
        except Exception as error:
            error.add_note(f"{name}, {fault} at call {nth}, {store.calls[nth - 1]}: {outcome!r}")
            raise
    record_property("stops", len(stops))


def _keys(world: Jobs) -> list[str]:
    uploads = [upload.key for upload in world.store.list_uploads(BUCKET, "")]
    return uploads + [info.key for info in world.store.list_objects(BUCKET, ROOT)]


@pytest.mark.parametrize(
    "every", [pytest.param(5, id="some"), pytest.param(1, id="all", marks=pytest.mark.all)]
)
def test_a_sweep_tells_the_truth_of_each_item(
    every: int, record_property: Callable[[str, object], None]
) -> None:
    """No failure in the report of a sweep denies an entry that is there; another sweep leaves nothing."""

    def process(world: Jobs, store: Any) -> Process:
        return lambda: sweep_destination(
            store, DESTINATION, older_than=0, dry_run=False, clock=world.clock, new_id=world.new_id, threads=0
        )

    def due() -> Jobs:
        world = _halfway()
        world.clock.advance(10)
        return world

    step = Step(due, process, lambda _: False)
    stops = _stops(step, every)
    for nth, fault in stops:
        world = due()
        inner = SentTwice(world.observed, nth) if fault == "sent twice" else world.observed
        store = FaultyStore(inner, *FAULTS[fault](nth))
        with suppress(S3CommitError, Crash):
            for failure in process(world, store)().failures:  # type: ignore[attr-defined]
                kind = getattr(exceptions, failure.reason.partition(":")[0])
                denied = issubclass(kind, DidNotHappen | Refused)
                job = failure.what.removeprefix("job ").partition(" ")[0]
                assert not (denied and job in world.ended()), failure
                assert not (denied and failure.what == "retained files" and world.observed.history.released)
        world.sweep(world.observed, 0.0)
        world.check([Crash()], swept=True)
        assert world.pending() == []
        assert world.observed.history.released
    record_property("stops", len(stops))

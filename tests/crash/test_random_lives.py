"""Random lives of a dataset: jobs of every kind, crashes, rollbacks, sweeps, other writers, time passing.

The store is held to the rules of `tests/crash/observed.py` at every effect, and to a model after every step.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import count
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from airflow_s3commit import JobOptions
from airflow_s3commit.exceptions import AlreadyCommitted, DestinationNotEmpty, NotReversible, S3CommitError
from airflow_s3commit.testing import Crash, Fault, FaultyStore
from tests.crash.faulty import FAULTS
from tests.crash.jobs import Jobs
from tests.history import is_data, partition
from tests.protocol.building import BUCKET, OURS, ROOT

PARTITIONS = st.sampled_from(["", "dt=1", "dt=2", "dt=1/deeper"])
STOPS, EFFECTS = st.integers(0, 50), st.sampled_from(FAULTS)

#: The options of a job that is ready to commit, and its files.
Ready = tuple[JobOptions, dict[str, bytes]]


class Lives(RuleBasedStateMachine):
    """Each rule is a step of some process.

    Attributes:
        ready: The jobs that are sealed.
        table: The files of the table.
        foreign: Objects of other programs that the table does not have.
        kept: By generation, when what it took may go, and what of it is in place.
        generations: The files of the table at each generation.
    """

    def __init__(self) -> None:
        super().__init__()
        self.world = Jobs(("append",))
        self.world.job(job_id=OURS).abort()
        self.numbers = count(1)
        self.ready: dict[str, Ready] = {}
        self.table = self._data()
        self.foreign: dict[str, bytes] = {}
        self.kept: dict[int, tuple[float, dict[str, bytes]]] = {}
        older = {key: body for key, body in self.table.items() if "/first" not in key}
        self.generations = {1: older, 2: dict(self.table)}

    @rule(
        mode=st.sampled_from(["fail", "append", "replace"]),
        committer=st.sampled_from(["directory", "partitioned", "magic"]),
        retain=st.sampled_from(["0s", "60s"]),
        partitions=st.lists(PARTITIONS, max_size=3, unique=True),
        stop=STOPS,
        fault=EFFECTS,
    )
    def write(
        self, *, mode: Any, committer: Any, retain: str, partitions: list[str], stop: int, fault: Any
    ) -> None:
        """Set a job up and write with it; if a process is stopped, another aborts the job."""
        number = next(self.numbers)
        job_id = str(UUID(int=number))
        options = JobOptions(committer=committer, conflict_mode=mode, retain=retain)
        files = {f"{name}/f{number}.bin".lstrip("/"): f"{number} in {name}".encode() for name in partitions}
        self.world.observed.attempts_fail = True
        try:
            self.world.write(job_id, options, files, self._faulty(fault, stop))
        except (Crash, S3CommitError):
            self.world.job(job_id=job_id).abort()
        else:
            named = {ROOT + path.replace(".", f"-{job_id}."): body for path, body in files.items()}
            self.ready[job_id] = options, named
        self.world.observed.attempts_fail = False

    @rule(data=st.data(), step=st.sampled_from(["commit", "complete_part"]), stop=STOPS, fault=EFFECTS)
    def commit(self, data: Any, step: str, stop: int, fault: Any) -> None:
        """Commit a job that is ready, or a part of it, through a fault, and go on until it is decided."""
        if self.ready:
            job_id, ready = self._draw(data)
            with suppress(Crash, S3CommitError):
                job = self.world.job(self._faulty(fault, stop), job_id)
                getattr(job, step)(*(() if step == "commit" else (0, 2)))
            self._decide(job_id, *ready)

    @rule(data=st.data(), stop=STOPS, fault=EFFECTS, into=st.integers(1, 50))
    def abort(self, data: Any, stop: int, fault: Any, into: int) -> None:
        """Abort a job that is ready, perhaps while its commit is under way."""
        if not self.ready:
            return
        job_id, ready = self._draw(data)
        for step, store in (
            ("commit", self._faulty("crash-after", into)),
            ("abort", self._faulty(fault, stop)),
        ):
            with suppress(Crash, S3CommitError):
                getattr(self.world.job(store, job_id), step)()
        try:
            self.world.job(job_id=job_id).abort()
        except AlreadyCommitted:
            self._decide(job_id, *ready)

    @rule(data=st.data(), retain=st.sampled_from(["0s", "60s"]), stop=STOPS, fault=EFFECTS)
    def roll_back(self, data: Any, retain: str, stop: int, fault: Any) -> None:
        """Roll the table back, perhaps through a fault; another process ends what is begun."""
        to = data.draw(st.sampled_from(sorted(self.generations)))
        before, goal = self.world.observed.history.newest, dict(self.generations[to])
        in_place = self.table.keys() | {key for _, kept in self.kept.values() for key in kept}
        self.world.retain = retain
        with suppress(Crash, S3CommitError):
            try:
                self.world.take_rollback(self._faulty(fault, stop), to)
            except NotReversible:
                assert not goal.keys() <= in_place
        for job_id in self.world.opened() - self.ready.keys():
            self.world.end(job_id, self.world.observed)
        if self.world.observed.history.newest > before:
            assert goal.keys() <= in_place
            self._forget(goal)
            gone = {key: body for key, body in self.table.items() if key not in goal}
            self._enter(goal, gone, JobOptions(conflict_mode="replace", retain=retain))

    @rule(stop=STOPS, fault=EFFECTS)
    def sweep(self, stop: int, fault: Any) -> None:
        """Sweep with patience, perhaps through a fault, and then again."""
        with suppress(Crash, S3CommitError):
            self.world.sweep(self._faulty(fault, stop), 1e9, may_fail=True)
        self.world.sweep(self.world.observed, 1e9)
        now = self.world.clock.time()
        self.kept = {generation: one for generation, one in self.kept.items() if now <= one[0]}

    @rule(name=PARTITIONS, over=st.booleans(), data=st.data())
    def someone_else_writes(self, *, name: str, over: bool, data: Any) -> None:
        """Put an object as a writer does that knows nothing of the protocol."""
        number = next(self.numbers)
        key = f"{ROOT}{name}/foreign{number}".replace("//", "/")
        kept = {key for _, one in self.kept.values() for key in one}
        there = sorted(key for key in self.foreign.keys() | kept if "/foreign" in key)
        if over and there:
            key = data.draw(st.sampled_from(there))
        self.foreign[key] = f"foreign {number}".encode()
        self.world.store.put(BUCKET, key, self.foreign[key])

    @rule(seconds=st.sampled_from([1, 30, 90]))
    def time_passes(self, seconds: int) -> None:
        """Let retentions run out."""
        self.world.clock.advance(seconds)

    @invariant()
    def what_is_visible_is_what_was_committed(self) -> None:
        """The bucket shows exactly the model's objects, byte for byte."""
        kept = {key: body for _, one in self.kept.values() for key, body in one.items()}
        assert self._data() == {**kept, **self.table, **self.foreign}

    @invariant()
    def only_ready_jobs_have_anything(self) -> None:
        """Nothing is pending or recorded except of jobs that may still commit."""
        assert self.world.opened() == self.ready.keys()
        if not self.ready:
            self.world.observed.at_rest(others=self.foreign.keys())
            self.world.check_repaired()
            assert self.world.pending() == []

    def _decide(self, job_id: str, options: JobOptions, files: dict[str, bytes]) -> None:
        """Commit as an orchestrator does, and update the model with the outcome."""
        present = self.table | self.foreign
        touched = {partition(key) for key in files}
        older = {
            key: body
            for key, body in present.items()
            if options.committer == "directory" or partition(key) in touched
        }
        job = self.world.job(job_id=job_id)
        try:
            job.commit()
        except DestinationNotEmpty:
            assert options.conflict_mode == "fail"
            assert older
            job.abort()
            return
        assert options.conflict_mode != "fail" or not older
        gone = older if options.conflict_mode == "replace" else {}
        self._enter({key: body for key, body in self.table.items() if key not in gone} | files, gone, options)

    def _enter(self, table: dict[str, bytes], gone: dict[str, bytes], options: JobOptions) -> None:
        """Update the model with a new generation."""
        self._forget(gone)
        self.foreign = {key: body for key, body in self.foreign.items() if key not in gone}
        generation = self.world.observed.history.newest
        self.table, self.generations[generation] = table, dict(table)
        if options.retain_seconds and gone:
            self.kept[generation] = self.world.clock.time() + options.retain_seconds + 1, dict(gone)

    def _forget(self, keys: Any) -> None:
        """Take objects from those that are kept: they are taken again, or are back in the table."""
        for _, kept in self.kept.values():
            for key in keys & kept.keys():
                del kept[key]

    def _data(self) -> dict[str, bytes]:
        return {
            key: body
            for key, body in self.world.visible().items()
            if key.startswith(ROOT) and is_data(key.removeprefix(ROOT))
        }

    def _draw(self, data: Any) -> tuple[str, Ready]:
        """Take a job from those that are ready."""
        job_id = data.draw(st.sampled_from(sorted(self.ready)))
        return job_id, self.ready.pop(job_id)

    def _faulty(self, fault: Any, stop: int) -> FaultyStore:
        return FaultyStore(self.world.observed, Fault(fault, nth=stop))


@pytest.mark.parametrize(
    ("lives", "steps"),
    [(60, 20), pytest.param(1_500, 60, marks=[pytest.mark.all, pytest.mark.timeout(7200)])],
)
def test_random_lives(lives: int, steps: int) -> None:
    """Whatever jobs, crashes, rollbacks, sweeps and other writers do, the data is what was committed."""
    run_state_machine_as_test(
        Lives,
        settings=settings(
            max_examples=lives,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )

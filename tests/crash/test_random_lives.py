"""Random lives of a dataset: jobs of every kind, crashes, aborts, other writers, time passing."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from airflow_s3commit import Job, JobOptions, JobReference, MemoryStore
from airflow_s3commit.exceptions import (
    AlreadyCommitted,
    DestinationChanged,
    DestinationNotEmpty,
    NotReversible,
    S3CommitError,
)
from airflow_s3commit.testing import Crash, Fault, FaultyStore
from tests.crash.faulty import FAULTS
from tests.fakes import ManualClock

BUCKET, ROOT = "lake", "t/"
PARTITIONS = st.sampled_from(["", "a=1", "a=2", "a=2/b=1"])


class Lives(RuleBasedStateMachine):
    """Each rule is a step of some process; the model is a dictionary of what must be visible."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.store = MemoryStore((BUCKET,), min_part_bytes=1, now=self.clock.time)
        self.ids, self.numbers = count(), count()
        self.visible: dict[str, bytes] = {}
        self.ready: list[Job] = []

    @rule(
        mode=st.sampled_from(["fail", "append", "replace"]),
        committer=st.sampled_from(["directory", "partitioned", "magic"]),
        partitions=st.lists(PARTITIONS, max_size=3, unique=True),
        stop=st.integers(0, 40),
        fault=st.sampled_from(FAULTS),
    )
    def write(self, *, mode: Any, committer: Any, partitions: list[str], stop: int, fault: Any) -> None:
        """Set a job up and write with it; if a process is stopped, another aborts the job."""
        number = next(self.numbers)
        options = JobOptions(committer=committer, conflict_mode=mode)
        store: Any = FaultyStore(self.store, Fault(fault, nth=stop))
        job = self._job(f"job-{number:03d}", self.store)
        try:
            self._set_up(store, options, job.reference.job_id)
            writing = self._job(job.reference.job_id, store)
            with writing.task_attempt("s", "1", "0", "0", threads=0, min_part_bytes=1) as attempt:
                for partition in partitions:
                    name = f"f{number}.bin"
                    with attempt.open(f"{partition}/{name}".lstrip("/")) as file:
                        file.write(f"{number} in {partition}".encode())
                tasks = [attempt.commit()]
            writing.seal_stage("s", "1", tasks)
            writing.seal()
        except (Crash, S3CommitError):
            job.abort()
        else:
            self.ready.append(job)

    @rule(data=st.data(), stop=st.integers(0, 60), fault=st.sampled_from(FAULTS))
    def commit(self, data: Any, stop: int, fault: Any) -> None:
        """Commit a job that is ready, through a fault, and continue until it is decided."""
        if not self.ready:
            return
        job = self.ready.pop(data.draw(st.integers(0, len(self.ready) - 1)))
        options, files = job.record().options, self._files_of(job)
        with suppress(Crash, S3CommitError):
            self._job(job.reference.job_id, FaultyStore(self.store, Fault(fault, nth=stop))).commit()
        self._decide(job, options, files)

    @rule(data=st.data(), stop=st.integers(0, 60), fault=st.sampled_from(FAULTS), into=st.integers(0, 60))
    def abort(self, data: Any, stop: int, fault: Any, into: int) -> None:
        """Abort a job that is ready, perhaps while its commit is under way."""
        if not self.ready:
            return
        job = self.ready.pop(data.draw(st.integers(0, len(self.ready) - 1)))
        options, files = job.record().options, self._files_of(job)
        for step, store in (
            ("commit", FaultyStore(self.store, Fault("crash-after", nth=into or 1))),
            ("abort", FaultyStore(self.store, Fault(fault, nth=stop))),
        ):
            with suppress(Crash, S3CommitError):
                getattr(self._job(job.reference.job_id, store), step)()
        try:
            job.abort()
        except (AlreadyCommitted, NotReversible):
            self._decide(job, options, files)

    @rule(partition=PARTITIONS, number=st.integers(0, 3))
    def someone_else_writes(self, partition: str, number: int) -> None:
        """Put an object as a writer does that knows nothing of the protocol."""
        key = f"{ROOT}{partition}/foreign{number}".replace("//", "/")
        body = f"foreign {next(self.numbers)}".encode()
        self.store.put(BUCKET, key, body)
        self.visible[key] = body

    @rule(seconds=st.sampled_from([1, 30, 90]))
    def time_passes(self, seconds: int) -> None:
        """Let leases run out."""
        self.clock.advance(seconds)

    @invariant()
    def what_is_visible_is_what_was_committed(self) -> None:
        """The bucket shows exactly the model's objects, byte for byte."""
        data = {
            info.key: self.store.get(BUCKET, info.key).body
            for info in self.store.list_objects(BUCKET, ROOT)
            if "/_" not in info.key
        }
        assert data == self.visible

    @invariant()
    def only_ready_jobs_have_uploads(self) -> None:
        """Nothing is pending except the uploads of jobs that may still commit."""
        if not self.ready:
            assert list(self.store.list_uploads(BUCKET, "")) == []

    def _decide(self, job: Job, options: JobOptions, files: dict[str, bytes]) -> None:
        """Commit as an orchestrator does, and update the model with the outcome."""
        while True:
            try:
                job.commit()
            except DestinationChanged:
                job.plan()
            except DestinationNotEmpty:
                assert options.conflict_mode == "fail"
                assert self._conflicting(options, files)
                job.abort()
                return
            else:
                break
        if options.conflict_mode == "replace":
            for key in self._conflicting(options, files):
                del self.visible[key]
        assert options.conflict_mode != "fail" or not self._conflicting(options, files)
        self.visible.update(files)

    def _conflicting(self, options: JobOptions, files: dict[str, bytes]) -> list[str]:
        if options.committer == "directory":
            return list(self.visible)
        touched = {key.rpartition("/")[0] for key in files}
        return [key for key in self.visible if key.rpartition("/")[0] in touched]

    def _files_of(self, job: Job) -> dict[str, bytes]:
        number = int(job.reference.job_id.removeprefix("job-"))
        seal = job.stage_seal("s", "1")
        assert seal is not None
        name = f"f{number}-{job.reference.job_id}.bin"
        return {
            f"{ROOT}{partition}/{name}".replace("//", "/"): f"{number} in {partition}".encode()
            for partition in seal.partitions
        }

    def _set_up(self, store: Any, options: JobOptions, job_id: str) -> None:
        destination = f"s3://{BUCKET}/{ROOT}"
        Job.setup(store, destination, options=options, job_id=job_id, clock=self.clock, new_id=self._id)

    def _job(self, job_id: str, store: Any) -> Job:
        destination = f"s3://{BUCKET}/{ROOT}"
        staging = f"{destination}__magic_job-{job_id}/"
        reference = JobReference(job_id=job_id, destination=destination, staging=staging)
        job = Job.at(store, reference, clock=self.clock, new_id=self._id)
        job._context = replace(job._context, threads=0, owner="test")
        return job

    def _id(self) -> str:
        return f"id-{next(self.ids):06d}"


TestLives = Lives.TestCase
TestLives.settings = settings(
    max_examples=120, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)

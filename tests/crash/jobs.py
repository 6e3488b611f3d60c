"""Several sealed jobs of one destination whose log already has a commit."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from msgspec import structs

from airflow_s3commit import Job
from airflow_s3commit.exceptions import AlreadyCommitted, JobClosed, NoSuchJob, S3CommitError
from airflow_s3commit.protocol.model.job import Committer, ConflictMode
from airflow_s3commit.protocol.sweep.apply import SweepReport, sweep
from airflow_s3commit.testing import Fault, FaultyStore
from tests.crash.interleave import Actor, Outcome, Schedule, play
from tests.crash.observed import Observed
from tests.crash.world import BUCKET, DESTINATION, OURS, ROOT, TASKS, Case, World

#: The jobs, ours first. What each writes, by path; all of them have files in dt=1.
JOBS = (OURS, "33333333-aaaa-4bbb-8ccc-000000000003", "44444444-aaaa-4bbb-8ccc-000000000004")
WRITTEN: tuple[dict[str, bytes], ...] = (
    {path: body for files in TASKS.values() for path, body in files.items()},
    {"dt=1/part-0.parquet": b"theirs 0", "dt=1/part-1.parquet": b"theirs 1"},
    {"dt=1/part-0.parquet": b"the third's 0", "dt=2/part-1.parquet": b"the third's 1"},
)

#: The job that committed before, so that `_SUCCESS` is the log's and not another program's.
FIRST = "00000000-aaaa-4bbb-8ccc-000000000000"


class Jobs(World):
    """A world in which some jobs are sealed, and no process is at work.

    Args:
        modes: Their conflict modes. There is old data unless the first one needs none.
        planned: Whether they have planned.
        committer: Their committer.

    """

    def __init__(
        self,
        modes: Sequence[ConflictMode],
        *,
        planned: bool = False,
        committer: Committer = "partitioned",
    ) -> None:
        super().__init__(Case(committer, modes[0]))
        self.modes = modes
        self.reach(f"jobs {modes} {planned}", lambda: self._seal_all(planned))

    def _seal_all(self, planned: bool) -> None:
        self._write(FIRST, "append", {"dt=3/first.parquet": b"the first"})
        self.job(self.store, FIRST).commit()
        self.take_until("plan")
        for number, mode in enumerate(self.modes):
            if number:
                self._write(JOBS[number], mode, WRITTEN[number])
        if planned:
            for job_id in JOBS[: len(self.modes)]:
                self.job(self.store, job_id).plan()

    def _write(
        self,
        job_id: str,
        mode: ConflictMode,
        files: dict[str, bytes],
        retain: str = "0s",
        *,
        store: Any = None,
        **options_too: Any,
    ) -> None:
        store, case = store or self.store, Case(self.case.committer, mode)
        options = structs.replace(case.options, retain=retain, **options_too)
        Job.setup(store, DESTINATION, options=options, job_id=job_id, clock=self.clock, new_id=self.new_id)
        job = self.job(store, job_id)
        with job.task_attempt("spark", "1", "00000", "0", threads=0, min_part_bytes=1) as attempt:
            for path, body in files.items():
                with attempt.open(path) as file:
                    file.write(body)
            tasks = [attempt.commit()]
        job.seal_stage("spark", "1", tasks)
        job.seal()

    # The steps of each job, as a process of its own takes them.

    def actor(self, step: str, number: int) -> Actor:
        """Return a process that takes a step of a job."""
        return partial(getattr(self, f"{step}_of"), JOBS[number])

    def commit_of(self, job_id: str, store: Any) -> None:
        self.job(store, job_id).commit()

    def dying_commit_of(self, job_id: str, store: Any) -> None:
        """Commit, and die before `_SUCCESS` is written."""
        self.commit_of(job_id, FaultyStore(store, Fault("crash-before", "put", "*_SUCCESS")))

    def entering_commit_of(self, job_id: str, store: Any) -> None:
        """Commit, and die right after the entry."""
        self.commit_of(job_id, FaultyStore(store, Fault("crash-after", "put", "*_s3commit/log/*")))

    def whole_replace_of(self, job_id: str, store: Any) -> None:
        """Set a job up, write with it and commit it."""
        self._write(job_id, "replace", WRITTEN[JOBS.index(job_id)], store=store)
        self.commit_of(job_id, store)

    def half_commit_of(self, job_id: str, store: Any) -> None:
        """Commit, and die before the second upload is completed."""
        self.commit_of(job_id, FaultyStore(store, Fault("crash-before", "complete_upload", nth=2)))

    def expire_of(self, job_id: str, store: Any) -> None:
        """Abort the job's pending uploads, as a lifecycle rule of the bucket does."""
        for upload in list(store.list_uploads(BUCKET, ROOT)):
            if upload.key in self._keys(job_id):
                store.abort_upload(BUCKET, upload.key, upload.upload_id)

    def abort_of(self, job_id: str, store: Any) -> None:
        self.job(store, job_id).abort()

    def dying_abort_of(self, job_id: str, store: Any) -> None:
        """Abort, and die right after the state has changed."""
        self.abort_of(job_id, FaultyStore(store, Fault("crash-after", "put", "*/state.json")))

    def recover_of(self, job_id: str, store: Any) -> None:
        self.job(store, job_id).recover()

    def shards_of(self, job_id: str, store: Any) -> None:
        """Commit in two shards; a worker that finds a shard missing leaves the rest to another."""
        job = self.job(store, job_id)
        for shard in job.begin(2):
            job.complete(shard)
        job.finish()

    def sweep_of(self, _: str, store: Any, older_than: float = 0.0) -> SweepReport:
        """Sweep; with no patience every job seems dead."""
        return sweep(
            store, DESTINATION, older_than=older_than, dry_run=False, clock=self.clock, new_id=self.new_id,
            threads=0,
        )  # fmt: skip

    def patient_sweep_of(self, job_id: str, store: Any) -> None:
        report = self.sweep_of(job_id, store, 3600)
        assert not report.jobs or all(job.action == "finish" for job in report.jobs)

    def end_all(self, store: Any) -> None:
        """End each job as an operator does: recover it, abort one that has not begun, sweep."""
        for job_id in JOBS:
            try:
                self.job(store, job_id).recover()
            except NoSuchJob:
                pass
            except JobClosed:
                with suppress(AlreadyCommitted):
                    self.job(store, job_id).abort()
        report = self.sweep_of("", store)
        assert not report.failures

    def play(self, actors: Sequence[Actor], schedule: Schedule, *, end: bool = False) -> list[Outcome]:
        """Play a schedule under the invariants, then check what holds at rest.

        Args:
            actors: The processes.
            schedule: The schedule.
            end: Whether a process that died may have left work for an operator.

        """
        store = self.observed()
        try:
            outcomes = play(store, actors, schedule)
            refused = any(isinstance(outcome, S3CommitError) for outcome in outcomes)
            if end or refused:
                self.end_all(store)
            store.at_rest(lists=not end)
            for job_id, files in store.history.by_job.items():
                if job_id in JOBS and store.history.ended[job_id] == "commit":
                    assert sorted(files) == sorted(self._keys(job_id))
        except Exception as error:
            error.add_note(f"schedule {schedule}, log {self.log()}")
            raise
        return outcomes

    def _keys(self, job_id: str) -> list[str]:
        number = JOBS.index(job_id)
        return [ROOT + path.replace(".", f"-{job_id}.", 1) for path in WRITTEN[number]]

    def observed(self) -> Observed:
        """Return the store, held to the invariants from here on."""
        return Observed(self.store, BUCKET, ROOT, self.data_before)


def ended_by_another(outcome: Outcome) -> bool:
    """Return whether a process was refused because another one had ended its job."""
    return isinstance(outcome, AlreadyCommitted | JobClosed | NoSuchJob)

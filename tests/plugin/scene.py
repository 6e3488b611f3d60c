"""A lake with jobs in every state, as the pages' tests and their pictures want it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_s3commit import Job, JobOptions, ObjectStore, Progress
from airflow_s3commit.protocol.model.job import ConflictMode

FLIGHTS = "s3://lake/flights/"
ORDERS = "s3://lake/orders/"
NIGHTLY = {"dag_id": "nightly_flights", "run_id": "scheduled__2013-01-05T03:00:00+00:00"}
SECRET = {"dag_id": "payroll", "run_id": "manual__2013-01-05T04:00:00+00:00"}


class Crash(Exception):
    """Where a committer dies."""


@dataclass(frozen=True)
class Scene:
    """Ids of the jobs of a scene, by what became of them."""

    committed: str
    sealed: str
    publishing: str
    open: str
    aborted: str
    secret: str
    homeless: str


def set_scene(store: ObjectStore, *, files: int = 6) -> Scene:
    """Set up one job in each state below two destinations; each night has the day before as its key."""

    def of(day: int) -> dict[str, str]:
        return {**NIGHTLY, "partition_key": f"2013-01-{day:02d}"}

    for day in (1, 2):
        commit(store, context={**of(day), "run_id": f"scheduled__2013-01-0{day + 1}T03:00:00+00:00"}, day=day)
    committed = commit(store, context=NIGHTLY, day=3, files=files)
    aborted = begin(store, context=of(9), day=9)
    aborted.abort(reason="teardown refresh.abort")
    return Scene(
        committed=committed.reference.job_id,
        sealed=seal(store, context=of(3), day=3, mode="replace", files=files).reference.job_id,
        publishing=crash(store, context=of(4), day=4, files=files).reference.job_id,
        open=begin(store, context=of(5), day=5, files=files).reference.job_id,
        aborted=aborted.reference.job_id,
        secret=seal(store, ORDERS, context=SECRET, day=1).reference.job_id,
        homeless=seal(store, ORDERS, context={}, day=2).reference.job_id,
    )


def begin(
    store: ObjectStore,
    destination: str = FLIGHTS,
    *,
    context: Mapping[str, str],
    day: int,
    mode: ConflictMode = "append",
    files: int = 2,
    stages: int = 1,
) -> Job:
    """Set a job up and let its tasks write; it stays open, with its stages sealed."""
    job = Job.setup(store, destination, options=JobOptions(conflict_mode=mode), context=context)
    for stage in range(stages):
        with job.task_attempt(f"stage{stage}", "1", "00000", "0") as writing:
            for file in range(files):
                output = writing.open(f"dt=2013-01-{day:02d}/part-{stage}-{file:05d}.parquet")
                output.write(b"row" * 1000 * (file + 1))
                output.close(rows=1000 * (file + 1))
            committed = writing.commit()
        job.seal_stage(f"stage{stage}", "1", [committed])
    return job


def seal(store: ObjectStore, destination: str = FLIGHTS, **how: object) -> Job:
    """Leave a job sealed."""
    job = begin(store, destination, **how)  # type: ignore[arg-type]
    job.seal()
    return job


def commit(store: ObjectStore, destination: str = FLIGHTS, **how: object) -> Job:
    """Commit a job."""
    job = seal(store, destination, **how)
    job.commit()
    return job


def crash(store: ObjectStore, destination: str = FLIGHTS, **how: object) -> Job:
    """Leave a job in the middle of its commit."""
    job = seal(store, destination, **how)

    def die(progress: Progress) -> None:
        if progress.files_done * 2 >= progress.files_total:
            raise Crash

    try:
        job.commit(progress=die)
    except Crash:
        return job
    raise AssertionError("the commit was to be cut off")

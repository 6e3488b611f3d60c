"""What the DAGs of the live Airflow are made of: a cheap stage, a commit that can be held, and callbacks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

from airflow.sdk import get_current_context, task
from airflow.sdk.exceptions import AirflowSkipException

from airflow_s3commit.exceptions import Unavailable
from airflow_s3commit.hooks import S3CommitHook
from airflow_s3commit.operators import S3CommitJobOperator
from airflow_s3commit.store.base import ObjectStore
from airflow_s3commit.store.forwarding import ForwardingStore
from tests.integration.airflow_live.control import Place

T = TypeVar("T")

DAY = "2013-01-01"


def place_of(context: Any) -> Place:
    """Return the place of the run that a context is of."""
    dag_run = context["dag_run"]
    return Place.here(dag_run.dag_id, dag_run.run_id)


def noting(event: str) -> Callable[[Any], None]:
    """Return a callback that leaves a note."""

    def note(context: Any) -> None:
        run = context.get("dag_run")
        dag_id = context["dag"].dag_id if run is None else run.dag_id
        run_id = context["run_id"] if run is None else run.run_id
        Place.here(dag_id, run_id).say(event, {"reason": str(context.get("reason"))})

    return note


def noting_processes(context: Any) -> None:
    """Leave a note of the processes of a task's try; a callback for the moment before it begins."""
    who = {"task": os.getpid(), "supervisor": os.getppid()}
    place_of(context).say(f"begun.{context['ti'].try_number}", who)


@task
def write(job: dict[str, str], *, hold: bool = True, late: bool = False) -> None:
    """Upload two files of one day: one as a task attempt that committed, one whose attempt still runs.

    Between the two it is held, so what it leaves if it ends there is of both kinds. ``late`` keeps beginning
    uploads while it is held, in its first try: it writes on after the job was aborted, until it is killed.
    """
    context = get_current_context()
    ti: Any = context["ti"]
    place, attempt = place_of(context), str(ti.try_number)
    day = context.get("partition_key") or DAY
    opened = S3CommitHook().job(job)
    said = f"{ti.run_id} try {ti.try_number}".encode()

    done = opened.task_attempt("write", attempt, "00000", "0")
    _upload(done, f"dt={day}/part-00000.txt", said)
    running = opened.task_attempt("write", attempt, "00001", "0")
    _upload(running, f"dt={day}/part-00001.txt", said)
    committed = [done.commit()]
    if hold:
        writer = _LateWriter(running, day) if late and ti.try_number == 1 else None
        order = place.hold("write", ti.try_number, writer or (lambda: None))
        if order == "raise":
            raise RuntimeError("told to fail")
    committed.append(running.commit())
    opened.seal_stage("write", attempt, committed)


@task
def seal_and_vanish(job: dict[str, str], *, again: bool = True, hold: bool = False) -> None:
    """Upload and seal as an engine's application does, whose first try then fails, or is held.

    The second try seals its own output, or, without ``again``, finds the application of the first one.
    """
    context = get_current_context()
    ti: Any = context["ti"]
    attempt, place = str(ti.try_number), place_of(context)
    if ti.try_number > 1 and not again:
        return
    opened = S3CommitHook().job(job)
    with opened.task_attempt("engine", attempt, "00000", "0") as writing:
        _upload(writing, f"dt={DAY}/part-00000.txt", f"{ti.run_id} try {ti.try_number}".encode())
        committed = writing.commit()
    opened.seal_stage("engine", attempt, [committed])
    if hold:
        place.hold("engine", ti.try_number)
    if ti.try_number == 1:
        raise RuntimeError("the poll of the application failed")


@task
def write_nothing(job: dict[str, str]) -> None:
    """Seal a stage without files."""
    ti: Any = get_current_context()["ti"]
    S3CommitHook().job(job).seal_stage("write_nothing", str(ti.try_number), [])


@task
def fail() -> None:
    """Fail, as a bug does."""
    raise RuntimeError("a bug")


@task
def cannot_sign_in(password: str) -> None:
    """Fail as a library does that repeats what it was given."""
    raise RuntimeError(f"cannot sign in with {password}")


@task
def parts() -> list[int]:
    """Return the parts that the run is to write, by the note for its DAG."""
    return list(range(Place.here(get_current_context()["dag_run"].dag_id, "plan").read("parts")))


@task
def write_part(job: dict[str, str], part: int) -> None:
    """Upload and seal one file, as a stage of its own."""
    ti: Any = get_current_context()["ti"]
    name, attempt = f"part-{part}", str(ti.try_number)
    opened = S3CommitHook().job(job)
    with opened.task_attempt(name, attempt, "00000", "0") as writing:
        _upload(writing, f"dt={DAY}/{name}.txt", f"{name} try {attempt}".encode())
        committed = writing.commit()
    opened.seal_stage(name, attempt, [committed])


@task
def no_data_today(job: dict[str, str]) -> None:
    """Raise, because there is nothing to write."""
    raise AirflowSkipException("no data today")


@task
def write_day(job: dict[str, str]) -> None:
    """Upload one file of the run's day and seal it; hold before, in the first try of days chosen for that."""
    context = get_current_context()
    ti: Any = context["ti"]
    place, attempt, day = place_of(context), str(ti.try_number), context["partition_key"]
    opened = S3CommitHook().job(job)
    with opened.task_attempt("write", attempt, "00000", "0") as writing:
        _upload(writing, f"dt={day}/part-00000.txt", f"{ti.run_id} {job['job_id']}".encode())
        if ti.try_number == 1 and day in held_days():
            place.hold("write", 1)
        committed = writing.commit()
    opened.seal_stage("write", attempt, [committed])


def held_days() -> list[str]:
    """Return the days whose worker the test will kill."""
    chosen = Place.here("month", "plan")
    return list(chosen.read("held-days")) if chosen.said("held-days") else []


class _LateWriter:
    """Begins one more upload every half second."""

    def __init__(self, attempt: Any, day: str) -> None:
        self._attempt, self._day = attempt, day
        self._count, self._next = 0, 0.0

    def __call__(self) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + 0.5
        self._count += 1
        _upload(self._attempt, f"dt={self._day}/late-{self._count:05d}.txt", b"late")


def _upload(attempt: Any, path: str, body: bytes) -> None:
    file = attempt.open(path)
    file.write(body)
    file.close(rows=1)


class HeldCommit(S3CommitJobOperator):
    """A commit that is held, in its first try: after its first file, or after the point of no return."""

    def __init__(self, *, held_at: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.held_at = held_at

    def opened_job(self) -> Any:
        """Open the job through a store that is held before the receipt is written."""
        if self.held_at == "receipt" and self._first_try():
            from airflow_s3commit import Job, JobReference  # noqa: PLC0415

            return Job.at(_HeldStore(self.hook.store, self._hold), JobReference.from_dict(self.job))
        return super().opened_job()

    def report_progress(self, progress: Any) -> None:
        """Hold when the first file is visible."""
        if self.held_at == "first file" and self._first_try() and progress.files_done == 1:
            self._hold()
        super().report_progress(progress)

    def _first_try(self) -> bool:
        return bool(get_current_context()["ti"].try_number == 1)

    def _hold(self) -> None:
        place_of(get_current_context()).hold("commit", 1)


def away_in_first_try(committing: Any) -> None:
    """Have the store answer none of a commit task's requests in its first try."""

    def opened_job() -> Any:
        from airflow_s3commit import Job  # noqa: PLC0415

        context = get_current_context()
        task: Any = context["task"]
        job = type(task).opened_job(task)
        first: Any = context["ti"].try_number == 1
        return Job.at(_AwayStore(task.hook.store), job.reference) if first else job

    committing.opened_job = opened_job


class _AwayStore(ForwardingStore):
    def forward(self, verb: str, bucket: str, key: str, make: Callable[[], T]) -> T:
        raise Unavailable(f"{verb} {bucket}/{key}: 503 Slow Down")


class _HeldStore(ForwardingStore):
    """A store whose caller is held before it writes the receipt."""

    def __init__(self, inner: ObjectStore, hold: Callable[[], None]) -> None:
        super().__init__(inner)
        self._hold = hold

    def forward(self, verb: str, bucket: str, key: str, make: Callable[[], T]) -> T:
        if verb == "put" and "/_s3commit/jobs/" in key:
            self._hold()
        return super().forward(verb, bucket, key, make)

"""Rehearse whole jobs in a hidden directory of a destination, with these credentials.

Each rehearsal is a probe: it does what jobs, sweeps and operators' clean-ups do, and compares what is there.
"""

from __future__ import annotations

from airflow_s3commit.protocol.doctor.probes import RECORD_UPLOADS
from airflow_s3commit.protocol.doctor.sandbox import BODY, Finding, Probe, Sandbox
from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.metadata.records import exists
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.job import ConflictMode, JobOptions
from airflow_s3commit.protocol.model.layout import SUCCESS
from airflow_s3commit.protocol.sweep.apply import sweep
from airflow_s3commit.protocol.write_job import write_job

_PARTITION = "rehearsal=1"

_COMMITS = 2

#: Seconds between a job's death and its sweep.
_SECONDS = 2.0


def _commit(sandbox: Sandbox) -> Finding:
    sandbox.rehearsed = True
    for _ in range(_COMMITS):
        _write(sandbox, "append")
    files = _files(sandbox)
    if len(files) != _COMMITS:
        says = f"{_COMMITS} commits of a file each left {len(files)} files"
        return Finding("failed", says, "use another store")
    if not exists(sandbox.store, sandbox.bucket, _home(sandbox).key(SUCCESS)):
        return Finding("failed", "a commit left no _SUCCESS", "use another store")
    return Finding("ok", "two jobs committed, one after the other")


def _replace(sandbox: Sandbox) -> Finding:
    _write(sandbox, "replace")
    files = _files(sandbox)
    if len(files) != 1:
        return Finding(
            "failed",
            f"after a replace of a partition {len(files)} files are in it instead of 1",
            "use another store, or only append: readers by listing would see replaced files",
        )
    return Finding("ok", "a job replaced the files of a partition")


def _abort(sandbox: Sandbox) -> Finding:
    before = _files(sandbox)
    report = _leave(sandbox).abort(reason="rehearsal")
    if report.uploads < 1 or _files(sandbox) != before:
        return Finding("failed", f"an abort found {report.uploads} of 1 pending uploads", RECORD_UPLOADS)
    return Finding("ok", "an abort removed the pending upload, and left no file")


def _sweep(sandbox: Sandbox) -> Finding:
    before = _files(sandbox)
    _leave(sandbox)
    # Times have whole seconds, or finer ones in listings than in responses.
    sandbox.clock.sleep(_SECONDS)
    report = sweep(sandbox.store, _home(sandbox), older_than=0, dry_run=False, clock=sandbox.clock)
    if report.failures:
        return Finding("failed", f"a sweep failed: {report.failures[0].reason}", RECORD_UPLOADS)
    if not report.jobs or _files(sandbox) != before:
        return Finding("warning", "a sweep did not find a dead job", RECORD_UPLOADS)
    return Finding("ok", "a sweep ended a dead job")


def _home(sandbox: Sandbox) -> Destination:
    return sandbox.home.below("rehearsal")


def _options(conflict_mode: ConflictMode) -> JobOptions:
    return JobOptions(committer="magic", conflict_mode=conflict_mode, track_pending="s3")


def _write(sandbox: Sandbox, conflict_mode: ConflictMode) -> None:
    """Commit a job with one file."""
    options = _options(conflict_mode)
    job = write_job(_home(sandbox), store=sandbox.store, job_options=options, clock=sandbox.clock)
    with job as writer, writer.open(f"{_PARTITION}/part.bin") as file:
        file.write(BODY)


def _leave(sandbox: Sandbox) -> Job:
    """Return a job with a pending upload, of a task whose stage is never sealed."""
    job = Job.setup(sandbox.store, _home(sandbox), options=_options("append"), clock=sandbox.clock)
    with job.task_attempt("rehearsal", "1", "00000", "1") as attempt:
        with attempt.open(f"{_PARTITION}/left.bin") as file:
            file.write(BODY)
        attempt.commit()
    return job


def _files(sandbox: Sandbox) -> set[str]:
    prefix = _home(sandbox).key(f"{_PARTITION}/")
    return {info.key for info in sandbox.store.list_objects(sandbox.bucket, prefix)}


#: Rehearsals, in an order in which each finds what those before it left.
REHEARSALS = (
    Probe("commit", _commit, ("objects", "complete uploads", "fencing")),
    Probe("replace", _replace, ("commit",)),
    Probe("abort", _abort, ("commit",)),
    Probe("sweep", _sweep, ("commit",)),
)

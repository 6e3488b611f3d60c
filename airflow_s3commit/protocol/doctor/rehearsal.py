"""Rehearse whole jobs in a hidden directory of a destination, with these credentials.

Each rehearsal is a probe: it does what jobs, sweeps and operators' clean-ups do, and compares what is there.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from airflow_s3commit.protocol.doctor.probes import Finding, Probe, Sandbox
from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.metadata.fitness import BODY
from airflow_s3commit.protocol.metadata.records import exists
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.job import ConflictMode, JobOptions
from airflow_s3commit.protocol.model.layout import SUCCESS
from airflow_s3commit.protocol.sweep.apply import sweep
from airflow_s3commit.protocol.write_job import JobWriter, write_job

#: Pending uploads of the rehearsal of a listing, and how many of them are on a page.
_UPLOADS, _PAGE = 5, 2

_PARTITION = "rehearsal=1"

_COMMITS = 2

#: Seconds between a job's death and its sweep.
_SECONDS = 2.0

_MISSED = (
    'set track_pending="s3" in the job\'s options, which records each upload when it starts; and add a'
    " lifecycle rule, because sweeps miss orphans on this store"
)


def _pages(sandbox: Sandbox) -> Finding:
    begun = {sandbox.begin(f"page-{number}", {})[1] for number in range(_UPLOADS)}
    listed = {
        upload.upload_id
        for upload in sandbox.store.list_uploads(sandbox.bucket, sandbox.home.key("page-"), page=_PAGE)
    }
    for number in range(_UPLOADS):
        sandbox.remove(sandbox.home.key(f"page-{number}"))
    if not begun <= listed:
        missed = len(begun - listed)
        return Finding(
            "warning",
            f"{missed} of {_UPLOADS} pending uploads are missing from a listing in pages of {_PAGE}: an abort"
            " misses those beyond the first page",
            _MISSED,
        )
    if not sandbox.store.profile(sandbox.bucket).upload_markers:
        return Finding("ok", "pending uploads are listed page by page, by their keys instead of the markers")
    return Finding("ok", "pending uploads are listed page by page")


def _commit(sandbox: Sandbox) -> Finding:
    sandbox.rehearsed = True
    for _ in range(_COMMITS):
        with _job(sandbox, "append") as writer:
            _write(writer)
    files = _files(sandbox)
    if len(files) != _COMMITS:
        return Finding(
            "failed", f"{_COMMITS} commits of a file each left {len(files)} files", "use another store"
        )
    if not exists(sandbox.store, sandbox.bucket, _home(sandbox).key(SUCCESS)):
        return Finding("failed", "a commit left no _SUCCESS", "use another store")
    return Finding("ok", "two jobs committed, one after the other")


def _replace(sandbox: Sandbox) -> Finding:
    with _job(sandbox, "replace") as writer:
        _write(writer)
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
    job = Job.setup(sandbox.store, _home(sandbox), options=_options("append"), clock=sandbox.clock)
    _leave(job)
    report = job.abort(reason="rehearsal")
    if report.uploads < 1 or _files(sandbox) != before:
        return Finding(
            "failed",
            f"an abort found {report.uploads} of 1 pending uploads",
            _MISSED,
        )
    return Finding("ok", "an abort removed the pending upload, and left no file")


def _sweep(sandbox: Sandbox) -> Finding:
    before = _files(sandbox)
    job = Job.setup(sandbox.store, _home(sandbox), options=_options("append"), clock=sandbox.clock)
    _leave(job)
    # Times have whole seconds, or finer ones in listings than in responses.
    sandbox.clock.sleep(_SECONDS)
    report = sweep(sandbox.store, _home(sandbox), older_than=0, dry_run=False, clock=sandbox.clock)
    if report.failures:
        return Finding("failed", f"a sweep failed: {report.failures[0].reason}", _MISSED)
    if not report.jobs or _files(sandbox) != before:
        return Finding("warning", "a sweep did not find a dead job", _MISSED)
    return Finding("ok", "a sweep ended a dead job")


def _home(sandbox: Sandbox) -> Destination:
    return sandbox.home.below("rehearsal")


def _options(conflict_mode: ConflictMode) -> JobOptions:
    return JobOptions(committer="magic", conflict_mode=conflict_mode, track_pending="s3")


def _job(sandbox: Sandbox, conflict_mode: ConflictMode) -> AbstractContextManager[JobWriter]:
    return write_job(
        _home(sandbox), store=sandbox.store, job_options=_options(conflict_mode), clock=sandbox.clock
    )


def _write(writer: JobWriter) -> None:
    file = writer.open(f"{_PARTITION}/part.bin")
    file.write(BODY)
    file.close()


def _leave(job: Job) -> None:
    """Write a file in a task whose stage is never sealed, so that its upload stays pending."""
    with job.task_attempt("rehearsal", "1", "00000", "1") as attempt:
        file = attempt.open(f"{_PARTITION}/left.bin")
        file.write(BODY)
        file.close()
        attempt.commit()


def _files(sandbox: Sandbox) -> set[str]:
    prefix = _home(sandbox).key(f"{_PARTITION}/")
    return {info.key for info in sandbox.store.list_objects(sandbox.bucket, prefix)}


#: Rehearsals, in an order in which each finds what those before it left.
REHEARSALS = (
    Probe("pages of uploads", _pages, ("list uploads",)),
    Probe("commit", _commit, ("objects", "complete uploads", "uploads of several parts", "fencing")),
    Probe("replace", _replace, ("commit",)),
    Probe("abort", _abort, ("commit",)),
    Probe("sweep", _sweep, ("commit",)),
)

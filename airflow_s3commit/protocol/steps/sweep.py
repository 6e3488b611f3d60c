"""Sweep a destination: end what nobody will end, and finish what a dead process left.

Uploads and objects are listed first; then a job's record is read by its key, then the log, then its receipt.
In another order a job that was set up in between would be taken for one that nobody knows. Nothing is undone
without an entry: a job that has none is ended by one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from airflow_s3commit.protocol.metadata.context import JobContext, after_effect
from airflow_s3commit.protocol.metadata.removal import delete_objects
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.job import AbortReport
from airflow_s3commit.protocol.model.layout import Layout, owner_of
from airflow_s3commit.protocol.steps.abort import abort, undo
from airflow_s3commit.protocol.steps.files import written_here
from airflow_s3commit.protocol.steps.finish import finish
from airflow_s3commit.protocol.steps.found import Found, find_end, find_jobs
from airflow_s3commit.protocol.steps.log import Log
from airflow_s3commit.protocol.steps.release import strays
from airflow_s3commit.store.base import ObjectToDelete, Upload

#: What to do with what is left of a job: do again what follows its ``commit`` entry; abort it, or do again
#: what follows its ``abandon`` entry.
Action: TypeAlias = Literal["finish", "abort"]


@dataclass
class Left:
    """What listings show of all jobs at a destination.

    Attributes:
        jobs: What they show of each job, by its id.
        unnamed: The pending uploads without a job's id in their names.
        has_log: Whether a job of this package was ever set up there.
    """

    jobs: dict[str, Found] = field(default_factory=dict)
    unnamed: list[Upload] = field(default_factory=list)
    has_log: bool = False


def find_left(context: JobContext, roots: Iterable[Destination] = ()) -> Left:
    """List what is left of jobs at a destination, and in stagings below other roots; read how far they are.

    The context is of a job of the destination with an id that nobody uses.

    Raises:
        InvalidRecord: An entry of the log is damaged.
    """
    store, home, left = context.store, context.layout.destination, Left()
    _list(context, left)
    left.jobs = find_jobs(store, home, (home, *roots), known=left.jobs)
    # Entries are read by their keys: a listing that lags may show none.
    log = Log(context)
    log.read()
    left.has_log = log.newest is not None
    for found in left.jobs.values():
        find_end(store, found, log.newest.entry if log.newest is not None else None)
        found.objects = list(written_here(context, found.job_id, found.objects))
    return left


def judge(found: Found, now: float, older_than: float) -> tuple[Action | None, str]:
    """Return what to do with what is left of a job, or None to leave it, and why.

    At the store's time a job that has not ended is dead after ``older_than`` seconds without a sign of life.
    """
    silent, end = f"its last sign of life was {found.silent(now):.0f} s ago", found.end
    if found.problem:
        return None, f"its records cannot be read, so look and abort it: {found.problem}"
    if end is not None and end.kind == "abandon":
        return "abort", f"entry {end.number} has aborted it"
    if end is not None:
        taken = "its files have left the table, and a release deletes them"
        is_left = found.is_more_than_objects
        return ("finish", f"entry {end.number} has committed it") if is_left else (None, taken)
    if not found.is_more_than_objects and not found.objects:
        return None, "its files were copied here: no job of this destination wrote them"
    if found.silent(now) < older_than:
        return None, silent
    sealed = "it is sealed" if found.sealed is not None else "it is open"
    return "abort", f"{sealed if found.record else 'nobody knows it'}, and {silent}"


def carry_out(context: JobContext, found: Found, why: str) -> AbortReport:
    """End a job that is not to be left, or do again what follows its end; return what an abort has removed.

    Repeatable. The context is as for `find_left`; ``why`` is the reason of an abort, for the log.

    Raises:
        AlreadyCommitted: A commit came in between, and wins: its job is finished the next time.
        S3CommitError: A request failed.
    """
    job, end = replace(context, layout=found.layout), found.end
    if found.record is not None:
        job = job.as_recorded(found.record)
    if end is not None and end.kind == "commit":
        finish(job, end)
        return AbortReport(uploads=0, objects=0)
    report = undo(job, end) if end is not None else abort(job, why)
    with after_effect(f"{job.name} is aborted, and some of its files may be visible", "sweep again"):
        # What it has in the destination beside its sealed files, which are gone by now.
        left = written_here(job, found.job_id, found.objects)
        late = delete_objects(job, (ObjectToDelete(info.key, info.etag) for info in left), "metadata")
    return AbortReport(uploads=report.uploads, objects=report.objects + late)


def _list(context: JobContext, left: Left) -> None:
    """List pending uploads, and objects that the table does not have, by their job."""
    home = context.layout.destination

    def of(job_id: str) -> Found:
        return left.jobs.setdefault(job_id, Found(Layout.of(home, job_id)))

    for upload in context.store.list_uploads(home.bucket, home.prefix):
        if (owner := owner_of(upload.key)) is None:
            left.unnamed.append(upload)
            continue
        of(owner).uploads.append(upload)
        of(owner).saw(upload.initiated)
    for job_id, objects in strays(context).items():
        of(job_id).objects = objects
        for info in objects:
            of(job_id).saw(info.modified)

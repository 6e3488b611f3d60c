"""Sweep a destination: end what nobody will end, finish what a dead process left, delete what is released.

Uploads and objects are listed first; then a job's record is read by its key, then the log, then its receipt.
In another order a job that was set up in between would be taken for one that nobody knows. Nothing is undone
without an entry: a job that has none is ended by one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from airflow_s3commit.exceptions import AlreadyCommitted, InvalidRecord
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.removal import delete_objects
from airflow_s3commit.protocol.model.entry import Entry
from airflow_s3commit.protocol.model.layout import (
    MAGIC_PREFIX,
    Layout,
    is_canonical,
    open_jobs_prefix,
    owner_of,
)
from airflow_s3commit.protocol.steps.abort import abort, older_files, undo
from airflow_s3commit.protocol.steps.finish import finish
from airflow_s3commit.protocol.steps.log import Log, find_head, find_receipt
from airflow_s3commit.protocol.steps.release import strays, written_here
from airflow_s3commit.protocol.steps.setup import find_job
from airflow_s3commit.store.base import ObjectInfo, ObjectToDelete

logger = logging.getLogger(__name__)

#: What to do with what is left of a job: nothing; abort it; do again what follows its ``commit`` entry, or
#: its ``abandon`` entry.
Action: TypeAlias = Literal["leave", "abort", "finish", "undo"]


@dataclass
class Found:
    """What listings show of a job.

    Attributes:
        job_id: The job.
        uploads: How many uploads of it are pending.
        objects: Its data objects that the table neither has nor retains.
        records: How many objects are in its staging and among the records of open jobs.
        newest: Time of the newest of all of these, in seconds since the epoch by the store's clock.
        is_open: Whether it has a record.
        problem: Why that record cannot be read; empty if it can.
        end: The entry that ended the job; None if it has not ended.

    """

    job_id: str
    uploads: int = 0
    objects: list[ObjectInfo] = field(default_factory=list)
    records: int = 0
    newest: float = 0.0
    is_open: bool = False
    problem: str = ""
    end: Entry | None = None

    @property
    def is_more_than_objects(self) -> bool:
        """Whether it has more than objects, which alone may be copies."""
        return bool(self.is_open or self.uploads or self.records)

    def saw(self, time: float) -> None:
        """Note the time of something that was found."""
        self.newest = max(self.newest, time)


@dataclass(frozen=True)
class Verdict:
    """What to do with what is left of a job.

    Attributes:
        found: What is left.
        action: What to do.
        why: The reason.

    """

    found: Found
    action: Action
    why: str


def plan_sweep(context: JobContext, now: float, older_than: float) -> list[Verdict]:
    """Decide about every job that has something left at a destination. Changes nothing.

    Args:
        context: A job of the destination with an id that nobody uses.
        now: The store's time, in seconds since the epoch.
        older_than: Seconds without a sign of life after which a job that has not ended is dead.

    Raises:
        InvalidRecord: An entry of the log is damaged.

    """
    if not find_head(context.store, context.layout.destination):
        # Setup begins the log: without one no job of this destination has anything.
        return []
    found = _found(context)
    for job_id, one in found.items():
        _look(replace(context, layout=Layout.of(context.layout.destination, job_id)), one)
    return [judge(found[job_id], now, older_than) for job_id in sorted(found)]


def judge(found: Found, now: float, older_than: float) -> Verdict:
    """Decide about one job.

    Args:
        found: What there is of it.
        now: The store's time, in seconds since the epoch.
        older_than: Seconds without a sign of life after which a job that has not ended is dead.

    """
    silent = max(now - found.newest, 0.0)
    action: Action = "leave"
    if found.problem:
        why = f"its record cannot be read, so look and abort it: {found.problem}"
    elif found.end is not None and found.end.kind == "abandon":
        action, why = "undo", f"entry {found.end.number} has aborted it"
    elif found.end is not None and found.is_more_than_objects:
        action, why = "finish", f"entry {found.end.number} has committed it"
    elif found.end is not None:
        why = "its files have left the table, and a release deletes them"
    elif not found.is_more_than_objects and not found.objects:
        why = "its files were copied here: no job of this destination wrote them"
    elif silent < older_than:
        why = f"its last sign of life was {silent:.0f} s ago"
    else:
        state = "it is open" if found.is_open else "nobody knows it"
        action, why = "abort", f"{state}, and its last sign of life was {silent:.0f} s ago"
    return Verdict(found, action, why)


def apply_sweep(context: JobContext, verdicts: list[Verdict], why: str) -> Iterator[Verdict]:
    """Do what was decided, and yield each decision that was carried out.

    A commit that comes in between wins: its job is finished the next time. Repeatable.

    Args:
        context: As for `plan_sweep`.
        verdicts: What was decided.
        why: The reason of aborts, for the log.

    Raises:
        S3CommitError: A request failed. Sweep again.

    """
    for verdict in verdicts:
        found, end = verdict.found, verdict.found.end
        job = replace(context, layout=Layout.of(context.layout.destination, found.job_id))
        match verdict.action:
            case "leave":
                continue
            case "finish":
                assert end is not None
                finish(job, end)
            case "undo":
                assert end is not None
                undo(job, end)
                _delete(job, found.objects)
            case "abort":
                try:
                    abort(job, why)
                except AlreadyCommitted as error:
                    logger.info("left: %s", error)
                    continue
                _delete(job, found.objects)
        yield verdict


def _delete(job: JobContext, objects: list[ObjectInfo]) -> None:
    """Delete what an aborted job has in the destination beside its sealed files."""
    delete_objects(job, (ObjectToDelete(info.key, info.etag) for info in objects), "metadata")


def _found(context: JobContext) -> dict[str, Found]:
    """List what there is of jobs whose files the table does not have."""
    store, home = context.store, context.layout.destination
    found: dict[str, Found] = {}

    def of(job_id: str) -> Found:
        return found.setdefault(job_id, Found(job_id))

    for upload in store.list_uploads(home.bucket, home.prefix):
        if (owner := owner_of(upload.key)) is not None:
            of(owner).uploads += 1
            of(owner).saw(upload.initiated)
    for prefix in (home.key(MAGIC_PREFIX), open_jobs_prefix(home)):
        for info in store.list_objects(home.bucket, prefix):
            job_id = info.key[len(prefix) :].partition("/")[0]
            if is_canonical(job_id):
                of(job_id).records += 1
                of(job_id).saw(info.modified)
    for job_id, objects in strays(context).items():
        of(job_id).objects = objects
        for info in objects:
            of(job_id).saw(info.modified)
    return found


def _look(job: JobContext, found: Found) -> None:
    """Read a job's record, then the log, then its receipt; and leave out objects that it did not write."""
    try:
        found.is_open = find_job(job) is not None
    except InvalidRecord as error:
        found.problem = str(error)
    log = Log(job)
    log.read()
    found.end = log.end or find_receipt(job.store, job.layout.destination, job.job_id)
    if found.objects:
        older = older_files(job)
        listed = [info for info in found.objects if info.key not in older]
        found.objects = list(written_here(job, job.job_id, listed))

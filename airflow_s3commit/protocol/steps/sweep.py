"""Sweep a destination: end what nobody will end, and finish what a dead process left.

Uploads and objects are listed first; then a job's record is read by its key, then the log, then its receipt.
In another order a job that was set up in between would be taken for one that nobody knows. Nothing is undone
without an entry: a job that has none is ended by one.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from airflow_s3commit.exceptions import InvalidRecord
from airflow_s3commit.protocol.metadata import records
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.removal import delete_objects
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.entry import Entry
from airflow_s3commit.protocol.model.job import AbortReport, JobRecord
from airflow_s3commit.protocol.model.layout import (
    MAGIC_PREFIX,
    Layout,
    check_id,
    job_key,
    open_jobs_prefix,
    owner_of,
)
from airflow_s3commit.protocol.model.ownership import check_place
from airflow_s3commit.protocol.steps.abort import abort, undo
from airflow_s3commit.protocol.steps.finish import finish
from airflow_s3commit.protocol.steps.log import Log, find_receipt
from airflow_s3commit.protocol.steps.release import strays, written_here
from airflow_s3commit.store.base import ObjectInfo, ObjectToDelete, Upload

#: What to do with what is left of a job: do again what follows its ``commit`` entry; abort it, or do again
#: what follows its ``abandon`` entry.
Action: TypeAlias = Literal["finish", "abort"]


@dataclass
class Found:
    """What listings show of a job, and what its records say.

    Attributes:
        layout: Its keys. Its staging is that of its record; without one the one that was listed.
        uploads: Its pending uploads, by their names.
        objects: Its data objects that the table neither has nor retains.
        records: How many objects are in its staging and among the records of open jobs.
        newest: Time of the newest of all of these, in seconds since the epoch by the store's clock.
        is_sealed: Whether its seal was listed.
        is_hadoops: Whether Hadoop's committers have written in its staging, or it was adopted from them.
        record: Its record; None without one, or if that cannot be read.
        problem: Why its record or receipt cannot be read; empty if they can.
        end: The entry that ended the job; None if it has not ended.

    """

    layout: Layout
    uploads: list[Upload] = field(default_factory=list)
    objects: list[ObjectInfo] = field(default_factory=list)
    records: int = 0
    newest: float = 0.0
    is_sealed: bool = False
    is_hadoops: bool = False
    record: JobRecord | None = None
    problem: str = ""
    end: Entry | None = None

    @property
    def job_id(self) -> str:
        """The job's id."""
        return self.layout.job_id

    @property
    def is_more_than_objects(self) -> bool:
        """Whether it has more than objects, which alone may be copies."""
        return bool(self.record or self.uploads or self.records)

    @property
    def is_known(self) -> bool:
        """Whether the job has a record or an end here."""
        return bool(self.record or self.end or self.problem)

    def silent(self, now: float) -> float:
        """Return the seconds since the last sign of life."""
        return max(now - self.newest, 0.0)

    def saw(self, time: float) -> None:
        """Note the time of something that was found."""
        self.newest = max(self.newest, time)

    def saw_record(self, info: ObjectInfo, name: str) -> None:
        """Note an object in its staging, or among its records."""
        self.records += 1
        self.is_sealed |= name == "sealed.json"
        self.is_hadoops |= name.startswith("job-")
        self.saw(info.modified)


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


@dataclass(frozen=True)
class Verdict:
    """What to do with what is left of a job.

    Attributes:
        found: What is left.
        action: What to do; None leaves it.
        why: The reason.

    """

    found: Found
    action: Action | None
    why: str


def find_left(context: JobContext, roots: Iterable[Destination] = ()) -> Left:
    """List what is left of jobs at a destination, then read how far they are.

    Args:
        context: A job of the destination with an id that nobody uses.
        roots: Other directories with stagings of its jobs.

    Raises:
        InvalidRecord: An entry of the log is damaged.

    """
    left = Left()
    _list(context, left, roots)
    for found in left.jobs.values():
        _read_record(context, found)
    log = Log(context)
    log.read()
    left.has_log = log.newest is not None
    for found in left.jobs.values():
        _find_end(context, found, log.newest.entry if log.newest is not None else None)
        found.objects = list(written_here(context, found.job_id, found.objects))
    return left


def judge(found: Found, now: float, older_than: float) -> Verdict:
    """Decide about one job.

    Args:
        found: What there is of it.
        now: The store's time, in seconds since the epoch.
        older_than: Seconds without a sign of life after which a job that has not ended is dead.

    """
    silent, end = f"its last sign of life was {found.silent(now):.0f} s ago", found.end
    action: Action | None = None
    if found.problem:
        why = f"its records cannot be read, so look and abort it: {found.problem}"
    elif end is not None and end.kind == "abandon":
        action, why = "abort", f"entry {end.number} has aborted it"
    elif end is not None and found.is_more_than_objects:
        action, why = "finish", f"entry {end.number} has committed it"
    elif end is not None:
        why = "its files have left the table, and a release deletes them"
    elif not found.is_more_than_objects and not found.objects:
        why = "its files were copied here: no job of this destination wrote them"
    elif found.silent(now) < older_than:
        why = silent
    else:
        sealed = "it is sealed" if found.is_sealed else "it is open"
        action, why = "abort", f"{sealed if found.record else 'nobody knows it'}, and {silent}"
    return Verdict(found, action, why)


def carry_out(context: JobContext, verdict: Verdict, why: str) -> AbortReport:
    """Do what was decided about one job. Repeatable.

    Args:
        context: As for `find_left`.
        verdict: What was decided.
        why: The reason of an abort, for the log.

    Returns:
        What an abort has removed; nothing for a commit, and for a job that is left.

    Raises:
        AlreadyCommitted: A commit came in between, and wins: its job is finished the next time.
        S3CommitError: A request failed.

    """
    found, end = verdict.found, verdict.found.end
    job = replace(context, layout=found.layout)
    if found.record is not None:
        job = job.as_recorded(found.record)
    if verdict.action != "abort":
        if verdict.action == "finish" and end is not None:
            finish(job, end)
        return AbortReport(uploads=0, objects=0)
    report = undo(job, end) if end is not None else abort(job, why)
    # What it has in the destination beside its sealed files.
    late = delete_objects(job, (ObjectToDelete(info.key, info.etag) for info in found.objects), "metadata")
    return AbortReport(uploads=report.uploads, objects=report.objects + late)


def _list(context: JobContext, left: Left, roots: Iterable[Destination]) -> None:
    """List what there is of jobs whose files the table does not have."""
    store, home = context.store, context.layout.destination

    def of(job_id: str, root: Destination = home) -> Found:
        if job_id not in left.jobs:
            left.jobs[job_id] = Found(Layout.of(home, job_id, root))
        return left.jobs[job_id]

    for upload in store.list_uploads(home.bucket, home.prefix):
        if (owner := owner_of(upload.key)) is None:
            left.unnamed.append(upload)
            continue
        of(owner).uploads.append(upload)
        of(owner).saw(upload.initiated)
    stagings = {root: root.key(MAGIC_PREFIX) for root in (home, *roots)}
    for root, prefix in [*stagings.items(), (home, open_jobs_prefix(home))]:
        for info in store.list_objects(root.bucket, prefix):
            job_id, _, name = info.key[len(prefix) :].partition("/")
            with suppress(InvalidRecord):
                found = of(check_id(job_id), root)
                if not found.records:
                    found.layout = Layout.of(home, job_id, root)
                found.saw_record(info, name)
    for job_id, objects in strays(context).items():
        of(job_id).objects = objects
        for info in objects:
            of(job_id).saw(info.modified)


def _read_record(context: JobContext, found: Found) -> None:
    """Read a job's record, which names its staging; what is in that is a sign of life too."""
    store, home = context.store, context.layout.destination
    key = job_key(home, found.job_id)
    try:
        stored = records.find(store, home.bucket, key, JobRecord)
        if stored is None:
            return
        layout = Layout(home, Destination.parse(stored.record.staging), found.job_id)
        check_place(stored.record, layout, join_uri(home.bucket, key))
    except InvalidRecord as error:
        found.problem = str(error)
        return
    found.record = stored.record
    found.is_hadoops |= stored.record.adopted
    found.saw(stored.modified)
    if layout.staging != found.layout.staging:
        found.layout = layout
        for info in store.list_objects(layout.staging.bucket, layout.staging.prefix):
            found.saw_record(info, info.key[len(layout.staging.prefix) :])


def _find_end(context: JobContext, found: Found, newest: Entry | None) -> None:
    """Find the entry that ended a job: the newest of the log, which alone may lack its receipt, or that."""
    home = context.layout.destination
    try:
        is_newest = newest is not None and newest.job_id == found.job_id
        found.end = newest if is_newest else find_receipt(context.store, home, found.job_id)
        if found.end is not None and found.record is None and found.end.staging:
            found.layout = Layout(home, Destination.parse(found.end.staging), found.job_id)
    except InvalidRecord as error:
        found.problem = str(error)

"""Sweep a destination: end the jobs that nobody will end, and finish what a dead process left.

Uploads and objects are listed first; then a job's record is read by its key, then the log, then its receipt.
In another order a job that was set up in between would be taken for one that nobody knows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, NamedTuple, TypeAlias

from airflow_s3commit.exceptions import (
    InvalidDestination,
    InvalidRecord,
    NoSuchBucket,
    NoSuchKey,
    Unavailable,
)
from airflow_s3commit.protocol.metadata.context import JobContext, after_effect, check_place, naming
from airflow_s3commit.protocol.metadata.removal import delete_objects
from airflow_s3commit.protocol.metadata.store_check import STORE_CLOCK_SECONDS
from airflow_s3commit.protocol.model.codec import decode, largest
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.job import AbortReport, JobRecord
from airflow_s3commit.protocol.model.layout import (
    MAGIC_PREFIX,
    OPEN_JOBS,
    PROBES,
    Layout,
    is_id,
    job_key,
    owner_of,
    partition_of,
)
from airflow_s3commit.protocol.model.table import Entry, Retained, Table
from airflow_s3commit.protocol.steps.abort import abort, undo
from airflow_s3commit.protocol.steps.append import TRIES, append, entry_after
from airflow_s3commit.protocol.steps.files import TableFiles, data_objects, freed_objects, written_here
from airflow_s3commit.protocol.steps.finish import abort_pending, clean, finish, list_staging
from airflow_s3commit.protocol.steps.fold import newest_entry, read_table, write_checkpoint
from airflow_s3commit.protocol.steps.log import Log, entry_times, find_receipt
from airflow_s3commit.protocol.steps.publish import publish, publish_if_missing
from airflow_s3commit.store.base import Fetched, Get, ObjectInfo, ObjectStore, ObjectToDelete, Upload
from airflow_s3commit.store.execute import outcomes

logger = logging.getLogger(__name__)

_Listed: TypeAlias = tuple[str, str, ObjectInfo]


@dataclass
class Found:
    """A job, by what listings show of it and by its records. Times are by the store's clock.

    Attributes:
        layout: Its keys. The staging is that of its record; without a record, the one that was listed.
        created: When its record was written, and ``sealed`` its seal; None without one.
        newest: When the newest of its records, uploads and objects was written or began.
        records: How many objects are in its staging and among the records of open jobs.
        is_hadoops: Whether Hadoop's committers have written in its staging, or it was adopted from them.
        problem: Why its record or receipt cannot be read; empty if they can.
        end: The entry that ended the job.
        uploads: Its pending uploads, by their names; only a sweep lists them.
        objects: Its data objects that the table neither has nor retains; only a sweep lists them.
    """

    layout: Layout
    created: float | None = None
    sealed: float | None = None
    newest: float = 0.0
    records: int = 0
    is_hadoops: bool = False
    record: JobRecord | None = None
    problem: str = ""
    end: Entry | None = None
    uploads: list[Upload] = field(default_factory=list)
    objects: list[ObjectInfo] = field(default_factory=list)

    @property
    def job_id(self) -> str:
        """The job's id."""
        return self.layout.job_id

    @property
    def is_open(self) -> bool:
        """Whether it has records among those of open jobs, which may be damaged."""
        return self.created is not None or self.sealed is not None

    @property
    def is_more_than_objects(self) -> bool:
        """Whether it has more than objects, which alone may be copies."""
        return bool(self.record or self.uploads or self.records)

    @property
    def is_known(self) -> bool:
        """Whether the job has a record or an end here."""
        return bool(self.record or self.end or self.problem)

    @property
    def is_elsewhere(self) -> bool:
        """Whether its end names another staging than the one that was listed."""
        return self.end is not None and self.end.staging not in ("", self.layout.staging.uri)

    def silent(self, now: float) -> float:
        """Return the seconds since the last sign of life."""
        return max(now - self.newest, 0.0)

    def saw(self, time: float) -> None:
        """Note the time of something that was found."""
        self.newest = max(self.newest, time)

    def saw_staged(self, info: ObjectInfo) -> None:
        """Note an object in its staging."""
        self.records += 1
        self.is_hadoops |= info.key.startswith(self.layout.staging.key("job-"))
        self.saw(info.modified)


def find_jobs(
    store: ObjectStore,
    home: Destination,
    roots: Iterable[Destination] = (),
    *,
    job_id: str | None = None,
    known: dict[str, Found] | None = None,
) -> dict[str, Found]:
    """List the jobs that have a staging or records of their own, and read their records. See `find_end`.

    Stagings are searched for in ``roots``; by default only records are listed. With ``job_id`` only that job
    is. The jobs are added to those ``known`` from other listings.
    """
    jobs = {} if known is None else known
    for root in dict.fromkeys(roots):
        for owner, _, info in owned(store, root.bucket, root.key(MAGIC_PREFIX), job_id):
            found = jobs.setdefault(owner, Found(Layout.of(home, owner, root)))
            found.layout = Layout.of(home, owner, root)
            found.saw_staged(info)
    for owner, name, info in owned(store, home.bucket, home.key(OPEN_JOBS), job_id):
        found = jobs.setdefault(owner, Found(Layout.of(home, owner)))
        found.records += 1
        found.saw(info.modified)
        if name == "job.json":
            found.created = info.modified
        elif name == "sealed.json":
            found.sealed = info.modified
    calls = [(one, Get(home.bucket, job_key(home, one.job_id), largest(JobRecord))) for one in jobs.values()]
    for found, outcome in outcomes(store, calls, NoSuchKey, InvalidRecord):
        if not isinstance(outcome, NoSuchKey):
            assert isinstance(outcome, Fetched | InvalidRecord)
            _take_record(store, found, outcome, searched=bool(roots))
    return dict(sorted(jobs.items()))


def owned(store: ObjectStore, bucket: str, prefix: str, job_id: str | None = None) -> Iterator[_Listed]:
    """Yield the objects whose keys are a prefix, a job's id and a path: the id, the path, and the object."""
    for info in store.list_objects(bucket, prefix if job_id is None else f"{prefix}{job_id}/"):
        owner, slash, name = info.key[len(prefix) :].partition("/")
        if slash and is_id(owner):
            yield owner, name, info


def _take_record(store: ObjectStore, found: Found, read: Fetched | InvalidRecord, *, searched: bool) -> None:
    """Check a job's record, which names its staging; the objects there are signs of life too."""
    home = found.layout.destination
    where = join_uri(home.bucket, job_key(home, found.job_id))
    try:
        if isinstance(read, InvalidRecord):
            raise read
        record = decode(JobRecord, read.body, where)
        layout = Layout(home, Destination.parse(record.staging), found.job_id)
        check_place(record, layout, where)
        found.record, found.created = record, read.info.modified
        found.is_hadoops |= record.adopted
        found.saw(read.info.modified)
        if layout.staging != found.layout.staging:
            found.layout = layout
            for info in store.list_objects(layout.staging.bucket, layout.staging.prefix) if searched else ():
                found.saw_staged(info)
    except (InvalidDestination, InvalidRecord, NoSuchBucket) as error:
        found.problem = str(error)


def find_end(store: ObjectStore, found: Found, newest: Entry | None) -> None:
    """Note the entry that ended a job: the newest, which alone may lack its receipt, or that of the receipt.

    Before: the job's record was read, then ``newest``, the log's newest entry; None without a log.
    """
    home = found.layout.destination
    try:
        is_newest = newest is not None and newest.job_id == found.job_id
        found.end = end = newest if is_newest else find_receipt(store, home, found.job_id)
        is_found = found.record is not None or not found.layout.is_below_destination
        if end is not None and end.staging and not is_found:
            found.layout = Layout(home, Destination.parse(end.staging), found.job_id)
    except (InvalidDestination, InvalidRecord) as error:
        found.problem = str(error)


#: What a sweep does to a job: redo what follows its ``commit``; abort it, or redo what follows ``abandon``.
Action: TypeAlias = Literal["finish", "abort"]


class Left(NamedTuple):
    """What listings show of jobs, by id, and of uploads whose names have none; and whether there is a log."""

    jobs: dict[str, Found]
    unnamed: list[Upload]
    has_log: bool


def find_left(context: JobContext, roots: Iterable[Destination] = ()) -> Left:
    """List what is left of jobs at a destination, and in stagings below other roots; read how far they are.

    The context is of a job with an id that nobody uses. Raises `InvalidRecord` for a damaged entry.
    """
    store, home, unnamed = context.store, context.layout.destination, list[Upload]()
    listed: dict[str, Found] = {}
    for upload in store.list_uploads(home.bucket, home.prefix):
        # A setup probes the store before it has a base: if its job were ended now, it would not notice.
        if (owner := owner_of(upload.key)) is None or upload.key.startswith(home.key(PROBES)):
            unnamed.append(upload)
            continue
        found = listed.setdefault(owner, Found(Layout.of(home, owner)))
        found.uploads.append(upload)
        found.saw(upload.initiated)
    for owner, objects in _strays(context).items():
        found = listed.setdefault(owner, Found(Layout.of(home, owner)))
        found.objects = objects
        found.saw(max(info.modified for info in objects))
    jobs = find_jobs(store, home, (home, *roots), known=listed)
    newest = newest_entry(store, home)
    for found in jobs.values():
        find_end(store, found, newest.entry if newest is not None else None)
        found.objects = list(written_here(context, found.job_id, found.objects))
    return Left(jobs, unnamed, newest is not None)


def judge(found: Found, now: float, older_than: float) -> tuple[Action | None, str]:
    """Return what to do with what is left of a job at the store's time, or None to leave it, and why."""
    silent, end = f"its last sign of life was {found.silent(now):.0f} s ago", found.end
    # Of a job with a record only the bucket of its staging can be gone, which nobody needs after its end.
    if found.problem and not (found.record and end):
        return None, f"its records cannot be read, so look and abort it: {found.problem}"
    if end is not None and end.kind == "abandon":
        return "abort", f"entry {end.number} has aborted it"
    if end is not None:
        beside = "no table has what is left of it; what s3commit verify names as left over, delete by hand"
        is_left = found.is_more_than_objects
        return ("finish", f"entry {end.number} has committed it") if is_left else (None, beside)
    if not found.is_more_than_objects and not found.objects:
        return None, "its files were copied here: no job of this destination wrote them"
    if found.silent(now) < older_than:
        return None, silent
    sealed = "it is sealed" if found.sealed is not None else "it is open"
    return "abort", f"{sealed if found.record else 'nobody knows it'}, and {silent}"


def carry_out(context: JobContext, found: Found, why: str) -> AbortReport:
    """End a job that is not to be left, or do again what follows its end; return what an abort has removed.

    Repeatable. The context is as for `find_left`; ``why`` is the reason of an abort, for the log. Raises
    `AlreadyCommitted` if a commit came in between, and wins: its job is finished the next time.
    """
    job, end = replace(context, layout=found.layout), found.end
    if found.record is not None:
        job = job.as_recorded(found.record)
    report = AbortReport(uploads=0, objects=0)
    if end is not None and end.kind == "commit":
        finish(job, end)
    else:
        report = undo(job, end) if end is not None else abort(job, why)
        with after_effect(f"{job.name} is aborted, and some of its files may be visible", "sweep again"):
            # What the job has in the destination beside its sealed files, which are gone by now.
            left = written_here(job, found.job_id, found.objects)
            late = delete_objects(job, (ObjectToDelete(info.key, info.etag) for info in left), "metadata")
        report = AbortReport(uploads=report.uploads, objects=report.objects + late)
    if end is not None and found.is_elsewhere:
        # A damaged record had hidden this staging from the end.
        staged = list_staging(job)
        abort_pending(job, staged)
        clean(job, end, staged)
    return report


def release(context: JobContext, now: float) -> int:
    """Release what has been retained for long enough, and delete all that was ever released.

    Repeatable by any process, also during jobs and rollbacks, and after any error. The context is as for
    `find_left`, and ``now`` the store's time. Returns how many objects were deleted.
    """
    store, home, log, deleted = context.store, context.layout.destination, Log(context), 0
    with naming(context, "release of retained files"):
        for _ in range(TRIES):
            log.read()
            if not log.head.number:
                return 0
            # Its version may be missing: a release has no job that a later sweep would finish.
            if (newest := log.read_newest()) is not None:
                publish_if_missing(context, newest)
            # What may go is worked out anew at each try: a rollback may have brought some of it back.
            table = read_table(store, home, log.head.number)
            # A release makes the table forget what the release before freed; so that is deleted first.
            deleted += _delete_freed(context, table)
            ages = retained_since(context, table, now)
            if not (frees := sorted(one for one, age in ages.items() if is_over(table.retained[one], age))):
                return deleted
            freeing = partial(entry_after, context, kind="release", frees=frees)
            if (entry := append(context, log, freeing)) is not None:
                logger.info("%s: released what generations %s took", home.uri, frees)
                publish(context, entry)
                write_checkpoint(store, home, entry)
                done = (
                    f"entry {entry.number} of the log of {home.uri} releases files, and not all are deleted"
                )
                with after_effect(done, "run it again"):
                    return deleted + _delete_freed(context, read_table(store, home, entry.number))
        raise Unavailable(
            f"{home.uri}: entries of jobs came first {TRIES} times; nothing is released, run it again"
        )


def retained_since(context: JobContext, table: Table, now: float) -> dict[int, float]:
    """Return for how many seconds each generation retains what it took, at the store's time."""
    return {generation: now - time for generation, time in entry_times(context, table.retained).items()}


def is_over(retained: Retained, age: float) -> bool:
    """Return whether files were retained for long enough."""
    return age > retained.seconds + STORE_CLOCK_SECONDS


def _delete_freed(context: JobContext, table: Table) -> int:
    doomed = (ObjectToDelete(info.key, info.etag) for info in freed_objects(context, table))
    return delete_objects(context, doomed, "entry")


def _strays(context: JobContext) -> dict[str, list[ObjectInfo]]:
    """Return the data objects with a job's id in their names that the table does not know, by job.

    The job may be open, its commit may be the newest entry without a receipt, or the object may be a copy.
    """
    store, home = context.store, context.layout.destination
    before = read_table(store, home)
    suspects = [
        info
        for info in data_objects(context, None)
        if (owner := owner_of(info.key)) and owner not in before.jobs_in(_partition(context, info))
    ]
    after = read_table(store, home) if suspects else before
    # Names of other programs' files, and of files that are older than the log, may have ids too.
    known = TableFiles.all_in(store, home, after, {_partition(context, info) for info in suspects})
    found: dict[str, list[ObjectInfo]] = {}
    for info in suspects:
        if (owner := owner_of(info.key)) is not None and info not in known:
            found.setdefault(owner, []).append(info)
    return found


def _partition(context: JobContext, info: ObjectInfo) -> str:
    return partition_of(context.layout.destination.relative(info.key) or "")

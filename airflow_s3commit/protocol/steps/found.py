"""Find the jobs of a destination by listings, and read how far each is. Changes nothing.

Listings come first, then each job's record by its key, then the log, then the job's receipt. In another order
a job that was set up or has ended in between would be taken for one that nobody knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from airflow_s3commit.exceptions import InvalidDestination, InvalidRecord, NoSuchKey
from airflow_s3commit.protocol.metadata.removal import check_place
from airflow_s3commit.protocol.model.codec import decode, largest
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.job import JobRecord
from airflow_s3commit.protocol.model.layout import MAGIC_PREFIX, Layout, is_id, job_key, open_jobs_prefix
from airflow_s3commit.protocol.model.table import Entry
from airflow_s3commit.protocol.steps.log import find_receipt
from airflow_s3commit.store.base import Fetched, Get, ObjectInfo, ObjectStore, Upload
from airflow_s3commit.store.execute import outcomes

_Listed: TypeAlias = tuple[str, str, ObjectInfo]


@dataclass
class Found:
    """A job, by what listings show of it and by its records. Times are by the store's clock.

    Attributes:
        layout: Its keys. Its staging is that of its record; without one the one that was listed.
        created: When its record was written; None without one.
        sealed: When it was sealed; None if it is not.
        newest: When the newest thing that was found of it was written.
        records: How many objects are in its staging and among the records of open jobs.
        is_hadoops: Whether Hadoop's committers have written in its staging, or it was adopted from them.
        record: Its record; None without one, or if that cannot be read.
        problem: Why its record or receipt cannot be read; empty if they can.
        end: The entry that ended the job; None if it has not ended.
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

    Args:
        home: The destination of the jobs.
        roots: Directories to search for stagings; by default only records are listed.
        job_id: The only job to look for; None for all.
        known: Jobs that other listings have shown; the others are added to them.

    Raises:
        S3CommitError: A request failed.
    """
    jobs = {} if known is None else known
    for root in dict.fromkeys(roots):
        for owner, _, info in _owned(store, root.bucket, root.key(MAGIC_PREFIX), job_id):
            found = jobs.setdefault(owner, Found(Layout.of(home, owner, root)))
            if not found.records:
                found.layout = Layout.of(home, owner, root)
            found.saw_staged(info)
    for owner, name, info in _owned(store, home.bucket, open_jobs_prefix(home), job_id):
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


def _owned(store: ObjectStore, bucket: str, prefix: str, job_id: str | None) -> Iterator[_Listed]:
    """Yield the objects below a prefix that is followed by a job's id: that, the rest of the key, and it."""
    for info in store.list_objects(bucket, prefix if job_id is None else f"{prefix}{job_id}/"):
        owner, slash, name = info.key[len(prefix) :].partition("/")
        if slash and is_id(owner):
            yield owner, name, info


def _take_record(store: ObjectStore, found: Found, read: Fetched | InvalidRecord, *, searched: bool) -> None:
    """Check a job's record, which names its staging; what is in that is a sign of life too."""
    home = found.layout.destination
    where = join_uri(home.bucket, job_key(home, found.job_id))
    try:
        if isinstance(read, InvalidRecord):
            raise read
        record = decode(JobRecord, read.body, where)
        layout = Layout(home, Destination.parse(record.staging), found.job_id)
        check_place(record, layout, where)
    except (InvalidDestination, InvalidRecord) as error:
        found.problem = str(error)
        return
    found.record, found.created = record, read.info.modified
    found.is_hadoops |= record.adopted
    found.saw(read.info.modified)
    if layout.staging != found.layout.staging:
        found.layout = layout
        for info in store.list_objects(layout.staging.bucket, layout.staging.prefix) if searched else ():
            found.saw_staged(info)


def find_end(store: ObjectStore, found: Found, newest: Entry | None) -> None:
    """Find the entry that ended a job: the newest of the log, which alone may lack its receipt, or that.

    Before: the job's record was read, then the newest entry; None without a log.
    """
    home = found.layout.destination
    try:
        is_newest = newest is not None and newest.job_id == found.job_id
        found.end = newest if is_newest else find_receipt(store, home, found.job_id)
        if found.end is not None and found.record is None and found.end.staging:
            found.layout = Layout(home, Destination.parse(found.end.staging), found.job_id)
    except (InvalidDestination, InvalidRecord) as error:
        found.problem = str(error)

"""Find the jobs of a destination with records of their own: those that are not ended, or not cleaned up."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from airflow_s3commit.exceptions import InvalidDestination, InvalidRecord
from airflow_s3commit.protocol.inspect.staging import is_id
from airflow_s3commit.protocol.metadata.records import fetch_listed
from airflow_s3commit.protocol.model.codec import decode, largest
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.job import JobRecord
from airflow_s3commit.protocol.model.layout import MAGIC_PREFIX, Layout, open_jobs_prefix, open_prefix
from airflow_s3commit.store.base import Fetched, ObjectStore

logger = logging.getLogger(__name__)


@dataclass
class OpenJob:
    """A job with records among those of open jobs. Times are by the store's clock.

    Attributes:
        job_id: The job.
        created: When it was set up; None if its own record is missing.
        sealed: When it was sealed; None if it is not.
        newest: When the newest of its records was written.
        record: Its own record; None if it is missing or cannot be read.
        problem: Why it cannot be read; empty if it can, or is missing.

    """

    job_id: str
    created: float | None = None
    sealed: float | None = None
    newest: float = 0.0
    record: JobRecord | None = None
    problem: str = ""

    def staging(self, home: Destination) -> Destination:
        """Return the job's staging; it is at the default place if the record does not tell."""
        if self.record is None:
            return home.below(MAGIC_PREFIX + self.job_id)
        return Destination.parse(self.record.staging)


def find_open(store: ObjectStore, home: Destination, job_id: str | None = None) -> list[OpenJob]:
    """Return the jobs that have records of their own, in order of their ids. Reads only.

    One listing, and one request for each job.

    Args:
        store: The store of the destination.
        home: The destination of the jobs.
        job_id: The only job to look for; None for all.

    Raises:
        S3CommitError: A request failed.

    """
    prefix = open_jobs_prefix(home)
    found: dict[str, OpenJob] = {}
    own = []
    for info in store.list_objects(home.bucket, prefix if job_id is None else open_prefix(home, job_id)):
        owner, slash, name = info.key[len(prefix) :].partition("/")
        if not slash or not is_id(owner):
            continue
        job = found.setdefault(owner, OpenJob(owner))
        job.newest = max(job.newest, info.modified)
        if name == "job.json":
            job.created = info.modified
            own.append(info)
        elif name == "sealed.json":
            job.sealed = info.modified
    for info, outcome in fetch_listed(store, home.bucket, own, lambda _: largest(JobRecord)):
        job = found[info.key[len(prefix) :].partition("/")[0]]
        where = join_uri(home.bucket, info.key)
        try:
            job.record = _checked(job.job_id, home, outcome, where)
        except (InvalidDestination, InvalidRecord) as error:
            job.problem = str(error)
    return [found[owner] for owner in sorted(found)]


def open_jobs(store: ObjectStore, home: Destination) -> list[JobRecord]:
    """Return the records of the jobs that still have one, in order of their ids. Reads only.

    A record that is damaged or was copied here is left out, with a warning: nobody knows whose it is.

    Args:
        store: The store of the destination.
        home: The destination of the jobs.

    Raises:
        S3CommitError: A request failed.

    """
    found = find_open(store, home)
    for job in found:
        if job.problem:
            logger.warning("it is unknown whose job this is: %s", job.problem)
    return [job.record for job in found if job.record is not None]


def _checked(job_id: str, home: Destination, outcome: Fetched | InvalidRecord, where: str) -> JobRecord:
    if isinstance(outcome, InvalidRecord):
        raise outcome
    record = decode(JobRecord, outcome.body, where)
    if (record.job_id, record.destination) != (job_id, home.uri):
        raise InvalidRecord(
            f"{where} is of job {record.job_id} on {record.destination}: it was copied here, and nobody acts"
            " on it"
        )
    # Raises if the staging is not one of the job.
    Layout(home, Destination.parse(record.staging), job_id)
    return record

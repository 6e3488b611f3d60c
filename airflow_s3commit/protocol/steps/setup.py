"""Set up a job: create its record. The first setup at a destination begins the log."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress

from msgspec import UNSET

from airflow_s3commit.exceptions import (
    AlreadyCommitted,
    InvalidRecord,
    JobClosed,
    JobMismatch,
    NoSuchJob,
    PreconditionFailed,
)
from airflow_s3commit.protocol.metadata import records
from airflow_s3commit.protocol.metadata.context import JobContext, naming
from airflow_s3commit.protocol.metadata.records import Stored
from airflow_s3commit.protocol.metadata.removal import delete_record
from airflow_s3commit.protocol.model.destination import join_uri
from airflow_s3commit.protocol.model.job import JobOptions
from airflow_s3commit.protocol.model.layout import check_new_id
from airflow_s3commit.protocol.model.places import OLDER_DATA, job_key
from airflow_s3commit.protocol.model.sealed_job import Counts
from airflow_s3commit.protocol.steps.entry import Commit, Entry, OpenJob, Position
from airflow_s3commit.protocol.steps.files import list_older_data, write_list
from airflow_s3commit.protocol.steps.log import Log, find_receipt

logger = logging.getLogger(__name__)


def set_up(context: JobContext, options: JobOptions, facts: Mapping[str, str]) -> OpenJob:
    """Create a job's record, unless a job with its id has ended; begin the log if there is none.

    Repeatable by any process: with the same options it returns the record that is there.

    Args:
        context: The job.
        options: How it commits.
        facts: Facts of the orchestrator to keep with it.

    Raises:
        InvalidRecord: The id is no UUID; or the log is damaged, or was copied here.
        JobMismatch: A job with this id is open, with other options.
        AlreadyCommitted: A job with this id is committed.
        JobClosed: A job with this id was aborted.

    """
    with naming(context, "setup"):
        check_new_id(context.job_id)
        log = Log(context)
        begin_log(context, log)
        # The newest entry first: it alone may lack its receipt.
        refuse_ended(context, log.end or find_end(context))
        record = OpenJob(
            **context.layout.place,
            options=options,
            context=dict(facts),
            base=log.head,
            created=context.now_ms(),
            nonce=context.new_id(),
        )
        key = job_key(context.layout.destination, context.job_id)
        stored = records.create(context.store, context.bucket, key, record)
        found = _checked(context, stored.record)
        if found.options != options:
            raise JobMismatch(
                f"{context.name} is open with other options: {found.options}; give the new job another id"
            )
        # Write, then look: another process may have ended the job since the first look.
        if (end := find_end(context)) is not None:
            if found.nonce == record.nonce:
                with suppress(PreconditionFailed):
                    delete_record(context, context.bucket, key, if_match=stored.etag)
            refuse_ended(context, end)
        return found


def begin_log(context: JobContext, log: Log) -> None:
    """Read a log to its end, after creating its first entry if there is none. Repeatable.

    That entry lists the data that is there, or nothing. It is made before any upload is completed there:
    otherwise a job's file could enter the table twice, or stay in it after an abort.

    Raises:
        InvalidDestination: There is no log, and another dataset lies below the destination.

    """
    log.read()
    if log.head.number:
        return
    files = list_older_data(context)
    write_list(context, files, OLDER_DATA)
    counts, within = files.counts(), files.short()
    commit = Commit(
        mode=OLDER_DATA,
        partitions=counts,
        counts=Counts.total(counts.values()),
        files_sha256=files.sha256,
        within=UNSET if within is None else within,
    )

    def first(_: Position) -> Entry:
        return Entry(
            destination=context.layout.destination.uri,
            number=1,
            kind="commit",
            since=context.now_ms(),
            commit=commit,
            nonce=context.new_id(),
        )

    log.append(first)
    log.read()


def find_job(context: JobContext) -> Stored[OpenJob] | None:
    """Read a job's record; None if the job was never set up, or has ended and is cleaned up.

    Raises:
        InvalidRecord: It is damaged, or was copied here.

    """
    key = job_key(context.layout.destination, context.job_id)
    stored = records.find(context.store, context.bucket, key, OpenJob)
    if stored is not None:
        _checked(context, stored.record)
    return stored


def load_job(context: JobContext) -> OpenJob:
    """Read the record of a job that has not ended.

    Raises:
        AlreadyCommitted: It is committed.
        JobClosed: It is aborted.
        NoSuchJob: It was never set up.
        InvalidRecord: Its record is damaged, or was copied here.

    """
    stored = find_job(context)
    refuse_ended(context, find_end(context))
    if stored is None:
        raise NoSuchJob(f"{context.name} was never set up; see: s3commit jobs")
    return stored.record


def find_end(context: JobContext) -> Entry | None:
    """Return the entry that ended the job, by its receipt; None if the job has none."""
    return find_receipt(context.store, context.layout.destination, context.job_id)


def refuse_ended(context: JobContext, end: Entry | None) -> None:
    """Raise if a job has ended: it takes no more output.

    Raises:
        AlreadyCommitted: It is committed.
        JobClosed: It is aborted.

    """
    if end is None:
        return
    if end.kind == "commit":
        raise AlreadyCommitted(f"{context.name} is committed, as entry {end.number} of the log")
    why = f" ({end.why})" if end.why else ""
    raise JobClosed(f"{context.name} is aborted{why}: nothing of it is or will become visible")


def _checked(context: JobContext, record: OpenJob) -> OpenJob:
    layout = context.layout
    if (record.job_id, record.destination) != (layout.job_id, layout.destination.uri):
        where = join_uri(context.bucket, job_key(layout.destination, layout.job_id))
        raise InvalidRecord(f"{where} is of job {record.job_id} on {record.destination}: it was copied here")
    if record.staging != layout.staging.uri:
        raise JobMismatch(f"{context.name} has its staging at {record.staging}, not at {layout.staging.uri}")
    return record

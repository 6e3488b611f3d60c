"""Tell how far a job is, by its records and by the log. Changes nothing."""

from __future__ import annotations

from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.listing import data_objects
from airflow_s3commit.protocol.metadata.sealed_job import find_seal
from airflow_s3commit.protocol.model.entry import Entry
from airflow_s3commit.protocol.model.job import JobRecord, JobState
from airflow_s3commit.protocol.model.layout import owner_of
from airflow_s3commit.protocol.steps.log import Log
from airflow_s3commit.protocol.steps.setup import find_end, find_job


def find_state(context: JobContext) -> JobState | None:
    """Return how far a job is; None if it was never set up.

    Raises:
        InvalidRecord: A record is damaged, or was copied here.

    """
    stored = find_job(context)
    job = stored.record if stored is not None else None
    end = look_up_end(context, job)
    if end is not None:
        return JobState(
            state="committed" if end.kind == "commit" else "aborted",
            generation=end.number if end.kind == "commit" else None,
            since=end.since,
            reason=end.why,
            finished=job is None,
        )
    if job is None:
        return None
    seal = find_seal(context)
    if seal is not None:
        return JobState(state="sealed", since=seal.record.created)
    return JobState(state="open", since=job.created)


def look_up_end(context: JobContext, job: JobRecord | None) -> Entry | None:
    """Return the entry that ended a job; None if it has not ended.

    Args:
        context: The job.
        job: Its record; None without one.

    Raises:
        InvalidRecord: An entry or the receipt is damaged.

    """
    # The newest entry first: it alone may lack its receipt.
    log = Log(context, job.base if job is not None else None)
    log.read()
    return log.end or find_end(context)


def is_publishing(context: JobContext) -> bool:
    """Return whether some of a sealed job's files are objects already. Lists the partitions of the seal."""
    seal = find_seal(context)
    if seal is None:
        return False
    if context.record is not None and context.record.adopted:
        return True
    listed = data_objects(context, list(seal.record.partitions))
    return any(owner_of(info.key) == context.job_id for info in listed)

"""Read a job's own record."""

from __future__ import annotations

from airflow_s3commit.protocol.metadata import records
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.state import unknown
from airflow_s3commit.protocol.model.job import JobRecord
from airflow_s3commit.protocol.model.ownership import check_place


def find_job(context: JobContext) -> JobRecord | None:
    """Read a job's record; None if it does not exist.

    Raises:
        InvalidRecord: It is damaged, another job's or destination's, or was copied here.

    """
    stored = records.find(
        context.store, context.staging_bucket, context.layout.job, JobRecord, signer=context.signer
    )
    if stored is None:
        return None
    check_place(stored.record, context.layout, context.staging_uri(context.layout.job))
    return stored.record


def load_job(context: JobContext) -> JobRecord:
    """Return a job's record: the context's own, which never changes, or as it is read.

    Raises:
        NoSuchJob: It does not exist.
        InvalidRecord: It is damaged, another job's or destination's, or was copied here.

    """
    record = context.record or find_job(context)
    if record is None:
        raise unknown(context)
    return record

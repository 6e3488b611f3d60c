"""Finds the jobs of a destination that have not ended, for a setup that looks for those of its own task."""

from __future__ import annotations

import logging

from airflow_s3commit.exceptions import InvalidRecord
from airflow_s3commit.protocol.metadata.records import fetch_listed
from airflow_s3commit.protocol.model.codec import decode, largest
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.job import JobRecord
from airflow_s3commit.protocol.model.layout import MAGIC_PREFIX, Layout
from airflow_s3commit.protocol.model.ownership import check_place
from airflow_s3commit.store.base import ObjectStore

logger = logging.getLogger(__name__)


def open_jobs(
    store: ObjectStore, destination: Destination, staging_root: Destination | None = None
) -> list[JobRecord]:
    """Return the records of the destination's jobs that still have one, in order of their ids. Reads only.

    These are the jobs that have not ended, and those whose clean-up is unfinished. One listing, and one
    request for each job. A damaged or copied record is left out, with a warning: nobody knows whose it is.

    Args:
        store: The store of the destination.
        destination: The destination of the jobs.
        staging_root: The root of the jobs' staging, if not the destination.

    Raises:
        S3CommitError: A request failed.

    """
    root = staging_root or destination
    prefix = root.key(MAGIC_PREFIX)
    listed = (
        info
        for info in store.list_objects(root.bucket, prefix)
        if info.key[len(prefix) :].partition("/")[2] == "job.json"
    )
    found = []
    for info, outcome in fetch_listed(store, root.bucket, listed, lambda _: largest(JobRecord)):
        where = join_uri(root.bucket, info.key)
        try:
            if isinstance(outcome, InvalidRecord):
                raise outcome
            record = decode(JobRecord, outcome.body, where)
            if record.destination == destination.uri:
                job_id = info.key[len(prefix) :].partition("/")[0]
                check_place(record, Layout.of(destination, job_id, staging_root), where)
                found.append(record)
        except InvalidRecord:
            logger.warning("%s cannot be read, so it is unknown whose job it is", where, exc_info=True)
    return sorted(found, key=lambda record: record.job_id)

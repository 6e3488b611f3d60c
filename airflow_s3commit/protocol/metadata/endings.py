"""The manifest or abort record of a job, which follows from its entry in the log."""

from __future__ import annotations

from contextlib import suppress

from airflow_s3commit.exceptions import PreconditionFailed
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.model.codec import encode
from airflow_s3commit.protocol.model.layout import aborted_prefix, manifests_prefix
from airflow_s3commit.protocol.model.log import LogEntry


def record_ending(context: JobContext, entry: LogEntry) -> None:
    """Write the manifest or abort record that an entry of any job holds, unless it is there. Repeatable.

    Raises:
        OutcomeUnknown: The response was lost.

    """
    store, destination = context.store, context.layout.destination
    record = entry.manifest or entry.aborted
    if record is None:
        return
    prefix = manifests_prefix(destination) if entry.kind == "commit" else aborted_prefix(destination)
    key, body = f"{prefix}{entry.job_id}.json", encode(record)
    with suppress(PreconditionFailed):
        store.put(destination.bucket, key, body, if_none_match=True)

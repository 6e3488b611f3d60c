"""The lasting records of aborted jobs, and when they have lasted long enough.

Such a record keeps a process that slept through the abort from setting its job up anew. It may go when no
such process can be expected any more, and nothing at the destination carries the job's id.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from airflow_s3commit.protocol.destination import Destination, join_uri
from airflow_s3commit.protocol.layout import aborted_prefix, owner_of
from airflow_s3commit.protocol.staging import StagingFolder
from airflow_s3commit.protocol.sweep_plan import SpentId
from airflow_s3commit.store.base import ObjectStore, Upload

__all__ = ["SPENT_SECONDS", "spent_ids"]

#: How long at least the record of an aborted job stays: 30 days.
SPENT_SECONDS = 30 * 86_400.0


def spent_ids(
    store: ObjectStore,
    destination: Destination,
    *,
    now: float | None,
    older_than: float,
    folders: Iterable[StagingFolder],
    uploads: Sequence[Upload],
) -> Iterator[SpentId]:
    """Yield the records of aborted jobs that may be removed.

    Args:
        store: Where everything is.
        destination: The destination.
        now: The store's time, in seconds since the epoch; None if nothing tells it: then there is nothing.
        older_than: Seconds that a record must be old, beyond `SPENT_SECONDS`.
        folders: The staging folders that are there: their jobs are not over.
        uploads: The uploads that are pending below the destination.

    """
    if now is None:
        return
    prefix, known = aborted_prefix(destination), {folder.job_id for folder in folders}
    for info in store.list_objects(destination.bucket, prefix):
        job_id, age = info.key.removeprefix(prefix).removesuffix(".json"), now - info.modified
        if age < max(older_than, SPENT_SECONDS) or job_id in known:
            continue
        if not any(owner_of(upload.key) == job_id for upload in uploads):
            uri = join_uri(destination.bucket, info.key)
            yield SpentId(job_id=job_id, uri=uri, etag=info.etag, age=age)

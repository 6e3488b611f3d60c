"""What was uploaded so far of pending uploads: their parts, asked for many uploads at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

from airflow_s3commit.exceptions import NoSuchUpload
from airflow_s3commit.protocol.removal import PendingId
from airflow_s3commit.store.base import ObjectStore, Part
from airflow_s3commit.store.calls import in_batches

__all__ = ["Parts", "pending_parts"]

#: The parts of an upload, in order; None if the store does not know the upload (any more).
Parts: TypeAlias = list[Part] | None

_BATCH = 1_000


def pending_parts(
    store: ObjectStore, uploads: Iterable[PendingId], *, threads: int = 16
) -> Iterator[tuple[PendingId, Parts]]:
    """Yield each upload with its parts, in the order given.

    Args:
        store: The store.
        uploads: Which ones.
        threads: How many are asked about at once; 0 asks in the caller's thread.

    Raises:
        S3CommitError: The store could not be asked.

    """

    def parts_of(upload: PendingId) -> tuple[PendingId, Parts]:
        try:
            parts = list(store.list_parts(upload.bucket, upload.key, upload.upload_id))
        except NoSuchUpload:
            return upload, None
        return upload, sorted(parts, key=lambda part: part.number)

    if not threads:
        yield from map(parts_of, uploads)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="s3commit-parts") as pool:
        for batch in in_batches(uploads, _BATCH):
            yield from pool.map(parts_of, batch)

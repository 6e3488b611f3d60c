"""Complete pending uploads in bulk, and read their parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from airflow_s3commit.exceptions import (
    JobFailed,
    NoSuchKey,
    NoSuchUpload,
    OutcomeUnknown,
    S3CommitError,
    StoreRejected,
)
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.removal import PendingId
from airflow_s3commit.protocol.model.codec import text_digest
from airflow_s3commit.protocol.model.destination import join_uri
from airflow_s3commit.protocol.model.ownership import is_ours
from airflow_s3commit.protocol.model.pendingset import PendingUpload
from airflow_s3commit.store.base import Complete, Head, ObjectInfo, ObjectStore, Part
from airflow_s3commit.store.execute import in_batches, in_threads, outcomes

_BATCH = 1_000


def complete_uploads(
    context: JobContext, uploads: Iterable[PendingUpload], lost: set[str] | None = None
) -> Iterator[PendingUpload]:
    """Complete every upload, and yield each completed one.

    Before: the job is ``committing``. After: every object exists. Repeatable: a HEAD of the object
        recognises an
    upload that was completed before.

    Args:
        context: The job.
        uploads: The uploads.
        lost: Collects the keys of uploads that are gone without their objects, instead of an error.

    Raises:
        JobFailed: An upload is gone, and its object is missing or another writer's; or the store rejects its
            parts.
        S3CommitError: A request failed; call it again.

    """
    calls = (
        (upload, Complete(upload.bucket, upload.destinationKey, upload.uploadId, upload.part_etags))
        for upload in uploads
    )
    doubtful: list[PendingUpload] = []
    for upload, outcome in outcomes(context.store, calls, NoSuchUpload, OutcomeUnknown, StoreRejected):
        # Some stores fail, time after time, to complete an upload that was completed or aborted before.
        if isinstance(outcome, OutcomeUnknown) and _is_completed(context, upload):
            yield upload
        elif isinstance(outcome, NoSuchUpload) or (
            isinstance(outcome, OutcomeUnknown) and _is_gone(context, upload)
        ):
            doubtful.append(upload)
            if len(doubtful) >= _BATCH:
                yield from _check_objects(context, doubtful, lost)
                doubtful.clear()
        elif isinstance(outcome, OutcomeUnknown):
            raise outcome
        elif isinstance(outcome, StoreRejected):
            raise JobFailed(
                f"{context.name}: the store rejects the parts of {_name(upload)}: {outcome}"
            ) from outcome
        else:
            yield upload
    yield from _check_objects(context, doubtful, lost)


def find_gone(context: JobContext, uploads: Iterable[PendingUpload]) -> PendingUpload | None:
    """Return an upload that can never be completed: it is not pending, and its object is not there; or None.

    Takes a listing of the destination's uploads, and further requests only for those that it lacks.

    Args:
        context: The job.
        uploads: The uploads.

    Raises:
        S3CommitError: A request failed.

    """
    store, home = context.store, context.layout.destination
    pending = {
        text_digest(f"{one.key}\0{one.upload_id}") for one in store.list_uploads(home.bucket, home.prefix)
    }
    absent = (
        upload
        for upload in uploads
        if text_digest(f"{upload.destinationKey}\0{upload.uploadId}") not in pending
    )
    for batch in in_batches(absent, _BATCH):
        ids = [PendingId.of(upload) for upload in batch]
        for upload, (_, parts) in zip(batch, pending_parts(store, ids, threads=context.threads), strict=True):
            if parts is None and not _is_completed(context, upload):
                return upload
    return None


def _is_completed(context: JobContext, upload: PendingUpload) -> bool:
    try:
        return is_ours(upload, context.store.head(upload.bucket, upload.destinationKey))
    except NoSuchKey:
        return False


def _is_gone(context: JobContext, upload: PendingUpload) -> bool:
    """Return whether an upload is certainly not pending: then its object says how it ended."""
    try:
        list(context.store.list_parts(upload.bucket, upload.destinationKey, upload.uploadId))
    except NoSuchUpload:
        return True
    except S3CommitError:
        # The completion's own error is the one to raise.
        return False
    return False


def _check_objects(
    context: JobContext, doubtful: list[PendingUpload], lost: set[str] | None
) -> Iterator[PendingUpload]:
    """HEAD the object of each upload that is gone, to see whether it was completed."""
    calls = [(upload, Head(upload.bucket, upload.destinationKey)) for upload in doubtful]
    for upload, outcome in outcomes(context.store, calls, NoSuchKey):
        is_there = isinstance(outcome, ObjectInfo) and is_ours(upload, outcome)
        if not is_there and lost is not None:
            lost.add(upload.destinationKey)
            continue
        if isinstance(outcome, NoSuchKey):
            raise JobFailed(
                f"{context.name}: the upload of {_name(upload)} is gone and no object is there:"
                " it was aborted, or a lifecycle rule removed it"
            )
        if not is_there:
            raise JobFailed(f"{context.name}: {_name(upload)} is an object of someone else")
        yield upload


def _name(upload: PendingUpload) -> str:
    return join_uri(upload.bucket, upload.destinationKey)


#: The parts of an upload, in order; None if the upload does not exist.
Parts: TypeAlias = list[Part] | None


def pending_parts(
    store: ObjectStore, uploads: Iterable[PendingId], *, threads: int = 16
) -> Iterator[tuple[PendingId, Parts]]:
    """Yield each upload with its parts, in the given order.

    Args:
        store: The store.
        uploads: The uploads.
        threads: Number of concurrent requests; 0 sends them in the caller's thread.

    Raises:
        S3CommitError: A request failed.

    """

    def parts_of(upload: PendingId) -> tuple[PendingId, Parts]:
        try:
            parts = list(store.list_parts(upload.bucket, upload.key, upload.upload_id))
        except NoSuchUpload:
            return upload, None
        return upload, sorted(parts, key=lambda part: part.number)

    return in_threads(parts_of, uploads, threads)

"""Completing pending uploads in bulk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from airflow_s3commit.exceptions import JobFailed, NoSuchKey, NoSuchUpload, S3CommitError, StoreRejected
from airflow_s3commit.protocol.context import JobContext
from airflow_s3commit.protocol.destination import join_uri
from airflow_s3commit.protocol.ownership import is_ours
from airflow_s3commit.protocol.pendingset import PendingUpload
from airflow_s3commit.store.base import Complete, Head, ObjectInfo

__all__ = ["complete_uploads"]

_BATCH = 1_000


def complete_uploads(context: JobContext, uploads: Iterable[PendingUpload]) -> Iterator[PendingUpload]:
    """Complete every upload, as fast as the store takes them, and yield each one that is.

    Before: the job is ``committing``. After: every object is there. Run again: uploads that are complete are
    recognised by a HEAD of their object.

    Raises:
        JobFailed: An upload is gone and its object is not there, or is somebody else's; or the store rejects
            its parts.
        S3CommitError: The store could not be asked; run it again.

    """
    calls = (
        (upload, Complete(upload.bucket, upload.destinationKey, upload.uploadId, upload.part_etags))
        for upload in uploads
    )
    doubtful: list[PendingUpload] = []
    for upload, outcome in context.store.perform(calls):
        if isinstance(outcome, NoSuchUpload):
            doubtful.append(upload)
            if len(doubtful) >= _BATCH:
                yield from _look_at(context, doubtful)
                doubtful.clear()
        elif isinstance(outcome, StoreRejected):
            raise JobFailed(
                f"{context.name}: the store rejects the parts of {_name(upload)}: {outcome}"
            ) from outcome
        elif isinstance(outcome, S3CommitError):
            raise outcome
        else:
            yield upload
    yield from _look_at(context, doubtful)


def _look_at(context: JobContext, doubtful: list[PendingUpload]) -> Iterator[PendingUpload]:
    """Decide about uploads that the store does not know any more, by looking at their objects."""
    calls = [(upload, Head(upload.bucket, upload.destinationKey)) for upload in doubtful]
    for upload, outcome in context.store.perform(calls):
        if isinstance(outcome, NoSuchKey):
            raise JobFailed(
                f"{context.name}: the upload of {_name(upload)} is gone and no object is there:"
                " it was aborted, or a lifecycle rule removed it"
            )
        if isinstance(outcome, S3CommitError):
            raise outcome
        if not (isinstance(outcome, ObjectInfo) and is_ours(upload, outcome)):
            raise JobFailed(f"{context.name}: {_name(upload)} is an object of someone else")
        yield upload


def _name(upload: PendingUpload) -> str:
    return join_uri(upload.bucket, upload.destinationKey)

"""What happens to pending uploads in bulk: completing them, finding out whose an object is, aborting them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from airflow_s3commit.exceptions import (
    JobFailed,
    NoSuchKey,
    NoSuchUpload,
    OutcomeUnknown,
    S3CommitError,
    StoreRejected,
    Unavailable,
)
from airflow_s3commit.protocol.context import JobContext
from airflow_s3commit.protocol.destination import join_uri
from airflow_s3commit.protocol.pendingset import PendingUpload
from airflow_s3commit.protocol.upload import UPLOAD_METADATA
from airflow_s3commit.store.base import Abort, Complete, DeleteFailure, DeleteMany, Doomed, Head, ObjectInfo
from airflow_s3commit.store.calls import in_batches

__all__ = [
    "PendingId",
    "abort_uploads",
    "complete_uploads",
    "delete_objects",
    "delete_ours",
    "is_ours",
]

logger = logging.getLogger(__name__)

_BATCH = 1_000

#: Bulk deletes that are under way at once: each counts as a thousand against the store's limits.
_BULK_DELETES_AT_ONCE = 4

#: Why a store leaves an object of a bulk delete for now, and the seconds to wait before it is asked again.
_INTERNAL = "InternalError"
_BUSY = frozenset({_INTERNAL, "ServiceUnavailable", "SlowDown"})
_BUSY_PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0)


@dataclass(frozen=True, slots=True)
class PendingId:
    """Which upload: all that aborting it takes."""

    bucket: str
    key: str
    upload_id: str

    @classmethod
    def of(cls, upload: PendingUpload) -> PendingId:
        """Return the id of a recorded upload."""
        return cls(upload.bucket, upload.destinationKey, upload.uploadId)


def is_ours(upload: PendingUpload, standing: ObjectInfo) -> bool:
    """Tell whether an object is this upload, completed.

    By the id that the upload was created with; for uploads of Hadoop, which have none, by the ETag that
    follows from its parts.
    """
    if upload.s3commit is not None:
        return standing.metadata.get(UPLOAD_METADATA) == upload.s3commit.upload
    expected = upload.expected_etag
    return bool(expected) and standing.etag == expected and standing.size == upload.length


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


def delete_ours(context: JobContext, uploads: Iterable[PendingUpload]) -> int:
    """Abort every upload, then delete every object that one of them became; return how many were deleted.

    An object is deleted only after its upload was aborted, so that nobody can complete it any more, and
    only if it is provably this upload's.
    """
    deleted = 0
    for batch in in_batches(uploads, _BATCH):
        abort_uploads(context, map(PendingId.of, batch))
        doomed = []
        for upload, outcome in context.store.perform(
            [(upload, Head(upload.bucket, upload.destinationKey)) for upload in batch]
        ):
            if isinstance(outcome, ObjectInfo) and is_ours(upload, outcome):
                doomed.append(Doomed(upload.destinationKey, outcome.etag))
            elif isinstance(outcome, S3CommitError) and not isinstance(outcome, NoSuchKey):
                raise outcome
        deleted += delete_objects(context, doomed)
    return deleted


def delete_objects(context: JobContext, doomed: Iterable[Doomed]) -> int:
    """Delete the objects of the destination that still have their ETags, and return how many that were.

    Any number of them: a thousand go into a request, a few requests are under way at once. What the store
    was too busy for is deleted again after a pause.

    Raises:
        StoreRejected: The store left an object for another reason than that it changed.
        Unavailable: The store stays too busy for some of them.
        OutcomeUnknown: The same, and of some it does not tell whether they are gone.

    """
    deleted = 0
    for batch in in_batches(doomed, _BATCH * _BULK_DELETES_AT_ONCE):
        left = batch
        for pause in (*_BUSY_PAUSES, None):
            failed = _delete_batch(context, left)
            deleted += len(left) - len(failed)
            busy = {failure.key: failure.code for failure in failed if failure.code in _BUSY}
            left = [target for target in left if target.key in busy]
            if not left:
                break
            if pause is None:
                # An internal error leaves open whether the object is gone.
                kind = OutcomeUnknown if _INTERNAL in busy.values() else Unavailable
                raise kind(
                    f"{context.name}: the store is too busy to delete {len(left)} objects; run the step again"
                )
            context.clock.sleep(pause)
    return deleted


def _delete_batch(context: JobContext, doomed: list[Doomed]) -> list[DeleteFailure]:
    """Delete up to a few thousand objects; return those that were left, because they changed or for now."""
    calls = (
        (number, DeleteMany(context.bucket, batch)) for number, batch in enumerate(in_batches(doomed, _BATCH))
    )
    failures: list[DeleteFailure] = []
    for _, outcome in context.store.perform(calls):
        if isinstance(outcome, S3CommitError):
            raise outcome
        assert isinstance(outcome, list)
        failures += outcome
    for failure in failures:
        if failure.code == "PreconditionFailed":
            logger.warning("%s: left %s, which was changed by someone else", context.name, failure.key)
        elif failure.code not in _BUSY:
            where = join_uri(context.bucket, failure.key)
            raise StoreRejected(
                f"{context.name}: could not delete {where}: {failure.code} {failure.message}; run the"
                f" step again",
                code=failure.code,
            )
    return failures


def abort_uploads(context: JobContext, uploads: Iterable[PendingId]) -> int:
    """Abort every upload and return how many that were; all are tried before an error is raised."""
    calls = ((upload, Abort(upload.bucket, upload.key, upload.upload_id)) for upload in uploads)
    done, failed = 0, 0
    first: S3CommitError | None = None
    for upload, outcome in context.store.perform(calls):
        if isinstance(outcome, S3CommitError) and not isinstance(outcome, NoSuchUpload):
            logger.warning("%s: could not abort the upload of %s: %s", context.name, upload.key, outcome)
            first, failed = first or outcome, failed + 1
        else:
            done += 1
    if first is not None:
        first.add_note(f"{failed} uploads could not be aborted and may stay pending; {done} were aborted")
        raise first
    return done


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

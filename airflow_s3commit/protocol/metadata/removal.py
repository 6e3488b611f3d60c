"""The only module of the protocol that destroys: it aborts uploads and deletes objects, records and staging.

Each of them must pass `ownership.why_not`; what it refuses is left, with a warning. (Two exceptions: `sweep`
aborts uploads that no job claims, and probes of a store remove what they created.)
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from airflow_s3commit.exceptions import (
    InvalidRecord,
    NoSuchKey,
    NoSuchUpload,
    OutcomeUnknown,
    PreconditionFailed,
    S3CommitError,
    StoreRejected,
    Unavailable,
)
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.store_check import look_at_bulk_deletes
from airflow_s3commit.protocol.model.destination import join_uri
from airflow_s3commit.protocol.model.ownership import Proof, Thing, is_ours, why_not
from airflow_s3commit.protocol.model.pendingset import PendingUpload
from airflow_s3commit.store.base import (
    Abort,
    DeleteFailure,
    DeleteMany,
    Head,
    ObjectInfo,
    ObjectStore,
    ObjectToDelete,
)
from airflow_s3commit.store.execute import in_batches, outcomes

logger = logging.getLogger(__name__)

_BATCH = 1_000

#: Concurrent bulk deletes: each counts as a thousand requests against the store's limits.
_BULK_DELETES_AT_ONCE = 4

#: Temporary failures of single objects of a bulk delete, and the seconds to wait before each retry.
_INTERNAL = "InternalError"
_BUSY = frozenset(
    {_INTERNAL, "ConditionalRequestConflict", "OperationAborted", "ServiceUnavailable", "SlowDown"}
)
_BUSY_PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0)


@dataclass(frozen=True, slots=True)
class PendingId:
    """Id of a pending upload, with the proof that it is the job's."""

    bucket: str
    key: str
    upload_id: str
    proof: Proof = "name"

    @classmethod
    def of(cls, upload: PendingUpload) -> PendingId:
        """Return the id of a recorded upload."""
        return cls(upload.bucket, upload.destinationKey, upload.uploadId, "record")


def abort_upload(context: JobContext, key: str, upload_id: str) -> None:
    """Abort an upload that this process started. Repeatable: an unknown upload counts as aborted.

    Raises:
        S3CommitError: The request failed, or was refused.

    """
    _require(context, Thing("upload", context.bucket, key, "writer"))
    context.store.abort_upload(context.bucket, key, upload_id)


def delete_record(context: JobContext, bucket: str, key: str, *, if_match: str | None = None) -> None:
    """Delete a record of the job. Repeatable: a missing one counts as deleted.

    Raises:
        InvalidRecord: It is not the job's.
        PreconditionFailed: It has another ETag than ``if_match``.
        S3CommitError: The request failed, or was refused.

    """
    _require(context, Thing("record", bucket, key, "staging"))
    context.store.delete(bucket, key, if_match=if_match)


def forget_destination(store: ObjectStore, bucket: str, key: str, etag: str) -> bool:
    """Delete a destination's object in a registry; its next job creates it again. Return whether it is gone.

    Raises:
        S3CommitError: The request failed, or was refused.

    """
    try:
        store.delete(bucket, key, if_match=etag)
    except PreconditionFailed:
        return False
    return True


def delete_records(context: JobContext, keys: Iterable[str]) -> None:
    """Delete objects of the job's staging, a thousand per request.

    Raises:
        InvalidRecord: A key is not in the staging.
        StoreRejected: The store refused to delete one.

    """
    for batch in in_batches(keys, _BATCH):
        for key in batch:
            _require(context, Thing("record", context.staging_bucket, key, "staging"))
        failures = context.store.delete_many(context.staging_bucket, [ObjectToDelete(key) for key in batch])
        if failures:
            first = failures[0]
            raise StoreRejected(
                f"{context.name}: could not delete {context.staging_uri(first.key)}:"
                f" {first.code} {first.message}",
                code=first.code,
            )


def delete_ours(
    context: JobContext, uploads: Iterable[PendingUpload], kept: Container[tuple[str, str]] = ()
) -> tuple[int, int]:
    """Abort uploads that Hadoop named, and delete the objects of those that it completed.

    An object is deleted only after its upload was aborted, so that no process can complete it again, and
    only if it is provably this upload. Names of Hadoop may repeat: if an upload is pending beside an object
    with its content, another run wrote that. Both stay, whoever looks and how often; a sweep finds the
    upload.

    Args:
        context: The job.
        uploads: The uploads.
        kept: Keys and ETags of objects that stay.

    Returns:
        How many uploads are aborted, and how many objects are deleted.

    """
    aborted = deleted = 0
    for batch in in_batches(uploads, _BATCH):
        twins = {one.uploadId for one, _ in _completed(context, batch) if _is_pending(context.store, one)}
        own = [one for one in batch if one.uploadId not in twins]
        if twins:
            logger.warning("%s: %d objects stay, which others have written", context.name, len(twins))
        aborted += abort_uploads(context, map(PendingId.of, own))
        doomed = (
            ObjectToDelete(one.destinationKey, etag)
            for one, etag in _completed(context, own)
            if (one.destinationKey, etag) not in kept
        )
        deleted += delete_objects(context, doomed, "record")
    return aborted, deleted


def _completed(context: JobContext, uploads: Iterable[PendingUpload]) -> Iterator[tuple[PendingUpload, str]]:
    """Yield the uploads whose object is there, with its ETag."""
    calls = ((upload, Head(upload.bucket, upload.destinationKey)) for upload in uploads)
    for upload, outcome in outcomes(context.store, calls, NoSuchKey):
        if isinstance(outcome, ObjectInfo) and is_ours(upload, outcome):
            yield upload, outcome.etag


def _is_pending(store: ObjectStore, upload: PendingUpload) -> bool:
    try:
        list(store.list_parts(upload.bucket, upload.destinationKey, upload.uploadId))
    except NoSuchUpload:
        return False
    return True


def delete_objects(
    context: JobContext,
    doomed: Iterable[ObjectToDelete],
    proof: Literal["record", "metadata", "plan", "release"],
) -> int:
    """Delete the job's objects that still have their ETags, and return how many.

    Sends a thousand per request, a few requests concurrently; retries objects that the store was too busy
    for.

    Raises:
        StoreRejected: The store refused an object for another reason than that it changed.
        Unavailable: The store stayed too busy for some of them.
        OutcomeUnknown: The same, and some of them may be gone.

    """
    deleted = 0
    own = (
        target
        for target in doomed
        if _may_destroy(context, Thing("object", context.bucket, target.key, proof))
    )
    for batch in in_batches(own, _BATCH * _BULK_DELETES_AT_ONCE):
        if any(target.etag is not None for target in batch):
            look_at_bulk_deletes(context)
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


def _delete_batch(context: JobContext, doomed: list[ObjectToDelete]) -> list[DeleteFailure]:
    """Delete up to a few thousand objects; return the failures, of changed objects or temporary."""
    calls = (
        (number, DeleteMany(context.bucket, batch)) for number, batch in enumerate(in_batches(doomed, _BATCH))
    )
    failures: list[DeleteFailure] = []
    for _, outcome in outcomes(context.store, calls):
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
    """Abort uploads of the job, and return how many. Repeatable.

    Tries all of them before it raises the first error.

    Raises:
        S3CommitError: An upload could not be aborted.

    """
    calls = (
        (upload, Abort(upload.bucket, upload.key, upload.upload_id)) for upload in _own(context, uploads)
    )
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


def _own(context: JobContext, uploads: Iterable[PendingId]) -> Iterator[PendingId]:
    for upload in uploads:
        if _may_destroy(context, Thing("upload", upload.bucket, upload.key, upload.proof)):
            yield upload


def _may_destroy(context: JobContext, thing: Thing) -> bool:
    reason = why_not(context.layout, context.record, thing)
    if reason is not None:
        logger.warning("%s: left alone: %s", context.name, reason)
    return reason is None


def _require(context: JobContext, thing: Thing) -> None:
    reason = why_not(context.layout, context.record, thing)
    if reason is not None:
        raise InvalidRecord(f"{context.name}: refuses to destroy what is not its own: {reason}")

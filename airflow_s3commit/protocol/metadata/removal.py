"""The only module of the protocol that destroys: it aborts uploads and deletes objects, records and staging.

All of it must pass `why_not`: may this job destroy this thing? What that refuses stays, with a warning or an
error. (Except: `sweep` aborts uploads that no job claims, and probes of a store remove what they created.)
Another question of ownership is answered here too: is this object the completed upload (`is_ours`)?
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

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
from airflow_s3commit.protocol.model.codec import text_digest
from airflow_s3commit.protocol.model.destination import Destination, is_data, is_hidden, join_uri
from airflow_s3commit.protocol.model.job import JobRecord
from airflow_s3commit.protocol.model.layout import (
    SUCCESS,
    Layout,
    is_canonical,
    is_list,
    open_prefix,
    owner_of,
)
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
from airflow_s3commit.store.execute import in_batches, outcomes, until_outage

logger = logging.getLogger(__name__)

#: User metadata of every object: a HEAD shows its job, its upload, and a digest of its destination's URI.
JOB_METADATA = "s3commit-job"
UPLOAD_METADATA = "s3commit-upload"
PLACE_METADATA = "s3commit-place"

#: Proof that a thing is the job's:
#:
#: * ``writer``: this process created it;
#: * ``name``: its file name has the job's id (`owner_of`);
#: * ``record``: a record of the job names this upload, or for an object the ETag that follows from its parts;
#: * ``metadata``: the object carries the job's id;
#: * ``entry``: an entry of the log takes or releases it, by key and ETag;
#: * ``staging``: it is in the job's staging.
Proof: TypeAlias = Literal["writer", "name", "record", "metadata", "entry", "staging"]


@dataclass(frozen=True, slots=True)
class Thing:
    """Something that a job is about to destroy, and why it is the job's."""

    kind: Literal["upload", "object", "record"]
    bucket: str
    key: str
    proof: Proof


def is_ours(upload: PendingUpload, existing: ObjectInfo) -> bool:
    """Return whether an object is this upload, completed.

    Compares the ids of job and upload in the object's metadata; for uploads of Hadoop, which have none, the
    ETag of the parts, unless the object has another job's id. Under SSE-KMS ETags follow from nothing known,
    so the file's name must have the job's id, and size and number of parts must agree: no one else writes
    that name, and of a job's own uploads of one key only the sealed one is completed.
    """
    carried = existing.metadata.get(JOB_METADATA)
    if upload.s3commit is not None:
        return carried == upload.jobId and existing.metadata.get(UPLOAD_METADATA) == upload.s3commit.upload
    if carried not in (None, upload.jobId):
        return False
    if existing.size != upload.length:
        return False
    if upload.expected_etag == existing.etag:
        return True
    is_named = owner_of(upload.destinationKey) == upload.jobId
    return is_under_kms(existing) and is_named and existing.etag.endswith(f"-{len(upload.etags)}")


def is_under_kms(existing: ObjectInfo) -> bool:
    """Return whether KMS encrypts an object, whose ETag then follows from nothing that is known."""
    return existing.headers.get("x-amz-server-side-encryption", "").startswith("aws:kms")


def object_metadata(destination: Destination, job_id: str, upload: str) -> dict[str, str]:
    """Return the user metadata of a job's object."""
    place = text_digest(destination.uri).hex()
    return {JOB_METADATA: job_id, UPLOAD_METADATA: upload, PLACE_METADATA: place}


def why_not(layout: Layout, record: JobRecord | None, thing: Thing) -> str | None:
    """Return why a job may not destroy a thing; None if it may. ``record`` is verified, or None if gone."""
    if thing.kind == "record":
        return _why_not_record(layout, thing)
    destination = layout.destination
    relative = destination.relative(thing.key)
    if thing.bucket != destination.bucket or relative is None:
        return f"{_uri(thing)} lies outside {destination.uri}"
    if thing.proof == "writer" or layout.is_own_upload(thing.key):
        return None
    if not is_data(relative):
        return f"{_uri(thing)} is no data file: readers do not see it"
    return None if thing.proof == "entry" else _why_not_output(layout, record, thing)


def _why_not_output(layout: Layout, record: JobRecord | None, thing: Thing) -> str | None:
    """Check data that the job may have written: by its name, or if Hadoop named it, by the job's records."""
    owner = owner_of(thing.key)
    if owner == layout.job_id:
        return None
    if thing.proof == "name":
        return f"{_uri(thing)} does not have the id of job {layout.job_id} in its name"
    if record is not None and record.adopted:
        return None if thing.proof == "record" else f"no record of job {layout.job_id} names {_uri(thing)}"
    if owner is not None:
        return f"{_uri(thing)} is of job {owner}, by its name"
    if record is not None and is_canonical(layout.job_id):
        return f"{_uri(thing)} does not have the id of job {layout.job_id} in its name, as all of its files"
    # A job of Hadoop, whose id is no UUID, or one whose own record is gone: its records decide.
    return None


def _why_not_record(layout: Layout, thing: Thing) -> str | None:
    """Check a record: it is in the job's staging, or one of the job's records at the destination."""
    # The staging's own key counts: Hadoop's mkdirs leaves an empty object there.
    if thing.bucket == layout.staging.bucket and thing.key.startswith(layout.staging.prefix):
        return None
    home, job_id = layout.destination, layout.job_id
    is_own = thing.key.startswith(open_prefix(home, job_id)) or is_list(home, job_id, thing.key)
    if thing.bucket == home.bucket and is_own:
        return None
    if thing.bucket == layout.destination.bucket and _is_marker(layout, thing.key):
        return None
    return f"{_uri(thing)} is no record of job {layout.job_id}"


def _is_marker(layout: Layout, key: str) -> bool:
    """Return whether this is the ``_SUCCESS`` of a partition."""
    partition, _, name = (layout.destination.relative(key) or "").rpartition("/")
    return name == SUCCESS and bool(partition) and not is_hidden(partition)


def _uri(thing: Thing) -> str:
    return join_uri(thing.bucket, thing.key)


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
    """Abort an upload that this process started. Repeatable: an unknown upload counts as aborted."""
    _require(context, Thing("upload", context.bucket, key, "writer"))
    context.store.abort_upload(context.bucket, key, upload_id)


def delete_record(context: JobContext, bucket: str, key: str, *, if_match: str | None = None) -> None:
    """Delete a record of the job. Repeatable: a missing one counts as deleted.

    Raises `InvalidRecord` if it is not the job's, `PreconditionFailed` if its ETag is not ``if_match``.
    """
    _require(context, Thing("record", bucket, key, "staging"))
    context.store.delete(bucket, key, if_match=if_match)


def forget_destination(store: ObjectStore, bucket: str, key: str, etag: str) -> bool:
    """Delete a destination's object in a registry, unless it was changed; return whether it is gone."""
    try:
        store.delete(bucket, key, if_match=etag)
    except PreconditionFailed:
        return False
    return True


def delete_records(context: JobContext, keys: Iterable[str]) -> None:
    """Delete objects of the job's staging, as `delete_objects`; `InvalidRecord` for a key elsewhere."""

    def checked() -> Iterator[ObjectToDelete]:
        for key in keys:
            _require(context, Thing("record", context.staging_bucket, key, "staging"))
            yield ObjectToDelete(key)

    _delete_all(context, context.staging_bucket, checked())


def delete_ours(
    context: JobContext, uploads: Iterable[PendingUpload], kept: Container[ObjectInfo] = ()
) -> tuple[int, int]:
    """Abort uploads that Hadoop named, and delete the objects of those that it completed.

    An object is deleted only after its upload was aborted, so that no process can complete it again, and only
    if it is provably this upload. Names of Hadoop may repeat: if an upload is pending beside an object with
    its content, another run wrote that object. Then both stay, however often this runs; a sweep finds the
    upload. ``kept`` objects stay too. Returns the numbers of aborted uploads and deleted objects.
    """
    aborted = deleted = 0
    for batch in in_batches(uploads, _BATCH):
        twins = {one.uploadId for one, _ in _completed(context, batch) if _is_pending(context.store, one)}
        own = [one for one in batch if one.uploadId not in twins]
        if twins:
            logger.warning("%s: %d objects stay, which others have written", context.name, len(twins))
        aborted += abort_uploads(context, map(PendingId.of, own))
        left = (found for _, found in _completed(context, own) if found not in kept)
        doomed = (ObjectToDelete(found.key, found.etag) for found in left)
        deleted += delete_objects(context, doomed, "record")
    return aborted, deleted


def _completed(
    context: JobContext, uploads: Iterable[PendingUpload]
) -> Iterator[tuple[PendingUpload, ObjectInfo]]:
    """Yield the uploads whose object is there, each with the object."""
    calls = ((upload, Head(upload.bucket, upload.destinationKey)) for upload in uploads)
    for upload, outcome in outcomes(context.store, calls, NoSuchKey):
        if isinstance(outcome, ObjectInfo) and is_ours(upload, outcome):
            yield upload, outcome


def _is_pending(store: ObjectStore, upload: PendingUpload) -> bool:
    try:
        list(store.list_parts(upload.bucket, upload.destinationKey, upload.uploadId))
    except NoSuchUpload:
        return False
    return True


def delete_objects(context: JobContext, doomed: Iterable[ObjectToDelete], proof: Proof) -> int:
    """Delete the job's objects that still have their ETags, and return how many.

    Sends a thousand per request, a few requests concurrently; retries objects that the store was too busy
    for. Raises `Unavailable` if the store stays too busy, or `OutcomeUnknown` if some of them may be gone;
    `StoreRejected` if it refuses to delete an object for any other reason than a change.
    """
    own = (
        target
        for target in doomed
        if _may_destroy(context, Thing("object", context.bucket, target.key, proof))
    )
    return _delete_all(context, context.bucket, own)


def _delete_all(context: JobContext, bucket: str, doomed: Iterable[ObjectToDelete]) -> int:
    deleted = 0
    for batch in in_batches(doomed, _BATCH * _BULK_DELETES_AT_ONCE):
        if any(target.etag is not None for target in batch):
            look_at_bulk_deletes(context)
        left = batch
        for pause in (*_BUSY_PAUSES, None):
            failed = _delete_batch(context, bucket, left)
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


def _delete_batch(context: JobContext, bucket: str, doomed: list[ObjectToDelete]) -> list[DeleteFailure]:
    """Delete up to a few thousand objects; return the failures: changed objects, or temporary errors."""
    calls = ((number, DeleteMany(bucket, batch)) for number, batch in enumerate(in_batches(doomed, _BATCH)))
    failures: list[DeleteFailure] = []
    for _, outcome in outcomes(context.store, calls):
        assert isinstance(outcome, list)
        failures += outcome
    for failure in failures:
        if failure.code == "PreconditionFailed":
            logger.warning("%s: left %s, which was changed by someone else", context.name, failure.key)
        elif failure.code not in _BUSY:
            where = join_uri(bucket, failure.key)
            why = f"{failure.code} {failure.message}; run the step again"
            raise StoreRejected(f"{context.name}: could not delete {where}: {why}", code=failure.code)
    return failures


def abort_uploads(context: JobContext, uploads: Iterable[PendingId]) -> int:
    """Abort uploads of the job, and return how many. Repeatable.

    Tries all of them, unless the store fails, then raises the first error of one that could not be aborted.
    """
    calls = (
        (upload, Abort(upload.bucket, upload.key, upload.upload_id))
        for upload in uploads
        if _may_destroy(context, Thing("upload", upload.bucket, upload.key, upload.proof))
    )
    done = 0
    first: S3CommitError | None = None
    for upload, outcome in until_outage(context.store, calls):
        if isinstance(outcome, S3CommitError) and not isinstance(outcome, NoSuchUpload):
            logger.warning("%s: could not abort the upload of %s: %s", context.name, upload.key, outcome)
            first = first or outcome
        else:
            done += 1
    if first is not None:
        first.add_note(f"at least {done} uploads were aborted; the others may stay pending")
        raise first
    return done


def _may_destroy(context: JobContext, thing: Thing) -> bool:
    reason = why_not(context.layout, context.record, thing)
    if reason is not None:
        logger.warning("%s: left alone: %s", context.name, reason)
    return reason is None


def _require(context: JobContext, thing: Thing) -> None:
    reason = why_not(context.layout, context.record, thing)
    if reason is not None:
        raise InvalidRecord(f"{context.name}: refuses to destroy what is not its own: {reason}")

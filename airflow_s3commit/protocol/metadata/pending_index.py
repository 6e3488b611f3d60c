"""Index of a job's pending uploads, complete after any crash.

An upload is found in three ways. By its key, if the file name has the job's id (`owner_of`): a listing of the
destination shows it. By the pendingset of its task attempt. And, with ``track_pending="s3"`` or fixed file
names, by a record of its own, ``<number>.pending``, written when the upload starts and again when it is
whole.

With fixed names the key does not show the owner, and a process may die between the response with the
upload's id and the record of it. So an intent, ``<number>-<digest of the key>.intent``, is written before
the upload starts. An intent without its record is resolved by a listing of that key: its uploads that began
after the intent, unless another job intends the same key.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Iterator

from airflow_s3commit.exceptions import InvalidRecord, NoSuchKey
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.removal import PendingId
from airflow_s3commit.protocol.metadata.store_clock import STORE_CLOCK_SECONDS
from airflow_s3commit.protocol.model.codec import encode, text_digest
from airflow_s3commit.protocol.model.job import JobOptions
from airflow_s3commit.protocol.model.layout import (
    BASE,
    MAGIC_PREFIX,
    PENDING_SUFFIX,
    PENDINGSET_SUFFIX,
    owner_of,
)
from airflow_s3commit.protocol.model.limits import INTENT_BYTES
from airflow_s3commit.protocol.model.pendingset import PendingUpload, TaskExtra, decode_uploads, pending_bytes
from airflow_s3commit.store.base import ObjectInfo

logger = logging.getLogger(__name__)

#: Suffix of an intent, the record of an upload that is about to start; the digest of its key precedes it.
INTENT_SUFFIX = ".intent"


class Tracker:
    """Writes the records of a task attempt's uploads, if the job's options require them.

    Args:
        context: The job.
        options: The job's options.
        extra: Which task attempt.

    """

    def __init__(self, context: JobContext, options: JobOptions, extra: TaskExtra) -> None:
        self._context = context
        self._extra = extra
        self._format = options.pendingset_format
        self._intends = not options.unique_filenames
        self._tracks = self._intends or options.track_pending == "s3"

    def intend(self, number: int, key: str) -> None:
        """Write the intent to upload this key."""
        if self._intends:
            intent = (
                self._key(number).removesuffix(PENDING_SUFFIX) + f"-{text_digest(key).hex()}{INTENT_SUFFIX}"
            )
            self._context.store.put(
                self._context.staging_bucket, intent, key.encode(), content_type="text/plain"
            )

    def track(self, number: int, pending: PendingUpload) -> None:
        """Write the record of an upload that has started, or is whole."""
        if self._tracks:
            record = encode(pending.in_format(self._format))
            self._context.store.put(self._context.staging_bucket, self._key(number), record)

    def _key(self, number: int) -> str:
        extra = self._extra
        return self._context.layout.pending(
            extra.stage, extra.stage_attempt, extra.task, extra.attempt, number
        )


def tracked_uploads(
    context: JobContext,
    prefix: str | None = None,
    *,
    skip: Container[str] = (),
    listed: Iterable[ObjectInfo] | None = None,
) -> Iterator[PendingUpload | None]:
    """Yield every upload that a pendingset or its own record names; None for a record that cannot be read.

    Args:
        context: The job.
        prefix: Prefix to list; by default all stages.
        skip: Keys of pendingsets to skip, with the records of their task attempts.
        listed: What a listing of the prefix shows; None to list it.

    """
    # The listing shows an upload's own record right after the pendingset that may name it too.
    named: set[str] = set()
    if listed is None:
        listed = context.store.list_objects(context.staging_bucket, prefix or context.layout.stages)
    for info in listed:
        if info.key.endswith(PENDINGSET_SUFFIX) and info.key not in skip:
            named.clear()
            for upload in _read(context, info.key):
                if upload is not None:
                    named.add(upload.uploadId)
                yield upload
        elif info.key.endswith(PENDING_SUFFIX) and _pendingset_of(info.key) not in skip:
            for upload in _read(context, info.key):
                if upload is None or upload.uploadId not in named:
                    yield upload


def untracked_uploads(context: JobContext) -> Iterator[PendingId]:
    """Yield the job's pending uploads by their keys and by open intents."""
    destination, is_own = context.layout.destination, context.layout.is_own_upload
    for upload in context.store.list_uploads(destination.bucket, destination.prefix):
        if owner_of(upload.key) == context.job_id or is_own(upload.key):
            yield PendingId(destination.bucket, upload.key, upload.upload_id)
    # Unique names show their job, so there are no intents.
    if context.record is None or not context.record.options.unique_filenames:
        yield from intended_uploads(context)


def _read(context: JobContext, key: str) -> Iterator[PendingUpload | None]:
    try:
        body = context.store.get(context.staging_bucket, key, limit=pending_bytes(key)).body
        uploads = decode_uploads(body, context.staging_uri(key))
        for upload in uploads:
            context.layout.destination.check_data_key(upload.bucket, upload.destinationKey)
            # Some records of Hadoop name no job.
            if upload.jobId and upload.jobId != context.job_id:
                raise InvalidRecord(f"{context.staging_uri(key)} names an upload of job {upload.jobId}")
    except NoSuchKey:
        return
    except InvalidRecord:
        logger.warning("%s: a record of pending uploads cannot be read", context.name, exc_info=True)
        yield None
    else:
        yield from uploads


def intended_uploads(context: JobContext, prefix: str | None = None) -> Iterator[PendingId]:
    """Yield the uploads of open intents, whose ids were never recorded.

    Args:
        context: The job.
        prefix: Prefix of the intents; by default all stages.

    """
    open_intents = list(_open_intents(context, prefix or context.layout.stages))
    if not open_intents:
        return
    claimed = _claims_of_others(context)
    for intent in open_intents:
        try:
            key = _intended_key(context, intent.key)
        except (NoSuchKey, InvalidRecord):
            logger.warning("%s: an intent cannot be read", context.name, exc_info=True)
            continue
        if text_digest(key).hex() in claimed:
            logger.warning("%s: another job is to write %s too; left for a sweep", context.name, key)
            continue
        for upload in context.store.list_uploads(context.bucket, key):
            if upload.key == key and upload.initiated >= intent.modified - STORE_CLOCK_SECONDS:
                yield PendingId(context.bucket, key, upload.upload_id, "record")


def _intended_key(context: JobContext, intent: str) -> str:
    """Read the key of an intent, checked against its digest and the destination."""
    body = context.store.get(context.staging_bucket, intent, limit=INTENT_BYTES).body
    key = body.decode(errors="replace")
    if not intent.endswith(f"-{text_digest(key).hex()}{INTENT_SUFFIX}"):
        raise InvalidRecord(f"{context.staging_uri(intent)} was changed after it was written")
    context.layout.destination.check_data_key(context.bucket, key)
    return key


def _open_intents(context: JobContext, prefix: str) -> Iterator[ObjectInfo]:
    """Yield the intents without a record of the upload's id."""
    intents: dict[str, ObjectInfo] = {}
    for info in context.store.list_objects(context.staging_bucket, prefix):
        if info.key.endswith(INTENT_SUFFIX):
            intents[info.key.rpartition("-")[0]] = info
        elif info.key.endswith(PENDING_SUFFIX):
            intents.pop(info.key.removesuffix(PENDING_SUFFIX), None)
    yield from intents.values()


def _claims_of_others(context: JobContext) -> set[str]:
    """Return the digests of the keys that other jobs in the same staging root intend to write."""
    own = context.layout.staging.prefix
    root = own.removesuffix(f"{MAGIC_PREFIX}{context.job_id}/")
    return {
        info.key.rpartition("-")[2].removesuffix(INTENT_SUFFIX)
        for info in context.store.list_objects(context.staging_bucket, root + MAGIC_PREFIX)
        if info.key.endswith(INTENT_SUFFIX) and not info.key.startswith(own)
    }


def _pendingset_of(pending_key: str) -> str:
    # S3A's own records are below BASE, which is in the attempt's directory.
    directory, base, _ = pending_key.partition(f"/{BASE}/")
    return (directory if base else pending_key.rpartition("/")[0]) + PENDINGSET_SUFFIX

"""Abort a job: create its ``abandon`` entry, then undo what it did.

Nothing is undone before the entry: until then another process may commit the job.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from airflow_s3commit._causes import noting
from airflow_s3commit.exceptions import AlreadyCommitted, ForeignRecord, InvalidRecord, OutcomeUnknown
from airflow_s3commit.protocol.metadata.context import JobContext, after_effect, has_object, naming, recorded
from airflow_s3commit.protocol.metadata.pending_uploads import tracked_uploads, untracked_uploads
from airflow_s3commit.protocol.metadata.removal import (
    abort_uploads,
    delete_objects,
    delete_ours,
    delete_record,
)
from airflow_s3commit.protocol.metadata.sealed_job import find_seal
from airflow_s3commit.protocol.model.job import AbortReport, JobRecord
from airflow_s3commit.protocol.model.layout import is_list, job_key, lists_prefix, owner_of
from airflow_s3commit.protocol.model.pendingset import PendingUpload
from airflow_s3commit.protocol.model.table import Entry, Source
from airflow_s3commit.protocol.steps.append import end_job, ending
from airflow_s3commit.protocol.steps.files import TableFiles, data_objects, files_of, written_here
from airflow_s3commit.protocol.steps.finish import abort_pending, clean, list_staging
from airflow_s3commit.protocol.steps.fold import read_table
from airflow_s3commit.protocol.steps.log import Log, find_end, is_erased, is_in_log, read_entry, write_receipt
from airflow_s3commit.protocol.steps.publish import publish
from airflow_s3commit.protocol.steps.setup import begin_log
from airflow_s3commit.store.base import ObjectInfo, ObjectToDelete

logger = logging.getLogger(__name__)


def abort(context: JobContext, why: str = "") -> AbortReport:
    """End a job that is not committed, and undo all it did. Repeatable by any process.

    An id that nobody has set up is spent too. After: nothing of the job is visible, pending or staged, and no
    process can commit it. ``_SUCCESS`` is not touched. Raises `AlreadyCommitted` if the job is committed; and
    as `end_job` and `undo`: then abort again.
    """
    with naming(context, "abort"):
        # The record may be missing because the job has ended, so look for its receipt in any case.
        context = with_readable_record(replace(context, alone=""))
        job = context.record
        # If the log was deleted since the job's setup, nobody could end the job from its base on.
        log = Log(context, None if job is None or is_erased(context, job) else job.base)
        begin_log(context, log)
        end = log.read() or find_end(context) or abandon(context, log, job, why)
        if end.kind == "commit":
            raise AlreadyCommitted(
                f"{context.name} is committed, as entry {end.number} of the log; it cannot be aborted"
            )
        return undo(context, end)


@contextmanager
def aborting_unbegun(context: JobContext) -> Iterator[None]:
    """Abort a job if it is unknown whether its setup in the block has happened.

    Before: nobody else has the job's id, so no other process goes on with it.
    """
    try:
        yield
    except OutcomeUnknown as error:
        with noting(error, f"aborting {context.name}", "a sweep ends it"):
            abort(context, "its setup failed")
        raise


def abandon(context: JobContext, log: Log, job: JobRecord | None, why: str) -> Entry:
    """Create the job's ``abandon`` entry, and return it, or the entry that already ended it. As `end_job`."""
    make = partial(ending, context, job=job, why=why)
    return end_job(context, log, make, otherwise="It is not aborted: abort it again")


def undo(context: JobContext, entry: Entry) -> AbortReport:
    """Undo what an abandoned job did. Repeatable by any process.

    Uploads are aborted before objects are deleted: otherwise a process that completes an upload late would
    bring an object back. Raises `OutcomeUnknown` if a request fails: the job is aborted; run this again.
    """
    done = (
        f"{context.name} is aborted, as entry {entry.number} of the log, but not all of it is undone, and"
        " some of its files may be visible"
    )
    with after_effect(done, "abort it again"):
        return _undo(context.in_staging(entry.staging), entry)


def _undo(context: JobContext, entry: Entry) -> AbortReport:
    if entry.published and is_in_log(context, entry):
        publish(context, entry)
    # Before uploads are listed: a task attempt that records its output later finds the receipt.
    write_receipt(context.store, context.layout.destination, entry)
    staged = list_staging(context)
    if _is_adopted(context):
        uploads, objects = _undo_adopted(context, staged)
    else:
        uploads = abort_pending(context, staged)
        objects = delete_objects(context, _published(context), "metadata")
    home = context.layout.destination
    for info in context.store.list_objects(home.bucket, lists_prefix(home, context.job_id)):
        if is_list(home, context.job_id, info.key):
            delete_record(context, home.bucket, info.key)
    clean(context, entry, staged)
    logger.info("%s: aborted, %d uploads, %d objects taken back", context.name, uploads, objects)
    return AbortReport(uploads=uploads, objects=objects)


def _is_adopted(context: JobContext) -> bool:
    """Return whether Hadoop named the job's output: by its record; if that is damaged, by its staging."""
    if context.record is not None:
        return context.record.adopted
    key = job_key(context.layout.destination, context.job_id)
    prefixes = (f"{context.layout.stages}hadoop", context.layout.staging.key("job-"))
    listed = (context.store.list_objects(context.staging_bucket, prefix) for prefix in prefixes)
    return has_object(context.store, context.bucket, key) and any(True for found in listed for _ in found)


def _undo_adopted(context: JobContext, staged: list[str] | None) -> tuple[int, int]:
    """Abort an adopted job's uploads and delete their objects, as Hadoop's files say: names prove nothing.

    An object that the table has by now belongs to the job that listed it first, and stays.
    """
    table = read_table(context.store, context.layout.destination)
    kept = TableFiles.all_in(context.store, context.layout.destination, table, table.partitions())
    listed = {(one.key, one.upload_id): one for one in untracked_uploads(context)}

    def named() -> Iterator[PendingUpload]:
        # Each once: an adoption copies what Hadoop has recorded.
        seen: set[str] = set()
        for upload in tracked_uploads(context, context.layout.staging.prefix, listed=staged):
            if upload is not None and upload.uploadId not in seen:
                seen.add(upload.uploadId)
                listed.pop((upload.destinationKey, upload.uploadId), None)
                yield upload

    uploads, objects = delete_ours(context, named(), kept)
    return uploads + abort_uploads(context, listed.values()), objects


def with_readable_record(context: JobContext) -> JobContext:
    """Return the context with the job's record; without it if it is damaged: that does not prevent an abort.

    Raises `ForeignRecord` if it was copied here.
    """
    try:
        return recorded(context)
    except ForeignRecord:
        raise
    except InvalidRecord as error:
        logger.warning("%s: aborting it without its record: %s", context.name, error)
        return context


def _published(context: JobContext) -> Iterator[ObjectToDelete]:
    """Yield the objects that a commit of the job completed, and that no entry of the log names.

    Only sealed files are completed, so without a seal there are none. A name with the job's id is not enough:
    files that were copied here with a dataset keep their names. Such copies carry another destination, or the
    first entry lists them. Objects of Spark's own writers carry nothing: they count as the job's only if its
    record or its seal, which name this destination, can be read.
    """
    try:
        seal = find_seal(context)
    except InvalidRecord as error:
        logger.warning("%s: listing all of the destination: %s", context.name, error)
        partitions = None
    else:
        if seal is None:
            return
        partitions = list(seal.record.partitions)
    named, is_of_here = _named(context, partitions), context.record is not None or partitions is not None
    for info in written_here(context, context.job_id, named, unmarked=is_of_here):
        yield ObjectToDelete(info.key, info.etag)


def _named(context: JobContext, partitions: list[str] | None) -> Iterator[ObjectInfo]:
    """Yield the data objects with the job's id in their names, without those that are older than the log."""
    older: set[str] | None = None
    for info in data_objects(context, partitions):
        if owner_of(info.key) == context.job_id:
            older = older_files(context) if older is None else older
            if info.key not in older:
                yield info


def older_files(context: JobContext) -> set[str]:
    """Return the keys with the job's id that the first entry lists as older than the log."""
    store, home = context.store, context.layout.destination
    first = read_entry(store, home, 1).entry
    if first.commit is None:
        return set()
    files = files_of(store, home, Source.of(first, first.commit))
    return {file.key for file in files if owner_of(file.key) == context.job_id}

"""Prepare a job of Hadoop's S3A committers for `abort_job`, and clean up after a successful one.

`abort_job` reads the pendingsets of a magic directory itself, since they are in the job's staging. Those of
another directory are copied there first. The preparation also determines whether the Hadoop job had begun to
publish, and so whether there are objects to delete.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

import msgspec

from airflow_s3commit.exceptions import InvalidRecord, JobClosed, NoSuchKey, NoSuchUpload
from airflow_s3commit.protocol.adoption.takeover import ABORTED, Adoption, import_file, refuse_unknown
from airflow_s3commit.protocol.hadoop.files import HadoopFile, HadoopFiles, magic_files, read_files
from airflow_s3commit.protocol.hadoop.status import classify, examine
from airflow_s3commit.protocol.metadata import records
from airflow_s3commit.protocol.metadata.cleanup import clean_staging
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.manifests import find_manifest
from airflow_s3commit.protocol.metadata.removal import PendingId, abort_uploads
from airflow_s3commit.protocol.metadata.state import find_job, is_spent, move, read_state
from airflow_s3commit.protocol.model.codec import text_digest
from airflow_s3commit.protocol.model.destination import join_uri
from airflow_s3commit.protocol.model.job import JobOptions, JobRecord
from airflow_s3commit.protocol.model.ownership import is_ours
from airflow_s3commit.protocol.model.pendingset import PendingUpload
from airflow_s3commit.store.base import Head, ObjectInfo, ObjectStore
from airflow_s3commit.store.execute import in_batches, outcomes

logger = logging.getLogger(__name__)

#: The reason in the record of such an abort.
ABORT_REASON = "adopted from Hadoop to be aborted"

_BATCH = 1_000


def prepare_abort(adoption: Adoption) -> None:
    """Set up a Hadoop job as ours, import its uploads and move it to ``aborting``. Repeatable.

    Does nothing if the job has no files, or an earlier adoption has gone that far.

    Raises:
        InvalidRecord: A file is damaged, or not Hadoop's. Nothing was changed.
        AlreadyCommitted: The Hadoop job is successful. Nothing was changed.
        JobClosed: The Hadoop job may be alive. Nothing was changed.
        S3CommitError: A request failed; prepare it again.

    """
    if is_ending(adoption):
        return
    context = adoption.context
    current = read_state(context)
    files = adoption.files()
    if not files.found and not files.unknown:
        return
    check_abort(adoption, files)
    if not (current is None and is_spent(context)) and not _set_up(adoption, files):
        return
    context = adoption.context
    if adoption.pendingsets_uri is not None:
        for file, pendingset in adoption.readable(files.found, forgiving=adoption.force):
            import_file(context, file, pendingset, ABORTED, text_digest(file.key).hex())
    current = read_state(context)
    if current is None:
        adoption.clean_up_if_superseded()
    elif current.record.state in ("open", "sealed"):
        # The result holds until another process changes the state, in which case the move fails.
        begun = _was_publishing(adoption, files)
        move(context, current, "aborting", reason=ABORT_REASON, begun=begun)


def is_ending(adoption: Adoption) -> bool:
    """Return whether our job is past ``sealed``: its commit or abort has begun, or it is committed."""
    adoption.load_context()
    current = read_state(adoption.context)
    if current is None:
        return find_manifest(adoption.context) is not None
    return current.record.state not in ("open", "sealed")


def clean_up(context: JobContext) -> int:
    """Remove the magic directory of a successful Hadoop job, and abort its leftover uploads. Repeatable.

    Leftover uploads are those of files that do not count, except for those that a file that counts lists too.
    No object outside the magic directory is deleted.

    Returns:
        The number of aborted uploads.

    Raises:
        JobClosed: The job is not successful. Nothing was changed.
        InvalidRecord: A file is damaged, or not Hadoop's. Nothing was changed.
        S3CommitError: Something could not be removed; clean up again.

    """
    destination, job_id = context.layout.destination, context.job_id
    files = magic_files(context.store, destination, job_id).get(job_id)
    if files is None:
        return 0
    verdict = classify(examine(context.store, destination, files))
    if verdict.status != "successful":
        raise JobClosed(
            f"Hadoop job {job_id} is {verdict.status}: {verdict.reason}. Adopt it instead: s3commit adopt …"
        )
    refuse_unknown(files)
    counted = {PendingId.of(upload) for upload in _uploads(context, files.committed)}
    leftover = {PendingId.of(upload) for upload in _uploads(context, files.others)} - counted
    aborted = abort_uploads(context, leftover)
    # clean_staging only removes a directory whose job record names it, and Hadoop writes no such record.
    record = JobRecord(
        **context.layout.place,
        options=JobOptions(committer="magic", conflict_mode="append", unique_filenames=False),
        context={"cleaned_up": files.uri},
        created=context.now_ms(),
        nonce=context.new_id(),
    )
    records.create(context.store, context.staging_bucket, context.layout.job, record)
    clean_staging(context)
    return aborted


def _uploads(context: JobContext, files: Iterable[HadoopFile]) -> Iterator[PendingUpload]:
    for _, outcome in read_files(context.store, files, context.job_id, context.layout.destination):
        if isinstance(outcome, InvalidRecord):
            raise outcome
        yield from outcome.commits


def check_abort(adoption: Adoption, files: HadoopFiles) -> None:
    """Read all files, and raise if the job must not be aborted. Changes nothing."""
    refuse_unknown(files)
    adoption.examine(files, commit=False)
    for _ in adoption.readable(files.found, forgiving=adoption.force):
        pass


def _set_up(adoption: Adoption, files: HadoopFiles) -> bool:
    """Set our job up, with the options of an earlier adoption or some that accept any existing data."""
    existing = find_job(adoption.context)
    neutral = msgspec.structs.replace(adoption.options, committer="magic", conflict_mode="append")
    return adoption.set_up(existing.options if existing is not None else neutral, files.uri)


def _was_publishing(adoption: Adoption, files: HadoopFiles) -> bool:
    """Return whether Hadoop has completed uploads of this job, so that the abort must delete their objects.

    An object with an upload's ETag comes from this job only if the upload is gone. If the upload is pending,
    a rerun with the same file names wrote the object, and the object must stay.
    """
    context, published = adoption.context, False
    uploads = (
        upload
        for _, pendingset in adoption.readable(files.found, forgiving=adoption.force)
        for upload in pendingset.commits
    )
    for batch in in_batches(uploads, _BATCH):
        calls = [(upload, Head(upload.bucket, upload.destinationKey)) for upload in batch]
        for upload, outcome in outcomes(context.store, calls, NoSuchKey):
            if not (isinstance(outcome, ObjectInfo) and is_ours(upload, outcome)):
                continue
            if _is_pending(context.store, upload):
                logger.warning(
                    "%s: %s has the same content but is another job's; the abort deletes no object",
                    context.name,
                    join_uri(upload.bucket, upload.destinationKey),
                )
                return False
            published = True
    return published


def _is_pending(store: ObjectStore, upload: PendingUpload) -> bool:
    try:
        next(iter(store.list_parts(upload.bucket, upload.destinationKey, upload.uploadId)), None)
    except NoSuchUpload:
        return False
    return True

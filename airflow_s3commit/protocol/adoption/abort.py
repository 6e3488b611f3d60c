"""Preparing a job of Hadoop's S3A committers for our abort, which does the rest.

Our abort reads the pendingsets of a magic directory by itself: they are in the job's staging. Those that are
elsewhere are copied there. What is left to decide is whether the Hadoop job had begun to publish.
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
from airflow_s3commit.protocol.metadata.job_record import find_job
from airflow_s3commit.protocol.metadata.manifests import find_manifest
from airflow_s3commit.protocol.metadata.removal import PendingId, abort_uploads
from airflow_s3commit.protocol.metadata.state import is_spent, move, read_state
from airflow_s3commit.protocol.model.destination import join_uri
from airflow_s3commit.protocol.model.digest import text_digest
from airflow_s3commit.protocol.model.job import JobOptions, JobRecord
from airflow_s3commit.protocol.model.ownership import is_ours
from airflow_s3commit.protocol.model.pendingset import PendingUpload
from airflow_s3commit.store.base import Head, ObjectInfo, ObjectStore
from airflow_s3commit.store.execute import in_batches, outcomes

logger = logging.getLogger(__name__)

#: Why such a job was aborted, for the record.
ABORT_REASON = "adopted from Hadoop to be aborted"

_BATCH = 1_000


def prepare_abort(adoption: Adoption) -> None:
    """Bring a Hadoop job to where ours is ``aborting`` and knows every upload, unless it is there already.

    Raises:
        InvalidRecord: A file is damaged, or none of Hadoop's. Nothing was changed.
        AlreadyCommitted: The Hadoop job is successful. Nothing was changed.
        JobClosed: It may be alive. Nothing was changed.

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
        adoption.is_moved_on()
    elif current.record.state in ("open", "sealed"):
        # What is known of published objects is true for as long as nobody has moved the job on.
        begun = _was_publishing(adoption, files)
        move(context, current, "aborting", reason=ABORT_REASON, begun=begun)


def is_ending(adoption: Adoption) -> bool:
    """Tell whether the job was adopted before and has ended, or is past the point where an abort begins."""
    adoption.find_conditional()
    current = read_state(adoption.context)
    if current is None:
        return find_manifest(adoption.context) is not None
    return current.record.state not in ("open", "sealed")


def clean_up(context: JobContext) -> int:
    """Remove what a successful Hadoop job left in its magic directory; return how many uploads were aborted.

    Only uploads that its files name and none of its tasks that count does are aborted: never an object is
    deleted that a reader may see. Run again: removes what is left.

    Raises:
        JobClosed: The job is not successful. Nothing was changed.
        InvalidRecord: A file is damaged, or none of Hadoop's. Nothing was changed.

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
    late = {PendingId.of(upload) for upload in _uploads(context, files.others)} - counted
    aborted = abort_uploads(context, late)
    # What may be removed is what a record says is a job's own, and Hadoop leaves none in its directory.
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
    """Read everything before anything is written; raise what keeps the job from being taken back."""
    refuse_unknown(files)
    adoption.examine(files, commit=False)
    for _ in adoption.readable(files.found, forgiving=adoption.force):
        pass


def _set_up(adoption: Adoption, files: HadoopFiles) -> bool:
    """Set our job up, with options that let it start whatever is at the destination."""
    existing = find_job(adoption.context)
    neutral = msgspec.structs.replace(adoption.options, committer="magic", conflict_mode="append")
    return adoption.set_up(existing.options if existing is not None else neutral, files.uri)


def _was_publishing(adoption: Adoption, files: HadoopFiles) -> bool:
    """Tell whether Hadoop had completed uploads of this job, so that objects of it are to be taken back.

    An object with an upload's ETag is that upload only if the upload is gone: a job that was run again with
    fixed names leaves the very same object, which is not to be touched.
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
                    "%s: %s has the same content but is another job's; no object is taken back",
                    context.name, join_uri(upload.bucket, upload.destinationKey),
                )  # fmt: skip
                return False
            published = True
    return published


def _is_pending(store: ObjectStore, upload: PendingUpload) -> bool:
    try:
        next(iter(store.list_parts(upload.bucket, upload.destinationKey, upload.uploadId)), None)
    except NoSuchUpload:
        return False
    return True

"""Preparing a job of Hadoop's S3A committers for our abort, which does the rest.

Our abort reads the pendingsets of a magic directory by itself: they are in the job's staging. Those that are
elsewhere are copied there. What is left to decide is whether the Hadoop job had begun to publish.
"""

from __future__ import annotations

import logging

import msgspec

from airflow_s3commit.exceptions import NoSuchKey, NoSuchUpload, S3CommitError
from airflow_s3commit.protocol.destination import join_uri
from airflow_s3commit.protocol.hadoop_adoption import ABORTED, Adoption, import_file, refuse_unknown
from airflow_s3commit.protocol.hadoop_files import HadoopFiles, text_digest
from airflow_s3commit.protocol.pendingset import PendingUpload
from airflow_s3commit.protocol.setup import find_job
from airflow_s3commit.protocol.state import find_manifest, is_spent, move, read_state
from airflow_s3commit.protocol.uploads import is_ours
from airflow_s3commit.store.base import Head, ObjectInfo, ObjectStore
from airflow_s3commit.store.calls import in_batches

__all__ = ["ABORT_REASON", "prepare_abort"]

logger = logging.getLogger(__name__)

#: Why such a job was aborted, for the record.
ABORT_REASON = "adopted from Hadoop to be aborted"

_BATCH = 1_000


def prepare_abort(adoption: Adoption) -> None:
    """Bring a Hadoop job to where ours is ``aborting`` and knows every upload, unless it is there already.

    Raises:
        InvalidRecord: A file is damaged, or none of Hadoop's. Nothing was changed.

    """
    context = adoption.context
    adoption.find_conditional()
    current = read_state(context)
    if current is None and find_manifest(context) is not None:
        return
    if current is not None and current.record.state not in ("open", "sealed"):
        return
    files = adoption.files()
    if not files.found and not files.unknown:
        return
    refuse_unknown(files)
    for _ in adoption.readable(files.found, forgiving=adoption.force):
        pass
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


def _set_up(adoption: Adoption, files: HadoopFiles) -> bool:
    """Set our job up, with options that let it start whatever is at the destination."""
    standing = find_job(adoption.context)
    neutral = msgspec.structs.replace(adoption.options, committer="magic", conflict_mode="append")
    return adoption.set_up(standing.options if standing is not None else neutral, files.uri)


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
        for upload, outcome in context.store.perform(calls):
            if isinstance(outcome, S3CommitError) and not isinstance(outcome, NoSuchKey):
                raise outcome
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

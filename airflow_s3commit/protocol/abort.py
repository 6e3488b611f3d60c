"""Abort: what a job uploaded never appears, and nothing of it stays pending.

The state moves first. From then on no process can carry the commit past the point of no return, and a task
attempt that still runs finds out when it commits. Only then are uploads aborted, and objects taken back:
each object after its upload was aborted, so that nobody can complete it again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from airflow_s3commit.exceptions import (
    AlreadyCommitted,
    ForeignRecord,
    InvalidRecord,
    JobClosed,
    NoSuchKey,
    NoSuchUpload,
    NotReversible,
    PreconditionFailed,
    S3CommitError,
)
from airflow_s3commit.protocol.cleanup import clean_staging
from airflow_s3commit.protocol.conflicts import data_objects
from airflow_s3commit.protocol.context import JobContext, naming
from airflow_s3commit.protocol.hadoop_status import refuse_to_cut
from airflow_s3commit.protocol.journal import Stored
from airflow_s3commit.protocol.layout import PENDINGSET_SUFFIX, owner_of
from airflow_s3commit.protocol.lock import release_lock
from airflow_s3commit.protocol.ownership import JOB_METADATA
from airflow_s3commit.protocol.pendingset import PendingUpload
from airflow_s3commit.protocol.records import AbortReport, SavedSuccess, StateRecord
from airflow_s3commit.protocol.removal import (
    PendingId,
    abort_uploads,
    delete_objects,
    delete_ours,
    delete_record,
    delete_records,
)
from airflow_s3commit.protocol.sealed import load_seal
from airflow_s3commit.protocol.setup import find_job
from airflow_s3commit.protocol.stage import find_stage_seal
from airflow_s3commit.protocol.state import (
    find_aborted,
    find_manifest,
    is_spent,
    move,
    read_state,
    replace_state,
    spend,
)
from airflow_s3commit.protocol.tracking import intended_uploads, tracked_uploads, untracked_uploads
from airflow_s3commit.store.base import Doomed, Head, ObjectInfo
from airflow_s3commit.store.calls import in_batches

__all__ = ["abort_attempt", "abort_job", "abort_late", "abort_stage"]

logger = logging.getLogger(__name__)

_BATCH = 1_000


def abort_job(context: JobContext, *, force: bool = False, reason: str | None = None) -> AbortReport:
    """Abort a job, and roll back what it may have published.

    Before: anything but a committed job. After: its output is not there and will not come, no upload of it
    is pending, and the destination is as it was before the commit, ``_SUCCESS`` included. Run again: looks
    again and finds less. Other jobs' uploads are never touched.

    Args:
        context: The job.
        force: Go on although old data was overwritten or deleted and cannot be put back, or although the
            job's state is damaged, so that nothing tells whether it was.
        reason: Why, for the record.

    Raises:
        AlreadyCommitted: It is committed, or a job of Hadoop's that is successful.
        JobClosed: It is a job of Hadoop's that has published some of its output: adopt it.
        NotReversible: Old data may be gone already; commit again, or use ``force``.
        InvalidRecord: Its state is damaged, or a record was copied here. Nothing was changed.
        OutcomeUnknown: An answer was lost; abort again.

    """
    with naming(context, "abort"):
        while True:
            current = _read_state(context, reason, force=force)
            if current is None:
                return _abort_unknown(context, reason)
            if current.record.state not in ("aborting", "aborted"):
                _refuse_if_too_late(context, current.record, force=force)
                if current.record.state in ("open", "sealed"):
                    _refuse_to_cut(context)
                current = move(context, current, "aborting", reason=reason)
            if current is not None:
                report = _undo(context, current)
                if report is not None:
                    return report


def abort_stage(context: JobContext, stage: str, stage_attempt: str) -> int:
    """Abort the uploads that one stage attempt's pendingsets name; return how many.

    For a stage attempt that will not be sealed, because another one takes its place.

    Raises:
        JobClosed: It is sealed.

    """
    _refuse_if_sealed(context, stage, stage_attempt)
    prefix = context.layout.stage(stage, stage_attempt)
    tracked = tracked_uploads(context, prefix)
    return abort_uploads(context, (PendingId.of(upload) for upload in tracked if upload is not None))


def abort_attempt(context: JobContext, stage: str, stage_attempt: str, task: str, attempt: str) -> int:
    """Abort what one task attempt recorded of its uploads, from any process; return how many uploads.

    For a task attempt whose process is gone and another attempt of which counts. Before: its stage attempt is
    not sealed. After: its uploads are gone and its records too, so that it cannot be sealed any more. Run
    again: nothing is left to be done. An attempt that keeps its uploads to itself until it commits
    (``track_pending="task"``) has recorded none before: the job's commit, abort or a sweep finds those.

    Raises:
        JobClosed: Its stage attempt is sealed: its uploads may be committed.
        InvalidRecord: An id cannot be part of a key, or a record of the attempt is damaged.
        S3CommitError: An upload could not be aborted; its records are kept, so run it again.

    """
    pendingset = context.layout.pendingset(stage, stage_attempt, task, attempt)
    with naming(context, f"abort of task {task} attempt {attempt} of stage {stage}-{stage_attempt}"):
        _refuse_if_sealed(context, stage, stage_attempt)
        directory = pendingset.removesuffix(PENDINGSET_SUFFIX) + "/"
        recorded = [*tracked_uploads(context, pendingset), *tracked_uploads(context, directory)]
        if None in recorded:
            raise InvalidRecord(f"{context.staging_uri(pendingset)}, or a record beside it, cannot be read")
        ids = {PendingId.of(upload) for upload in recorded if upload is not None}
        aborted = abort_uploads(context, [*ids, *intended_uploads(context, directory)])
        # Only now: for as long as an upload is pending, something must name it.
        delete_record(context, context.staging_bucket, pendingset)
        listed = context.store.list_objects(context.staging_bucket, directory)
        delete_records(context, (info.key for info in listed))
    return aborted


def abort_late(context: JobContext) -> int:
    """Abort what task attempts have uploaded since their job was committed and cleaned up; return how many.

    Such an attempt does not count: its twin does, and it was about to be killed when the commit looked.
    Before: the job is committed. After: nothing of it is pending, nor in its staging. Run again: looks again.

    Raises:
        JobClosed: The job is not committed, or its commit is not through.
        S3CommitError: Something could not be aborted; run it again.

    """
    if read_state(context) is not None or find_manifest(context) is None:
        raise JobClosed(f"{context.name} is not committed: its uploads are not late")
    with naming(context, "abort"):
        return _abort_leftovers(context)


def _refuse_if_sealed(context: JobContext, stage: str, stage_attempt: str) -> None:
    if find_stage_seal(context, stage, stage_attempt) is not None:
        raise JobClosed(
            f"{context.name}: stage {stage}-{stage_attempt} is sealed; its uploads may be committed"
        )


def _read_state(context: JobContext, reason: str | None, *, force: bool) -> Stored[StateRecord] | None:
    """Read the job's state; with ``force`` a damaged one is written over by one that is aborting."""
    try:
        return read_state(context)
    except ForeignRecord:
        raise
    except InvalidRecord as error:
        if not force:
            raise
        if find_manifest(context) is not None:
            raise AlreadyCommitted(f"{context.name} is committed; it cannot be aborted") from error
        return replace_state(context, "aborting", begun=True, reason=reason)


def _abort_unknown(context: JobContext, reason: str | None) -> AbortReport:
    """Clean up after a job without a state: one that ended, or never got one."""
    if find_manifest(context) is not None:
        raise AlreadyCommitted(f"{context.name} is committed; it cannot be aborted")
    _refuse_to_cut(context)
    if not _is_spent_already(context):
        spend(context, reason, _said_of(context))
    return AbortReport(uploads=_abort_leftovers(context), objects=0, state="absent")


def _abort_leftovers(context: JobContext) -> int:
    """Abort what a job without a state has pending, and remove its staging; return how many uploads."""
    tracked = (PendingId.of(upload) for upload in _recorded_uploads(context) if upload is not None)
    uploads = abort_uploads(context, tracked) + abort_uploads(context, untracked_uploads(context))
    clean_staging(context)
    return uploads


def _is_spent_already(context: JobContext) -> bool:
    """Tell whether an earlier abort wrote that the id is spent, as it did before it removed the job's record.

    How the job's records are encrypted is known no more by then; a bucket may refuse to have it written anew.
    """
    try:
        return is_spent(context)
    except InvalidRecord:
        return False


def _said_of(context: JobContext) -> Mapping[str, str]:
    """Return what the orchestrator said of a job: by its record, or by that of an abort that removed it.

    It is for people: a record that cannot be read does not keep the job from being aborted.
    """
    try:
        job = context.record or find_job(context)
        if job is not None:
            return job.context
        earlier = find_aborted(context)
    except InvalidRecord:
        return {}
    return earlier.context if earlier is not None else {}


def _refuse_to_cut(context: JobContext) -> None:
    """Refuse where Hadoop's own commit has published some of the job: adopting it takes that back."""
    layout = context.layout
    refuse_to_cut(context.store, layout.destination, layout.job_id, _said_of(context).get("adopted_from"))


def _recorded_uploads(context: JobContext) -> Iterator[PendingUpload | None]:
    """Yield every upload that a record in the staging names, those of Hadoop's magic committer included.

    Cleaning up removes its pendingsets with ours: they share the directory.
    """
    return tracked_uploads(context, context.layout.staging.prefix)


def _refuse_if_too_late(context: JobContext, state: StateRecord, *, force: bool) -> None:
    if state.state == "committed":
        raise AlreadyCommitted(f"{context.name} is committed; it cannot be aborted")
    if state.begun and not state.reversible and not force:
        raise NotReversible(
            f"{context.name} has begun to overwrite or delete old data and cannot be rolled back:"
            " finish it with: s3commit recover, or give the old data up with: s3commit abort --force"
        )


def _undo(context: JobContext, current: Stored[StateRecord]) -> AbortReport | None:
    """Do the work of an abort; None if another process moved the job meanwhile."""
    uploads, objects = 0, 0
    if current.record.state == "aborting":
        begun = current.record.begun
        for batch in in_batches(_recorded_uploads(context), _BATCH):
            readable = [upload for upload in batch if upload is not None]
            if begun:
                objects += delete_ours(context, readable)
            else:
                abort_uploads(context, map(PendingId.of, readable))
            uploads += len(readable)
        uploads += abort_uploads(context, untracked_uploads(context))
        if begun:
            objects += _delete_by_metadata(context, current.record)
        if begun and current.record.saved_success is not None:
            _restore_success(context, current.record.saved_success)
        spend(context, current.record.reason, _said_of(context))
        if move(context, current, "aborted") is None:
            return None
    release_lock(context)
    clean_staging(context)
    logger.info("%s: aborted, %d uploads, %d objects taken back", context.name, uploads, objects)
    return AbortReport(uploads=uploads, objects=objects, state="aborted")


def _delete_by_metadata(context: JobContext, state: StateRecord) -> int:
    """Take back objects that no record names any more, by the job id they carry.

    Their pendingset may be gone, unreadable, or changed so that it names fewer.
    """
    try:
        directories = list(load_seal(context, state.seal_etag).record.partitions)
    except InvalidRecord:
        directories = None
    named = (info for info in data_objects(context, directories) if owner_of(info.key) == context.job_id)
    deleted = 0
    for batch in in_batches(named, _BATCH):
        doomed = []
        calls = [(info, Head(context.bucket, info.key)) for info in batch]
        for info, outcome in context.store.perform(calls):
            if isinstance(outcome, ObjectInfo) and outcome.metadata.get(JOB_METADATA) == context.job_id:
                doomed.append(Doomed(info.key, outcome.etag))
            elif isinstance(outcome, S3CommitError) and not isinstance(outcome, NoSuchKey):
                raise outcome
        deleted += delete_objects(context, doomed, "metadata")
    return deleted


def _restore_success(context: JobContext, saved: SavedSuccess) -> None:
    """Put the old ``_SUCCESS`` back, byte for byte but with another ETag.

    A committer that sleeps may still hold a request to delete the marker with the old ETag. Writing it as a
    multipart upload (or, if it was one, in one piece) gives the same bytes an ETag that the request does not
    match.
    """
    store, bucket, key = context.store, context.bucket, context.layout.success
    try:
        while _is_to_be_restored(context, saved):
            if "-" in saved.etag:
                _put_success(context, saved)
            else:
                upload_id = store.create_upload(bucket, key, metadata={}, content_type="application/json")
                etag = store.upload_part(bucket, key, upload_id, 1, saved.body)
                store.complete_upload(bucket, key, upload_id, [etag])
    except NoSuchUpload:
        # Another process is restoring the marker too, and cleaned up after both.
        _restore_success(context, saved)
    leftovers = (upload for upload in store.list_uploads(bucket, key) if upload.key == key)
    abort_uploads(context, (PendingId(bucket, key, upload.upload_id, "writer") for upload in leftovers))


def _is_to_be_restored(context: JobContext, saved: SavedSuccess) -> bool:
    """Tell whether the marker is gone, or still has the ETag that a sleeping committer may know."""
    try:
        return context.store.head(context.bucket, context.layout.success).etag == saved.etag
    except NoSuchKey:
        return True


def _put_success(context: JobContext, saved: SavedSuccess) -> None:
    """Put a marker back in one piece; another job's marker is left alone."""
    store, bucket, key = context.store, context.bucket, context.layout.success
    conditional = context.conditional
    try:
        store.head(bucket, key)
    except NoSuchKey:
        condition: dict[str, Any] = {"if_none_match": conditional}
    else:
        condition = {"if_match": saved.etag if conditional else None}
    try:
        store.put(bucket, key, saved.body, **condition)
    except PreconditionFailed:
        logger.info("%s: another process wrote _SUCCESS meanwhile", context.name)

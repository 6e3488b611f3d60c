"""Abort: discard a job's uploads, and take back what its commit has published.

First the state moves: from then on a running task attempt fails when it commits. Then the log gets an
``abandon`` entry, so that no process can commit the job; only then uploads are aborted and published objects
deleted: each object after its upload, so that no process can complete it again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from airflow_s3commit.exceptions import (
    AlreadyCommitted,
    InvalidRecord,
    JobClosed,
    NoSuchKey,
)
from airflow_s3commit.protocol.hadoop.status import refuse_if_published
from airflow_s3commit.protocol.lifecycle.enter import abandon
from airflow_s3commit.protocol.lifecycle.success import restore_success
from airflow_s3commit.protocol.metadata.context import JobContext, naming
from airflow_s3commit.protocol.metadata.endings import record_ending
from airflow_s3commit.protocol.metadata.listing import data_objects
from airflow_s3commit.protocol.metadata.log import Log, read_entries
from airflow_s3commit.protocol.metadata.manifests import find_manifest
from airflow_s3commit.protocol.metadata.pending_uploads import tracked_uploads, untracked_uploads
from airflow_s3commit.protocol.metadata.records import Stored, exists, unless_damaged
from airflow_s3commit.protocol.metadata.removal import (
    PendingId,
    abort_uploads,
    clean_staging,
    delete_objects,
    delete_ours,
    delete_record,
    delete_records,
)
from airflow_s3commit.protocol.metadata.sealed_job import is_stage_sealed, load_seal
from airflow_s3commit.protocol.metadata.snapshot import read_snapshot
from airflow_s3commit.protocol.metadata.state import (
    find_aborted,
    find_job,
    follow,
    move,
    read_state,
    replace_state,
)
from airflow_s3commit.protocol.model.job import BEFORE_COMMIT, AbortReport, StateRecord
from airflow_s3commit.protocol.model.layout import PENDINGSET_SUFFIX, owner_of
from airflow_s3commit.protocol.model.log import LiveCommit, LogEntry, RetainedCommit
from airflow_s3commit.protocol.model.ownership import JOB_METADATA
from airflow_s3commit.protocol.model.pendingset import PendingUpload
from airflow_s3commit.store.base import Head, ObjectInfo, ObjectToDelete
from airflow_s3commit.store.execute import in_batches, outcomes

logger = logging.getLogger(__name__)

T = TypeVar("T")

_BATCH = 1_000


def abort_job(context: JobContext, *, force: bool = False, reason: str | None = None) -> AbortReport:
    """Abort a job, and roll back what it has published.

    Before: any state but committed. After: none of its output is visible or pending, its id is spent, and
    ``_SUCCESS`` is that of the newest commit, or another program's as it was. Repeatable. Never touches
    uploads of other jobs.

    Args:
        context: The job.
        force: Abort although the state is damaged.
        reason: Why, for the record.

    Raises:
        AlreadyCommitted: The job is committed, or is a successful job of Hadoop.
        JobClosed: The job is Hadoop's, and Hadoop has published some of its output: adopt it.
        InvalidRecord: The state is damaged, or a record was copied here. Nothing was changed.
        OutcomeUnknown: A response was lost; abort again.

    """
    with naming(context, "abort"):
        while True:
            current = _read_state(context, reason, force=force)
            if current is None:
                report = _abort_unknown(context, reason)
                if report is not None:
                    return report
                continue
            if current.record.state not in ("aborting", "aborted"):
                _refuse_if_too_late(context, current.record)
                if current.record.state in BEFORE_COMMIT:
                    _refuse_if_published(context)
                current = move(context, current, "aborting", reason=reason)
            if current is not None:
                report = _undo(context, current)
                if report is not None:
                    return report


def abort_stage(context: JobContext, stage: str, stage_attempt: str) -> int:
    """Abort the recorded uploads of a stage attempt that another attempt replaces; return how many.

    Raises:
        JobClosed: The stage attempt is sealed.

    """
    _refuse_if_sealed(context, stage, stage_attempt)
    context.known.are_all = False
    prefix = context.layout.stage(stage, stage_attempt)
    tracked = tracked_uploads(context, prefix)
    return abort_uploads(context, (PendingId.of(upload) for upload in tracked if upload is not None))


def abort_attempt(context: JobContext, stage: str, stage_attempt: str, task: str, attempt: str) -> int:
    """Abort the recorded uploads of a task attempt whose process is gone; return how many.

    Before: the stage attempt is not sealed. After: the uploads and their records are gone, so the attempt
    cannot be sealed. Repeatable by any process. With ``track_pending="task"`` an attempt records nothing
    before it commits: the job's commit or abort, or a sweep, finds its uploads.

    Raises:
        JobClosed: The stage attempt is sealed: its uploads may be committed.
        InvalidRecord: An id cannot be part of a key, or a record of the attempt is damaged.
        S3CommitError: An upload could not be aborted; its records are kept, so call it again.

    """
    pendingset = context.layout.pendingset(stage, stage_attempt, task, attempt)
    with naming(context, f"abort of task {task} attempt {attempt} of stage {stage}-{stage_attempt}"):
        _refuse_if_sealed(context, stage, stage_attempt)
        directory = pendingset.removesuffix(PENDINGSET_SUFFIX) + "/"
        recorded = [*tracked_uploads(context, pendingset), *tracked_uploads(context, directory)]
        if None in recorded:
            raise InvalidRecord(f"{context.staging_uri(pendingset)}, or a record beside it, cannot be read")
        aborted = abort_uploads(context, {PendingId.of(upload) for upload in recorded if upload is not None})
        # Last: a pending upload must always have a record.
        delete_record(context, context.staging_bucket, pendingset)
        listed = context.store.list_objects(context.staging_bucket, directory)
        delete_records(context, (info.key for info in listed))
    return aborted


def abort_late(context: JobContext) -> int:
    """Abort uploads that task attempts left after their job was committed and cleaned up; return how many.

    Such an attempt does not count: another attempt of its task does. Before: the job is committed. After: no
    upload of it is pending, and its staging is empty. Repeatable.

    Raises:
        JobClosed: The job is not committed, or its commit has not finished.
        S3CommitError: An upload could not be aborted; call it again.

    """
    if read_state(context) is not None or find_manifest(context) is None:
        raise JobClosed(f"{context.name} is not committed: its uploads are not late")
    with naming(context, "abort"):
        uploads = _abort_leftovers(context)
        clean_staging(context)
        return uploads


def _refuse_if_sealed(context: JobContext, stage: str, stage_attempt: str) -> None:
    if is_stage_sealed(context, stage, stage_attempt):
        raise JobClosed(
            f"{context.name}: stage {stage}-{stage_attempt} is sealed; its uploads may be committed"
        )


def _read_state(context: JobContext, reason: str | None, *, force: bool) -> Stored[StateRecord] | None:
    """Read the job's state; with ``force``, overwrite a damaged one with ``aborting``."""

    def overwrite(error: InvalidRecord) -> Stored[StateRecord] | None:
        if not force:
            raise error
        if find_manifest(context) is not None:
            raise AlreadyCommitted(f"{context.name} is committed; it cannot be aborted") from error
        return replace_state(context, "aborting", begun=True, reason=reason)

    return unless_damaged(lambda: read_state(context), overwrite)


def _abort_unknown(context: JobContext, reason: str | None) -> AbortReport | None:
    """Clean up after a job without a state: it ended, or its setup did not finish.

    Returns:
        The report; None if the setup finished meanwhile: then its commit may have published files.

    """
    if find_manifest(context) is not None:
        raise AlreadyCommitted(f"{context.name} is committed; it cannot be aborted")
    if context.record is None and find_aborted(context) is None:
        _refuse_if_in_log(context)
    _refuse_if_published(context)
    entry = _abandon(context, reason)
    if entry is not None:
        record_ending(context, entry)
    # A committer that slept while the job was aborted may have written it.
    delete_record(context, context.bucket, context.layout.manifest_files)
    uploads = _abort_leftovers(context)
    # Listed after the entry: a commit that finds that takes back what it has published, if its records stay.
    left = list(context.store.list_objects(context.staging_bucket, context.layout.staging.prefix))
    if any(info.key == context.layout.state for info in left):
        return None
    clean_staging(context, keys=[info.key for info in left])
    return AbortReport(uploads=uploads, objects=0, state="absent")


def _refuse_if_in_log(context: JobContext) -> None:
    """Raise if a job without records is committed after all: somebody deleted its manifest.

    Its list of files, which nothing can rebuild, is deleted with an aborted job. So where there is one, the
    whole log is read. A short list is in the entry: then it matters only whether the table has its files.
    """
    home = context.layout.destination
    if exists(context.store, context.bucket, context.layout.manifest_files):
        commits = (
            (entry.number, entry.job_id)
            for entry in read_entries(context.store, home, 0)
            if entry.destination == home.uri and entry.kind == "commit"
        )
    else:
        snapshot = _if_readable(lambda: read_snapshot(context.store, home))
        held: list[LiveCommit | RetainedCommit] = []
        if snapshot is not None:
            held += [*snapshot.commits(), *snapshot.retained()]
        commits = ((commit.number, commit.job_id) for commit in held)
    for number, job_id in commits:
        if job_id == context.job_id:
            raise AlreadyCommitted(
                f"{context.name} is committed, as entry {number} of the log; it cannot be aborted. Its"
                f" manifest is missing: rebuild it with: s3commit repair {home.uri} --apply"
            )


def _abort_leftovers(context: JobContext) -> int:
    """Abort the pending uploads of a job without a state; return how many."""
    tracked = (PendingId.of(upload) for upload in _recorded_uploads(context) if upload is not None)
    return abort_uploads(context, tracked) + abort_uploads(context, untracked_uploads(context))


def _abandon(context: JobContext, reason: str | None) -> LogEntry | None:
    """Create the job's ``abandon`` entry; None if there is one that is older than what can be found again.

    A setup that slept may have written the job's record after the job had ended: then the part of the log
    that the record names lacks the end, and only its manifest, or the record of its abort, shows it.
    """
    if context.record is not None and _if_readable(lambda: find_manifest(context)) is not None:
        raise AlreadyCommitted(f"{context.name} is committed; it cannot be aborted")
    if _if_readable(lambda: find_aborted(context)) is not None:
        # It is written before the job's record is removed. Without that the record's encryption is unknown,
        # and a bucket may refuse to have the record of the abort overwritten.
        return None
    return abandon(context, reason, _facts_of(context))


def _if_readable(read: Callable[[], T | None]) -> T | None:
    """Return a record; None if there is none, or a damaged one: that does not prevent an abort."""
    try:
        return read()
    except InvalidRecord:
        return None


def _facts_of(context: JobContext) -> Mapping[str, str]:
    """Return the orchestrator's facts about a job, from its record or from the record of its abort.

    They are for people: a damaged record does not prevent an abort.
    """
    try:
        job = context.record or find_job(context)
        if job is not None:
            return job.context
        earlier = find_aborted(context)
    except InvalidRecord:
        return {}
    return earlier.context if earlier is not None else {}


def _refuse_if_published(context: JobContext) -> None:
    """Raise if Hadoop's own commit has published some of the job: adopting it takes that back."""
    layout = context.layout
    refuse_if_published(
        context.store, layout.destination, layout.job_id, _facts_of(context).get("adopted_from")
    )


def _recorded_uploads(context: JobContext) -> Iterator[PendingUpload | None]:
    """Yield every upload that a record in the staging names, those of Hadoop's magic committer included.

    Hadoop's pendingsets share the directory, and clean-up removes them with ours.
    """
    return tracked_uploads(context, context.layout.staging.prefix)


def _refuse_if_too_late(context: JobContext, state: StateRecord) -> None:
    if state.state == "committed":
        raise AlreadyCommitted(f"{context.name} is committed; it cannot be aborted")
    if state.state == "committing":
        last = Log(context).ending()
        if last is not None and last.kind == "commit":
            raise AlreadyCommitted(
                f"{context.name} is committed, as entry {last.number} of the log; it cannot be aborted."
                " Finish it with: s3commit recover"
            )


def _undo(context: JobContext, current: Stored[StateRecord]) -> AbortReport | None:
    """Abort and delete; None if another process moved the job meanwhile."""
    uploads, objects = 0, 0
    if current.record.state == "aborting":
        begun = current.record.begun
        try:
            entry = _abandon(context, current.record.reason)
        except AlreadyCommitted:
            # The job was committed before the state moved: let it be finished.
            log = Log(context)
            log.read()
            # What its commit still needs is destroyed otherwise, and a listing may lack its entry.
            log.read_on()
            last = log.ending()
            if last is not None:
                follow(context, current, last)
            else:
                # They are of a setup that has not found out yet that its job had ended.
                clean_staging(context)
            raise
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
            delete_record(context, context.bucket, context.layout.manifest_files)
            # A listing that lacks it would bring the marker of an older commit back.
            known = entry.number if entry is not None else 0
            restore_success(context, current.record.saved_success, at_least=known)
        if entry is not None:
            record_ending(context, entry)
        if move(context, current, "aborted") is None:
            return None
    clean_staging(context)
    logger.info("%s: aborted, %d uploads, %d objects taken back", context.name, uploads, objects)
    return AbortReport(uploads=uploads, objects=objects, state="aborted")


def _delete_by_metadata(context: JobContext, state: StateRecord) -> int:
    """Delete objects that no record names, by the job id in their metadata.

    Their pendingset may be gone, damaged, or changed to name fewer.
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
        for info, outcome in outcomes(context.store, calls, NoSuchKey):
            if isinstance(outcome, ObjectInfo) and outcome.metadata.get(JOB_METADATA) == context.job_id:
                doomed.append(ObjectToDelete(info.key, outcome.etag))
        deleted += delete_objects(context, doomed, "metadata")
    return deleted

"""The last part of a job's commit, after the point of no return: nothing here can be undone or go wrong."""

from __future__ import annotations

import logging

from airflow_s3commit.causes import noting
from airflow_s3commit.exceptions import InvalidRecord, S3CommitError
from airflow_s3commit.protocol.cleanup import clean_staging
from airflow_s3commit.protocol.commit_run import CommitRun
from airflow_s3commit.protocol.context import JobContext
from airflow_s3commit.protocol.destination import join_uri
from airflow_s3commit.protocol.file_list import FileList
from airflow_s3commit.protocol.journal import Stored
from airflow_s3commit.protocol.lock import release_lock
from airflow_s3commit.protocol.manifest import write_manifest, write_success
from airflow_s3commit.protocol.records import ManifestRecord, SealRecord, StateRecord
from airflow_s3commit.protocol.removal import PendingId, abort_uploads
from airflow_s3commit.protocol.sealed import load_stage_seals, pendingset_key
from airflow_s3commit.protocol.setup import find_job, load_job
from airflow_s3commit.protocol.state import find_manifest
from airflow_s3commit.protocol.tracking import tracked_uploads, untracked_uploads

__all__ = ["finish"]

logger = logging.getLogger(__name__)


def finish(run: CommitRun, current: Stored[StateRecord]) -> ManifestRecord:
    """Do what is left after the point of no return; every line may be run by several processes.

    Before: the job is ``committed``. After: the manifest and ``_SUCCESS`` stand, what was replaced is gone,
    nothing is pending, and the staging is gone.

    Raises:
        InvalidRecord: A record was changed after the commit, or the manifest removed.

    """
    context = run.context
    try:
        _account_for(run, current)
    except S3CommitError as error:
        # Cleaning up removes the job's record first: where it is gone, another process has done all of this
        # and is removing what this one reads.
        is_ended = False
        with noting(error, "looking whether another process has finished the job", "it is committed"):
            is_ended = find_job(context) is None
        if not is_ended:
            raise
        run.drop_lock()
    clean_staging(context)
    manifest = find_manifest(context)
    if manifest is None:
        where = join_uri(context.bucket, context.layout.manifest)
        raise InvalidRecord(f"{context.name} was committed, but its manifest {where} has been removed")
    return manifest


def _account_for(run: CommitRun, current: Stored[StateRecord]) -> None:
    context, job = run.context, load_job(run.context)
    seal, plan = run.pinned_seal(current.record), run.pinned_plan(current.record)
    files = run.files or FileList.of_sealed(context, seal)
    metrics = {**run.metrics, **run.requests()}
    manifest = find_manifest(context) or write_manifest(
        context, job, seal, plan, files=files, metrics=metrics
    )
    if job.options.replace_order == "publish-then-delete":
        run.delete_planned(job, seal, plan)
    _discard_the_rest(context, seal)
    write_success(context, manifest, files, tasks=sum(stage.tasks for stage in seal.stages))
    release_lock(context)


def _discard_the_rest(context: JobContext, seal: SealRecord) -> None:
    """Abort what task attempts that do not count left pending."""
    sealed = {
        pendingset_key(context, stage, task)
        for stage in load_stage_seals(context, seal)
        for task in stage.tasks
    }
    late = (PendingId.of(upload) for upload in tracked_uploads(context, skip=sealed) if upload is not None)
    discarded = abort_uploads(context, late) + abort_uploads(context, untracked_uploads(context))
    if discarded:
        logger.info("%s: discarded %d uploads of attempts that do not count", context.name, discarded)

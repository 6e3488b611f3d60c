"""Preview of a commit: which existing objects it replaces. Writes no plan."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from airflow_s3commit.exceptions import InvalidRecord
from airflow_s3commit.protocol.lifecycle.plan import existing_objects
from airflow_s3commit.protocol.metadata.context import JobContext, naming
from airflow_s3commit.protocol.metadata.plans import find_plan
from airflow_s3commit.protocol.metadata.seals import load_seal
from airflow_s3commit.protocol.metadata.state import load_job, require_state
from airflow_s3commit.protocol.metadata.table_files import is_retained_at
from airflow_s3commit.protocol.model.codec import Plain
from airflow_s3commit.protocol.model.destination import join_uri
from airflow_s3commit.protocol.model.job import ConflictMode, JobOptions, StateRecord
from airflow_s3commit.protocol.model.seal import SealRecord


class CommitPreview(Plain, Struct, frozen=True, kw_only=True):
    """The effect of a commit on a destination.

    Attributes:
        conflict_mode: Conflict mode of the job.
        planned: Whether the numbers are from the plan that the commit follows; if not, they are from a
            listing, and a plan made later may differ.
        files: Number of files that the commit makes visible.
        bytes: Bytes of these files.
        partitions: Number of partitions that receive files.
        replaced: Number of existing objects that the commit deletes or overwrites.
        replaced_bytes: Bytes of these objects.
        overwritten: Number of these objects that it overwrites in place, which cannot be rolled back.
        conflict: URI of an existing object because of which conflict mode ``fail`` refuses the commit; None
            if the commit is possible.

    """

    conflict_mode: ConflictMode
    planned: bool
    files: int
    bytes: int
    partitions: int
    replaced: int = 0
    replaced_bytes: int = 0
    overwritten: int = 0
    conflict: str | None = None


def preview_commit(context: JobContext) -> CommitPreview:
    """Return the effect of the commit of a sealed job. Reads only.

    Args:
        context: The job; its state is ``sealed`` or ``committing``.

    Raises:
        AlreadyCommitted: The job is committed.
        JobClosed: The job is not sealed yet, or is aborted.
        NoSuchJob: The job does not exist.
        InvalidRecord: The job's seal or plan is damaged.
        S3CommitError: A request failed.

    """
    with naming(context, "preview"):
        state = require_state(context, "sealed", "committing").record
        seal = load_seal(context, state.seal_etag)
        options = load_job(context).options
        preview = CommitPreview(
            conflict_mode=options.conflict_mode,
            planned=False,
            files=seal.record.counts.files,
            bytes=seal.record.counts.bytes,
            partitions=len(seal.record.partitions),
        )
        return _from_plan(context, state, seal.etag, preview) or _from_listing(
            context, options, seal.record, preview
        )


def _from_plan(
    context: JobContext, state: StateRecord, seal_etag: str, preview: CommitPreview
) -> CommitPreview | None:
    """Return the preview from the plan that the commit follows; None if the commit will make a plan."""
    try:
        stored = find_plan(context, state)
    except InvalidRecord:
        if state.state == "committing":
            raise
        return None
    if stored is None or stored.record.seal_etag != seal_etag:
        return None
    plan = stored.record
    return msgspec.structs.replace(
        preview, planned=True, replaced=plan.objects, replaced_bytes=plan.bytes, overwritten=plan.overwritten
    )


def _from_listing(
    context: JobContext, options: JobOptions, seal: SealRecord, preview: CommitPreview
) -> CommitPreview:
    """Return the preview from a listing."""
    is_refused = options.as_sealed(seal.removes).conflict_mode == "fail"
    is_retained = is_retained_at(context.store, context.layout.destination)
    replaced = size = overwritten = 0
    for info, is_own in existing_objects(context, options, seal, is_retained):
        if is_refused:
            return msgspec.structs.replace(preview, conflict=join_uri(context.bucket, info.key))
        replaced, size, overwritten = replaced + 1, size + info.size, overwritten + is_own
    return msgspec.structs.replace(preview, replaced=replaced, replaced_bytes=size, overwritten=overwritten)

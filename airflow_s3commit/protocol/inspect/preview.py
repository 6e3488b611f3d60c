"""What the commit of a job would do to data that is there, found out without writing a plan."""

from __future__ import annotations

import msgspec

from airflow_s3commit.exceptions import InvalidRecord
from airflow_s3commit.protocol.metadata.context import JobContext, naming
from airflow_s3commit.protocol.metadata.job_record import load_job
from airflow_s3commit.protocol.metadata.listing import data_objects
from airflow_s3commit.protocol.metadata.plans import find_plan
from airflow_s3commit.protocol.metadata.seals import each_pendingset, load_seal, load_stage_seals
from airflow_s3commit.protocol.metadata.state import require_state
from airflow_s3commit.protocol.model.codec import Plain
from airflow_s3commit.protocol.model.destination import join_uri
from airflow_s3commit.protocol.model.digest import text_digest
from airflow_s3commit.protocol.model.job import ConflictMode, JobOptions, StateRecord
from airflow_s3commit.protocol.model.seal import SealRecord


class CommitPreview(Plain, frozen=True, kw_only=True):
    """What a commit replaces, and what stands in its way.

    Attributes:
        conflict_mode: The job's.
        planned: Whether a plan says so, which the commit will keep to; else it is what a plan made now would
            say.
        files: Files that the commit makes visible.
        bytes: Their bytes.
        partitions: Partitions that get data.
        replaced: Objects that it deletes or overwrites.
        replaced_bytes: Their bytes.
        overwritten: How many of these it overwrites in place: once that has begun there is no way back.
        conflict: URI of an object because of which conflict mode ``fail`` refuses; None if it does not.

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
    """Find out what the commit of a sealed job would do; nothing is changed.

    Raises:
        AlreadyCommitted: It is committed.
        JobClosed: It is not sealed yet, or aborted.
        NoSuchJob: It is not known.
        InvalidRecord: Its seal or plan is damaged.

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
        return _as_planned(context, state, seal.etag, preview) or _as_is(
            context, options, seal.record, preview
        )


def _as_planned(
    context: JobContext, state: StateRecord, seal_etag: str, preview: CommitPreview
) -> CommitPreview | None:
    """Read the plan that the commit keeps to; None if it will make one."""
    try:
        stored = find_plan(context, state.plan_etag)
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


def _as_is(
    context: JobContext, options: JobOptions, seal: SealRecord, preview: CommitPreview
) -> CommitPreview:
    """Look at what is there now, by the rules of `airflow_s3commit.protocol.lifecycle.plan`."""
    mode = options.conflict_mode
    if mode == "append" and options.unique_filenames:
        return preview
    own = set() if options.unique_filenames else _own_keys(context, seal)
    whole = options.whole_destination and mode != "append"
    replaced = size = overwritten = 0
    for info in data_objects(context, None if whole else seal.partitions):
        if mode == "fail":
            return msgspec.structs.replace(preview, conflict=join_uri(context.bucket, info.key))
        is_own = text_digest(info.key) in own
        if is_own or mode == "replace":
            replaced, size, overwritten = replaced + 1, size + info.size, overwritten + is_own
    return msgspec.structs.replace(preview, replaced=replaced, replaced_bytes=size, overwritten=overwritten)


def _own_keys(context: JobContext, seal: SealRecord) -> set[bytes]:
    return {
        text_digest(upload.destinationKey)
        for _, _, pendingset in each_pendingset(context, load_stage_seals(context, seal))
        for upload in pendingset.commits
    }

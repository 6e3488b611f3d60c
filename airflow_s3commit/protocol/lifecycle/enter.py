"""Enter the log: the point of no return of a commit, and its opposite of an abort.

Before its ``commit`` entry everything that a job has done can be undone; after it there is only forward. An
abort creates an ``abandon`` entry before it undoes anything. A job has at most one of the two.

A commit that replaces, or that fails on existing data, was planned as of an entry of the log. If other jobs
have added files to its partitions since, a replace plans again, and takes those files too; the other one is
refused. A plan that the caller named is checked when the commit begins, not here: a refusal after publishing
would throw away a whole job for files that the order of the log says are to be replaced.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import msgspec

from airflow_s3commit.exceptions import (
    AlreadyCommitted,
    DestinationChanged,
    DestinationNotEmpty,
    NoSuchUpload,
    PreconditionFailed,
)
from airflow_s3commit.protocol.lifecycle.adopted import refuse_if_replaced
from airflow_s3commit.protocol.lifecycle.manifest import FileList, draft_manifest, write_files
from airflow_s3commit.protocol.lifecycle.plan import make_plan
from airflow_s3commit.protocol.lifecycle.run import CommitRun, Overtaken, touched
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.log import Log
from airflow_s3commit.protocol.metadata.manifests import find_manifest
from airflow_s3commit.protocol.metadata.records import Stored
from airflow_s3commit.protocol.metadata.sealed_job import load_seal
from airflow_s3commit.protocol.model.codec import PROSE
from airflow_s3commit.protocol.model.job import (
    AbortedRecord,
    JobOptions,
    JobRecord,
    Removal,
    StateRecord,
)
from airflow_s3commit.protocol.model.log import LogEntry, PlanName
from airflow_s3commit.protocol.model.manifest import ManifestRecord
from airflow_s3commit.protocol.model.sealed_job import PlanRecord, SealRecord

logger = logging.getLogger(__name__)

#: Tries to enter an abort among the entries of other jobs, before it gives up.
_ABANDONS = 100

#: Plans of a commit that other jobs keep adding to, before it gives up.
_PLANS = 20


def enter_commit(
    run: CommitRun,
    state: StateRecord,
    job: JobRecord,
    seal: SealRecord,
    plan: PlanRecord,
) -> LogEntry:
    """Create the job's ``commit`` entry, and return the entry of the job: this one, or an earlier one.

    Before: every upload is completed. Repeatable by any process.

    Args:
        run: The commit.
        state: The job's state.
        job: Its record.
        seal: Its seal.
        plan: Its plan.

    Raises:
        DestinationNotEmpty: Conflict mode ``fail``, and another job has committed to a partition.
        DestinationChanged: Other jobs added files to its partitions twenty times in a row.
        InvalidRecord: An entry of the log, or a pendingset, is damaged.
        Overtaken: Another process moved the job.

    """
    context = run.context
    files = run.files or FileList.of_sealed(context, seal)
    within = files.short()
    try:
        digest = (
            write_files(context, files.lines(), context.layout.manifest_files)
            if within is None
            else files.sha256
        )
    except NoSuchUpload as error:
        # Another process ended the job and aborted this upload.
        run.log.read()
        if (ending := run.log.ending()) is not None:
            return ending
        raise Overtaken from error
    options = job.options.as_sealed(seal.removes)
    current, etag = plan, state.plan_etag
    for _ in range(_PLANS):
        if run.log.ending() is None:
            if job.adopted:
                refuse_if_replaced(run, job, seal)
            if _has_conflict(run, job, seal, current):
                stored = _plan_again(run, job, current.seal_etag)
                current, etag = stored.record, stored.etag
        draft = draft_manifest(
            context,
            job,
            seal,
            current,
            files_sha256=digest,
            within=within,
            metrics={**run.metrics, **run.requests()},
        )
        named = PlanName(plan_id=current.plan_id, etag=etag) if current.parts and etag is not None else None
        entry = run.log.append(
            lambda number: _commit_entry(run, options, number, draft, named)  # noqa: B023
        )
        if entry is not None:
            run.files = files
            return entry
    raise _crowded_out(context)


def abandon(context: JobContext, reason: str | None, job_context: Mapping[str, str]) -> LogEntry:
    """Create the job's ``abandon`` entry, and return it, or the earlier one. Repeatable.

    Args:
        context: The job.
        reason: Why.
        job_context: The orchestrator's facts about the job, kept after its own record is gone.

    Raises:
        AlreadyCommitted: The log has the job's commit.
        PreconditionFailed: Other jobs' entries came first a hundred times in a row. Nothing was changed.

    """
    if context.record is None and find_manifest(context) is not None:
        # Without the record only the log's newest entry is read, and those before it have their manifests.
        raise AlreadyCommitted(f"{context.name} is committed; it cannot be aborted")
    record = AbortedRecord(
        **context.layout.place,
        since=context.now_ms(),
        reason=reason[:PROSE] if reason is not None else None,
        context=dict(job_context),
    )

    def entry_at(number: int) -> LogEntry:
        return LogEntry(
            **context.layout.place,
            number=number,
            kind="abandon",
            epoch=log.epoch,
            aborted=record,
            nonce=context.new_id(),
        )

    log = Log(context)
    for _ in range(_ABANDONS):
        if (entry := log.append(entry_at)) is not None:
            break
        logger.info("%s: another job's entry %d came first", context.name, log.position)
    else:
        raise PreconditionFailed(
            f"{context.name}: entries of other jobs came first {_ABANDONS} times in a row, so it is not"
            " abandoned yet and nothing of it is undone; abort it again"
        )
    if entry.kind == "commit":
        raise AlreadyCommitted(
            f"{context.name} is committed, as entry {entry.number} of the log; it cannot be aborted."
            " Finish it with: s3commit recover"
        )
    return entry


def _has_conflict(run: CommitRun, job: JobRecord, seal: SealRecord, plan: PlanRecord) -> bool:
    options = job.options.as_sealed(seal.removes)
    if options.conflict_mode == "append":
        return False
    return run.log.was_added_to(touched(options, seal), plan.base)


def _plan_again(run: CommitRun, job: JobRecord, seal_etag: str) -> Stored[PlanRecord]:
    context = run.context
    logger.info("%s: other jobs have added files to its partitions; planning again", context.name)
    try:
        return make_plan(context, job, load_seal(context, seal_etag), run.log)
    except DestinationNotEmpty as error:
        raise DestinationNotEmpty(
            f"{context.name}: conflict mode is fail, and another job has committed to its partitions since"
            " this commit began, so it is rolled back; write it again with replace or append, or elsewhere"
        ) from error


def _crowded_out(context: JobContext) -> DestinationChanged:
    return DestinationChanged(
        f"{context.name}: other jobs have added files to its partitions {_PLANS} times in a row while it was"
        " committing, so it is rolled back; write it again, as a new job, when they are done"
    )


def _commit_entry(
    run: CommitRun, options: JobOptions, number: int, draft: ManifestRecord, plan: PlanName | None
) -> LogEntry:
    """Return a job's ``commit``."""
    context = run.context
    manifest = msgspec.structs.replace(draft, generation=number)
    return LogEntry(
        **context.layout.place,
        number=number,
        kind="commit",
        epoch=run.log.epoch or number,
        manifest=manifest,
        removes=_removal(options),
        retain=options.retain_seconds if options.conflict_mode != "append" else 0,
        marking=options.partition_success,
        plan=plan,
        nonce=context.new_id(),
    )


def _removal(options: JobOptions) -> Removal:
    """Return what a commit removes. One that fails on data has found none: what was there is removed too."""
    if options.conflict_mode == "append":
        return "nothing"
    return "everything" if options.whole_destination else "partitions"

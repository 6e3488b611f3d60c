"""What stands at a destination, for people and their programs to read; nothing here changes anything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec
from msgspec import Struct

from airflow_s3commit.exceptions import InvalidRecord
from airflow_s3commit.protocol import journal
from airflow_s3commit.protocol.context import JobContext
from airflow_s3commit.protocol.destination import Destination, join_uri
from airflow_s3commit.protocol.foreign_pendingset import decode_pendingset, pending_bytes
from airflow_s3commit.protocol.hadoop_status import HadoopJob, Status, classify
from airflow_s3commit.protocol.journal import Stored
from airflow_s3commit.protocol.layout import PENDINGSET_SUFFIX, manifests_prefix
from airflow_s3commit.protocol.ownership import check_ending
from airflow_s3commit.protocol.parts import pending_parts
from airflow_s3commit.protocol.pendingset import PendingSet
from airflow_s3commit.protocol.records import (
    Counts,
    JobOptions,
    ManifestRecord,
    SealRecord,
    State,
)
from airflow_s3commit.protocol.removal import PendingId
from airflow_s3commit.protocol.staging import (
    JobFacts,
    StagingFolder,
    claims_by_key,
    claims_by_record,
    folders_around,
    folders_below,
    job_facts,
    left_by_hadoop,
)
from airflow_s3commit.protocol.store_time import known_time
from airflow_s3commit.store.base import ObjectStore, Upload

__all__ = ["JobSummary", "UploadSummary", "committed_summary", "list_jobs", "pending_uploads"]

#: Uploads of a Hadoop job that are asked about singly, to say what it looks like.
_MOST_ASKED = 1_000

#: Seconds without a sign of life before which a job of Hadoop's may be alive.
_ALIVE_SECONDS = 900.0


class JobSummary(Struct, frozen=True, kw_only=True):
    """One job, as its records show it.

    Attributes:
        job_id: Its id.
        destination: URI of its destination; None if only its staging is left.
        staging: URI of its staging; None for a job that is committed and cleaned up.
        state: Its state; None if it has none: its setup was not finished, or only remains are left.
        since: When it came into that state, in milliseconds by the clock of ``owner``, for people.
        owner: Which process brought it there.
        reason: Why it was aborted; of a job that Hadoop left, why it is taken for what it is.
        hadoop: What is left of a job of Hadoop's S3A committers, which has no records of ours; else None.
        options: How it commits.
        context: What the orchestrator said of it.
        age: Seconds since its state was written, by the store's clock; None if there is nothing to tell by.
        silent: Seconds since anything was written in its staging, by the store's clock.
        output: What it is about to commit: what its seal counts, or else what all its pendingsets name.
        manifest: What it committed; only for committed jobs.
        problem: Which of its records cannot be read.

    """

    job_id: str
    destination: str | None
    staging: str | None
    state: State | None
    since: int | None = None
    owner: str | None = None
    reason: str | None = None
    hadoop: Status | None = None
    options: JobOptions | None = None
    context: dict[str, str] = {}
    age: float | None = None
    silent: float | None = None
    output: Counts = Counts()
    manifest: ManifestRecord | None = None
    problem: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, the manifest by its totals."""
        plain: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(self, manifest=None))
        return {**plain, "manifest": self.manifest.to_dict() if self.manifest is not None else None}


class UploadSummary(Struct, frozen=True, kw_only=True):
    """One pending upload.

    Attributes:
        key: The key it is for.
        upload_id: The store's id of it.
        initiated: When it began, in seconds since the epoch, as the store says.
        age: Seconds since then by the store's clock; None if there was no record to tell its time by.
        job_id: The job it belongs to: its key holds the id, or the job's records name it; None if no job is
            known to claim it.
        parts: How many parts were uploaded; None if not asked, or if it ended meanwhile.
        bytes: Their bytes, which are billed; None likewise.

    """

    key: str
    upload_id: str
    initiated: float
    age: float | None = None
    job_id: str | None = None
    parts: int | None = None
    bytes: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return msgspec.structs.asdict(self)


def list_jobs(
    store: ObjectStore,
    destination: Destination,
    staging_root: Destination | None = None,
    *,
    committed: bool = False,
) -> Iterator[JobSummary]:
    """Yield the jobs that have a staging at a destination, and if wanted the committed ones.

    A job whose records are damaged is yielded with its ``problem``.

    Args:
        store: Where everything is.
        destination: The destination.
        staging_root: Where else to look for staging folders of jobs on this destination.
        committed: Whether to yield jobs that are committed and cleaned up too, from their manifests.

    """
    seen = set()
    for root in dict.fromkeys((destination, staging_root or destination)):
        for folder in folders_below(store, root):
            context = JobContext(store, folder.layout(destination))
            facts = job_facts(context)
            if facts.elsewhere is not None or (facts.job is None and root != destination):
                continue
            seen.add(folder.job_id)
            hadoop = left_by_hadoop(context, facts, most=_MOST_ASKED) if facts.state is None else None
            yield _hadoop_summary(folder, hadoop) if hadoop is not None else _summary(context, folder, facts)
    if committed:
        yield from _committed_jobs(store, destination, seen)


def pending_uploads(
    store: ObjectStore,
    destination: Destination,
    staging_root: Destination | None = None,
    *,
    measure: bool = False,
    most: int | None = None,
    threads: int = 16,
) -> Iterator[UploadSummary]:
    """Yield every pending upload below a destination, with the job that claims it.

    Args:
        store: Where everything is.
        destination: The destination.
        staging_root: Where else to look for staging folders.
        measure: Whether to ask for each upload's parts: one request an upload, more for a thousand parts.
        most: How many to look at, in the store's order; None for all.
        threads: How many requests are made at once; 0 makes them in the caller's thread.

    """
    uploads = list(islice(store.list_uploads(destination.bucket, destination.prefix), most))
    if not uploads:
        return
    folders = [
        f for r in dict.fromkeys((destination, staging_root or destination)) for f in folders_below(store, r)
    ]
    keys = (upload.key for upload in uploads)
    folders += folders_around(store, destination.bucket, keys, skip=destination, threads=threads)
    claims = claims_by_key(folders, uploads)
    claims |= claims_by_record(store, folders, (u for u in uploads if u.upload_id not in claims))
    owners = {upload_id: claimants[0].job_id for upload_id, claimants in claims.items()}
    now = known_time(store, destination)
    for upload, parts, size in _measured(store, destination.bucket, uploads, threads if measure else None):
        yield UploadSummary(
            key=upload.key,
            upload_id=upload.upload_id,
            initiated=upload.initiated,
            age=_since(upload.initiated, now),
            job_id=owners.get(upload.upload_id),
            parts=parts,
            bytes=size,
        )


def committed_summary(stored: Stored[ManifestRecord]) -> JobSummary:
    """Return the summary of a job that is committed and cleaned up, by its manifest."""
    record = stored.record
    return JobSummary(
        job_id=record.job_id,
        destination=record.destination,
        staging=None,
        state="committed",
        since=record.committed,
        context=record.context,
        age=_since(stored.modified, stored.date),
        output=record.counts,
        manifest=record,
    )


def _measured(
    store: ObjectStore, bucket: str, uploads: Sequence[Upload], threads: int | None
) -> Iterator[tuple[Upload, int | None, int | None]]:
    if threads is None:
        yield from ((upload, None, None) for upload in uploads)
        return
    ids = (PendingId(bucket, upload.key, upload.upload_id) for upload in uploads)
    for upload, (_, parts) in zip(uploads, pending_parts(store, ids, threads=threads), strict=True):
        if parts is None:
            yield upload, None, None
        else:
            yield upload, len(parts), sum(part.size for part in parts)


def _summary(context: JobContext, folder: StagingFolder, facts: JobFacts) -> JobSummary:
    state, job, problem = facts.state, facts.job, facts.problem
    now = state.date if state is not None else known_time(context.store, folder.root)
    output = Counts()
    try:
        output = _output(context, folder)
    except InvalidRecord as error:
        problem = problem or str(error)
    return JobSummary(
        job_id=folder.job_id,
        destination=job.destination if job is not None else None,
        staging=folder.staging.uri,
        state=state.record.state if state is not None else None,
        since=state.record.since if state is not None else None,
        owner=state.record.owner if state is not None else None,
        reason=state.record.reason if state is not None else None,
        options=job.options if job is not None else None,
        context=job.context if job is not None else {},
        age=_since(state.modified, now) if state is not None else None,
        silent=_since(folder.newest, now),
        output=output,
        problem=problem,
    )


def _hadoop_summary(folder: StagingFolder, job: HadoopJob) -> JobSummary:
    verdict = classify(job, older_than=_ALIVE_SECONDS)
    return JobSummary(
        job_id=folder.job_id,
        destination=None,
        staging=folder.staging.uri,
        state=None,
        reason=verdict.reason,
        hadoop=verdict.status,
        silent=job.silent,
        output=Counts(files=job.uploads, bytes=job.bytes, rows=None),
        problem=job.damaged[0] if job.damaged else None,
    )


def _output(context: JobContext, folder: StagingFolder) -> Counts:
    """Count what a job has pending, as its records say."""
    if "sealed.json" in folder.names:
        stored = journal.find(context.store, context.staging_bucket, context.layout.seal, SealRecord)
        if stored is not None:
            return stored.record.counts
    if not folder.recorded:
        return Counts()
    bucket, total = context.staging_bucket, Counts()
    listed = context.store.list_objects(bucket, folder.staging.prefix)
    pendingsets = (info for info in listed if info.key.endswith(PENDINGSET_SUFFIX))
    for info, outcome in journal.fetch_listed(context.store, bucket, pendingsets, pending_bytes):
        if isinstance(outcome, InvalidRecord):
            raise outcome
        total = total.plus(_counts(decode_pendingset(outcome.body, context.staging_uri(info.key))))
    return total


def _counts(pendingset: PendingSet) -> Counts:
    return Counts.total(
        Counts(
            files=1, bytes=upload.length, rows=upload.s3commit.rows if upload.s3commit is not None else None
        )
        for upload in pendingset.commits
    )


def _committed_jobs(store: ObjectStore, destination: Destination, seen: set[str]) -> Iterator[JobSummary]:
    prefix = manifests_prefix(destination)
    for info in store.list_objects(destination.bucket, prefix):
        job_id = info.key.removeprefix(prefix).removesuffix(".json")
        if not info.key.endswith(".json") or job_id in seen:
            continue
        try:
            stored = journal.find(store, destination.bucket, info.key, ManifestRecord)
            if stored is not None:
                where = join_uri(destination.bucket, info.key)
                check_ending(stored.record, destination, job_id, where)
        except InvalidRecord as error:
            yield JobSummary(
                job_id=job_id, destination=None, staging=None, state="committed", problem=str(error)
            )
            continue
        if stored is not None:
            yield committed_summary(stored)


def _since(then: float, now: float | None) -> float | None:
    # Times of one store, but told by several of its machines: a moment may seem to lie ahead.
    return max(now - then, 0.0) if now is not None else None

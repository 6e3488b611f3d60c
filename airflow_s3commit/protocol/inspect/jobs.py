"""Lists the jobs and pending uploads of a destination. Reads only."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from msgspec import Struct

from airflow_s3commit.exceptions import InvalidRecord
from airflow_s3commit.protocol.hadoop.status import HadoopJob, Status, classify
from airflow_s3commit.protocol.inspect.staging import (
    JobFacts,
    StagingFolder,
    claims_by_key,
    claims_by_record,
    folders_around,
    folders_below,
    job_facts,
    left_by_hadoop,
)
from airflow_s3commit.protocol.metadata import records
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.fitness import read_time
from airflow_s3commit.protocol.metadata.manifests import manifests_at
from airflow_s3commit.protocol.metadata.pending_uploads import pending_parts
from airflow_s3commit.protocol.metadata.records import Stored, fetch_listed
from airflow_s3commit.protocol.metadata.removal import PendingId
from airflow_s3commit.protocol.model.codec import Plain, decode, largest
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.job import AbortedRecord, JobOptions, State
from airflow_s3commit.protocol.model.layout import PENDINGSET_SUFFIX, aborted_prefix, manifests_prefix
from airflow_s3commit.protocol.model.manifest import ManifestRecord
from airflow_s3commit.protocol.model.ownership import check_ending
from airflow_s3commit.protocol.model.pendingset import PendingSet, decode_pendingset, pending_bytes
from airflow_s3commit.protocol.model.sealed_job import Counts, SealRecord
from airflow_s3commit.store.base import Fetched, ObjectInfo, ObjectStore, Upload

#: Maximum number of a Hadoop job's uploads to check one by one.
_MAX_CHECKED_UPLOADS = 1_000

#: Seconds without activity after which a Hadoop job counts as dead.
_ALIVE_SECONDS = 900.0

#: Maximum number of manifests, and of abort records, to list: ten requests each.
_MAX_LISTED = 10_000


class JobSummary(Plain, Struct, frozen=True, kw_only=True):
    """Summary of one job, from its records.

    Attributes:
        job_id: The job's id.
        destination: URI of its destination; None if no readable record names it.
        staging: URI of its staging; None if the job ended and was cleaned up.
        state: Its state; None if setup did not finish, or only leftovers exist.
        since: When it entered the state, in milliseconds since the epoch by the clock of ``owner``. For
            display only.
        owner: Host and process that wrote the state record.
        reason: Why the job was aborted; for a Hadoop job, the reason for its status.
        hadoop: Status of a job of Hadoop's S3A committers; None for other jobs.
        options: Its options; None if the job record is missing.
        context: Entries that the orchestrator set at setup, such as ``dag_id`` and ``run_id``.
        age: Seconds since its state was written, by the store's clock; None if unknown.
        silent: Seconds since the last write to its staging, by the store's clock; None if unknown.
        output: Totals from its manifest, its seal or, before it is sealed, its pendingsets.
        manifest: Its manifest, if the job is committed and cleaned up.
        problem: Why a record cannot be read; None if all can.

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


class UploadSummary(Plain, Struct, frozen=True, kw_only=True):
    """One pending upload.

    Attributes:
        key: Object key of the upload.
        upload_id: Upload id of the store.
        initiated: When the upload began, in seconds since the epoch by the store's clock.
        age: Seconds since then by the store's clock; None if unknown.
        job_id: The job that claims the upload by its key or records; None if no job does.
        parts: Number of uploaded parts; None if not measured, or if the upload has ended.
        bytes: Total bytes of the parts, which the store bills; None if ``parts`` is None.

    """

    key: str
    upload_id: str
    initiated: float
    age: float | None = None
    job_id: str | None = None
    parts: int | None = None
    bytes: int | None = None


def list_jobs(
    store: ObjectStore,
    destination: Destination,
    staging_root: Destination | None = None,
    *,
    committed: bool = False,
) -> Iterator[JobSummary]:
    """Yield the jobs that have a staging folder, and optionally the committed ones. Reads only.

    A damaged record does not raise: it is the ``problem`` of its job.

    Args:
        store: The store of the destination.
        destination: The destination of the jobs.
        staging_root: Second directory to search for staging folders of jobs on this destination.
        committed: Whether to yield also the jobs that are committed and cleaned up, from their manifests.

    Raises:
        S3CommitError: A request failed.

    """
    seen = set()
    for root in dict.fromkeys((destination, staging_root or destination)):
        for folder in folders_below(store, root):
            context = JobContext(store, folder.layout(destination))
            facts = job_facts(context)
            if facts.elsewhere is not None or (facts.job is None and root != destination):
                continue
            seen.add(folder.job_id)
            hadoop = (
                left_by_hadoop(context, facts, most=_MAX_CHECKED_UPLOADS) if facts.state is None else None
            )
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
    """Yield every pending upload below a destination, with the job that claims it. Reads only.

    Args:
        store: The store of the destination.
        destination: The destination.
        staging_root: Second directory to search for staging folders.
        measure: Whether to list each upload's parts: one request per upload and 1,000 parts.
        most: Maximum number of uploads, in the store's order; None for all.
        threads: Concurrent requests; 0 sends them in the caller's thread.

    Raises:
        S3CommitError: A request failed.

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
    now = read_time(store, destination)
    for upload, parts, size in _measured(store, destination.bucket, uploads, threads if measure else None):
        yield UploadSummary(
            key=upload.key,
            upload_id=upload.upload_id,
            initiated=upload.initiated,
            age=_age(upload.initiated, now),
            job_id=owners.get(upload.upload_id),
            parts=parts,
            bytes=size,
        )


def ended_summary(
    destination: Destination, stored: Stored[ManifestRecord] | Stored[AbortedRecord]
) -> JobSummary:
    """Return the summary of a job that was cleaned up, from its manifest or abort record."""
    record, age = stored.record, _age(stored.modified, stored.date)
    if isinstance(record, AbortedRecord):
        return JobSummary(
            job_id=record.job_id,
            destination=destination.uri,
            staging=None,
            state="aborted",
            since=record.since,
            reason=record.reason,
            context=record.context,
            age=age,
        )
    return JobSummary(
        job_id=record.job_id,
        destination=record.destination,
        staging=None,
        state="committed",
        since=record.committed,
        context=record.context,
        age=age,
        output=record.counts,
        manifest=record,
    )


def damaged_ending(
    destination: Destination, key: str, problem: InvalidRecord, age: float | None
) -> JobSummary:
    """Return the summary of a job that was cleaned up, and whose manifest or abort record is damaged."""
    return JobSummary(
        job_id=ending_id(key),
        destination=None,
        staging=None,
        state="aborted" if ending_kind(destination, key) is AbortedRecord else "committed",
        age=age,
        problem=str(problem),
    )


def ending_kind(destination: Destination, key: str) -> type[ManifestRecord] | type[AbortedRecord]:
    """Return the type of the record at a key: a manifest or an abort record."""
    return AbortedRecord if key.startswith(aborted_prefix(destination)) else ManifestRecord


def ending_id(key: str) -> str:
    """Return the job id in the key of a manifest or abort record."""
    return key.rpartition("/")[2].removesuffix(".json")


def find_ending(store: ObjectStore, destination: Destination, key: str) -> JobSummary | None:
    """Return the summary of a job from its manifest or abort record. Reads only.

    Args:
        store: The store of the destination.
        destination: The destination of the job.
        key: Key of the manifest or abort record.

    Returns:
        The summary; None if there is no object at the key.

    Raises:
        InvalidRecord: The record is damaged, belongs to another job, or was copied here.
        S3CommitError: The request failed.

    """
    kind: type[Any] = ending_kind(destination, key)
    stored = records.find(store, destination.bucket, key, kind)
    if stored is None:
        return None
    check_ending(stored.record, destination, ending_id(key), join_uri(destination.bucket, key))
    return ended_summary(destination, stored)


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
    now = state.date if state is not None else read_time(context.store, folder.root)
    output = Counts()
    try:
        output = _output(context, folder)
    except InvalidRecord as error:
        problem = problem or str(error)
    return JobSummary(
        job_id=folder.job_id,
        destination=job.destination if job is not None else None,
        staging=folder.staging.uri,
        state=facts.reached,
        since=state.record.since if state is not None else None,
        owner=state.record.owner if state is not None else None,
        reason=state.record.reason if state is not None else None,
        options=job.options if job is not None else None,
        context=job.context if job is not None else {},
        age=_age(state.modified, now) if state is not None else None,
        silent=_age(folder.newest, now),
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
    """Return the totals of the seal or, before the job is sealed, of its pendingsets."""
    if "sealed.json" in folder.names:
        stored = records.find(context.store, context.staging_bucket, context.layout.seal, SealRecord)
        if stored is not None:
            return stored.record.counts
    if not folder.recorded:
        return Counts()
    bucket, total = context.staging_bucket, Counts()
    listed = context.store.list_objects(bucket, folder.staging.prefix)
    pendingsets = (info for info in listed if info.key.endswith(PENDINGSET_SUFFIX))
    for info, outcome in records.fetch_listed(context.store, bucket, pendingsets, pending_bytes):
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
    for _, job_id in manifests_at(store, destination):
        if job_id in seen:
            continue
        key = f"{manifests_prefix(destination)}{job_id}.json"
        try:
            ended = find_ending(store, destination, key)
        except InvalidRecord as error:
            ended = damaged_ending(destination, key, error, None)
        if ended is not None:
            yield ended


def _age(then: float, now: float | None) -> float | None:
    # A store's machines have slightly different clocks, so ``then`` may be after ``now``.
    return max(now - then, 0.0) if now is not None else None


class Endings(Struct, frozen=True, kw_only=True):
    """The jobs that ended last, latest first.

    Attributes:
        jobs: Summaries of the jobs, from their manifests and abort records.
        complete: Whether the listing was complete. Keys are not in order of time, so a listing that is cut
            short may lack later jobs.

    """

    jobs: list[JobSummary]
    complete: bool = True


def latest_endings(store: ObjectStore, destination: Destination, most: int) -> Endings:
    """Return the jobs that were committed or aborted last. Reads only.

    A damaged record does not raise: it is the ``problem`` of its job.

    Args:
        store: The store of the destination.
        destination: The destination.
        most: Maximum number of jobs.

    Raises:
        S3CommitError: A request failed.

    """
    found: list[ObjectInfo] = []
    complete = True
    for prefix in (manifests_prefix(destination), aborted_prefix(destination)):
        listed = list(islice(store.list_objects(destination.bucket, prefix), _MAX_LISTED + 1))
        complete = complete and len(listed) <= _MAX_LISTED
        found += (info for info in listed[:_MAX_LISTED] if info.key.endswith(".json"))
    latest = heapq.nlargest(most, found, key=lambda info: info.modified)
    jobs: dict[str, JobSummary] = {}
    for info, outcome in fetch_listed(
        store, destination.bucket, latest, lambda key: largest(ending_kind(destination, key))
    ):
        jobs[info.key] = _ended_summary(destination, info.key, outcome)
    return Endings(jobs=[jobs[info.key] for info in latest if info.key in jobs], complete=complete)


def _ended_summary(destination: Destination, key: str, fetched: Fetched | InvalidRecord) -> JobSummary:
    age = _age(fetched.info.modified, fetched.date) if isinstance(fetched, Fetched) else None
    where = join_uri(destination.bucket, key)
    kind: type[Any] = ending_kind(destination, key)
    try:
        if isinstance(fetched, InvalidRecord):
            raise fetched
        record = decode(kind, fetched.body, where)
        check_ending(record, destination, ending_id(key), where)
    except InvalidRecord as error:
        return damaged_ending(destination, key, error, age)
    stored = Stored(record, fetched.info.etag, fetched.info.modified, fetched.date)
    return ended_summary(destination, stored)

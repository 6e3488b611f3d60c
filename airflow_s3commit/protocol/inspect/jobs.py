"""Lists the jobs and pending uploads of a destination. Reads only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice

from msgspec import Struct
from msgspec.structs import replace

from airflow_s3commit.exceptions import InvalidRecord
from airflow_s3commit.protocol.hadoop.status import HadoopJob, Status, classify, find_hadoop_job
from airflow_s3commit.protocol.inspect.open_jobs import OpenJob, find_open
from airflow_s3commit.protocol.inspect.staging import StagingFolder, claimants, folder_of, folders_below
from airflow_s3commit.protocol.metadata import records
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.fitness import read_time
from airflow_s3commit.protocol.metadata.pending_uploads import Parts, pending_parts
from airflow_s3commit.protocol.metadata.removal import PendingId
from airflow_s3commit.protocol.model.codec import Plain
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.entry import Entry
from airflow_s3commit.protocol.model.job import JobOptions, State
from airflow_s3commit.protocol.model.layout import PENDINGSET_SUFFIX, Layout
from airflow_s3commit.protocol.model.manifest import Manifest
from airflow_s3commit.protocol.model.pendingset import PendingSet, decode_pendingset, pending_bytes
from airflow_s3commit.protocol.model.sealed_job import Counts
from airflow_s3commit.protocol.steps.log import Read, find_receipt
from airflow_s3commit.protocol.steps.newest import AT_ONCE, newest_entries, newest_entry
from airflow_s3commit.protocol.steps.sealed import find_seal
from airflow_s3commit.protocol.steps.state import look_up_end
from airflow_s3commit.store.base import ObjectStore, Upload

#: Maximum number of a Hadoop job's uploads to check one by one.
_MAX_CHECKED_UPLOADS = 1_000

#: Seconds without activity after which a Hadoop job counts as dead.
_ALIVE_SECONDS = 900.0


class JobSummary(Plain, Struct, frozen=True, kw_only=True):
    """Summary of one job, from its records and the log.

    Attributes:
        job_id: The job's id.
        destination: URI of its destination; None if no readable record names it.
        staging: URI of its staging; None if the job has ended and nothing of it is left.
        state: Its state; None if only leftovers exist.
        since: When it entered the state, in milliseconds since the epoch by the clock of the machine that did
            it. For display only.
        reason: Why the job was aborted; for a Hadoop job, the reason for its status.
        hadoop: Status of a job of Hadoop's S3A committers; None for other jobs.
        options: Its options; None if it has no record any more.
        context: Entries that the orchestrator set at setup, such as ``dag_id`` and ``run_id``.
        age: Seconds since it entered its state, by the store's clock except for the time of an end; None if
            unknown.
        silent: Seconds since the last write of one of its records, by the store's clock; None if unknown.
        output: What it has committed; before, the totals of its seal or of its pendingsets.
        manifest: What it has committed in detail; None if it is not committed.
        problem: Why a record cannot be read; None if all can.

    """

    job_id: str
    destination: str | None
    staging: str | None
    state: State | None
    since: int | None = None
    reason: str | None = None
    hadoop: Status | None = None
    options: JobOptions | None = None
    context: dict[str, str] = {}
    age: float | None = None
    silent: float | None = None
    output: Counts = Counts()
    manifest: Manifest | None = None
    problem: str | None = None

    @property
    def has_ended(self) -> bool:
        """Whether it is committed or aborted."""
        return self.state in ("committed", "aborted")


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
    """Yield the jobs that have records or a staging folder, and optionally all committed ones. Reads only.

    A damaged record does not raise: it is the ``problem`` of its job.

    Args:
        store: The store of the destination.
        destination: The destination of the jobs.
        staging_root: Second directory to search for staging folders of jobs on this destination.
        committed: Whether to yield also the jobs that are committed and cleaned up, the newest first.

    Raises:
        InvalidRecord: An entry of the log is damaged, and the jobs that are cleaned up are wanted.
        S3CommitError: Another request failed.

    """
    roots = dict.fromkeys((destination, staging_root or destination))
    # Folders before records: a job has its record before it has a folder.
    folders = {folder.staging: folder for root in roots for folder in folders_below(store, root)}
    look = _Look(store, destination)
    seen = set()
    for opened in look.open.values():
        folder = folders.pop(opened.staging(destination), None)
        yield look.summary(opened, folder or folder_of(store, opened.staging(destination), opened.job_id))
        seen.add(opened.job_id)
    for folder in folders.values():
        summary = look.summary(OpenJob(folder.job_id), folder)
        # Below a root that several destinations share there are folders of other destinations' jobs.
        if folder.job_id not in seen and (summary.has_ended or folder.root == destination):
            yield summary
            seen.add(folder.job_id)
    if committed:
        for read in newest_entries(store, destination):
            if read.entry.kind == "commit" and read.entry.job_id not in (None, *seen):
                yield ended_summary(read.entry, look.now)


def summary_of(
    store: ObjectStore, destination: Destination, job_id: str, staging_root: Destination | None = None
) -> JobSummary | None:
    """Return the summary of one job; None if nothing of it is known. Reads only. Raises as `list_jobs`."""
    folder = folder_of(store, Layout.of(destination, job_id, staging_root).staging, job_id)
    look = _Look(store, destination, job_id)
    opened = look.open.get(job_id)
    if opened is not None and opened.staging(destination) != folder.staging:
        folder = folder_of(store, opened.staging(destination), job_id)
    if opened is not None or folder.objects:
        return look.summary(opened or OpenJob(job_id), folder)
    return find_ending(store, destination, job_id)


def find_ending(store: ObjectStore, destination: Destination, job_id: str) -> JobSummary | None:
    """Return the summary of a job that has ended, from the log; None if it has not. Reads only.

    Args:
        store: The store of the destination.
        destination: The destination of the job.
        job_id: The job.

    Raises:
        InvalidRecord: A record is damaged, or was copied here.
        S3CommitError: A request failed.

    """
    end = look_up_end(JobContext(store, Layout.of(destination, job_id)), None)
    return ended_summary(end, read_time(store, destination)) if end is not None else None


def latest_endings(store: ObjectStore, destination: Destination, most: int) -> list[JobSummary]:
    """Return the jobs that were committed or aborted last, latest first. Reads only.

    Args:
        store: The store of the destination.
        destination: The destination.
        most: Maximum number of jobs.

    Raises:
        InvalidRecord: An entry of the log is damaged.
        S3CommitError: A request failed.

    """
    read = newest_entries(store, destination, at_once=min(most, AT_ONCE))
    ended = list(islice((one.entry for one in read if one.entry.job_id is not None), most))
    now = read_time(store, destination) if ended else None
    return [ended_summary(entry, now) for entry in ended]


def ended_summary(entry: Entry, now: float | None) -> JobSummary:
    """Return the summary of a job that has ended and is cleaned up.

    Args:
        entry: Its entry in the log.
        now: The store's time, in seconds since the epoch; None if unknown.

    """
    manifest = Manifest.of(entry) if entry.commit is not None else None
    assert entry.job_id is not None
    return JobSummary(
        job_id=entry.job_id,
        destination=entry.destination,
        staging=None,
        state="aborted" if manifest is None else "committed",
        since=entry.since,
        reason=entry.why or None,
        context=entry.context,
        age=_age(entry.since / 1000, now),
        output=manifest.counts if manifest is not None else Counts(),
        manifest=manifest,
    )


class _Look:
    """One look at the jobs of a destination, or at one of them: what several summaries need is read once."""

    def __init__(self, store: ObjectStore, destination: Destination, job_id: str | None = None) -> None:
        self._store = store
        self._destination = destination
        # Before the log: a job that ends meanwhile is in the log, or still has its record.
        self.open = {job.job_id: job for job in find_open(store, destination, job_id)}

    @cached_property
    def now(self) -> float | None:
        """The store's time, in seconds since the epoch; None if unknown."""
        return read_time(self._store, self._destination)

    @cached_property
    def _newest(self) -> Read | InvalidRecord | None:
        try:
            return newest_entry(self._store, self._destination)
        except InvalidRecord as error:
            return error

    def summary(self, opened: OpenJob, folder: StagingFolder) -> JobSummary:
        """Return the summary of a job that has records or a staging folder."""
        home, record = self._destination, opened.record
        known = JobSummary(
            job_id=opened.job_id,
            destination=record.destination if record is not None else None,
            staging=folder.staging.uri,
            state="open" if record is not None else None,
            since=record.created if record is not None else None,
            options=record.options if record is not None else None,
            context=record.context if record is not None else {},
            age=_age(opened.sealed or opened.created, self.now),
            silent=_age(max(folder.newest, opened.newest), self.now),
            problem=opened.problem or None,
        )
        try:
            context = JobContext(self._store, folder.layout(home), record=record)
            end = self._end_of(opened.job_id)
            if end is not None:
                left = {"staging": known.staging, "options": known.options, "silent": known.silent}
                return replace(ended_summary(end, self.now), problem=known.problem, **left)
            if not opened.newest:
                hadoop = find_hadoop_job(self._store, home, opened.job_id, most=_MAX_CHECKED_UPLOADS)
                return known if hadoop is None else _hadoop_summary(known, hadoop)
            if opened.sealed is not None:
                known = replace(known, state="sealed")
                seal = find_seal(context)
                if seal is not None:
                    known = replace(known, since=seal.record.created, output=seal.record.counts)
            elif folder.recorded:
                known = replace(known, output=_written(context))
        except InvalidRecord as error:
            return replace(known, problem=known.problem or str(error))
        return known

    def _end_of(self, job_id: str) -> Entry | None:
        if isinstance(self._newest, InvalidRecord):
            raise self._newest
        if self._newest is None:
            return None
        # The newest entry alone may lack its receipt.
        newest = self._newest.entry
        return newest if newest.job_id == job_id else find_receipt(self._store, self._destination, job_id)


def _hadoop_summary(known: JobSummary, job: HadoopJob) -> JobSummary:
    verdict = classify(job, older_than=_ALIVE_SECONDS)
    return replace(
        known,
        reason=verdict.reason,
        hadoop=verdict.status,
        silent=job.silent,
        output=Counts(files=job.uploads, bytes=job.bytes, rows=None),
        problem=job.damaged[0] if job.damaged else None,
    )


def _written(context: JobContext) -> Counts:
    """Return the totals of the pendingsets of a job that is not sealed."""
    bucket, total = context.staging_bucket, Counts()
    listed = context.store.list_objects(bucket, context.layout.staging.prefix)
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


def _age(then: float | None, now: float | None) -> float | None:
    # A store's machines have slightly different clocks, so ``then`` may be after ``now``.
    return max(now - then, 0.0) if now is not None and then is not None else None


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
    claimed = claimants(store, destination, uploads, staging_root, threads=threads)
    now = read_time(store, destination)
    for upload, parts in _measured(store, destination.bucket, uploads, threads if measure else None):
        yield UploadSummary(
            key=upload.key,
            upload_id=upload.upload_id,
            initiated=upload.initiated,
            age=_age(upload.initiated, now),
            job_id=claimed.get(upload.upload_id),
            parts=len(parts) if parts is not None else None,
            bytes=sum(part.size for part in parts) if parts is not None else None,
        )


def _measured(
    store: ObjectStore, bucket: str, uploads: Sequence[Upload], threads: int | None
) -> Iterator[tuple[Upload, Parts]]:
    if threads is None:
        yield from ((upload, None) for upload in uploads)
        return
    ids = (PendingId(bucket, upload.key, upload.upload_id) for upload in uploads)
    for upload, (_, parts) in zip(uploads, pending_parts(store, ids, threads=threads), strict=True):
        yield upload, parts

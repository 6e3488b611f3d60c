"""Jobs and pending uploads of a destination, progress of commits, and details of one job. Reads only."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from itertools import islice, repeat
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from airflow_s3commit._format import Column, age, number, size
from airflow_s3commit.exceptions import DestinationNotEmpty, InvalidRecord, NoSuchBucket, NoSuchJob, Refused
from airflow_s3commit.protocol.hadoop.jobs import Status, classify, find_hadoop_job
from airflow_s3commit.protocol.inspect.verify_job import PendingReport, verify_pending
from airflow_s3commit.protocol.metadata.context import JobContext, fetch_listed
from airflow_s3commit.protocol.metadata.pending_uploads import pending_parts
from airflow_s3commit.protocol.metadata.removal import PendingId
from airflow_s3commit.protocol.metadata.sealed_job import find_seal, load_stage_seal, stage_attempts
from airflow_s3commit.protocol.metadata.store_check import read_time
from airflow_s3commit.protocol.model.codec import Plain
from airflow_s3commit.protocol.model.destination import Destination, directories_above, join_uri
from airflow_s3commit.protocol.model.job import JobOptions, JobRecord, State
from airflow_s3commit.protocol.model.layout import (
    MAGIC_PREFIX,
    PENDING_SUFFIX,
    PENDINGSET_SUFFIX,
    Layout,
    owner_of,
)
from airflow_s3commit.protocol.model.manifest import Manifest
from airflow_s3commit.protocol.model.pendingset import decode_uploads, pending_bytes
from airflow_s3commit.protocol.model.sealed_job import Counts
from airflow_s3commit.protocol.model.table import Entry
from airflow_s3commit.protocol.steps.commit import Preview, preview
from airflow_s3commit.protocol.steps.fold import AT_ONCE, newest_entries, newest_entry
from airflow_s3commit.protocol.steps.log import look_up_end
from airflow_s3commit.protocol.steps.setup import never_set_up
from airflow_s3commit.protocol.steps.sweep import Found, find_end, find_jobs, owned
from airflow_s3commit.store.base import ObjectInfo, ObjectStore
from airflow_s3commit.store.execute import in_threads

logger = logging.getLogger(__name__)

#: Most uploads of a Hadoop job to check one by one, and seconds without activity after which it is dead.
_MAX_CHECKED_UPLOADS, _ALIVE_SECONDS = 1_000, 900.0

#: Maximum number of uploads to list for the progress: twenty requests.
_MAX_LISTED = 20_000


class JobSummary(Plain, Struct, frozen=True, kw_only=True):
    """Summary of one job, from its records and the log.

    Attributes:
        destination: Its URI; None if no readable record names it.
        staging: URI of its staging; None if the job has ended and nothing of it is left.
        state: Its state; None if only leftovers exist.
        since: When it entered the state, in milliseconds since the epoch by the clock of that machine.
        reason: Why the job was aborted; for a Hadoop job, the reason for its status.
        hadoop: Status of a job of Hadoop's S3A committers; None for other jobs.
        options: Its options; None if it has no record any more.
        context: Entries that the orchestrator set at setup, such as ``dag_id`` and ``run_id``.
        age: Seconds since it entered its state, by the store's clock except for the time of an end.
        silent: Seconds since the last write of one of its records, by the store's clock.
        output: Totals of what it has committed; before its commit those of its seal, or of its pendingsets.
        manifest: What it has committed in detail; None if it is not committed.
        problem: Why a record cannot be read; None if all can.
    """

    columns = (
        Column("job", "job_id"),
        Column("state", "shown_state"),
        Column("age", "age", age),
        Column("files", "output.files", number),
        Column("size", "output.bytes", size),
        Column("mode", "mode", room=95),
        Column("last activity", "silent", age, room=115),
        Column("context", "context", room=150, folds=True),
    )

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

    @property
    def shown_state(self) -> str:
        """The job's state, for people; for a job of Hadoop its status."""
        if self.hadoop is not None:
            return f"Hadoop job, {self.hadoop}"
        rest = ", not finished" if self.has_ended and self.staging is not None else ""
        return f"{self.state or 'no state'}{rest}"

    @property
    def mode(self) -> str | None:
        """Its conflict mode; None if it is not known."""
        known = self.options or self.manifest
        return known.conflict_mode if known is not None else None


class UploadSummary(Plain, Struct, frozen=True, kw_only=True):
    """One pending upload.

    Attributes:
        initiated: When it began, in seconds since the epoch by the store's clock; ``age`` seconds ago.
        job_id: The job that claims it by its key or records; None if no job does.
        parts: Number of uploaded parts; None if not measured, or if the upload has ended.
        bytes: Bytes of the parts, which the store bills.
    """

    columns = (
        Column("path", "key", folds=True),
        Column("size", "bytes", size),
        Column("age", "age", age),
        Column("job", "job_id", room=118),
    )

    key: str
    upload_id: str
    initiated: float
    age: float | None = None
    job_id: str | None = None
    parts: int | None = None
    bytes: int | None = None


def list_jobs(
    store: ObjectStore, destination: Destination, staging_root: Destination | None = None
) -> Iterator[JobSummary]:
    """Yield the jobs that have records or a staging, here or below ``staging_root``. Reads only.

    A damaged record does not raise: it is the ``problem`` of its job.
    """
    jobs = find_jobs(store, destination, (destination, staging_root or destination)).values()
    for found, summary in zip(jobs, _summaries(store, destination, jobs), strict=True):
        # Below a root that several destinations share there are stagings of other destinations' jobs.
        if summary.has_ended or found.is_open or found.layout.is_below_destination:
            yield summary


def open_jobs(store: ObjectStore, home: Destination) -> list[JobRecord]:
    """Return the records of the jobs that still have one, in order of their ids. Reads only.

    A record that is damaged or was copied here is left out, with a warning: nobody knows whose it is.
    """
    found = find_jobs(store, home).values()
    for job in found:
        if job.problem:
            logger.warning("it is unknown whose job this is: %s", job.problem)
    return [job.record for job in found if job.record is not None]


def latest_endings(store: ObjectStore, destination: Destination, most: int) -> list[JobSummary]:
    """Return the jobs that were committed or aborted last, at most ``most``, newest first. Reads only.

    Raises `InvalidRecord` for a damaged entry of the log.
    """
    read = newest_entries(store, destination, at_once=min(most, AT_ONCE))
    ended = list(islice((one.entry for one in read if one.entry.job_id is not None), most))
    now = read_time(store, destination) if ended else None
    return [ended_summary(entry, now) for entry in ended]


def ended_summary(entry: Entry, now: float | None) -> JobSummary:
    """Return the summary of a job that has ended and is cleaned up; ``now`` is the store's time, if known."""
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


def _summaries(store: ObjectStore, destination: Destination, jobs: Collection[Found]) -> Iterator[JobSummary]:
    """Yield the summary of each job that was found. The newest entry is read once, after all job records."""
    if not jobs:
        return
    now, newest, problem = read_time(store, destination), None, ""
    try:
        newest = newest_entry(store, destination)
    except InvalidRecord as error:
        problem = str(error)
    for found in jobs:
        if problem:
            found.problem = found.problem or problem
        else:
            find_end(store, found, newest.entry if newest is not None else None)
        record = found.record
        known = JobSummary(
            job_id=found.job_id,
            destination=record.destination if record is not None else None,
            staging=found.layout.staging.uri,
            state="sealed" if found.sealed is not None else "open" if record is not None else None,
            since=record.created if record is not None else None,
            options=record.options if record is not None else None,
            context=record.context if record is not None else {},
            age=_age(found.sealed or found.created, now),
            silent=_age(found.newest, now),
            problem=found.problem or None,
        )
        if found.end is not None:
            left = {"staging": known.staging, "options": known.options, "silent": known.silent}
            yield replace(ended_summary(found.end, now), problem=known.problem, **left)
            continue
        try:
            yield _unended(JobContext(store, found.layout, record=record), found, known)
        except (InvalidRecord, NoSuchBucket) as error:
            yield replace(known, problem=known.problem or str(error))


def _unended(context: JobContext, found: Found, known: JobSummary) -> JobSummary:
    if found.sealed is not None:
        seal = find_seal(context)
        return replace(known, since=seal.record.created, output=seal.record.counts) if seal else known
    if found.is_open:
        return replace(known, output=_written(context))
    home = context.layout.destination
    job = find_hadoop_job(context.store, home, found.job_id, most=_MAX_CHECKED_UPLOADS)
    if job is None:
        return known
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
    for info, outcome in fetch_listed(context.store, bucket, pendingsets, pending_bytes):
        if isinstance(outcome, InvalidRecord):
            raise outcome
        for upload in decode_uploads(outcome.body, context.staging_uri(info.key)):
            total = total.plus(upload.counts.without_columns())
    return total


def _age(then: float | None, now: float | None) -> float | None:
    # A store's machines have slightly different clocks, so ``then`` may be after ``now``.
    return max(now - then, 0.0) if now is not None and then is not None else None


class StageDetails(Struct, frozen=True, kw_only=True):
    """One stage attempt of a job.

    Attributes:
        counts: Whether the job's seal lists the stage attempt; None before the job is sealed.
        tasks: Number of task attempts: those in its seal or, before it is sealed, those committed so far.
        output: Totals of its output; None before it is sealed.
    """

    columns = (
        Column("stage", "stage", folds=True),
        Column("attempt", "attempt"),
        Column("sealed", "sealed"),
        Column("counts", "counts"),
        Column("tasks", "tasks", number),
        Column("files", "output.files", number),
        Column("size", "output.bytes", size),
        Column("rows", "output.rows", number),
    )

    stage: str
    attempt: str
    sealed: bool
    counts: bool | None
    tasks: int
    output: Counts | None = None


class JobDetails(Plain, Struct, frozen=True, kw_only=True):
    """Details of one job.

    Attributes:
        uploads: For an open or sealed job, the comparison of its records with the store.
        preview: What the commit of a sealed job would take from the table.
        conflict: Why its commit would be refused as the table is now; None if it would not.
    """

    summary: JobSummary
    stages: list[StageDetails] = []
    uploads: PendingReport | None = None
    preview: Preview | None = None
    conflict: str | None = None
    problems: list[str] = []


def describe_job(store: ObjectStore, destination: Destination, job_id: str) -> JobDetails:
    """Return the details of one job. Reads only. A damaged record does not raise: it is a problem.

    Raises `NoSuchJob` if the job has neither records nor a staging, and has not ended.
    """
    jobs = find_jobs(store, destination, (destination,), job_id=job_id).values()
    if (summary := next(_summaries(store, destination, jobs), None)) is None:
        nobody = JobContext(store, Layout.of(destination, job_id))
        if (end := look_up_end(nobody, None)) is None:
            raise NoSuchJob(never_set_up(nobody))
        summary = ended_summary(end, read_time(store, destination))
    problems = [summary.problem] if summary.problem is not None else []
    if summary.staging is None or summary.state not in ("open", "sealed") or problems:
        return JobDetails(summary=summary, problems=problems)
    context = JobContext(store, Layout(destination, Destination.parse(summary.staging), job_id))
    stages: list[StageDetails] = []
    uploads = planned = conflict = None
    try:
        stages = list(_stages(context))
        uploads = verify_pending(context)
        planned = preview(context) if summary.state == "sealed" else None
    except DestinationNotEmpty as error:
        conflict = str(error)
    except Refused as error:
        # A record is damaged, or another process changed the job in the meantime.
        problems.append(str(error))
    return JobDetails(
        summary=summary, stages=stages, uploads=uploads, preview=planned, conflict=conflict, problems=problems
    )


def _stages(context: JobContext) -> Iterator[StageDetails]:
    seal = find_seal(context)
    chosen = {(one.stage, one.stage_attempt) for one in seal.record.stages} if seal is not None else None
    for stage, attempt, sealed in sorted(stage_attempts(context)):
        output = None
        if sealed:
            record = load_stage_seal(context, stage, attempt, None).record
            tasks, output = len(record.tasks), record.counts.without_columns()
        else:
            prefix = context.layout.tasks(stage, attempt)
            listed = context.store.list_objects(context.staging_bucket, prefix)
            tasks = sum(info.key.endswith(PENDINGSET_SUFFIX) for info in listed)
        yield StageDetails(
            stage=stage,
            attempt=attempt,
            sealed=sealed,
            counts=(stage, attempt) in chosen if chosen is not None else None,
            tasks=tasks,
            output=output,
        )


def claims_of_hadoop(
    store: ObjectStore, bucket: str, keys: Collection[str], roots: Iterable[Destination] = (), *, threads: int
) -> dict[str, Layout]:
    """Return, by upload id, the job whose files of Hadoop, or an adoption's copies, name it. Reads only.

    Only the staging of a layout is certain. The search covers ``roots`` and every directory above the
    uploads' keys, because destinations nest; without keys nothing is searched.
    """
    above, claims = directories_above(bucket, keys), dict[str, Layout]()
    searched = list(dict.fromkeys((*roots, *above))) if keys else []
    listed = in_threads(lambda root: _files_of_hadoop(store, root), searched, threads)
    for root, files in zip(searched, listed, strict=True):
        owners = {info.key: owner for owner, info in files}
        for info, outcome in fetch_listed(store, root.bucket, (info for _, info in files), pending_bytes):
            try:
                if isinstance(outcome, InvalidRecord):
                    raise outcome
                uploads = decode_uploads(outcome.body, join_uri(root.bucket, info.key))
            except InvalidRecord:
                logger.warning("%s cannot be read; it claims no upload", info.key, exc_info=True)
                continue
            claims |= {upload.uploadId: Layout.of(root, owners[info.key]) for upload in uploads}
    return claims


def _files_of_hadoop(store: ObjectStore, root: Destination) -> list[tuple[str, ObjectInfo]]:
    """List the files in stagings that name uploads of Hadoop's committers, each with the id of its job."""
    return [
        (owner, info)
        for owner, name, info in owned(store, root.bucket, root.key(MAGIC_PREFIX))
        if name.endswith((PENDING_SUFFIX, PENDINGSET_SUFFIX)) and name.startswith(("job-", "stages/hadoop"))
    ]


def pending_uploads(
    store: ObjectStore,
    destination: Destination,
    staging_root: Destination | None = None,
    *,
    measure: bool = False,
    most: int | None = None,
    threads: int = 16,
) -> Iterator[UploadSummary]:
    """Yield up to ``most`` pending uploads below a destination, with the jobs that claim them. Reads only.

    With ``measure`` each upload's parts are listed: a request for every 1,000 parts, one at least.
    """
    uploads = list(islice(store.list_uploads(destination.bucket, destination.prefix), most))
    if not uploads:
        return
    unnamed = [upload.key for upload in uploads if owner_of(upload.key) is None]
    roots = (staging_root or destination,)
    claims = claims_of_hadoop(store, destination.bucket, unnamed, roots, threads=threads)
    now = read_time(store, destination)
    ids = (PendingId(destination.bucket, upload.key, upload.upload_id) for upload in uploads)
    measured = (parts for _, parts in pending_parts(store, ids, threads=threads))
    for upload, parts in zip(uploads, measured if measure else repeat(None), strict=False):
        claim = claims.get(upload.upload_id)
        yield UploadSummary(
            key=upload.key,
            upload_id=upload.upload_id,
            initiated=upload.initiated,
            age=_age(upload.initiated, now),
            job_id=owner_of(upload.key) or (claim.job_id if claim is not None else None),
            parts=len(parts) if parts is not None else None,
            bytes=sum(part.size for part in parts) if parts is not None else None,
        )


class CommitProgress(NamedTuple):
    """How many of a job's uploads a commit that is running, or was interrupted, has completed."""

    completed: int
    files: int

    @property
    def share(self) -> float:
        """Completed share, from 0 to 1."""
        return self.completed / self.files if self.files else 1.0


def commit_progress(
    store: ObjectStore, destination: Destination, jobs: Iterable[JobSummary]
) -> dict[str, CommitProgress]:
    """Return the progress of the sealed jobs some of whose uploads are completed, by job id. Reads only.

    Omits adopted jobs, whose file names may lack the job's id, and all if over 20,000 uploads are pending.
    """
    sealed = [job for job in jobs if job.state == "sealed" and "adopted_from" not in job.context]
    if not sealed:
        return {}
    listed = list(islice(store.list_uploads(destination.bucket, destination.prefix), _MAX_LISTED + 1))
    if len(listed) > _MAX_LISTED:
        return {}
    pending = Counter(owner_of(upload.key) for upload in listed)
    return {
        job.job_id: CommitProgress(job.output.files - pending[job.job_id], job.output.files)
        for job in sealed
        if pending[job.job_id] < job.output.files
    }

"""Verifies one job: what it committed, or before, its records, with the files or uploads on the store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from msgspec import Struct

from airflow_s3commit._columns import Column, Named, some
from airflow_s3commit._format import number, size
from airflow_s3commit.exceptions import InvalidRecord, NoSuchJob, NoSuchKey
from airflow_s3commit.protocol.inspect.verify_files import (
    BATCH,
    MAX_NAMED,
    ExpectedFile,
    ExpectedFiles,
    FileDifferences,
)
from airflow_s3commit.protocol.metadata.context import JobContext, naming
from airflow_s3commit.protocol.metadata.listing import data_objects
from airflow_s3commit.protocol.metadata.pending_uploads import pending_parts, tracked_uploads
from airflow_s3commit.protocol.metadata.removal import PendingId, is_ours
from airflow_s3commit.protocol.metadata.sealed_job import each_pendingset, find_seal, load_stage_seals
from airflow_s3commit.protocol.model.codec import Plain
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.job import State
from airflow_s3commit.protocol.model.layout import Layout, owner_of
from airflow_s3commit.protocol.model.manifest import Manifest
from airflow_s3commit.protocol.model.pendingset import PendingUpload
from airflow_s3commit.protocol.steps.files import files_of
from airflow_s3commit.protocol.steps.fold import read_table
from airflow_s3commit.protocol.steps.manifests import find_manifest
from airflow_s3commit.protocol.steps.setup import look_up_end, never_set_up, recorded, refuse_ended
from airflow_s3commit.store.base import Head, ObjectInfo, ObjectStore, Part
from airflow_s3commit.store.execute import in_batches, outcomes


class VerifyReport(FileDifferences, kw_only=True):
    """What is left of the files that one job committed: `FileDifferences`, and which job's.

    Attributes:
        job_id: Id of the job.
        destination: URI of its destination.
        generation: Number of its commit in the log.
    """

    kind = "committed"
    derived = ("complete", "sound")
    columns = (
        Column("job", "job_id"),
        Column("destination", "destination"),
        Column("generation", "generation"),
        *FileDifferences.columns,
    )

    job_id: str
    destination: str
    generation: int

    @property
    def sound(self) -> bool:
        """The same as `complete`."""
        return self.complete


class PendingFinding(Struct, frozen=True, kw_only=True):
    """An upload that differs from the job's records.

    Attributes:
        key: Object key of the upload.
        upload_id: Upload id of the store.
        problem: The difference.
    """

    key: str
    upload_id: str
    problem: str

    def __str__(self) -> str:
        """Return it in words."""
        return f"{self.key}: {self.problem}"


class PendingReport(Plain, Struct, kw_only=True):
    """Differences between a job's records and its uploads on the store.

    Attributes:
        job_id: Id of the job.
        destination: URI of the job's destination.
        state: State of the job.
        deep: Whether the parts of every upload were compared.
        files: Number of uploads in the job's seal or, before it is sealed, in all of its records.
        bytes: Bytes of these uploads, from the records.
        pending: Number of these uploads that are pending on the store.
        completed: Number of these uploads that are completed: their object exists.
        missing_count: Number of these uploads that are neither; the commit will fail.
        missing: The first `MAX_NAMED` missing uploads.
        mismatched_count: Number of uploads whose parts differ from the records; 0 unless ``deep``.
        mismatched: The first `MAX_NAMED` mismatched uploads.
        damaged: Records that are unreadable, changed or missing, each with the reason.
        unrecorded: Number of pending uploads with the job's id in their key that are not in these records:
            their task attempt is still writing, died, or is not sealed. The commit or abort discards them.
    """

    kind = "pending"
    derived = ("sound",)
    columns = (
        Column("job", "job_id"),
        Column("destination", "destination"),
        Column("state", "state"),
        Column("recorded", "files", number),
        Column("size", "bytes", size),
        Column("pending", "pending", number),
        Column("complete", "completed", some),
        Column("missing", "missing_count", some),
        Column("other parts", "mismatched_count", some),
        Column("to be discarded", "unrecorded", some),
    )
    lists = (
        Named("missing", "missing", "missing_count"),
        Named("other parts", "mismatched", "mismatched_count"),
        Named("damaged", "damaged"),
    )

    job_id: str
    destination: str
    state: State
    deep: bool
    files: int = 0
    bytes: int = 0
    pending: int = 0
    completed: int = 0
    missing_count: int = 0
    missing: list[PendingFinding] = []
    mismatched_count: int = 0
    mismatched: list[PendingFinding] = []
    damaged: list[str] = []
    unrecorded: int = 0

    @property
    def sound(self) -> bool:
        """Whether the commit finds every upload and record that it needs."""
        return not (self.missing_count or self.mismatched_count or self.damaged)


def verify_job(
    store: ObjectStore,
    destination: str | Destination,
    job_id: str,
    *,
    deep: bool = False,
    threads: int = 16,
) -> VerifyReport | PendingReport:
    """Compare what one job has committed, or the uploads that it will, with the store. Reads only.

    Args:
        store: The store of the destination.
        destination: URI of the dataset's directory, or a `Destination`.
        job_id: The job.
        deep: Before a commit, whether to compare the number, ETags and size of every upload's parts: one
            request per upload.
        threads: Concurrent requests; 0 sends them in the caller's thread.

    Raises:
        JobClosed: The job is aborted.
        NoSuchJob: The job does not exist.
        InvalidRecord: A record of a committed job, or its list of files, is damaged or was copied here.
        S3CommitError: A request failed.
    """
    context = recorded(JobContext(store, Layout.of(Destination.of(destination), job_id), threads=threads))
    manifest = find_manifest(context)
    return verify_pending(context, deep=deep) if manifest is None else verify_manifest(context, manifest)


def verify_manifest(context: JobContext, manifest: Manifest) -> VerifyReport:
    """Compare the files that a job committed with the objects at its destination. Reads only.

    Lists the partitions. Sends a HEAD request only for a file whose ETag in the listing is not the one
    computed from its parts, because the object is encrypted or changed; the HEAD shows the upload id.

    Raises:
        InvalidRecord: The manifest's list of files is gone or was changed, or has a key outside the
            destination.
        S3CommitError: A request failed.
    """
    store, home = context.store, context.layout.destination
    report = VerifyReport(
        job_id=manifest.job_id, destination=manifest.destination, generation=manifest.generation
    )
    # The log is read after the files were looked at: a commit may have replaced them since.
    with closing(ExpectedFiles(context, report, lambda: read_table(store, home))) as expected:
        for entry in files_of(store, home, manifest.source):
            expected.add(entry.key, ExpectedFile(entry.size, entry.etag, entry.upload, manifest.generation))
        report.files = expected.count()
        if report.files != manifest.counts.files:
            raise InvalidRecord(
                f"{manifest.uri} lists {report.files} files, and counts {manifest.counts.files}"
            )
        partitions = [name for name, counts in manifest.partitions.items() if counts.files]
        for batch in in_batches(data_objects(context, sorted(partitions)), BATCH):
            expected.compare(batch)
        expected.add_missing()
    return report


def verify_pending(context: JobContext, *, deep: bool = False) -> PendingReport:
    """Compare the records of an open or sealed job with the pending uploads on the store. Reads only.

    Args:
        deep: Whether to compare the number, ETags and size of every upload's parts: one request per upload.

    Raises:
        AlreadyCommitted: The job is committed; verify its manifest.
        JobClosed: The job is aborted.
        NoSuchJob: The job does not exist.
        S3CommitError: A request failed.
    """
    with naming(context, "verify"):
        context = recorded(context)
        if context.record is None:
            refuse_ended(context, look_up_end(context, None))
            raise NoSuchJob(never_set_up(context))
        home = context.layout.destination
        report = PendingReport(job_id=context.job_id, destination=home.uri, state="open", deep=deep)
        listed = context.store.list_uploads(context.bucket, home.prefix)
        existing = {upload.upload_id: upload.key for upload in listed}
        seen: set[str] = set()
        for batch in in_batches(_once(_recorded(context, report), seen), BATCH):
            report.files += len(batch)
            report.bytes += sum(upload.length for upload in batch)
            _check(context, batch, existing, report)
        report.unrecorded = sum(
            upload_id not in seen and owner_of(key) == context.job_id for upload_id, key in existing.items()
        )
        # At last: who has ended the job meanwhile has removed its uploads and records.
        refuse_ended(context, look_up_end(context, None))
    return report


def _recorded(context: JobContext, report: PendingReport) -> Iterator[PendingUpload]:
    """Yield the uploads in the job's seal, or in all of its records, and add damaged ones to the report."""
    try:
        seal = find_seal(context)
        stages = load_stage_seals(context, seal.record) if seal is not None else []
    except InvalidRecord as error:
        report.state = "sealed"
        report.damaged.append(str(error))
        return
    if seal is not None:
        report.state = "sealed"
        for _, _, pendingset in each_pendingset(context, stages, damaged=report.damaged):
            yield from pendingset.commits
        return
    unreadable = 0
    for upload in tracked_uploads(context):
        if upload is None:
            unreadable += 1
        else:
            yield upload
    if unreadable:
        where = context.layout.staging.uri
        report.damaged.append(f"{unreadable} records in {where} cannot be read; the log names them")


def _once(uploads: Iterator[PendingUpload], seen: set[str]) -> Iterator[PendingUpload]:
    for upload in uploads:
        if upload.uploadId not in seen:
            seen.add(upload.uploadId)
            yield upload


def _check(
    context: JobContext, uploads: list[PendingUpload], existing: dict[str, str], report: PendingReport
) -> None:
    """Check uploads one by one if the listing lacks them, because a listing may be incomplete."""
    unseen = [u for u in uploads if report.deep or existing.get(u.uploadId) != u.destinationKey]
    report.pending += len(uploads) - len(unseen)
    gone = []
    found = pending_parts(context.store, map(PendingId.of, unseen), threads=context.threads)
    for upload, (_, parts) in zip(unseen, found, strict=True):
        if parts is None:
            gone.append(upload)
            continue
        report.pending += 1
        problem = _difference(upload, parts) if report.deep else None
        if problem is not None:
            report.mismatched_count += 1
            _add_finding(report.mismatched, upload, problem)
    calls = [(upload, Head(upload.bucket, upload.destinationKey)) for upload in gone]
    for upload, outcome in outcomes(context.store, calls, NoSuchKey):
        if isinstance(outcome, ObjectInfo) and is_ours(upload, outcome):
            report.completed += 1
        else:
            report.missing_count += 1
            other = "another writer's object" if isinstance(outcome, ObjectInfo) else "no object"
            _add_finding(report.missing, upload, f"the upload is gone, and its key has {other}")


def _difference(upload: PendingUpload, parts: list[Part]) -> str | None:
    """Return how the stored parts differ from the recorded ones; None if they do not, or none is recorded."""
    if not upload.etags:
        return None
    numbers = [part.number for part in parts]
    if numbers != list(range(1, len(upload.etags) + 1)):
        return f"it has parts {numbers[:10]}, {len(numbers)} in all; the record has {len(upload.etags)} parts"
    for part, etag in zip(parts, upload.bare_etags, strict=True):
        if part.etag.strip('"') != etag:
            return f"part {part.number} has ETag {part.etag}; the record has {etag}"
    size = sum(part.size for part in parts)
    return f"it has {size} bytes; the record has {upload.length}" if size != upload.length else None


def _add_finding(findings: list[PendingFinding], upload: PendingUpload, problem: str) -> None:
    if len(findings) < MAX_NAMED:
        findings.append(PendingFinding(key=upload.destinationKey, upload_id=upload.uploadId, problem=problem))

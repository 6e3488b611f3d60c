"""Compare files with the objects at their keys, and one job with the files or uploads on the store.

Reads only. Differences are findings in a report, not errors.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from typing import ClassVar, NamedTuple, Self

from msgspec import Struct

from airflow_s3commit._format import Column, Named, number, size, some
from airflow_s3commit.exceptions import InvalidRecord, NoSuchJob, NoSuchKey
from airflow_s3commit.protocol.hadoop.jobs import fates
from airflow_s3commit.protocol.metadata.context import JobContext, naming, recorded
from airflow_s3commit.protocol.metadata.pending_uploads import tracked_uploads
from airflow_s3commit.protocol.metadata.removal import UPLOAD_METADATA
from airflow_s3commit.protocol.metadata.sealed_job import each_pendingset, find_seal, sealed_tasks
from airflow_s3commit.protocol.model.codec import Plain
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.job import State
from airflow_s3commit.protocol.model.layout import Layout, owner_of, partition_of
from airflow_s3commit.protocol.model.manifest import Manifest
from airflow_s3commit.protocol.model.pendingset import PendingUpload
from airflow_s3commit.protocol.model.table import Table
from airflow_s3commit.protocol.steps.files import data_objects, files_of
from airflow_s3commit.protocol.steps.fold import find_manifest, read_table
from airflow_s3commit.protocol.steps.log import look_up_end
from airflow_s3commit.protocol.steps.setup import never_set_up, refuse_ended
from airflow_s3commit.store.base import Head, ObjectInfo, ObjectStore
from airflow_s3commit.store.execute import in_batches, outcomes

#: Maximum number of findings of each kind that a report names; it counts all of them.
MAX_NAMED = 1_000

#: KiB of the expected files in memory.
_CACHE_KIB = 65_536

#: Objects to compare at once.
BATCH = 1_000


class Changed(Struct, frozen=True, kw_only=True):
    """A committed file, and another object at its key. ``expected_etag`` is empty if it is not known."""

    key: str
    expected_size: int
    size: int
    expected_etag: str
    etag: str

    def __str__(self) -> str:
        before = f"{size(self.expected_size)}, {self.expected_etag}"
        return f"{self.key}: {size(self.size)}, ETag {self.etag}; was {before}"


class FileDifferences(Plain, Struct, kw_only=True):
    """Committed files, and which of them are not as they were committed.

    Attributes:
        files: Number of committed files.
        intact: Number of files that exist unchanged, by their ETag or by the upload id in their metadata.
        by_size: Number of files that exist with the right size, and cannot be compared further: the list of
            files has neither an ETag nor an upload id for them.
        removed: Number of files that are gone or changed because a later commit replaced them.
        missing_count: Number of other files that do not exist.
        missing: Keys of the first `MAX_NAMED` missing files.
        changed_count: Number of other files with another object at their key: somebody overwrote them.
        changed: The first `MAX_NAMED` changed files.
    """

    columns: ClassVar[tuple[Column, ...]] = (
        Column("files", "files", number),
        Column("intact", "intact", number),
        Column("right size, and no more to compare", "by_size", some),
        Column("replaced since", "removed", some),
        Column("missing", "missing_count", some),
        Column("changed", "changed_count", some),
    )
    lists: ClassVar[tuple[Named, ...]] = (
        Named("missing", "missing", "missing_count"),
        Named("changed", "changed", "changed_count"),
    )

    files: int = 0
    intact: int = 0
    by_size: int = 0
    removed: int = 0
    missing_count: int = 0
    missing: list[str] = []
    changed_count: int = 0
    changed: list[Changed] = []

    @property
    def complete(self) -> bool:
        """Whether every file that no later commit replaced exists unchanged."""
        return not self.missing_count and not self.changed_count


class ExpectedFile(NamedTuple):
    """A file that may be there, with the number of its commit: 0 or less if it need not be there.

    ETag and upload id are empty if they are not known.
    """

    size: int
    etag: str
    upload: str
    number: int


class ExpectedFiles:
    """Files by key, in a temporary database on disk: memory does not grow with their number.

    ``newest`` returns the current table, which needs its files. The report counts and names what differs.
    """

    def __init__(self, context: JobContext, report: FileDifferences, newest: Callable[[], Table]) -> None:
        self._context, self._report, self._newest = context, report, newest
        self._rows = sqlite3.connect("", isolation_level=None)
        self._rows.executescript(
            f"PRAGMA journal_mode = OFF; PRAGMA cache_size = -{_CACHE_KIB};"
            " CREATE TABLE file (key BLOB PRIMARY KEY, size INT, etag TEXT, upload TEXT, number INT)"
            " WITHOUT ROWID; BEGIN"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._rows.close()

    def add(self, key: str, file: ExpectedFile) -> None:
        """Add a file; of two files with one key, that with the greater number counts."""
        self._rows.execute(
            "INSERT INTO file VALUES (?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET size = excluded.size,"
            " etag = excluded.etag, upload = excluded.upload, number = excluded.number"
            " WHERE excluded.number > number",
            (_bytes_of(key), *file),
        )

    def count(self) -> int:
        """Return the number of files that must be there, and were not compared yet."""
        return int(self._rows.execute("SELECT count(*) FROM file WHERE number > 0").fetchone()[0])

    def compare(self, batch: list[ObjectInfo]) -> list[tuple[ObjectInfo, ExpectedFile | None]]:
        """Compare listed objects with the files that must be there; return other objects, and what is known.

        If the ETag differs, the upload id decides: the file may be encrypted, or the object another one.
        """
        others: list[tuple[ObjectInfo, ExpectedFile | None]] = []
        doubtful: list[tuple[tuple[ObjectInfo, ExpectedFile], Head]] = []
        differing: list[tuple[str, ExpectedFile, ObjectInfo | None]] = []
        for info in batch:
            file = self._pop(info.key)
            if file is None or file.number <= 0:
                others.append((info, file))
            elif info.size == file.size and file.etag and info.etag == file.etag:
                self._report.intact += 1
            elif info.size == file.size and file.upload:
                doubtful.append(((info, file), Head(self._context.bucket, info.key)))
            elif info.size == file.size and not file.etag:
                self._report.by_size += 1
            else:
                differing.append((info.key, file, info))
        for (info, file), outcome in outcomes(self._context.store, doubtful, NoSuchKey):
            found = outcome if isinstance(outcome, ObjectInfo) else None
            if found and (found.size, found.metadata.get(UPLOAD_METADATA)) == (file.size, file.upload):
                self._report.intact += 1
            else:
                differing.append((info.key, file, info if found else None))
        self._add(differing)
        return others

    def add_missing(self) -> None:
        """Add to the report the files that must be there, and that no listing has shown."""
        rows = self._rows.execute("SELECT * FROM file WHERE number > 0 ORDER BY key")
        for batch in in_batches(rows, BATCH):
            self._add(
                [(key.decode("utf-8", "surrogatepass"), ExpectedFile(*row), None) for key, *row in batch]
            )

    def _add(self, differing: list[tuple[str, ExpectedFile, ObjectInfo | None]]) -> None:
        """Count what differs, by a table that is read after the files: it tells which are still needed."""
        if not differing:
            return
        report, home, table = self._report, self._context.layout.destination, self._newest()
        for key, file, info in differing:
            if not table.can_restore(partition_of(home.relative(key) or ""), file.number):
                report.removed += 1
            elif info is None:
                report.missing_count += 1
                report.missing += [key] if len(report.missing) < MAX_NAMED else []
            else:
                report.changed_count += 1
                sizes = {"expected_size": file.size, "size": info.size}
                change = Changed(key=key, **sizes, expected_etag=file.etag, etag=info.etag)
                report.changed += [change] if len(report.changed) < MAX_NAMED else []

    def _pop(self, key: str) -> ExpectedFile | None:
        one = (_bytes_of(key),)
        row = self._rows.execute("SELECT size, etag, upload, number FROM file WHERE key = ?", one).fetchone()
        self._rows.execute("DELETE FROM file WHERE key = ?", one)
        return ExpectedFile(*row) if row is not None else None


def _bytes_of(key: str) -> bytes:
    # Keys of other programs may contain what text in the database cannot.
    return key.encode("utf-8", "surrogatepass")


class VerifyReport(FileDifferences, kw_only=True):
    """What is left of the files that one job committed: `FileDifferences`, and whose files they are.

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

    sound = FileDifferences.complete


class PendingFinding(Struct, frozen=True, kw_only=True):
    """An upload that differs from the job's records, and how."""

    key: str
    upload_id: str
    problem: str

    def __str__(self) -> str:
        return f"{self.key}: {self.problem}"


class PendingReport(Plain, Struct, kw_only=True):
    """Differences between a job's records and its uploads on the store.

    Attributes:
        job_id: Id of the job.
        destination: URI of its destination.
        state: Its state.
        files: Number of uploads in the job's seal or, before it is sealed, in all of its records.
        bytes: Bytes of these uploads, from the records.
        pending: Number of these uploads that are pending on the store.
        completed: Number of these uploads that are completed: their object exists.
        missing_count: Number of these uploads that are neither; the commit will fail.
        missing: The first `MAX_NAMED` missing uploads.
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
        Column("to be discarded", "unrecorded", some),
    )
    lists = (Named("missing", "missing", "missing_count"), Named("damaged", "damaged"))

    job_id: str
    destination: str
    state: State
    files: int = 0
    bytes: int = 0
    pending: int = 0
    completed: int = 0
    missing_count: int = 0
    missing: list[PendingFinding] = []
    damaged: list[str] = []
    unrecorded: int = 0

    @property
    def sound(self) -> bool:
        """Whether the commit finds every upload and record that it needs."""
        return not (self.missing_count or self.damaged)


def verify_job(
    store: ObjectStore, destination: str | Destination, job_id: str, *, threads: int = 16
) -> VerifyReport | PendingReport:
    """Compare the files that one job has committed, or its pending uploads, with the store. Reads only.

    Args:
        store: The store of the destination.
        destination: URI of the dataset's directory, or a `Destination`.
        job_id: The job.
        threads: Concurrent requests; 0 sends them in the caller's thread.

    Raises:
        JobClosed: The job is aborted.
        NoSuchJob: The job does not exist.
        InvalidRecord: A record of a committed job, or its list of files, is damaged or was copied here.
        S3CommitError: A request failed.
    """
    context = recorded(JobContext(store, Layout.of(Destination.of(destination), job_id), threads=threads))
    manifest = find_manifest(context)
    return verify_pending(context) if manifest is None else verify_manifest(context, manifest)


def verify_manifest(context: JobContext, manifest: Manifest) -> VerifyReport:
    """Compare the files that a job committed with the objects in the partitions that it wrote."""
    store, home = context.store, context.layout.destination
    report = VerifyReport(
        job_id=manifest.job_id, destination=manifest.destination, generation=manifest.generation
    )
    # The log is read after the files were compared: a commit may have replaced them meanwhile.
    with ExpectedFiles(context, report, lambda: read_table(store, home)) as expected:
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


def verify_pending(context: JobContext) -> PendingReport:
    """Compare the records of an open or sealed job with the pending uploads on the store. Reads only.

    Raises `AlreadyCommitted`, `JobClosed` or `NoSuchJob` for any other job.
    """
    with naming(context, "verify"):
        context = recorded(context)
        if context.record is None:
            refuse_ended(context, look_up_end(context, None))
            raise NoSuchJob(never_set_up(context))
        home = context.layout.destination
        report = PendingReport(job_id=context.job_id, destination=home.uri, state="open")
        listed = context.store.list_uploads(context.bucket, home.prefix)
        existing = {upload.upload_id: upload.key for upload in listed}
        seen: set[str] = set()
        for batch in in_batches(_recorded(context, report), BATCH):
            fresh = {upload.uploadId: upload for upload in batch if upload.uploadId not in seen}
            seen.update(fresh)
            report.files += len(fresh)
            report.bytes += sum(upload.length for upload in fresh.values())
            _check(context, list(fresh.values()), existing, report)
        report.unrecorded = sum(
            upload_id not in seen and owner_of(key) == context.job_id for upload_id, key in existing.items()
        )
        # Last, because a process that has ended the job meanwhile has removed its uploads and records.
        refuse_ended(context, look_up_end(context, None))
    return report


def _recorded(context: JobContext, report: PendingReport) -> Iterator[PendingUpload]:
    """Yield the uploads in the job's seal, or in all of its records, and add damaged ones to the report."""
    try:
        seal = find_seal(context)
        if seal is not None:
            report.state = "sealed"
            tasks = sealed_tasks(context, seal.record)
            for _, pendingset in each_pendingset(context, tasks, report.damaged):
                yield from pendingset.commits
            return
    except InvalidRecord as error:
        report.state = "sealed"
        report.damaged.append(str(error))
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


def _check(
    context: JobContext, uploads: list[PendingUpload], existing: dict[str, str], report: PendingReport
) -> None:
    """Check uploads one by one if the listing lacks them, because a listing may be incomplete."""
    unseen = [u for u in uploads if existing.get(u.uploadId) != u.destinationKey]
    report.pending += len(uploads) - len(unseen)
    for upload, fate, is_there in fates(context.store, unseen):
        report.pending += fate == "pending"
        report.completed += fate == "published"
        report.missing_count += fate in ("uncertain", "lost")
        if fate in ("uncertain", "lost") and len(report.missing) < MAX_NAMED:
            other = "another writer's object" if is_there else "no object"
            problem = f"the upload is gone, and its key has {other}"
            key, upload_id = upload.destinationKey, upload.uploadId
            report.missing.append(PendingFinding(key=key, upload_id=upload_id, problem=problem))

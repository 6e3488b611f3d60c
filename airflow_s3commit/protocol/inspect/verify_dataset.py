"""Compare committed files with the objects at their keys; for one job: all files that it committed.

For the whole table see `verify_table`; for a job that is not committed yet, `verify_pending`. Reads only.
Differences are findings in a report, not errors.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import NamedTuple

from msgspec import Struct

from airflow_s3commit.exceptions import InvalidRecord, NoSuchKey
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.listing import data_objects
from airflow_s3commit.protocol.model.codec import Plain
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.layout import Layout, partition_of
from airflow_s3commit.protocol.model.manifest import Manifest
from airflow_s3commit.protocol.model.ownership import UPLOAD_METADATA
from airflow_s3commit.protocol.model.table import Table
from airflow_s3commit.protocol.steps.files import files_of
from airflow_s3commit.protocol.steps.fold import read_table
from airflow_s3commit.store.base import Head, ObjectInfo, ObjectStore
from airflow_s3commit.store.execute import in_batches, outcomes

#: Maximum number of findings of each kind that a report names; it counts all of them.
MAX_NAMED = 1_000

#: KiB of the expected files in memory.
_CACHE_KIB = 65_536

_BATCH = 1_000


class Changed(Struct, frozen=True, kw_only=True):
    """A committed file at whose key there is another object.

    Attributes:
        key: Object key.
        expected_size: Bytes of the committed file.
        size: Bytes of the object.
        expected_etag: ETag of the committed file; empty if it is not known.
        etag: ETag of the object.

    """

    key: str
    expected_size: int
    size: int
    expected_etag: str
    etag: str


class Difference(NamedTuple):
    """A committed file that is not as it was committed.

    Attributes:
        key: Object key.
        number: The commit.
        change: The object at the key; None if there is none.

    """

    key: str
    number: int
    change: Changed | None


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
        changed_count: Number of other keys with another object: somebody overwrote the file.
        changed: The first `MAX_NAMED` changed files.

    """

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
        """Whether every file exists unchanged that no later commit replaced."""
        return not self.missing_count and not self.changed_count

    def add(self, home: Destination, differences: Iterable[Difference], table: Table) -> None:
        """Count what differs.

        Args:
            home: The destination.
            differences: The files that differ from what was committed.
            table: The table, read after the files were looked at: it tells which of them are still needed.

        """
        for key, number, change in differences:
            if not table.can_restore(partition_of(home.relative(key) or ""), number):
                self.removed += 1
            elif change is None:
                self.missing_count += 1
                self.missing += [key] if len(self.missing) < MAX_NAMED else []
            else:
                self.changed_count += 1
                self.changed += [change] if len(self.changed) < MAX_NAMED else []


class VerifyReport(FileDifferences, kw_only=True):
    """What is left of the files that one job committed.

    Attributes:
        job_id: Id of the job.
        destination: URI of its destination.
        generation: Number of its commit in the log.
        files: Number of files that it committed.
        intact: Number of files that exist unchanged, by their ETag or by the upload id in their metadata.
        by_size: Number of files that exist with the right size, and cannot be compared further.
        removed: Number of files that are gone or changed because a later commit replaced them.
        missing_count: Number of other files that do not exist.
        missing: Keys of the first `MAX_NAMED` missing files.
        changed_count: Number of other keys with another object: somebody overwrote the file.
        changed: The first `MAX_NAMED` changed files.

    """

    derived = ("complete",)

    job_id: str
    destination: str
    generation: int


class ExpectedFile(NamedTuple):
    """A committed file: its bytes, its ETag and upload id, empty if unknown, and its commit."""

    size: int
    etag: str
    upload: str
    number: int


class ExpectedFiles:
    """Committed files by key, in a temporary database on disk: memory does not grow with their number."""

    def __init__(self) -> None:
        self._rows = sqlite3.connect("", isolation_level=None)
        self._rows.execute("PRAGMA journal_mode = OFF")
        self._rows.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        self._rows.execute(
            "CREATE TABLE file (key BLOB PRIMARY KEY, size INT, etag TEXT, upload TEXT, number INT)"
            " WITHOUT ROWID"
        )
        self._rows.execute("BEGIN")

    def close(self) -> None:
        """Delete the database."""
        self._rows.close()

    def add(self, key: str, file: ExpectedFile) -> None:
        """Add a file; of two with one key the later commit's counts."""
        self._rows.execute(
            "INSERT INTO file VALUES (?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET size = excluded.size,"
            " etag = excluded.etag, upload = excluded.upload, number = excluded.number"
            " WHERE excluded.number > number",
            (_bytes_of(key), *file),
        )

    def count(self) -> int:
        """Return the number of files that are left."""
        return int(self._rows.execute("SELECT count(*) FROM file").fetchone()[0])

    def pop(self, key: str) -> ExpectedFile | None:
        """Remove a file and return it; None if it is not there."""
        row = self._rows.execute(
            "SELECT size, etag, upload, number FROM file WHERE key = ?", (_bytes_of(key),)
        ).fetchone()
        if row is None:
            return None
        self._rows.execute("DELETE FROM file WHERE key = ?", (_bytes_of(key),))
        return ExpectedFile(*row)

    def left(self) -> Iterator[Difference]:
        """Yield the files that are left, in the order of their keys, as missing ones."""
        for key, number in self._rows.execute("SELECT key, number FROM file ORDER BY key"):
            yield Difference(key.decode("utf-8", "surrogatepass"), number, None)


def _bytes_of(key: str) -> bytes:
    # Keys of other programs may contain what text in the database cannot.
    return key.encode("utf-8", "surrogatepass")


def verify_manifest(store: ObjectStore, manifest: Manifest, *, threads: int = 16) -> VerifyReport:
    """Compare the files that a job committed with the objects at its destination. Reads only.

    Lists the partitions. Sends a HEAD request only for a file whose ETag in the listing is not the one
    computed from its parts, because the object is encrypted or changed; the HEAD shows the upload id.

    Args:
        store: The store of the destination.
        manifest: The manifest.
        threads: Number of partitions to list at once; 0 lists in the caller's thread.

    Raises:
        InvalidRecord: The manifest's list of files is gone or was changed, or has a key outside the
            destination.
        S3CommitError: A request failed.

    """
    home = Destination.parse(manifest.destination)
    context = JobContext(store, Layout.of(home, manifest.job_id), threads=threads)
    report = VerifyReport(
        job_id=manifest.job_id, destination=manifest.destination, generation=manifest.generation
    )
    with closing(ExpectedFiles()) as expected:
        for entry in files_of(store, home, manifest.source):
            expected.add(entry.key, ExpectedFile(entry.size, entry.etag, entry.upload, manifest.generation))
        report.files = expected.count()
        if report.files != manifest.counts.files:
            raise InvalidRecord(
                f"{manifest.uri} lists {report.files} files, and counts {manifest.counts.files}"
            )
        partitions = [name for name, counts in manifest.partitions.items() if counts.files]
        for batch in in_batches(data_objects(context, sorted(partitions)), _BATCH):
            pairs = [(info, file) for info in batch if (file := expected.pop(info.key)) is not None]
            _add(context, report, compare_objects(context, pairs, report))
        for missing in in_batches(expected.left(), _BATCH):
            _add(context, report, missing)
    return report


def _add(context: JobContext, report: VerifyReport, differences: list[Difference]) -> None:
    if differences:
        home = context.layout.destination
        # Read again: a commit may have replaced them since.
        report.add(home, differences, read_table(context.store, home))


def compare_objects(
    context: JobContext, pairs: Iterable[tuple[ObjectInfo, ExpectedFile]], report: FileDifferences
) -> list[Difference]:
    """Compare listed objects with the files that are expected at their keys; return those that differ.

    The others are counted. Sends a HEAD request only for a file whose ETag in the listing is not the expected
    one: the upload id in its metadata decides.
    """
    doubtful: list[tuple[tuple[ObjectInfo, ExpectedFile], Head]] = []
    differing: list[Difference] = []
    for info, file in pairs:
        if info.size != file.size:
            differing.append(_change(info, file))
        elif file.etag and info.etag == file.etag:
            report.intact += 1
        elif file.upload:
            doubtful.append(((info, file), Head(context.bucket, info.key)))
        elif file.etag:
            differing.append(_change(info, file))
        else:
            report.by_size += 1
    for (info, file), outcome in outcomes(context.store, doubtful, NoSuchKey):
        if isinstance(outcome, NoSuchKey):
            differing.append(Difference(info.key, file.number, None))
        elif (
            isinstance(outcome, ObjectInfo)
            and outcome.metadata.get(UPLOAD_METADATA) == file.upload
            and outcome.size == file.size
        ):
            report.intact += 1
        else:
            differing.append(_change(info, file))
    return differing


def _change(info: ObjectInfo, file: ExpectedFile) -> Difference:
    change = Changed(
        key=info.key, expected_size=file.size, size=info.size, expected_etag=file.etag, etag=info.etag
    )
    return Difference(info.key, file.number, change)

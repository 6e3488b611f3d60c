"""Verifies a committed job: compares the files in its manifest with the objects at the destination.

For the whole table see `verify_table`; for a job that is not committed yet, `verify_pending`. Reads only.
Differences are findings in the report, not errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from msgspec import Struct

from airflow_s3commit.exceptions import InvalidRecord, NoSuchKey
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.listing import data_objects
from airflow_s3commit.protocol.metadata.manifests import latest_job, manifest_files
from airflow_s3commit.protocol.metadata.snapshot import is_retained_at
from airflow_s3commit.protocol.model.codec import Plain
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.job import ConflictMode
from airflow_s3commit.protocol.model.layout import Layout, partition_of
from airflow_s3commit.protocol.model.manifest import ManifestRecord
from airflow_s3commit.protocol.model.ownership import UPLOAD_METADATA
from airflow_s3commit.store.base import Head, ObjectInfo, ObjectStore
from airflow_s3commit.store.execute import in_batches, outcomes

#: Maximum number of findings of each kind that a report names; it counts all of them.
MAX_NAMED = 1_000

#: Maximum number of the manifest's files in memory: partitions are compared in groups of this size.
_FILES_AT_ONCE = 200_000

_BATCH = 1_000


class Changed(Struct, frozen=True, kw_only=True):
    """A file of the manifest at whose key there is another object.

    Attributes:
        key: Object key.
        expected_size: Bytes of the committed file.
        size: Bytes of the object.
        expected_etag: ETag of the committed file; empty if the manifest has none.
        etag: ETag of the object.

    """

    key: str
    expected_size: int
    size: int
    expected_etag: str
    etag: str


class FileDifferences(Plain, Struct, kw_only=True):
    """Committed files, and which of them are not as they were committed.

    Attributes:
        files: Number of committed files.
        intact: Number of files that exist unchanged, by their ETag or by the upload id in their metadata.
        by_size: Number of files that exist with the right size, and cannot be compared further: the list of
            files has neither an ETag nor an upload id for them.
        missing_count: Number of files that do not exist.
        missing: Keys of the first `MAX_NAMED` missing files.
        changed_count: Number of keys with another object.
        changed: The first `MAX_NAMED` changed files.

    """

    files: int = 0
    intact: int = 0
    by_size: int = 0
    missing_count: int = 0
    missing: list[str] = []
    changed_count: int = 0
    changed: list[Changed] = []

    @property
    def complete(self) -> bool:
        """Whether every file exists unchanged."""
        return not self.missing_count and not self.changed_count

    def add_missing(self, key: str) -> None:
        """Count a file that does not exist."""
        self.missing_count += 1
        if len(self.missing) < MAX_NAMED:
            self.missing.append(key)

    def add_changed(self, change: Changed) -> None:
        """Count a key with another object."""
        self.changed_count += 1
        if len(self.changed) < MAX_NAMED:
            self.changed.append(change)


class VerifyReport(FileDifferences, kw_only=True):
    """Differences between a manifest and the objects at its destination.

    Attributes:
        job_id: Id of the job that committed the manifest.
        destination: URI of the job's destination.
        conflict_mode: Conflict mode of the job.
        files: Number of files in the manifest.
        intact: Number of files that exist unchanged, by their ETag or by the upload id in their metadata.
        by_size: Number of files that exist with the right size, and cannot be compared further: the manifest
            has neither an ETag nor an upload id for them.
        missing_count: Number of files that do not exist.
        missing: Keys of the first `MAX_NAMED` missing files.
        changed_count: Number of keys with another object.
        changed: The first `MAX_NAMED` changed files.
        unlisted_count: Number of data objects in the manifest's partitions that are not in the manifest.
            After a ``replace`` or ``fail`` they are foreign; after an ``append`` they may be older data.
            Files that the table had and retains do not count.
        unlisted: Keys of the first `MAX_NAMED` unlisted objects.
        latest_job: Id of the last job that committed to the destination; it may have replaced files of this
            one. None if unknown, because ``_SUCCESS`` is missing, damaged, or of another committer.

    """

    derived = ("complete", "exclusive", "superseded")

    job_id: str
    destination: str
    conflict_mode: ConflictMode
    unlisted_count: int = 0
    unlisted: list[str] = []
    latest_job: str | None = None

    @property
    def exclusive(self) -> bool:
        """Whether the partitions hold no other objects; always true after an ``append``."""
        return self.conflict_mode == "append" or not self.unlisted_count

    @property
    def superseded(self) -> bool:
        """Whether a later job has committed."""
        return self.latest_job is not None and self.latest_job != self.job_id


class ExpectedFile(NamedTuple):
    """A committed file: its bytes, ETag and upload id; ETag and id are empty if unknown."""

    size: int
    etag: str
    upload: str


def verify_manifest(store: ObjectStore, manifest: ManifestRecord, *, threads: int = 16) -> VerifyReport:
    """Compare the files of a manifest with the objects at its destination. Reads only.

    Lists the partitions. Sends a HEAD request only for a file whose ETag in the listing is not the one
    computed from its parts, because the object is encrypted or changed; the HEAD shows the upload id.

    Args:
        store: The store of the destination.
        manifest: The manifest.
        threads: Number of partitions to list at once; 0 lists in the caller's thread.

    Raises:
        InvalidRecord: The manifest's list of files was changed, or has a key outside the destination.
        NoSuchKey: The list of files is missing.
        S3CommitError: A request failed.

    """
    destination = Destination.parse(manifest.destination)
    context = JobContext(store, Layout.of(destination, manifest.job_id), threads=threads)
    report = VerifyReport(
        job_id=manifest.job_id,
        destination=manifest.destination,
        conflict_mode=manifest.conflict_mode,
        latest_job=_latest_job(store, destination),
    )
    for partitions in _groups(manifest):
        expected = _expected(context, manifest, partitions)
        report.files += len(expected)
        _compare(context, partitions, expected, report)
    if report.files != manifest.counts.files:
        raise InvalidRecord(
            f"{manifest.files} lists {report.files} files in the manifest's partitions; the manifest counts"
            f" {manifest.counts.files}"
        )
    return report


def _groups(manifest: ManifestRecord) -> Iterator[set[str]]:
    """Yield the partitions in groups whose files fit in memory; a larger partition is a group of its own."""
    group: set[str] = set()
    files = 0
    for partition, counts in manifest.partitions.items():
        if group and files + counts.files > _FILES_AT_ONCE:
            yield group
            group, files = set(), 0
        group.add(partition)
        files += counts.files
    if group:
        yield group


def _expected(context: JobContext, manifest: ManifestRecord, partitions: set[str]) -> dict[str, ExpectedFile]:
    destination = context.layout.destination
    expected = {}
    for entry in manifest_files(context.store, manifest):
        relative = destination.check_data_key(destination.bucket, entry.key)
        if partition_of(relative) in partitions:
            expected[entry.key] = ExpectedFile(entry.size, entry.etag, entry.upload)
    return expected


def _compare(
    context: JobContext, partitions: set[str], expected: dict[str, ExpectedFile], report: VerifyReport
) -> None:
    """Compare a listing with the expected files, and remove from ``expected`` the files that exist.

    Files that the table had and retains are not foreign.
    """
    is_retained = is_retained_at(context.store, context.layout.destination)
    for batch in in_batches(data_objects(context, sorted(partitions)), _BATCH):
        pairs = []
        for info in batch:
            file = expected.pop(info.key, None)
            if file is not None:
                pairs.append((info, file))
            elif not is_retained(info.key):
                report.unlisted_count += 1
                if len(report.unlisted) < MAX_NAMED:
                    report.unlisted.append(info.key)
        compare_objects(context, pairs, report)
    for key in sorted(expected):
        report.add_missing(key)


def compare_objects(
    context: JobContext, pairs: Iterable[tuple[ObjectInfo, ExpectedFile]], report: FileDifferences
) -> None:
    """Compare listed objects with the files that are expected at their keys, and count the results.

    Sends a HEAD request only for a file whose ETag in the listing is not the expected one: the upload id in
    its metadata decides.
    """
    doubtful = []
    for info, file in pairs:
        if info.size != file.size:
            report.add_changed(_change(info, file))
        elif file.etag and info.etag == file.etag:
            report.intact += 1
        elif file.upload:
            doubtful.append(((info, file), Head(context.bucket, info.key)))
        elif file.etag:
            report.add_changed(_change(info, file))
        else:
            report.by_size += 1
    for (info, file), outcome in outcomes(context.store, doubtful, NoSuchKey):
        if isinstance(outcome, NoSuchKey):
            report.add_missing(info.key)
        elif (
            isinstance(outcome, ObjectInfo)
            and outcome.metadata.get(UPLOAD_METADATA) == file.upload
            and outcome.size == file.size
        ):
            report.intact += 1
        else:
            report.add_changed(_change(info, file))


def _change(info: ObjectInfo, file: ExpectedFile) -> Changed:
    return Changed(
        key=info.key, expected_size=file.size, size=info.size, expected_etag=file.etag, etag=info.etag
    )


def _latest_job(store: ObjectStore, destination: Destination) -> str | None:
    try:
        return latest_job(store, destination)
    except (NoSuchKey, InvalidRecord):
        return None

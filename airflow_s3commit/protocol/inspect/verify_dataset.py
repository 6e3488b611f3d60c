"""Verifies a committed dataset: compares the files in a manifest with the objects at the destination.

For a job that is not committed yet, see `verify_pending`. Reads only. Differences are findings in the report,
not errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from msgspec import Struct

from airflow_s3commit.exceptions import InvalidRecord, NoSuchKey
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.listing import data_objects
from airflow_s3commit.protocol.metadata.manifests import latest_job, manifest_files, manifest_of
from airflow_s3commit.protocol.metadata.retained import is_retained_at
from airflow_s3commit.protocol.model.codec import Plain
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.job import ConflictMode
from airflow_s3commit.protocol.model.layout import Layout, partition_of
from airflow_s3commit.protocol.model.manifest import ManifestRecord
from airflow_s3commit.protocol.model.ownership import UPLOAD_METADATA
from airflow_s3commit.protocol.model.signing import Signer
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


class VerifyReport(Plain, Struct, kw_only=True):
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
    files: int = 0
    intact: int = 0
    by_size: int = 0
    missing_count: int = 0
    missing: list[str] = []
    changed_count: int = 0
    changed: list[Changed] = []
    unlisted_count: int = 0
    unlisted: list[str] = []
    latest_job: str | None = None

    @property
    def complete(self) -> bool:
        """Whether every file of the manifest exists unchanged."""
        return not self.missing_count and not self.changed_count

    @property
    def exclusive(self) -> bool:
        """Whether the partitions hold no other objects; always true after an ``append``."""
        return self.conflict_mode == "append" or not self.unlisted_count

    @property
    def superseded(self) -> bool:
        """Whether a later job has committed."""
        return self.latest_job is not None and self.latest_job != self.job_id


class _Expected(NamedTuple):
    size: int
    etag: str
    upload: str


def verify(
    store: ObjectStore,
    destination: str | Destination,
    *,
    job_id: str | None = None,
    threads: int = 16,
    signer: Signer | None = None,
) -> VerifyReport:
    """Compare the files that a job committed with the objects at its destination. Reads only.

    Args:
        store: The store of the destination.
        destination: URI of the dataset's directory, or a `Destination`.
        job_id: Id of the job; by default the last one that committed.
        threads: Number of partitions to list at once; 0 lists in the caller's thread.
        signer: Verifies the manifest's signature; None if jobs are not signed.

    Raises:
        NoSuchKey: The job has not committed there, or no job has; or the manifest's list of files is missing.
        ForeignRecord: ``_SUCCESS`` was written by another committer, or the manifest was copied here.
        InvalidRecord: ``_SUCCESS``, the manifest or its list of files is damaged.
        SignatureRefused: The manifest is not signed with the signer's key.

    """
    place = Destination.of(destination)
    return verify_manifest(store, manifest_of(store, place, job_id, signer=signer), threads=threads)


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


def _expected(context: JobContext, manifest: ManifestRecord, partitions: set[str]) -> dict[str, _Expected]:
    destination = context.layout.destination
    expected = {}
    for entry in manifest_files(context.store, manifest):
        relative = destination.check_data_key(destination.bucket, entry.key)
        if partition_of(relative) in partitions:
            expected[entry.key] = _Expected(entry.size, entry.etag, entry.upload)
    return expected


def _compare(
    context: JobContext, partitions: set[str], expected: dict[str, _Expected], report: VerifyReport
) -> None:
    """Compare a listing with the expected files, and remove from ``expected`` the files that exist.

    Files that the table had and retains are not foreign.
    """
    is_retained = is_retained_at(context.store, context.layout.destination)
    for batch in in_batches(data_objects(context, sorted(partitions)), _BATCH):
        doubtful = []
        for info in batch:
            file = expected.pop(info.key, None)
            if file is None:
                if is_retained(info.key):
                    continue
                report.unlisted_count += 1
                _add_key(report.unlisted, info.key)
            elif info.size != file.size:
                _add_change(report, info, file)
            elif file.etag and info.etag == file.etag:
                report.intact += 1
            else:
                doubtful.append((info, file))
        _compare_upload_ids(context, doubtful, report)
    report.missing_count += len(expected)
    for key in sorted(expected):
        _add_key(report.missing, key)


def _compare_upload_ids(
    context: JobContext, doubtful: list[tuple[ObjectInfo, _Expected]], report: VerifyReport
) -> None:
    """Compare the upload ids in the metadata of objects whose ETag is not the expected one."""
    calls = []
    for info, file in doubtful:
        if file.upload:
            calls.append(((info, file), Head(context.bucket, info.key)))
        elif file.etag:
            _add_change(report, info, file)
        else:
            report.by_size += 1
    for (info, file), outcome in outcomes(context.store, calls, NoSuchKey):
        if isinstance(outcome, NoSuchKey):
            report.missing_count += 1
            _add_key(report.missing, info.key)
        elif (
            isinstance(outcome, ObjectInfo)
            and outcome.metadata.get(UPLOAD_METADATA) == file.upload
            and outcome.size == file.size
        ):
            report.intact += 1
        else:
            _add_change(report, info, file)


def _add_change(report: VerifyReport, info: ObjectInfo, file: _Expected) -> None:
    report.changed_count += 1
    if len(report.changed) < MAX_NAMED:
        report.changed.append(
            Changed(
                key=info.key,
                expected_size=file.size,
                size=info.size,
                expected_etag=file.etag,
                etag=info.etag,
            )
        )


def _add_key(keys: list[str], key: str) -> None:
    if len(keys) < MAX_NAMED:
        keys.append(key)


def _latest_job(store: ObjectStore, destination: Destination) -> str | None:
    try:
        return latest_job(store, destination)
    except (NoSuchKey, InvalidRecord):
        return None

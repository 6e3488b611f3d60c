"""Verify: does a committed dataset still hold what its manifest says?

For a job that is not committed yet, see `verify_pending`.

Nothing here changes anything. A finding is no error: it is counted, and the first ones are named.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from airflow_s3commit.exceptions import InvalidRecord, NoSuchKey
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.listing import data_objects
from airflow_s3commit.protocol.metadata.manifests import latest_job, manifest_files, manifest_of
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.job import ConflictMode
from airflow_s3commit.protocol.model.layout import Layout, partition_of
from airflow_s3commit.protocol.model.manifest import ManifestRecord
from airflow_s3commit.protocol.model.ownership import UPLOAD_METADATA
from airflow_s3commit.protocol.model.signing import Signer
from airflow_s3commit.store.base import Head, ObjectInfo, ObjectStore
from airflow_s3commit.store.execute import in_batches, outcomes

#: Of each kind of finding so many are named; all are counted.
MAX_NAMED = 1_000

#: Files of the manifest that are held in memory at once; partitions are checked in groups of that size.
_FILES_AT_ONCE = 200_000

_BATCH = 1_000


class Changed(Struct, frozen=True, kw_only=True):
    """A committed file whose object is not the committed one. Sizes are in bytes."""

    key: str
    expected_size: int
    size: int
    expected_etag: str
    etag: str


class VerifyReport(Struct, kw_only=True):
    """What a manifest and the store say of the same partitions.

    Attributes:
        job_id: The job of the manifest.
        destination: URI of its destination.
        conflict_mode: The job's.
        files: Files that the manifest lists.
        intact: How many of them are there, by ETag or by the upload's id that the object carries.
        by_size: How many are there with the right size, but nothing more can be told of them: their ETag is
            no MD5 sum, and they carry no id.
        missing_count: How many are not there.
        missing: Their keys, the first `MAX_NAMED`.
        changed_count: How many keys have another object.
        changed: The first `MAX_NAMED` of these.
        unlisted_count: Data objects in the manifest's partitions that it does not list. After a ``replace``
            or ``fail`` they are foreign; after an ``append`` they are what was there before.
        unlisted: Their keys, the first `MAX_NAMED`.
        latest_job: The last job that committed: if it is another, that one may have replaced what this one
            wrote. None if that is not known: another committer wrote ``_SUCCESS``, or it is damaged.

    """

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
        """Whether every file is there, unchanged."""
        return not self.missing_count and not self.changed_count

    @property
    def exclusive(self) -> bool:
        """Whether the partitions hold nothing else; true of every ``append``, which does not ask for it."""
        return self.conflict_mode == "append" or not self.unlisted_count

    @property
    def superseded(self) -> bool:
        """Whether a later job has committed."""
        return self.latest_job is not None and self.latest_job != self.job_id

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, with its verdicts."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        verdicts = {"complete": self.complete, "exclusive": self.exclusive, "superseded": self.superseded}
        return plain | verdicts


class _Expected(NamedTuple):
    """What the manifest says of one file."""

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
    """Compare what a job committed with what is at its destination. Changes nothing; repeatable.

    Args:
        store: The store of the destination.
        destination: URI of the dataset's directory, or a `Destination`.
        job_id: The job; by default the last one that committed.
        threads: How many partitions are listed at once; 0 lists in the caller's thread.
        signer: Checks the manifest's signature.

    Raises:
        NoSuchKey: The job, or any job, has not committed there; or the manifest's list of files is gone.
        ForeignRecord: ``_SUCCESS`` was written by another committer, or the manifest was copied here.
        InvalidRecord: ``_SUCCESS``, the manifest or its list of files is damaged.
        SignatureRefused: The manifest is not signed with the signer's key.

    """
    place = Destination.of(destination)
    return verify_manifest(store, manifest_of(store, place, job_id, signer=signer), threads=threads)


def verify_manifest(store: ObjectStore, manifest: ManifestRecord, *, threads: int = 16) -> VerifyReport:
    """Compare what a job committed with what is there.

    Partitions are listed, files are not asked for one by one: only where a listing's ETag is not the one
    that follows from the file's parts (encryption, or a changed object) a HEAD looks for the upload's id.

    Args:
        store: The store of the destination.
        manifest: The manifest; see `airflow_s3commit.protocol.lifecycle.manifest`.
        threads: How many partitions are listed at once; 0 lists in the caller's thread.

    Raises:
        InvalidRecord: The manifest's list of files was changed, or names what it must not.
        NoSuchKey: The list is gone.

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
    """Yield the partitions in groups whose files fit in memory, the larger ones alone."""
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
    """Compare a listing with what is expected, which is emptied by it of what is there."""
    for batch in in_batches(data_objects(context, sorted(partitions)), _BATCH):
        doubtful = []
        for info in batch:
            file = expected.pop(info.key, None)
            if file is None:
                report.unlisted_count += 1
                _name(report.unlisted, info.key)
            elif info.size != file.size:
                _note_change(report, info, file)
            elif file.etag and info.etag == file.etag:
                report.intact += 1
            else:
                doubtful.append((info, file))
        _settle(context, doubtful, report)
    report.missing_count += len(expected)
    for key in sorted(expected):
        _name(report.missing, key)


def _settle(context: JobContext, doubtful: list[tuple[ObjectInfo, _Expected]], report: VerifyReport) -> None:
    """Look at objects whose ETag says nothing or something else for the id of the upload they came from."""
    calls = []
    for info, file in doubtful:
        if file.upload:
            calls.append(((info, file), Head(context.bucket, info.key)))
        elif file.etag:
            _note_change(report, info, file)
        else:
            report.by_size += 1
    for (info, file), outcome in outcomes(context.store, calls, NoSuchKey):
        if isinstance(outcome, NoSuchKey):
            report.missing_count += 1
            _name(report.missing, info.key)
        elif (
            isinstance(outcome, ObjectInfo)
            and outcome.metadata.get(UPLOAD_METADATA) == file.upload
            and outcome.size == file.size
        ):
            report.intact += 1
        else:
            _note_change(report, info, file)


def _note_change(report: VerifyReport, info: ObjectInfo, file: _Expected) -> None:
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


def _name(names: list[str], key: str) -> None:
    if len(names) < MAX_NAMED:
        names.append(key)


def _latest_job(store: ObjectStore, destination: Destination) -> str | None:
    try:
        return latest_job(store, destination)
    except (NoSuchKey, InvalidRecord):
        return None

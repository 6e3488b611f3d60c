"""The durable account of a commit: the full manifest, and ``_SUCCESS``, its short face.

The manifest is two objects: a list of files, one JSON record a line, and a summary that names the list by its
SHA-256. The summary is written create-only after the list; its presence is the proof of commit. The list is
made from the pendingsets alone and in their order, so every process that writes it writes the same bytes.
"""

from __future__ import annotations

import hashlib
import logging
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from tempfile import SpooledTemporaryFile
from typing import IO

from airflow_s3commit.exceptions import (
    InvalidRecord,
    NoSuchKey,
    NoSuchUpload,
    PreconditionFailed,
    TooLarge,
)
from airflow_s3commit.protocol import journal
from airflow_s3commit.protocol.context import JobContext
from airflow_s3commit.protocol.destination import Destination, join_uri, split_uri
from airflow_s3commit.protocol.file_list import FileList
from airflow_s3commit.protocol.layout import SUCCESS, Layout, check_id
from airflow_s3commit.protocol.limits import LINE_BYTES, LIST_BYTES
from airflow_s3commit.protocol.ownership import check_ending
from airflow_s3commit.protocol.pendingset import IOStatistics
from airflow_s3commit.protocol.records import (
    Counts,
    FileEntry,
    JobRecord,
    ManifestRecord,
    PlanRecord,
    SealRecord,
    decode,
    decode_lines,
    encode,
    largest,
)
from airflow_s3commit.protocol.signing import Signer
from airflow_s3commit.protocol.state import find_manifest, read_state
from airflow_s3commit.protocol.success import (
    MANIFEST_DIAGNOSTIC,
    MAX_FILENAMES,
    SUCCESS_NAME,
    SuccessData,
)
from airflow_s3commit.store.base import MIN_PART_BYTES, ObjectStore

__all__ = [
    "latest_manifest",
    "manifest_files",
    "named_job",
    "read_manifest",
    "read_success",
    "write_manifest",
    "write_success",
]

logger = logging.getLogger(__name__)

_PART_BYTES = 2 * MIN_PART_BYTES

#: Bytes of a list that are read at once.
_READ_BYTES = 16 * 1024 * 1024


def write_manifest(
    context: JobContext,
    job: JobRecord,
    seal: SealRecord,
    plan: PlanRecord,
    *,
    files: FileList,
    metrics: dict[str, int],
) -> ManifestRecord:
    """Write the list of files and the summary of a committed job, and return the summary that stands.

    Before: the job's state is ``committed``. After: the manifest stands. Run again: the same manifest.
    """
    try:
        digest = _write_files(context, files.lines())
    except NoSuchUpload:
        # Another process wrote the manifest meanwhile, and discarded the upload of this one's list.
        standing = find_manifest(context)
        if standing is None:
            raise
        return standing
    record = ManifestRecord(
        **context.layout.place,
        committer=job.options.committer,
        conflict_mode=job.options.conflict_mode,
        committed=context.now_ms(),
        counts=seal.counts,
        partitions=seal.partitions,
        replaced=Counts(files=plan.objects, bytes=plan.bytes, rows=None),
        files=join_uri(context.bucket, context.layout.manifest_files),
        files_sha256=digest,
        context=job.context,
        metrics=metrics,
        nonce=context.new_id(),
    )
    stored = journal.create(
        context.store,
        context.bucket,
        context.layout.manifest,
        record,
        conditional=context.conditional,
        signer=context.signer,
    )
    return stored.record


def write_success(context: JobContext, manifest: ManifestRecord, files: FileList, *, tasks: int) -> None:
    """Write ``_SUCCESS`` for a committed job, unless a later job has written its own.

    Before: the manifest stands and the job is not cleaned up. After: ``_SUCCESS`` is this job's, or a later
    one's. The write is conditional on what was there before the job was last seen committed, so that a
    process which slept cannot put an old marker over a newer one.

    Args:
        context: The job.
        manifest: Its manifest.
        files: Its files.
        tasks: How many task attempts count.

    """
    filenames = [f"/{key}" for key in files.first_keys(MAX_FILENAMES)]
    body = encode(_success(manifest, filenames, context, tasks))
    while True:
        standing = _success_etag(context, manifest.job_id)
        if standing == manifest.job_id or _is_cleaned_up(context):
            return
        try:
            if standing is None:
                context.store.put(
                    context.bucket, context.layout.success, body, if_none_match=context.conditional
                )
            else:
                context.store.put(
                    context.bucket,
                    context.layout.success,
                    body,
                    if_match=standing if context.conditional else None,
                )
        except (PreconditionFailed, NoSuchKey):
            continue
        return


def read_success(store: ObjectStore, destination: Destination) -> SuccessData:
    """Read a destination's ``_SUCCESS``.

    Raises:
        NoSuchKey: There is none.
        InvalidRecord: It is empty (the classic committer's marker), cut short, or something else.

    """
    key = destination.key(SUCCESS)
    body = store.get(destination.bucket, key, limit=largest(SuccessData)).body
    where = join_uri(destination.bucket, key)
    if not body:
        raise InvalidRecord(f"{where} is empty: the classic committer's marker, not a manifest")
    return decode(SuccessData, body, where)


def read_manifest(
    store: ObjectStore, destination: Destination, job_id: str, *, signer: Signer | None = None
) -> ManifestRecord:
    """Read the manifest of one job, and check its signature where a signer is given.

    Raises:
        NoSuchKey: The job has not committed to this destination.
        InvalidRecord: What is there is no manifest, another job's, or was copied here with its dataset.

    """
    key = Layout.of(destination, job_id).manifest
    record = journal.load(store, destination.bucket, key, ManifestRecord, signer=signer).record
    check_ending(record, destination, job_id, join_uri(destination.bucket, key))
    return record


def latest_manifest(store: ObjectStore, destination: Destination) -> ManifestRecord:
    """Read the manifest that ``_SUCCESS`` points to: the last job's.

    Raises:
        NoSuchKey: There is no ``_SUCCESS``, or the manifest is gone.
        InvalidRecord: ``_SUCCESS`` was not written by this package.

    """
    return read_manifest(store, destination, named_job(read_success(store, destination), destination))


def named_job(success: SuccessData, destination: Destination) -> str:
    """Return the job whose manifest ``_SUCCESS`` points to.

    Raises:
        InvalidRecord: It points to none: it was not written by this package, or is damaged.

    """
    where = join_uri(destination.bucket, destination.key(SUCCESS))
    if success.manifest_uri is None or not success.jobId:
        raise InvalidRecord(
            f"{where} names no manifest: it was written by {success.committer or 'another committer'}; name"
            " the job that is meant, or go by a listing of the destination"
        )
    try:
        return check_id(success.jobId)
    except InvalidRecord as error:
        raise InvalidRecord(f"{where}: {error}") from error


def manifest_files(store: ObjectStore, manifest: ManifestRecord) -> Iterator[FileEntry]:
    """Yield every file that a job committed, after checking that the list is the one the manifest names.

    A long list is read in pieces and kept on disk meanwhile: memory does not grow with it.

    Raises:
        NoSuchKey: The list is gone.
        InvalidRecord: It was changed, or lies or leads outside of the job's destination.

    """
    home = Destination.parse(manifest.destination)
    if manifest.files != join_uri(home.bucket, Layout.of(home, manifest.job_id).manifest_files):
        raise InvalidRecord(
            f"the manifest of job {manifest.job_id} on {home.uri} names its list at {manifest.files},"
            " where no job writes it"
        )
    with SpooledTemporaryFile(max_size=_READ_BYTES) as spool:
        digest = hashlib.sha256()
        for piece in _pieces(store, manifest):
            digest.update(piece)
            spool.write(piece)
        if digest.hexdigest() != manifest.files_sha256:
            raise _changed(manifest)
        spool.seek(0)
        for entry in decode_lines(FileEntry, _lines(spool, manifest), manifest.files):
            if home.relative(entry.key) is None:
                raise InvalidRecord(f"{manifest.files} names {entry.key[:200]}, outside of {home.uri}")
            yield entry


def _lines(spool: IO[bytes], manifest: ManifestRecord) -> Iterator[bytes]:
    while line := spool.readline(LINE_BYTES + 1):
        if len(line) > LINE_BYTES:
            raise InvalidRecord(f"{manifest.files} has a line of more than {LINE_BYTES} bytes")
        yield line


def _pieces(store: ObjectStore, manifest: ManifestRecord) -> Iterator[bytes]:
    bucket, key = split_uri(manifest.files)
    info = store.head(bucket, key)
    if info.size <= _READ_BYTES:
        yield store.get(bucket, key, limit=_READ_BYTES).body
        return
    if info.size > LIST_BYTES:
        raise TooLarge.of(manifest.files, info.size, LIST_BYTES)
    try:
        for first in range(0, info.size, _READ_BYTES):
            yield store.get_range(bucket, key, first, _READ_BYTES, etag=info.etag)
    except PreconditionFailed as error:
        raise _changed(manifest) from error


def _changed(manifest: ManifestRecord) -> InvalidRecord:
    return InvalidRecord(f"{manifest.files} is not the list that the manifest of {manifest.job_id} names")


def _write_files(context: JobContext, lines: Iterator[bytes]) -> str:
    """Write the list in bounded memory and return its SHA-256 in hexadecimal."""
    store, bucket, key = context.store, context.bucket, context.layout.manifest_files
    digest, buffer = hashlib.sha256(), bytearray()
    etags: list[str] = []
    upload_id = None
    for line in lines:
        digest.update(line)
        buffer += line
        if len(buffer) >= _PART_BYTES:
            upload_id = upload_id or store.create_upload(
                bucket, key, metadata={}, content_type="application/x-ndjson"
            )
            etags.append(store.upload_part(bucket, key, upload_id, len(etags) + 1, bytes(buffer)))
            buffer.clear()
    if upload_id is None:
        store.put(bucket, key, bytes(buffer), content_type="application/x-ndjson")
    else:
        if buffer:
            etags.append(store.upload_part(bucket, key, upload_id, len(etags) + 1, bytes(buffer)))
        store.complete_upload(bucket, key, upload_id, etags)
    return digest.hexdigest()


def _success(manifest: ManifestRecord, filenames: list[str], context: JobContext, tasks: int) -> SuccessData:
    written = datetime.fromtimestamp(manifest.committed / 1000, UTC)
    counters = {
        **{name: value for name, value in manifest.metrics.items() if not name.startswith("complete_")},
        "committer_commits_completed": manifest.counts.files,
        "committer_bytes_committed": manifest.counts.bytes,
        "committer_jobs_completed": 1,
        "committer_tasks_completed": tasks,
    }
    return SuccessData(
        name=SUCCESS_NAME,
        timestamp=manifest.committed,
        date=written.strftime("%a %b %d %H:%M:%S UTC %Y"),
        hostname=socket.gethostname(),
        committer=manifest.committer,
        description=(
            f"{manifest.counts.files} files in {len(manifest.partitions)} partitions,"
            f" {manifest.conflict_mode}"
        ),
        jobId=manifest.job_id,
        jobIdSource="airflow-s3commit",
        metrics=manifest.metrics,
        diagnostics={
            **manifest.context,
            MANIFEST_DIAGNOSTIC: join_uri(context.bucket, context.layout.manifest),
        },
        filenames=filenames,
        iostatistics=IOStatistics(counters=counters),
    )


def _success_etag(context: JobContext, job_id: str) -> str | None:
    """Return the standing marker's ETag, None if there is none, or the job id itself if it is this job's."""
    store, bucket, key = context.store, context.bucket, context.layout.success
    try:
        fetched = store.get(bucket, key, limit=largest(SuccessData))
    except NoSuchKey:
        return None
    except TooLarge:
        # No marker of any committer's, and written over like all that is not this job's.
        return store.head(bucket, key).etag
    try:
        standing = decode(SuccessData, fetched.body, join_uri(bucket, key))
    except InvalidRecord:
        return fetched.info.etag
    return job_id if standing.jobId == job_id else fetched.info.etag


def _is_cleaned_up(context: JobContext) -> bool:
    state = read_state(context)
    return state is None or state.record.state != "committed"

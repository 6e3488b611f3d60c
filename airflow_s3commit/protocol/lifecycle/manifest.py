"""Write the manifest of a commit, and ``_SUCCESS``, its summary in Hadoop's format.

The manifest is two objects: a list of files, one JSON record a line, and a summary with the SHA-256 of that
list. The summary is written create-only, after the list; it is the proof of commit. The list is made from the
pendingsets alone and in their order, so that every process writes the same bytes.
"""

from __future__ import annotations

import hashlib
import logging
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from tempfile import SpooledTemporaryFile

import msgspec

from airflow_s3commit.exceptions import (
    InvalidRecord,
    NoSuchKey,
    NoSuchUpload,
    PreconditionFailed,
    TooLarge,
)
from airflow_s3commit.protocol.metadata import records
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.manifests import find_manifest
from airflow_s3commit.protocol.metadata.seals import each_pendingset, load_stage_seals
from airflow_s3commit.protocol.metadata.state import read_state
from airflow_s3commit.protocol.model.codec import decode, encode, largest
from airflow_s3commit.protocol.model.destination import join_uri
from airflow_s3commit.protocol.model.job import JobRecord
from airflow_s3commit.protocol.model.layout import partition_of
from airflow_s3commit.protocol.model.manifest import FileEntry, ManifestRecord
from airflow_s3commit.protocol.model.pendingset import IOStatistics, PendingUpload
from airflow_s3commit.protocol.model.plan import PlanRecord
from airflow_s3commit.protocol.model.seal import Counts, SealRecord
from airflow_s3commit.protocol.model.success import (
    MANIFEST_DIAGNOSTIC,
    MAX_FILENAMES,
    SUCCESS_NAME,
    SuccessData,
)
from airflow_s3commit.store.base import MIN_PART_BYTES

logger = logging.getLogger(__name__)


_PART_BYTES = 2 * MIN_PART_BYTES


def write_manifest(
    context: JobContext,
    job: JobRecord,
    seal: SealRecord,
    plan: PlanRecord,
    *,
    files: FileList,
    metrics: dict[str, int],
) -> ManifestRecord:
    """Write the list of files and the summary of a committed job, and return the stored summary.

    Before: the job's state is ``committed``. Repeatable: returns the same manifest.
    """
    try:
        digest = _write_files(context, files.lines())
    except NoSuchUpload:
        # Another process wrote the manifest meanwhile, and aborted the upload of this list.
        existing = find_manifest(context)
        if existing is None:
            raise
        return existing
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
    stored = records.create(
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

    Before: the manifest exists and the job is not cleaned up. The write is conditional on the marker that was
    read before the state, so that a suspended process cannot overwrite a newer marker.

    Args:
        context: The job.
        manifest: Its manifest.
        files: Its files.
        tasks: How many task attempts count.

    """
    filenames = [f"/{key}" for key in files.first_keys(MAX_FILENAMES)]
    body = encode(_success(manifest, filenames, context, tasks))
    while True:
        existing = _success_etag(context, manifest.job_id)
        if existing == manifest.job_id or _is_cleaned_up(context):
            return
        try:
            if existing is None:
                context.store.put(
                    context.bucket, context.layout.success, body, if_none_match=context.conditional
                )
            else:
                context.store.put(
                    context.bucket,
                    context.layout.success,
                    body,
                    if_match=existing if context.conditional else None,
                )
        except (PreconditionFailed, NoSuchKey):
            continue
        return


def _write_files(context: JobContext, lines: Iterator[bytes]) -> str:
    """Write the list in constant memory and return its SHA-256 in hexadecimal."""
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
    """Return the ETag of the marker; None if there is none, or the job id if it is this job's."""
    store, bucket, key = context.store, context.bucket, context.layout.success
    try:
        fetched = store.get(bucket, key, limit=largest(SuccessData))
    except NoSuchKey:
        return None
    except TooLarge:
        # Not a marker of any committer; overwritten like any other marker.
        return store.head(bucket, key).etag
    try:
        existing = decode(SuccessData, fetched.body, join_uri(bucket, key))
    except InvalidRecord:
        return fetched.info.etag
    return job_id if existing.jobId == job_id else fetched.info.etag


def _is_cleaned_up(context: JobContext) -> bool:
    state = read_state(context)
    return state is None or state.record.state != "committed"


_IN_MEMORY_BYTES = 16 * 1024 * 1024


class FileList:
    """`FileEntry` records, one JSON line each, in the order of the seals' pendingsets.

    A commit that completes every upload fills one on the way, so that pendingsets are read once; a process
    that resumes a commit builds one with `of_sealed`.

    Args:
        context: The job.

    """

    def __init__(self, context: JobContext) -> None:
        self._destination = context.layout.destination
        self._encoder = msgspec.json.Encoder()
        self._spool = SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES)  # noqa: SIM115 - lives as long as this

    @classmethod
    def of_sealed(cls, context: JobContext, seal: SealRecord) -> FileList:
        """Build the list from every sealed pendingset.

        Raises:
            InvalidRecord: A pendingset is missing or was changed.

        """
        files = cls(context)
        for _, _, pendingset in each_pendingset(context, load_stage_seals(context, seal)):
            for upload in pendingset.commits:
                files.add(upload)
        return files

    def add(self, upload: PendingUpload) -> None:
        """Append one file."""
        extra = upload.s3commit
        entry = FileEntry(
            key=upload.destinationKey,
            size=upload.length,
            etag=upload.expected_etag,
            rows=extra.rows if extra is not None else None,
            partition=partition_of(self._destination.relative(upload.destinationKey) or ""),
            upload=extra.upload if extra is not None else "",
            statistics=extra.statistics if extra is not None else None,
        )
        self._spool.write(self._encoder.encode(entry) + b"\n")

    def lines(self) -> Iterator[bytes]:
        """Yield the lines, each with its line feed."""
        self._spool.seek(0)
        yield from self._spool

    def first_keys(self, count: int) -> list[str]:
        """Return the keys of the first ``count`` files."""
        return [decode(FileEntry, line, "a line of the list").key for line in islice(self.lines(), count)]

"""The manifest of a commit: what its entry in the log says of its files.

The manifest is a list of files, one JSON record a line, and a summary with the SHA-256 of that list. The
entry contains the summary, whose own object is derived from the entry. A short list lies within the summary;
a long one is an object, written before the entry. The list is made from the pendingsets alone and in their
order, so that every process writes the same bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from os import SEEK_END
from tempfile import SpooledTemporaryFile, gettempdir
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from airflow_s3commit.exceptions import Unavailable
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.sealed_job import each_pendingset, load_stage_seals
from airflow_s3commit.protocol.model.codec import KIB, decode
from airflow_s3commit.protocol.model.destination import join_uri
from airflow_s3commit.protocol.model.job import JobRecord
from airflow_s3commit.protocol.model.layout import partition_of
from airflow_s3commit.protocol.model.log import LogEntry
from airflow_s3commit.protocol.model.manifest import FileEntry, ManifestRecord
from airflow_s3commit.protocol.model.pendingset import PendingUpload
from airflow_s3commit.protocol.model.sealed_job import Counts, PlanRecord, SealRecord
from airflow_s3commit.store.base import MIN_PART_BYTES

_PART_BYTES = 2 * MIN_PART_BYTES

#: Bytes of a list of files that lies within its manifest: about fifty files. Readers of the log
#: read entries whole, 64 at a time, and every committer reads those that came since its job's setup.
WITHIN_BYTES = 16 * KIB


def draft_manifest(
    context: JobContext,
    job: JobRecord,
    seal: SealRecord,
    plan: PlanRecord,
    *,
    files_sha256: str,
    within: list[Raw] | None = None,
    metrics: dict[str, int],
) -> ManifestRecord:
    """Return the manifest of a job, without its generation.

    Args:
        context: The job.
        job: Its record.
        seal: Its seal.
        plan: What it replaces.
        files_sha256: SHA-256 of the list of files, in hexadecimal.
        within: The list, if it is to lie within the manifest; None if it is written.
        metrics: Durations in milliseconds and counts of requests.

    """
    options, layout = job.options.as_sealed(seal.removes), context.layout
    return ManifestRecord(
        **context.layout.place,
        committer=options.committer,
        conflict_mode=options.conflict_mode,
        committed=context.now_ms(),
        counts=seal.counts,
        partitions=seal.partitions,
        replaced=Counts(files=plan.objects, bytes=plan.bytes, rows=None),
        files=join_uri(context.bucket, layout.manifest if within is not None else layout.manifest_files),
        files_sha256=files_sha256,
        within=within if within is not None else UNSET,
        schemas=seal.schemas,
        context=job.context,
        metrics=metrics,
        tasks=sum(stage.tasks for stage in seal.stages),
        nonce=context.new_id(),
    )


def table_entry(
    context: JobContext, number: int, files: FileList, partitions: dict[str, Counts], /, **of_manifest: Any
) -> LogEntry:
    """Write a table's list of files, and return the entry of a commit to it that is no job's.

    Args:
        context: What `release.context_of` returned.
        number: Number of the entry.
        files: Files of the commit.
        partitions: Their totals by partition.
        **of_manifest: Fields of the manifest in which such commits differ.

    """
    key = context.layout.manifest_files
    manifest = ManifestRecord(
        **context.layout.place,
        committed=context.now_ms(),
        counts=Counts.total(partitions.values()),
        partitions=partitions,
        files=join_uri(context.bucket, key),
        files_sha256=write_files(context, files.lines(), key),
        generation=number,
        tasks=0,
        nonce=context.new_id(),
        **of_manifest,
    )
    return LogEntry(
        **context.layout.place,
        number=number,
        kind="commit",
        epoch=number,
        manifest=manifest,
        nonce=context.new_id(),
    )


def write_files(context: JobContext, lines: Iterable[bytes], key: str) -> str:
    """Write the list of a job's files in constant memory, and return its SHA-256 in hexadecimal.

    Repeatable: every process writes the same bytes.

    Args:
        context: The job.
        lines: The list, as `FileList.lines` yields it.
        key: Its key in the destination's bucket.

    Raises:
        NoSuchUpload: Another process ended the job, and aborted this upload.

    """
    store, bucket = context.store, context.bucket
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


_IN_MEMORY_BYTES = 16 * 1024 * 1024


class FileList:
    """`FileEntry` records, one JSON line each, in the order of the seals' pendingsets.

    A commit that completes every upload fills one on the way, so that pendingsets are read once; a process
    that resumes a commit builds one with `of_sealed`.

    Args:
        context: The job.

    """

    def __init__(self, context: JobContext) -> None:
        self._name = context.name
        self._destination = context.layout.destination
        self._encoder = msgspec.json.Encoder()
        self._spool = SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES)  # noqa: SIM115 - lives as long as this

    @classmethod
    def of_sealed(
        cls, context: JobContext, seal: SealRecord, without: Collection[str] = frozenset()
    ) -> FileList:
        """Build the list from every sealed pendingset.

        Args:
            context: The job.
            seal: Its seal.
            without: Keys to leave out.

        Raises:
            InvalidRecord: A pendingset is missing or was changed.

        """
        files = cls(context)
        for _, _, pendingset in each_pendingset(context, load_stage_seals(context, seal)):
            for upload in pendingset.commits:
                if upload.destinationKey not in without:
                    files.add(upload)
        return files

    def add(self, upload: PendingUpload) -> None:
        """Append the file of an upload."""
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
        self.add_entry(entry)

    def add_entry(self, entry: FileEntry) -> None:
        """Append one file."""
        self._append([self._encoder.encode(entry) + b"\n"])

    def extend(self, other: FileList) -> None:
        """Append the files of another list."""
        self._append(other.lines())

    def _append(self, lines: Iterable[bytes]) -> None:
        try:
            self._spool.writelines(lines)
        except OSError as error:
            raise Unavailable(
                f"{self._name}: its list of files does not fit into {gettempdir()} ({error.strerror}): make"
                " room there, or set TMPDIR to another directory, then run the step again"
            ) from error

    def lines(self) -> Iterator[bytes]:
        """Yield the lines, each with its line feed."""
        self._spool.seek(0)
        yield from self._spool

    def short(self) -> list[Raw] | None:
        """Return the lines, without their line feeds, if they may lie within a manifest; else None."""
        self._spool.seek(0, SEEK_END)
        if self._spool.tell() > WITHIN_BYTES:
            return None
        return [Raw(line.removesuffix(b"\n")) for line in self.lines()]

    @property
    def sha256(self) -> str:
        """SHA-256 of the list, in hexadecimal."""
        digest = hashlib.sha256()
        for line in self.lines():
            digest.update(line)
        return digest.hexdigest()

    def counts(self) -> dict[str, Counts]:
        """Return the files, bytes and rows of each partition."""
        found: dict[str, Counts] = {}
        for line in self.lines():
            entry = decode(FileEntry, line, "a line of the list")
            found[entry.partition] = found.get(entry.partition, Counts()).plus(
                Counts(files=1, bytes=entry.size, rows=entry.rows, columns=entry.statistics)
            )
        return found

    def first_keys(self, count: int) -> list[str]:
        """Return the keys of the first ``count`` files."""
        return [decode(FileEntry, line, "a line of the list").key for line in islice(self.lines(), count)]

"""The list of a commit's files, one JSON record a line, which its entry names by SHA-256.

A short list lies within the entry; a long one is an object, written before the entry. The list is made from
the pendingsets alone and in their order, so that every process writes the same bytes.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from os import SEEK_END
from tempfile import SpooledTemporaryFile
from typing import IO, TypeVar

import msgspec
from msgspec import Raw, Struct

from airflow_s3commit.exceptions import InvalidRecord, PreconditionFailed, TooLarge, Unavailable
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.model.codec import (
    KIB,
    LINE_BYTES,
    LIST_BYTES,
    Count,
    Text,
    decode,
    decode_lines,
)
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.layout import list_key, partition_of
from airflow_s3commit.protocol.model.manifest import FileEntry
from airflow_s3commit.protocol.model.pendingset import PendingUpload
from airflow_s3commit.protocol.model.sealed_job import Counts
from airflow_s3commit.store.base import MIN_PART_BYTES, ObjectStore

_PART_BYTES = 2 * MIN_PART_BYTES

#: Bytes of a list of files to read at once, or to keep in memory.
_READ_BYTES = 16 * 1024 * 1024

#: Bytes of a list of files that lies within its entry: about fifty files. Readers of the log
#: read entries whole, 64 at a time, and every committer reads those that came since its job's setup.
WITHIN_BYTES = 16 * KIB


@contextmanager
def spooling(what: str) -> Iterator[None]:
    """Raise an error of the local disk, which holds a long list of files, as one of this package.

    Args:
        what: Whose list it is, for the message.

    Raises:
        Unavailable: The disk failed.

    """
    try:
        yield
    except OSError as error:
        raise Unavailable(
            f"{what}: a list of files does not fit into {tempfile.tempdir or 'the temporary directory'}"
            f" ({error.strerror}): make room there, or set TMPDIR to another directory, then run the step"
            " again"
        ) from error


class FileList:
    """`FileEntry` records, one JSON line each, in the order of the seals' pendingsets.

    A commit fills one while it completes the uploads, so that each pendingset is read once.

    Args:
        context: The job.

    """

    def __init__(self, context: JobContext) -> None:
        self._name = context.name
        self._destination = context.layout.destination
        self._encoder = msgspec.json.Encoder()
        self._spool = SpooledTemporaryFile(max_size=_READ_BYTES)  # noqa: SIM115 - lives as long as this

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
        with spooling(self._name):
            self._spool.write(self._encoder.encode(entry) + b"\n")

    def lines(self) -> Iterator[bytes]:
        """Yield the lines, each with its line feed."""
        with spooling(self._name):
            self._spool.seek(0)
            yield from self._spool

    def short(self) -> list[Raw] | None:
        """Return the lines, without their line feeds, if they may lie within an entry; else None."""
        with spooling(self._name):
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


F = TypeVar("F", bound="FileEntry | FileSummary")


def write_list(context: JobContext, files: FileList, owner: str) -> None:
    """Write a list of files that is too long for an entry, under its own digest, in constant memory.

    Repeatable: every process writes the same bytes.

    Args:
        context: The job.
        files: The list.
        owner: The job, or `OLDER_DATA`.

    Raises:
        NoSuchUpload: Another process ended the job, and aborted the upload of the list.

    """
    if files.short() is not None:
        return
    store, bucket, kind = context.store, context.bucket, "application/x-ndjson"
    key = list_key(context.layout.destination, owner, files.sha256)
    etags: list[str] = []
    buffer, upload_id = bytearray(), ""
    for line in files.lines():
        buffer += line
        if len(buffer) >= _PART_BYTES:
            upload_id = upload_id or store.create_upload(bucket, key, metadata={}, content_type=kind)
            etags.append(store.upload_part(bucket, key, upload_id, len(etags) + 1, bytes(buffer)))
            buffer.clear()
    if not upload_id:
        store.put(bucket, key, bytes(buffer), content_type=kind)
        return
    if buffer:
        etags.append(store.upload_part(bucket, key, upload_id, len(etags) + 1, bytes(buffer)))
    store.complete_upload(bucket, key, upload_id, etags)


class FileSummary(Struct, frozen=True, kw_only=True, gc=False):
    """What most readers need of a `FileEntry`: to decode all of it takes several times as long."""

    key: Text
    size: Count
    rows: Count | None = None


def read_list(
    kind: type[F], home: Destination, job_id: str, files_sha256: str, pieces: Iterable[bytes], *, where: str
) -> Iterator[F]:
    """Yield the files of a job's list, after checking the list against its digest.

    Args:
        kind: What to decode of each file.
        home: The destination whose keys the list has.
        job_id: The job.
        files_sha256: SHA-256 of the list, in hexadecimal.
        pieces: The list.
        where: URI of the object that holds it.

    Raises:
        InvalidRecord: The list was changed, or a file is outside of the destination.
        Unavailable: The local disk, which holds a long list, failed.

    """
    with SpooledTemporaryFile(max_size=_READ_BYTES) as spool:
        digest = hashlib.sha256()
        for piece in pieces:
            digest.update(piece)
            with spooling(where):
                spool.write(piece)
        if digest.hexdigest() != files_sha256:
            raise _changed(where, job_id)
        with spooling(where):
            spool.seek(0)
        for entry in decode_lines(kind, _lines(spool, where), where):
            if home.relative(entry.key) is None:
                raise InvalidRecord(f"{where} names {entry.key[:200]}, outside of {home.uri}")
            yield entry


def list_pieces(store: ObjectStore, home: Destination, job_id: str, key: str) -> Iterator[bytes]:
    """Yield the bytes of a job's list of files, however long it is.

    Raises:
        NoSuchKey: The list is gone.
        InvalidRecord: It is changed meanwhile, or too large.

    """
    bucket = home.bucket
    info = store.head(bucket, key)
    if info.size <= _READ_BYTES:
        yield store.get(bucket, key, limit=_READ_BYTES).body
        return
    if info.size > LIST_BYTES:
        raise TooLarge.of(join_uri(bucket, key), info.size, LIST_BYTES)
    try:
        for first in range(0, info.size, _READ_BYTES):
            yield store.get_range(bucket, key, first, _READ_BYTES, etag=info.etag)
    except PreconditionFailed as error:
        raise _changed(join_uri(bucket, key), job_id) from error


def _lines(spool: IO[bytes], where: str) -> Iterator[bytes]:
    while line := spool.readline(LINE_BYTES + 1):
        if len(line) > LINE_BYTES:
            raise InvalidRecord(f"{where} has a line of more than {LINE_BYTES} bytes")
        yield line


def _changed(where: str, job_id: str) -> InvalidRecord:
    return InvalidRecord(f"{where} is not the list that the manifest of {job_id} names")

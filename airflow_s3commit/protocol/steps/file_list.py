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

import msgspec
from msgspec import Raw

from airflow_s3commit.exceptions import Unavailable
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.model.codec import KIB, decode
from airflow_s3commit.protocol.model.layout import partition_of
from airflow_s3commit.protocol.model.manifest import FileEntry
from airflow_s3commit.protocol.model.pendingset import PendingUpload
from airflow_s3commit.protocol.model.sealed_job import Counts
from airflow_s3commit.store.base import MIN_PART_BYTES

_PART_BYTES = 2 * MIN_PART_BYTES

#: Bytes of a list of files that lies within its entry: about fifty files. Readers of the log
#: read entries whole, 64 at a time, and every committer reads those that came since its job's setup.
WITHIN_BYTES = 16 * KIB


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


_IN_MEMORY_BYTES = 16 * 1024 * 1024


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
        self._spool = SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES)  # noqa: SIM115 - lives as long as this

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

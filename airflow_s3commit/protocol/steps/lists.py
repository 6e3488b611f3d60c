"""Read lists of files: JSON lines, compared with the SHA-256 by which an entry names them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from tempfile import SpooledTemporaryFile
from typing import IO, TypeVar

from msgspec import Struct

from airflow_s3commit.exceptions import InvalidRecord, PreconditionFailed, TooLarge
from airflow_s3commit.protocol.model.codec import LINE_BYTES, LIST_BYTES, Count, Text, decode_lines
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.manifest import FileEntry
from airflow_s3commit.protocol.steps.file_list import spooling
from airflow_s3commit.store.base import ObjectStore

#: Bytes of a list of files to read at once.
_READ_BYTES = 16 * 1024 * 1024

F = TypeVar("F", bound="FileEntry | FileSummary")


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

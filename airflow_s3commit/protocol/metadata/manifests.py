"""Read ``_SUCCESS`` and manifests, and determine the latest one."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress
from tempfile import SpooledTemporaryFile
from typing import IO, TypeVar

from msgspec import Struct

from airflow_s3commit.exceptions import (
    ForeignRecord,
    InvalidRecord,
    NoSuchKey,
    PreconditionFailed,
    TooLarge,
)
from airflow_s3commit.protocol.metadata import records
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.log import newest_commit
from airflow_s3commit.protocol.model.codec import (
    LINE_BYTES,
    LIST_BYTES,
    Count,
    Text,
    decode,
    decode_lines,
    largest,
    sha256,
)
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.layout import SUCCESS, Layout, entry_key, manifests_prefix
from airflow_s3commit.protocol.model.log import LiveCommit, LogEntry
from airflow_s3commit.protocol.model.manifest import FileEntry, ManifestRecord, SuccessData
from airflow_s3commit.protocol.model.ownership import check_ending
from airflow_s3commit.store.base import Fetched, Get, ObjectStore
from airflow_s3commit.store.execute import outcomes

logger = logging.getLogger(__name__)

#: Bytes of a list of files to read at once.
_READ_BYTES = 16 * 1024 * 1024

#: Bytes of a list of files that is read at once with others.
_LIST_BYTES = 4 * 1024 * 1024

_SUMMARY = ".json"

F = TypeVar("F", bound="FileEntry | FileSummary")


def read_success(store: ObjectStore, destination: Destination) -> SuccessData:
    """Read a destination's ``_SUCCESS``.

    Raises:
        NoSuchKey: It does not exist.
        ForeignRecord: It is empty: the classic committer's marker.
        InvalidRecord: It is truncated, or no manifest.

    """
    key = destination.key(SUCCESS)
    body = store.get(destination.bucket, key, limit=largest(SuccessData)).body
    where = join_uri(destination.bucket, key)
    if not body:
        raise ForeignRecord(f"{where} is empty: the classic committer's marker, not a manifest")
    return decode(SuccessData, body, where)


def read_manifest(store: ObjectStore, destination: str | Destination, job_id: str) -> ManifestRecord:
    """Read the manifest of one job.

    Args:
        store: The store of the destination.
        destination: URI of the dataset's directory, or a `Destination`.
        job_id: The job.

    Raises:
        NoSuchKey: The job has not committed to this destination.
        ForeignRecord: It is another job's, or was copied here with its dataset.
        InvalidRecord: The object is no manifest.

    """
    place = Destination.of(destination)
    key = Layout.of(place, job_id).manifest
    record = records.load(store, place.bucket, key, ManifestRecord).record
    check_ending(record, place, job_id, join_uri(place.bucket, key))
    return record


def find_manifest(context: JobContext) -> ManifestRecord | None:
    """Return the manifest that proves the job committed, or None. Raises as `read_manifest` does."""
    try:
        return read_manifest(context.store, context.layout.destination, context.job_id)
    except NoSuchKey:
        return None


def manifest_of(store: ObjectStore, destination: Destination, job_id: str | None) -> ManifestRecord:
    """Read the manifest of a job, by default of the last one that committed.

    Raises as `read_manifest` and `latest_manifest` do.
    """
    if job_id is None:
        return latest_manifest(store, destination)
    return read_manifest(store, destination, job_id)


def latest_manifest(store: ObjectStore, destination: str | Destination) -> ManifestRecord:
    """Read the manifest of the last job that committed. Works while another commit is running.

    Args:
        store: The store of the destination.
        destination: URI of the dataset's directory, or a `Destination`.

    Raises:
        NoSuchKey: No job has committed to this destination, or its log is gone.
        ForeignRecord: ``_SUCCESS`` was written by another committer, or was copied here with the dataset.
        InvalidRecord: ``_SUCCESS``, or an entry of the log that must be read, is damaged.

    """
    destination = Destination.of(destination)
    success: SuccessData | None = None
    # It is missing while a commit is running, and before the first one.
    with suppress(NoSuchKey):
        success = read_success(store, destination)
    marked = success.generation if success is not None else 0
    if success is not None and marked is None:
        raise ForeignRecord(
            f"{join_uri(destination.bucket, destination.key(SUCCESS))} names no manifest: it was written by"
            f" {success.committer or 'another committer'}; name the job that is meant, or go by a listing of"
            " the destination"
        )
    newest = newest_commit(store, destination, marked=marked or 0)
    if newest is not None and newest.manifest is not None:
        return newest.manifest
    if success is None:
        raise NoSuchKey(
            f"no job has committed to {destination.uri}: there is no _SUCCESS, and no commit in its log; see"
            f" what is under way with: s3commit jobs {destination.uri}"
        )
    if not (success.manifest_uri or "").startswith(destination.uri):
        raise ForeignRecord(
            f"_SUCCESS of {destination.uri} names {success.manifest_uri}: it was copied here, and no job has"
            " committed here since; read the files by listing, or commit to it"
        )
    raise NoSuchKey(
        f"{destination.uri} has no log, and _SUCCESS names a commit of job {success.jobId}. Restore"
        f" {destination.uri}_s3commit/ from versions of its objects or a backup: without it nothing shows"
        " which files belong to the table. Or write the table again, to another destination"
    )


def latest_job(store: ObjectStore, destination: Destination) -> str:
    """Return the id of the last job that committed to a destination.

    Raises as `latest_manifest` does.
    """
    return latest_manifest(store, destination).job_id


def manifests_at(store: ObjectStore, destination: Destination) -> list[tuple[float, str]]:
    """Return the write time (seconds, store's clock) and job id of each manifest of a destination."""
    home = manifests_prefix(destination)
    return [
        (info.modified, info.key.removeprefix(home).removesuffix(_SUMMARY))
        for info in store.list_objects(destination.bucket, home, recursive=False)
        if info.key.endswith(_SUMMARY)
    ]


def manifest_files(store: ObjectStore, manifest: ManifestRecord) -> Iterator[FileEntry]:
    """Yield every file that a job committed, after checking the list against the manifest's digest.

    A list within the manifest takes no request. A long one is spooled to disk, so that memory is constant.

    Args:
        store: The store of the destination.
        manifest: The job's manifest.

    Raises:
        NoSuchKey: The list is gone.
        InvalidRecord: The list was changed, or it or one of its files is outside of the job's destination.

    """
    home, job_id, listed = Destination.parse(manifest.destination), manifest.job_id, manifest.listed
    key = Layout.of(home, job_id).manifest_files if listed is None else Layout.of(home, job_id).manifest
    where = join_uri(home.bucket, key)
    if manifest.files != where:
        raise InvalidRecord(
            f"the manifest of job {job_id} on {home.uri} names its list at {manifest.files},"
            " where no job writes it"
        )
    pieces = list_pieces(store, home, job_id, key) if listed is None else [listed]
    yield from read_list(FileEntry, home, job_id, manifest.files_sha256, pieces, where=where)


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

    """
    with SpooledTemporaryFile(max_size=_READ_BYTES) as spool:
        digest = hashlib.sha256()
        for piece in pieces:
            digest.update(piece)
            spool.write(piece)
        if digest.hexdigest() != files_sha256:
            raise _changed(where, job_id)
        spool.seek(0)
        for entry in decode_lines(kind, _lines(spool, where), where):
            if home.relative(entry.key) is None:
                raise InvalidRecord(f"{where} names {entry.key[:200]}, outside of {home.uri}")
            yield entry


def key_with_list(home: Destination, commit: LiveCommit) -> str:
    """Return the key of the object that holds a commit's list of files.

    A list within is read from the entry: unlike the manifest it is there from the moment of the commit on.
    """
    if commit.within:
        return entry_key(home, commit.number)
    return Layout.of(home, commit.job_id).manifest_files


def each_list(
    store: ObjectStore, home: Destination, commits: Iterable[LiveCommit]
) -> Iterator[tuple[LiveCommit, Iterator[bytes]]]:
    """Yield each commit, in any order, with the bytes of its list of files; reads several at once.

    To draw the bytes raises what `list_pieces` does.

    Args:
        store: The store of the destination.
        home: The destination.
        commits: Commits of its log.

    """
    calls = ((commit, Get(home.bucket, key_with_list(home, commit), _LIST_BYTES)) for commit in commits)
    for commit, outcome in outcomes(store, calls, TooLarge, NoSuchKey):
        body = outcome.body if isinstance(outcome, Fetched) else None
        yield commit, _pieces(store, home, commit, body)


def _pieces(store: ObjectStore, home: Destination, commit: LiveCommit, body: bytes | None) -> Iterator[bytes]:
    """Yield a commit's list of files from the object that holds it; None: read that first."""
    key = key_with_list(home, commit)
    if commit.within:
        yield _read_within(store, home, commit, body)
        return
    yield from list_pieces(store, home, commit.job_id, key) if body is None else [body]


def _read_within(store: ObjectStore, home: Destination, commit: LiveCommit, body: bytes | None) -> bytes:
    """Return the list of files in a commit's entry; if that is damaged, the one in its manifest."""
    bucket, key = home.bucket, key_with_list(home, commit)
    where, failure = join_uri(bucket, key), None
    try:
        entry = store.get(bucket, key, limit=largest(LogEntry)).body if body is None else body
        listed = _listed(decode(LogEntry, entry, where).manifest, commit, where)
    except (NoSuchKey, InvalidRecord) as error:
        failure = error
    else:
        return listed
    key = Layout.of(home, commit.job_id).manifest
    with suppress(NoSuchKey, InvalidRecord):
        manifest = records.load(store, bucket, key, ManifestRecord).record
        return _listed(manifest, commit, join_uri(bucket, key))
    raise failure


def _listed(manifest: ManifestRecord | None, commit: LiveCommit, where: str) -> bytes:
    listed = manifest.listed if manifest is not None else None
    if listed is None or sha256(listed) != commit.files_sha256:
        raise _changed(where, commit.job_id)
    return listed


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

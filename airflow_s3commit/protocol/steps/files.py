"""Lists of files: what the commits of a table wrote, which objects there are, and which are not in the table.

A list has one JSON record per line, and its entry names it by SHA-256. A short list lies within the entry; a
long one is an object, written before the entry. A job's list is made from its pendingsets alone and in their
order, so that every process writes the same bytes.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from os import SEEK_END
from tempfile import SpooledTemporaryFile
from typing import IO, Any, Self, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct

from airflow_s3commit.exceptions import (
    InvalidDestination,
    InvalidPath,
    InvalidRecord,
    NoSuchKey,
    PreconditionFailed,
    TooLarge,
    Unavailable,
)
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.removal import JOB_METADATA, PLACE_METADATA
from airflow_s3commit.protocol.model.codec import (
    KIB,
    LINE_BYTES,
    LIST_BYTES,
    Count,
    Text,
    decode,
    decode_lines,
    text_digest,
    upload_digest,
)
from airflow_s3commit.protocol.model.destination import (
    Destination,
    check_relative_path,
    is_data,
    is_hidden,
    join_uri,
)
from airflow_s3commit.protocol.model.layout import (
    HOME,
    OLDER_DATA,
    entry_key,
    job_key,
    list_key,
    owner_of,
    partition_of,
    receipt_key,
)
from airflow_s3commit.protocol.model.manifest import FileEntry
from airflow_s3commit.protocol.model.pendingset import PendingUpload
from airflow_s3commit.protocol.model.sealed_job import Counts
from airflow_s3commit.protocol.model.table import Pieces, Source, Table, UnownedObject
from airflow_s3commit.protocol.steps.log import decode_entry, entry_times, read_entry
from airflow_s3commit.store.base import MIN_PART_BYTES, Fetched, Get, Head, ObjectInfo, ObjectStore
from airflow_s3commit.store.execute import in_batches, in_threads, outcomes

#: Most bytes of a list of files that is read together with other lists.
_LIST_BYTES = 4 * 1024 * 1024

#: Objects to check at once.
_BATCH = 1_000


def files_of(store: ObjectStore, home: Destination, source: Source) -> Iterator[FileEntry]:
    """Yield every file that a commit wrote, after checking its list against the digest in the entry.

    Raises `InvalidRecord` if the list is gone, or was changed, `Unavailable` if it does not fit on the disk.
    """
    return _files(FileEntry, store, home, source, None)


def each_list(
    kind: type[F], store: ObjectStore, home: Destination, sources: Iterable[Source]
) -> Iterator[tuple[Source, Iterator[F]]]:
    """Yield each commit, in any order, with what its list says of each file; reads several lists at once.

    Iterating over the files raises as `files_of` does.
    """
    calls = ((source, Get(home.bucket, key_with_list(home, source), _LIST_BYTES)) for source in sources)
    for source, outcome in outcomes(store, calls, TooLarge, NoSuchKey):
        body = outcome.body if isinstance(outcome, Fetched) else None
        yield source, _files(kind, store, home, source, body)


def key_with_list(home: Destination, source: Source) -> str:
    """Return the key of the object that has a commit's list of files: its entry, if the list is short."""
    if source.is_within:
        return entry_key(home, source.number)
    return list_key(home, source.job_id or OLDER_DATA, source.files_sha256)


def _files(
    kind: type[F], store: ObjectStore, home: Destination, source: Source, body: bytes | None
) -> Iterator[F]:
    """Yield the files of a commit's list from its object's ``body``, read if None. Raises as `files_of`."""
    where = join_uri(home.bucket, key_with_list(home, source))
    with SpooledTemporaryFile(max_size=_READ_BYTES) as spool:
        digest = hashlib.sha256()
        for piece in _pieces(store, home, source, body, where):
            digest.update(piece)
            with spooling(where):
                spool.write(piece)
        if digest.hexdigest() != source.files_sha256:
            raise InvalidRecord(f"{where} is not the list that entry {source.number} names")
        with spooling(where):
            spool.seek(0)
        for entry in decode_lines(kind, _lines(spool, where), where):
            if home.relative(entry.key) is None:
                raise InvalidRecord(f"{where} names {entry.key[:200]}, outside of {home.uri}")
            yield entry


def _pieces(
    store: ObjectStore, home: Destination, source: Source, body: bytes | None, where: str
) -> Iterator[bytes]:
    """Yield the bytes of a commit's list, however long it is."""
    bucket, key = home.bucket, key_with_list(home, source)
    try:
        if source.is_within:
            number = source.number
            read = read_entry(store, home, number) if body is None else decode_entry(body, home, number)
            commit = read.entry.commit
            if commit is None or commit.within is UNSET:
                raise InvalidRecord(f"{where} lists no files; it did before")
            yield b"".join(bytes(line) + b"\n" for line in commit.within)
        elif body is not None:
            yield body
        elif (info := store.head(bucket, key)).size > LIST_BYTES:
            raise TooLarge.of(where, info.size, LIST_BYTES)
        else:
            for first in range(0, info.size, _READ_BYTES):
                yield store.get_range(bucket, key, first, _READ_BYTES, etag=info.etag)
    except NoSuchKey as error:
        raise InvalidRecord(
            f"{where} is gone, which lists files of the table; see: s3commit verify"
        ) from error
    except PreconditionFailed as error:
        raise InvalidRecord(f"{where} was changed while it was read") from error


def _lines(spool: IO[bytes], where: str) -> Iterator[bytes]:
    while line := spool.readline(LINE_BYTES + 1):
        if len(line) > LINE_BYTES:
            raise InvalidRecord(f"{where} has a line of more than {LINE_BYTES} bytes")
        yield line


def files_in(
    store: ObjectStore, home: Destination, sources: Mapping[int, Source], pieces: Pieces
) -> Iterator[FileEntry]:
    """Yield the files of some pieces of a table, commit by commit in any order. Raises as `files_of`."""
    partitions_of: dict[int, set[str]] = {}
    for name, numbers in pieces.items():
        for number in numbers:
            partitions_of.setdefault(number, set()).add(name)
    wanted = (sources[number] for number in sorted(partitions_of))
    for source, files in each_list(FileEntry, store, home, wanted):
        for file in files:
            if file.partition in partitions_of[source.number]:
                yield file


#: Objects of a directory to list ahead.
_FIRST_PAGE = 1_000


def data_objects(
    context: JobContext, directories: Iterable[str] | None, *, nested: set[str] | None = None
) -> Iterator[ObjectInfo]:
    """Yield the data objects of some directories (without those below them), or of the whole destination.

    Skips hidden objects, directory markers and staging prefixes. The context is that of any job there. If the
    whole destination is listed, ``nested`` gets the directories below that are destinations, and not hidden.
    """
    destination, store = context.layout.destination, context.store
    if directories is None:
        found: Iterable[ObjectInfo] = store.list_objects(destination.bucket, destination.prefix)
    else:
        found = _list_directories(context, directories)
    for info in found:
        relative = destination.relative(info.key)
        if relative is not None and is_data(relative):
            yield info
        elif nested is not None and directories is None:
            directory, is_home, _ = (relative or "").partition(f"/{HOME}/")
            if is_home and not is_hidden(directory):
                nested.add(f"{directory}/")


def refuse_nested(destination: Destination, nested: Collection[str]) -> None:
    """Raise `InvalidDestination` if `data_objects` found a destination below this one."""
    if nested:
        raise InvalidDestination(
            f"{destination.uri}: below it are datasets of their own, such as {destination.uri}{min(nested)},"
            " whose files it would take for its own; nothing was changed: name the one that is meant"
        )


def _list_directories(context: JobContext, directories: Iterable[str]) -> Iterator[ObjectInfo]:
    destination = context.layout.destination

    def first_page(directory: str) -> tuple[list[ObjectInfo], Iterator[ObjectInfo]]:
        prefix = destination.key(f"{directory}/" if directory else "")
        pages = context.store.list_objects(destination.bucket, prefix, recursive=False)
        return list(islice(pages, _FIRST_PAGE)), pages

    for page, rest in in_threads(first_page, directories, context.threads):
        yield from page
        yield from rest


def written_here(
    context: JobContext, job_id: str, objects: Iterable[ObjectInfo], *, unmarked: bool = False
) -> Iterator[ObjectInfo]:
    """Yield those objects that the job wrote to this destination, by their metadata: a copy stays.

    Objects that Spark's own writers upload have no metadata: they are left out, unless ``unmarked``.
    """
    owner, place = job_id if unmarked else None, text_digest(context.layout.destination.uri).hex()
    for batch in in_batches(objects, _BATCH):
        calls = [(info, Head(context.bucket, info.key)) for info in batch]
        for _, found in outcomes(context.store, calls, NoSuchKey):
            if not isinstance(found, ObjectInfo) or found.metadata.get(JOB_METADATA, owner) != job_id:
                continue
            if found.metadata.get(PLACE_METADATA, place) == place:
                yield found


def unowned_objects(
    context: JobContext, table: Table, partitions: Collection[str] | None, own: Container[str] = ()
) -> list[UnownedObject]:
    """Return the data objects that the table does not have, and that no job of this destination wrote.

    Other programs put them there, or wrote over a file that is older than the log. Spark's own names have ids
    like those of jobs, so an id in a name is looked up. The listing is of some partitions, without those
    below them, or of the whole destination: `InvalidDestination` if another dataset lies below it. ``own``
    has keys of the job's own files, if their names do not show whose they are.
    """
    home, nested = context.layout.destination, set[str]()
    touched = table.partitions() if partitions is None else partitions
    known = TableFiles.all_in(context.store, home, table, touched)
    found = [info for info in data_objects(context, partitions, nested=nested) if info not in known]
    refuse_nested(home, nested)
    jobs = _jobs_among(context, {owner for info in found if (owner := owner_of(info.key)) is not None})
    taken = table.unowned_in_place()
    return [
        UnownedObject(key=info.key, etag=info.etag, size=info.size)
        for info in found
        if owner_of(info.key) not in jobs and info.key not in own and taken.get(info.key) != info.etag
    ]


def _jobs_among(context: JobContext, ids: set[str]) -> set[str]:
    """Return which ids belong to jobs of this destination. Before: objects with these ids were listed.

    A job has a record before its first object, and a receipt before its record goes.
    """
    home, jobs = context.layout.destination, ids & {context.job_id}
    for key_of in (job_key, receipt_key):
        calls = [(one, Head(home.bucket, key_of(home, one))) for one in sorted(ids - jobs)]
        found = outcomes(context.store, calls, NoSuchKey)
        jobs |= {one for one, outcome in found if isinstance(outcome, ObjectInfo)}
    return jobs


class TableFiles(Container[Any]):
    """The files in some pieces of a table; ``in`` tells whether an object or another file is one of them.

    The job's id in an object's name decides. Where files are older than the log, or Hadoop wrote them, their
    lists are read, a million keys of which take about 100 MiB. An older file counts by its key and ETag, so
    an object that another program has written over it does not; a file of Hadoop counts by its key.
    """

    def __init__(self, store: ObjectStore, home: Destination, table: Table, pieces: Pieces) -> None:
        self._store, self._home, self._table, self._pieces = store, home, table, pieces
        self._owners = {
            name: {owner for number in numbers for owner in table.sources[number].owners}
            for name, numbers in pieces.items()
        }
        self._listed: set[bytes] | None = None

    @classmethod
    def all_in(cls, store: ObjectStore, home: Destination, table: Table, partitions: Iterable[str]) -> Self:
        """Return the files of some partitions that are in the table, retained or freed."""
        return cls(store, home, table, {name: table.numbers_in(name) for name in partitions})

    def __contains__(self, found: object) -> bool:
        """Return whether an object is one of the files."""
        assert isinstance(found, ObjectInfo | FileEntry | UnownedObject)
        owner = owner_of(found.key)
        owners = self._owners.get(partition_of(self._home.relative(found.key) or ""), ())
        if owner is not None and owner in owners:
            return True
        if None not in owners:
            return False
        if self._listed is None:
            self._listed = self._read()
        return not self._listed.isdisjoint((upload_digest(found.key, found.etag), text_digest(found.key)))

    def _read(self) -> set[bytes]:
        """Return digests of the files whose names need not have their job's id."""
        listed: set[bytes] = set()
        for number, source in self._table.sources.items():
            if None not in source.owners:
                continue
            names = {name for name, numbers in self._pieces.items() if number in numbers}
            for file in files_of(self._store, self._home, source) if names else ():
                if file.partition in names:
                    # The ETag that follows from Hadoop's parts is not the object's on every store.
                    is_adopted = source.adopted
                    listed.add(text_digest(file.key) if is_adopted else upload_digest(file.key, file.etag))
        return listed


def freed_objects(context: JobContext, table: Table) -> Iterator[ObjectInfo]:
    """Yield the objects that the newest release freed and that still exist; newer ones at their keys stay."""
    store, home, freed, touched = context.store, context.layout.destination, [], set[str]()
    jobs, entered = {one.job_id for one in table.sources.values()} - {None}, entry_times(context, table.freed)
    stays = {name: table.numbers_in(name) for name in table.partitions()}
    for generation, one in table.freed.items():
        touched |= {*one.pieces, *(partition_of(home.relative(key) or "") for key in one.unowned)}
        freed.append((TableFiles(store, home, table, one.pieces), one.unowned, entered[generation]))
        for name, numbers in one.pieces.items():
            stays[name] -= {*numbers}
    kept = TableFiles(store, home, table, stays)
    for info in data_objects(context, touched):
        # Only a job writes names with its id; what another program has put since at any other key is new.
        if info not in kept and any(
            (info in files or unowned.get(info.key) == info.etag)
            and (info.modified <= entered_at or owner_of(info.key) in jobs)
            for files, unowned, entered_at in freed
        ):
            yield info


def list_older_data(context: JobContext, own: Container[str] = ()) -> FileList:
    """Return the list of all data objects of a destination that has no log, without a job's ``own``.

    Raises `InvalidDestination` if another dataset lies below it, or a key cannot be that of a table's file.
    """
    home, nested, files = context.layout.destination, set[str](), FileList(context)
    for info in data_objects(context, None, nested=nested):
        if info.key in own:
            continue
        path = home.relative(info.key) or ""
        try:
            check_relative_path(path)
        except InvalidPath as error:
            where = join_uri(home.bucket, info.key)
            raise InvalidDestination(f"{where} cannot be a file of a table: {error}; or move it") from error
        files.add_entry(FileEntry(key=info.key, size=info.size, etag=info.etag, partition=partition_of(path)))
    refuse_nested(home, nested)
    return files


_PART_BYTES = 2 * MIN_PART_BYTES

#: Bytes of a list of files to read at once, or to keep in memory.
_READ_BYTES = 16 * 1024 * 1024

#: Most bytes of a list of files that lies within its entry: about fifty files. Readers of the log
#: read entries whole, 64 at a time, and every committer reads those that came since its job's setup.
WITHIN_BYTES = 16 * KIB


@contextmanager
def spooling(what: str) -> Iterator[None]:
    """Raise an error of the local disk, which holds a long list of files, as `Unavailable`."""
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

    def entries(self) -> Iterator[FileEntry]:
        """Yield the files."""
        for line in self.lines():
            yield decode(FileEntry, line, "a line of the list")

    def counts(self) -> dict[str, Counts]:
        """Return the files, bytes and rows of each partition."""
        found: dict[str, Counts] = {}
        for entry in self.entries():
            found[entry.partition] = found.get(entry.partition, Counts()).plus(
                Counts(files=1, bytes=entry.size, rows=entry.rows)
            )
        return found


F = TypeVar("F", bound="FileEntry | FileSummary")


def write_list(context: JobContext, files: FileList, owner: str) -> None:
    """Write a list of files that is too long for an entry, under its own digest, in constant memory.

    Repeatable: every process writes the same bytes. Raises `NoSuchUpload` if another process ended the job,
    and aborted the upload of the list.
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
    """What most readers need of a `FileEntry`: decoding all of it takes several times as long."""

    key: Text
    size: Count
    rows: Count | None = None


class FileWithBounds(FileSummary, frozen=True, kw_only=True, gc=False):
    """What a reader that leaves files out by their bounds needs: the statistics stay JSON."""

    statistics: Raw = Raw()

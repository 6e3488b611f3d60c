"""Lists of files: what the commits of a table wrote, and which objects are not in the table."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping

from msgspec import UNSET

from airflow_s3commit.exceptions import InvalidRecord, NoSuchKey, TooLarge
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.listing import data_objects, refuse_nested
from airflow_s3commit.protocol.model.codec import text_digest, upload_digest
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.entry import UnownedObject
from airflow_s3commit.protocol.model.layout import (
    OLDER_DATA,
    entry_key,
    job_key,
    list_key,
    owner_of,
    partition_of,
    receipt_key,
)
from airflow_s3commit.protocol.model.manifest import FileEntry
from airflow_s3commit.protocol.model.ownership import JOB_METADATA, is_written_here
from airflow_s3commit.protocol.model.table import Pieces, Source, Table
from airflow_s3commit.protocol.steps.file_list import F, FileList, list_pieces, read_list
from airflow_s3commit.protocol.steps.log import decode_entry, read_entry
from airflow_s3commit.store.base import Fetched, Get, Head, ObjectInfo, ObjectStore
from airflow_s3commit.store.execute import in_batches, outcomes

#: Bytes of a list of files that is read at once with others.
_LIST_BYTES = 4 * 1024 * 1024

#: Objects to look at together.
_BATCH = 1_000


def files_of(store: ObjectStore, home: Destination, source: Source) -> Iterator[FileEntry]:
    """Yield every file that a commit wrote, after checking its list against the digest in the entry.

    Raises:
        InvalidRecord: The list is gone, or was changed.

    """
    return _files(FileEntry, store, home, source, None)


def each_list(
    kind: type[F], store: ObjectStore, home: Destination, sources: Iterable[Source]
) -> Iterator[tuple[Source, Iterator[F]]]:
    """Yield each commit, in any order, with what its list says of each file; reads several lists at once.

    To draw the files raises what `files_of` does.

    Args:
        kind: What to decode of each file.
        store: The store of the destination.
        home: The destination.
        sources: The commits.

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
    """Yield the files of a commit's list, from the object that has it; None: read that first."""
    key, owner = key_with_list(home, source), source.job_id or OLDER_DATA
    where = join_uri(home.bucket, key)
    if source.is_within:
        read = (
            read_entry(store, home, source.number)
            if body is None
            else decode_entry(body, home, source.number)
        )
        commit = read.entry.commit
        if commit is None or commit.within is UNSET:
            raise InvalidRecord(f"{where} lists no files; it did before")
        pieces: Iterable[bytes] = [bytes(line) + b"\n" for line in commit.within]
    else:
        pieces = list_pieces(store, home, owner, key) if body is None else [body]
    try:
        yield from read_list(kind, home, owner, source.files_sha256, pieces, where=where)
    except NoSuchKey as error:
        raise InvalidRecord(
            f"{where} is gone, which lists files of the table; see: s3commit verify"
        ) from error


def files_in(
    store: ObjectStore, home: Destination, sources: Mapping[int, Source], pieces: Pieces
) -> Iterator[FileEntry]:
    """Yield the files of some pieces of a table, commit by commit in any order.

    Args:
        store: The store of the destination.
        home: The destination.
        sources: The commits that the pieces name, by number.
        pieces: The commits by partition.

    Raises:
        InvalidRecord: A list of files is gone, or was changed.

    """
    partitions_of: dict[int, set[str]] = {}
    for name, numbers in pieces.items():
        for number in numbers:
            partitions_of.setdefault(number, set()).add(name)
    wanted = (sources[number] for number in sorted(partitions_of))
    for source, files in each_list(FileEntry, store, home, wanted):
        for file in files:
            if file.partition in partitions_of[source.number]:
                yield file


def written_here(context: JobContext, job_id: str, objects: Iterable[ObjectInfo]) -> Iterator[ObjectInfo]:
    """Yield those objects that the job wrote to this destination, by their metadata: a copy stays."""
    for batch in in_batches(objects, _BATCH):
        calls = [(info, Head(context.bucket, info.key)) for info in batch]
        for _, found in outcomes(context.store, calls, NoSuchKey):
            if not isinstance(found, ObjectInfo) or found.metadata.get(JOB_METADATA) != job_id:
                continue
            if is_written_here(found, context.layout.destination):
                yield found


def unowned_objects(
    context: JobContext, table: Table, partitions: Collection[str] | None, own: Container[str] = ()
) -> list[UnownedObject]:
    """Return the data objects that the table does not have, and that no job of this destination wrote.

    Other programs put them there, or wrote over a file that is older than the log. Spark's own names have ids
    like those of jobs, so an id in a name is looked up.

    Args:
        context: The job.
        table: The table at the head.
        partitions: Directories to list, without those below them; None for the whole destination.
        own: Keys of the job's own files, if their names do not show whose they are.

    Raises:
        InvalidDestination: The whole destination is listed, and another dataset lies below it.

    """
    store, home, nested = context.store, context.layout.destination, set[str]()
    touched = table.partitions() if partitions is None else partitions
    pieces = {name: table.numbers_in(name) for name in touched}
    owners = {name: table.jobs_in(name) for name in touched}
    older: OlderFiles | None = None
    found: list[tuple[str | None, ObjectInfo]] = []
    for info in data_objects(context, partitions, nested=nested):
        owner = owner_of(info.key)
        if owner is not None and owner in owners.get(partition_of(home.relative(info.key) or ""), ()):
            continue
        older = older or OlderFiles(store, home, table, pieces)
        if (info.key, info.etag) not in older:
            found.append((owner, info))
    refuse_nested(home, nested)
    jobs = _jobs_among(context, {owner for owner, _ in found if owner is not None})
    taken = table.unowned_in_place()
    return [
        UnownedObject(key=info.key, etag=info.etag, size=info.size)
        for owner, info in found
        if owner not in jobs and info.key not in own and taken.get(info.key) != info.etag
    ]


def _jobs_among(context: JobContext, ids: set[str]) -> set[str]:
    """Return which ids are of jobs of this destination. Before: objects with these ids were listed.

    A job has a record before its first object, and a receipt before its record goes.
    """
    home, jobs = context.layout.destination, ids & {context.job_id}
    for key_of in (job_key, receipt_key):
        calls = [(one, Head(home.bucket, key_of(home, one))) for one in sorted(ids - jobs)]
        found = outcomes(context.store, calls, NoSuchKey)
        jobs |= {one for one, outcome in found if isinstance(outcome, ObjectInfo)}
    return jobs


class OlderFiles(Container[tuple[str, str]]):
    """The files in some pieces of a table whose names need not have the id of their job, by key and ETag.

    They are older than the log, or Hadoop wrote them. An object that another program has written over one of
    them is none of them. A million of them take about 100 MiB.

    Args:
        store: The store of the destination.
        home: The destination.
        table: The table.
        pieces: The pieces.

    """

    def __init__(self, store: ObjectStore, home: Destination, table: Table, pieces: Pieces) -> None:
        self._older: set[bytes] = set()
        self._adopted: set[bytes] = set()
        for number, source in table.sources.items():
            if None not in source.owners:
                continue
            names = {name for name, numbers in pieces.items() if number in numbers}
            for file in files_of(store, home, source) if names else ():
                if file.partition not in names:
                    continue
                if source.adopted:
                    # The ETag that follows from Hadoop's parts is not the object's on every store.
                    self._adopted.add(text_digest(file.key))
                else:
                    self._older.add(upload_digest(file.key, file.etag))

    def __contains__(self, found: object) -> bool:
        """Return whether an object with this key and ETag is one of the files."""
        assert isinstance(found, tuple)
        key, etag = found
        return upload_digest(key, etag) in self._older or text_digest(key) in self._adopted


def list_older_data(context: JobContext, own: Container[str] = ()) -> FileList:
    """Return the list of all data objects of a destination that has no log.

    Args:
        context: Any job of the destination.
        own: Keys of objects of a job that is adopted: its commit lists them.

    Raises:
        InvalidDestination: Another dataset lies below it.

    """
    home, nested, files = context.layout.destination, set[str](), FileList(context)
    for info in data_objects(context, None, nested=nested):
        if info.key in own:
            continue
        files.add_entry(
            FileEntry(
                key=info.key,
                size=info.size,
                etag=info.etag,
                partition=partition_of(home.relative(info.key) or ""),
            )
        )
    refuse_nested(home, nested)
    return files

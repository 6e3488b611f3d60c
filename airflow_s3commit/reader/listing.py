"""Finds the files of a read: a table at a generation, what was added since one, or one job's files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from sys import intern
from typing import TYPE_CHECKING

from msgspec import structs

from airflow_s3commit.exceptions import DestinationChanged, NoSuchKey
from airflow_s3commit.protocol.metadata.manifests import FileSummary, latest_job, manifest_files, manifest_of
from airflow_s3commit.protocol.metadata.snapshot import (
    live_files,
    read_snapshot,
    unlisted_objects,
)
from airflow_s3commit.protocol.model.layout import owner_of, partition_of
from airflow_s3commit.protocol.model.manifest import FileEntry
from airflow_s3commit.protocol.model.snapshot import JobSchema
from airflow_s3commit.reader.table_files import JobFiles, PackedFiles, TableFile

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from airflow_s3commit.protocol.model.destination import Destination
    from airflow_s3commit.protocol.model.log import LiveCommit
    from airflow_s3commit.protocol.model.snapshot import TableSnapshot
    from airflow_s3commit.store.base import ObjectStore

    #: Chooses, of all directories of a table, those whose files are wanted.
    Pick = Callable[[Collection[str]], Collection[str]]


@dataclass(frozen=True, slots=True)
class Choice:
    """Which files of a destination to read: the arguments of `dataset`.

    Raises:
        ValueError: They exclude each other, or one is out of range.

    """

    generation: int | None = None
    since: int | None = None
    job_id: str | None = None

    def __post_init__(self) -> None:
        """Check that they fit together."""
        if self.job_id is not None and (self.generation, self.since) != (None, None):
            raise ValueError("one job's files are read without generation and since")
        if self.generation is not None and self.generation < 1:
            raise ValueError(f"generations count from 1: there is no generation {self.generation}")
        if self.since is not None and not 0 <= self.since <= (self.generation or self.since):
            raise ValueError(
                f"since={self.since} is not a generation before "
                + (f"generation {self.generation}" if self.generation else "the newest one")
            )


#: Names and characters of keys that need no further check in a directory that was checked.
_is_plain = re.compile("[A-Za-z0-9][A-Za-z0-9._=-]*").fullmatch
_SHORT = 256

#: Maximum number of footers to read, beside that of the oldest file, for columns that no record has.
_MOST_FOOTERS = 32

#: Times to list files that are older than the log, while commits remove some.
_TRIES = 10


@dataclass(frozen=True, slots=True)
class Table:
    """Files of a table, all or some of them.

    Attributes:
        destination: URI of the table.
        generation: The generation that they are of; None for the files of one job.
        files: The files, in the order of their commits.
        directories: Every directory of the table at this generation.
        sample: If there are no files, some of the table at this generation, for its columns.
        job_id: The job, if they are the files of one.
        schemas: The different schemas that the jobs of the table recorded.
        unknown: A file of each commit whose job recorded no schema, or of a few of them.

    """

    destination: str
    generation: int | None
    files: Sequence[TableFile]
    directories: Collection[str]
    sample: Sequence[TableFile] = ()
    job_id: str | None = None
    schemas: Sequence[JobSchema] = ()
    unknown: Sequence[TableFile] = ()

    @property
    def examples(self) -> Sequence[TableFile]:
        """Files by which to tell the format and the columns."""
        return self.files or self.sample


def find_table(
    store: ObjectStore,
    place: Destination,
    choice: Choice,
    kind: type[FileEntry] | type[FileSummary] = FileSummary,
    pick: Pick | None = None,
) -> Table:
    """Return the chosen files of a destination.

    Args:
        store: The store with the log.
        place: The destination.
        choice: Which files.
        kind: `FileEntry` for files with their statistics.
        pick: Chooses, of all directories of the table, those whose files to return; by default all. Lists of
            commits to other directories are not read.

    Raises:
        NoSuchKey: There is no commit, no such job or generation, or a list of files is gone.
        DestinationChanged: Commits keep removing files that are older than the log.
        InvalidRecord: The log, a manifest or a list was changed, or has a key outside the destination.

    """
    if choice.job_id is None:
        for _ in range(_TRIES):
            snapshot = read_snapshot(store, place, choice.generation)
            if snapshot is None:
                if choice.since is not None:
                    raise NoSuchKey(f"{place.uri} has no generation {choice.since}: no commit is in its log")
                # Raises, unless the first commit came after the log was read.
                latest_job(store, place)
                continue
            table = _table_at(store, place, snapshot, choice.since, kind, pick=pick)
            if not snapshot.baseline or _is_readable(store, place, snapshot, table):
                return table
            if choice.generation is not None:
                raise NoSuchKey(
                    f"generation {choice.generation} of {place.uri} cannot be read any more: later commits"
                    " have removed files that are older than its log; read the newest generation"
                )
        raise DestinationChanged(
            f"commits removed files of {place.uri} that are older than its log, {_TRIES} times while they"
            " were being listed; read it again"
        )
    manifest = manifest_of(store, place, choice.job_id)
    directories: dict[str, str] = {}
    entries = manifest_files(store, manifest)
    files = PackedFiles(
        [JobFiles(_table_file(place, manifest.job_id, entry, directories) for entry in entries)]
    )
    known = set(directories.values())
    schemas = [JobSchema(manifest.job_id, text) for text in manifest.schemas]
    return Table(
        place.uri,
        None,
        _in_picked(files, known, pick),
        known,
        files[:1],
        manifest.job_id,
        schemas,
        () if schemas else files[:1],
    )


def _table_at(
    store: ObjectStore,
    place: Destination,
    snapshot: TableSnapshot,
    since: int | None,
    kind: type[FileEntry] | type[FileSummary],
    *,
    pick: Pick | None,
) -> Table:
    if since is not None and since > snapshot.generation:
        raise NoSuchKey(f"{place.uri} has no generation {since}: the newest is {snapshot.generation}")
    directories: Collection[str] = set(snapshot.partitions)
    older: Sequence[TableFile] = ()
    if (since or 0) < snapshot.baseline:
        by_commit = _lists_of(store, place, snapshot.commits(), kind)
        older = _unlisted_files(store, place, snapshot, PackedFiles(by_commit.values()))
        directories = {*directories, *(file.directory for file in older)}
        newer = PackedFiles(files for number, files in by_commit.items() if number > (since or 0))
        files = _in_picked([*older, *newer], directories, pick)
    else:
        commits = snapshot.commits(since or 0)
        if pick is not None:
            commits = _narrowed(commits, frozenset(pick(directories)))
        by_commit = _lists_of(store, place, commits, kind)
        files = PackedFiles(by_commit.values())
    sample: Sequence[TableFile] = ()
    if not files and (commits := snapshot.commits()):
        sample = PackedFiles(_lists_of(store, place, commits[:1], kind).values())
    schemas = snapshot.schemas()
    lists = (older, *(by_commit.get(number, ()) for number in snapshot.without_schemas()))
    unknown = [files[0] for files in lists if files] or ([] if schemas else [*sample[:1]])
    return Table(
        place.uri,
        snapshot.generation,
        files,
        directories,
        sample,
        None,
        schemas,
        [*unknown[:1], *unknown[1:][-_MOST_FOOTERS:]],
    )


def _narrowed(commits: Iterable[LiveCommit], picked: Collection[str]) -> list[LiveCommit]:
    """Return the commits with files in these directories, and with no other directories."""
    narrow = (
        structs.replace(commit, partitions=[name for name in commit.partitions if name in picked])
        for commit in commits
    )
    return [commit for commit in narrow if commit.partitions]


def _in_picked(
    files: Sequence[TableFile], directories: Collection[str], pick: Pick | None
) -> Sequence[TableFile]:
    if pick is None:
        return files
    picked = frozenset(pick(directories))
    return [file for file in files if file.directory in picked]


def _is_readable(store: ObjectStore, place: Destination, snapshot: TableSnapshot, table: Table) -> bool:
    """Return whether no commit has removed objects of the snapshot's baseline. Ask after listing them.

    Nor may a later commit have put files among them: the names of a job adopted from Hadoop do not show it.
    """
    newest = read_snapshot(store, place)
    if newest is None or (newest.baseline, newest.removed) != (snapshot.baseline, snapshot.removed):
        return False
    unnamed = {file.path for file in table.files if not file.job_id}
    if not unnamed:
        return True
    later = _lists_of(store, place, newest.commits(snapshot.generation), FileSummary)
    return unnamed.isdisjoint(path for files in later.values() for path in files.shared)


def _unlisted_files(
    store: ObjectStore, place: Destination, snapshot: TableSnapshot, listed: Sequence[TableFile]
) -> list[TableFile]:
    """Return the files that are older than the log."""
    keys = {file.path.removeprefix(f"{place.bucket}/") for file in listed}
    return [
        TableFile(
            f"{place.bucket}/{info.key}",
            info.size,
            intern(partition_of(info.key[len(place.prefix) :])),
            owner_of(info.key) or "",
        )
        for info in unlisted_objects(store, place, snapshot, keys)
    ]


def _lists_of(
    store: ObjectStore,
    place: Destination,
    commits: Sequence[LiveCommit],
    kind: type[FileEntry] | type[FileSummary],
) -> dict[int, JobFiles]:
    """Return the live files of each commit, by its number, in their order; of one path only the latest."""
    directories: dict[str, str] = {}
    listed = {
        commit.number: JobFiles(_table_file(place, commit.job_id, entry, directories) for entry in entries)
        for commit, entries in live_files(store, place, commits, kind)
    }
    packed = PackedFiles(listed[commit.number] for commit in commits)
    return {commit.number: files for commit, files in zip(commits, packed.lists, strict=True)}


def _table_file(
    place: Destination, job_id: str, entry: FileEntry | FileSummary, directories: dict[str, str]
) -> TableFile:
    """Return one file, after checking its key.

    A table has many files in few directories: a directory is checked, and held in memory, once.
    """
    key = entry.key
    parent, _, name = key.rpartition("/")
    directory = directories.get(parent)
    if directory is None or len(key) > _SHORT or not _is_plain(name):
        relative = place.check_data_key(place.bucket, key)
        directory = directories.setdefault(parent, partition_of(relative))
    statistics = entry.statistics if isinstance(entry, FileEntry) else None
    return TableFile(f"{place.bucket}/{key}", entry.size, directory, job_id, entry.rows, statistics)

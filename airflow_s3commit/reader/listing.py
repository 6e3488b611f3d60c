"""Which files a read consists of: a table at a generation, what came since one, or one job's files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from sys import intern
from typing import TYPE_CHECKING

from msgspec import Struct

from airflow_s3commit.exceptions import DestinationChanged, NoSuchKey
from airflow_s3commit.protocol.metadata.manifests import FileSummary, manifest_files, manifest_of
from airflow_s3commit.protocol.metadata.snapshot import live_files, read_snapshot
from airflow_s3commit.protocol.metadata.unlisted import unlisted_objects
from airflow_s3commit.protocol.model.layout import owner_of, partition_of
from airflow_s3commit.protocol.model.manifest import FileEntry

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from airflow_s3commit.protocol.model.destination import Destination
    from airflow_s3commit.protocol.model.snapshot import LiveCommit, TableSnapshot
    from airflow_s3commit.protocol.model.statistics import ColumnStatistics
    from airflow_s3commit.store.base import ObjectStore


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
                f"since={self.since} is no generation before "
                + (f"generation {self.generation}" if self.generation else "the newest one")
            )


#: Names and characters of keys that need no further check in a directory that was checked.
_is_plain = re.compile("[A-Za-z0-9][A-Za-z0-9._=-]*").fullmatch
_SHORT = 256

#: Times to list files that are older than the log, while commits remove some.
_TRIES = 10


class TableFile(Struct, frozen=True, gc=False):
    """One file of a table.

    Attributes:
        path: ``bucket/key``.
        size: Committed size in bytes.
        directory: Directory below the destination.
        job_id: The job that committed it; empty if it is older than the log and its name does not tell.
        rows: Number of rows; None if the writer did not count them.
        statistics: Column statistics, by column; None if the writer has none.

    """

    path: str
    size: int
    directory: str
    job_id: str
    rows: int | None = None
    statistics: Mapping[str, ColumnStatistics] | None = None


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

    """

    destination: str
    generation: int | None
    files: Sequence[TableFile]
    directories: Collection[str]
    sample: Sequence[TableFile] = ()
    job_id: str | None = None

    @property
    def examples(self) -> Sequence[TableFile]:
        """Files by which to tell the format and the columns."""
        return self.files or self.sample


def find_table(
    store: ObjectStore,
    place: Destination,
    choice: Choice,
    kind: type[FileEntry] | type[FileSummary] = FileSummary,
) -> Table:
    """Return the chosen files of a destination.

    A destination that no version with a log has committed to is read by the manifest of its last job.

    Args:
        store: The store with the log.
        place: The destination.
        choice: Which files.
        kind: `FileEntry` for files with their statistics.

    Raises:
        NoSuchKey: There is no commit, no such job or generation, or a list of files is gone.
        DestinationChanged: Commits keep removing files that are older than the log.
        InvalidRecord: The log, a manifest or a list was changed, or has a key outside the destination.

    """
    if choice.job_id is None:
        for _ in range(_TRIES):
            snapshot = read_snapshot(store, place, choice.generation)
            if snapshot is None:
                break
            table = _table_at(store, place, snapshot, choice.since, kind)
            if not snapshot.baseline or _is_readable(store, place, snapshot):
                return table
            if choice.generation is not None:
                raise NoSuchKey(
                    f"generation {choice.generation} of {place.uri} cannot be read any more: later commits"
                    " have removed files that are older than its log; read the newest generation"
                )
        else:
            raise DestinationChanged(
                f"commits removed files of {place.uri} that are older than its log, {_TRIES} times while they"
                " were being listed; read it again"
            )
        if choice.since is not None:
            raise NoSuchKey(f"{place.uri} has no generation {choice.since}: no commit is in its log")
    manifest = manifest_of(store, place, choice.job_id)
    directories: dict[str, str] = {}
    files = [
        _table_file(place, manifest.job_id, entry, directories) for entry in manifest_files(store, manifest)
    ]
    return Table(place.uri, None, files, set(directories.values()), job_id=manifest.job_id)


def _table_at(
    store: ObjectStore,
    place: Destination,
    snapshot: TableSnapshot,
    since: int | None,
    kind: type[FileEntry] | type[FileSummary],
) -> Table:
    if since is not None and since > snapshot.generation:
        raise NoSuchKey(f"{place.uri} has no generation {since}: the newest is {snapshot.generation}")
    files = _files_of(store, place, snapshot.commits(since or 0), kind)
    sample: Sequence[TableFile] = ()
    directories = set(snapshot.partitions)
    if (since or 0) < snapshot.baseline:
        listed = files if not since else _files_of(store, place, snapshot.commits(), kind)
        older = _unlisted_files(store, place, snapshot, listed)
        files, directories = [*older, *files], directories | {file.directory for file in older}
    if not files and (commits := snapshot.commits()):
        sample = _files_of(store, place, commits[:1], kind)
    return Table(place.uri, snapshot.generation, files, directories, sample)


def _is_readable(store: ObjectStore, place: Destination, snapshot: TableSnapshot) -> bool:
    """Return whether no commit has removed objects of the snapshot's baseline. Ask after listing them."""
    newest = read_snapshot(store, place)
    return newest is not None and (newest.baseline, newest.removed) == (snapshot.baseline, snapshot.removed)


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


def _files_of(
    store: ObjectStore,
    place: Destination,
    commits: Sequence[LiveCommit],
    kind: type[FileEntry] | type[FileSummary],
) -> list[TableFile]:
    """Return the live files of some commits; of two with one key, as fixed names make them, the later."""
    directories: dict[str, str] = {}
    listed = {
        commit.number: [_table_file(place, commit.job_id, entry, directories) for entry in entries]
        for commit, entries in live_files(store, place, commits, kind)
    }
    return list({file.path: file for commit in commits for file in listed[commit.number]}.values())


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

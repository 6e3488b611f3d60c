"""The files of a read: a table's at a generation, those added since one, or one job's."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from airflow_s3commit.exceptions import NoSuchKey
from airflow_s3commit.protocol.model.layout import OLDER_DATA, partition_of
from airflow_s3commit.protocol.model.manifest import FileEntry
from airflow_s3commit.protocol.model.sealed_job import WrittenColumns
from airflow_s3commit.protocol.steps.files import FileSummary, each_list
from airflow_s3commit.protocol.steps.fold import manifest_files, manifest_of, read_table, refuse_rewound

if TYPE_CHECKING:
    from airflow_s3commit.protocol.model.destination import Destination
    from airflow_s3commit.protocol.model.sealed_job import ColumnStatistics
    from airflow_s3commit.protocol.model.table import Table as LogTable
    from airflow_s3commit.store.base import ObjectStore


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


class JobSchema(NamedTuple):
    """A schema that a job recorded: its text, and what that says."""

    job_id: str
    text: str
    columns: WrittenColumns

    @classmethod
    def of(cls, job_id: str, text: str, destination: str) -> JobSchema:
        """Read the text of a job's schema.

        Raises:
            InvalidRecord: It is damaged.
        """
        return cls(job_id, text, WrittenColumns.of(text, f"the manifest of job {job_id} on {destination}"))


@dataclass(frozen=True, slots=True)
class Table:
    """Files of a table, all or some of them.

    Attributes:
        destination: URI of the table.
        generation: The generation that they are of; None for the files of one job.
        files: The files, by path.
        directories: Every directory of the table at this generation.
        sample: If there are no files, some of the table at this generation, for its columns.
        schemas: The different schemas that the jobs of the table recorded.
        all_recorded: Whether every commit with files here recorded its schema.
        to_inspect: A file of each commit, or of a few of them, whose schema has to be read from a file: it
            is not recorded, or not in Arrow's encoding.
    """

    destination: str
    generation: int | None
    files: Mapping[str, TableFile]
    directories: Collection[str]
    sample: Sequence[TableFile] = ()
    schemas: Sequence[JobSchema] = ()
    all_recorded: bool = False
    to_inspect: Sequence[TableFile] = ()

    @property
    def examples(self) -> Collection[TableFile]:
        """Files by which to tell the format and the columns."""
        return self.files.values() if self.files else self.sample


def find_table(
    store: ObjectStore,
    place: Destination,
    choice: Choice,
    kind: type[FileEntry] | type[FileSummary] = FileSummary,
) -> Table:
    """Return the chosen files of a destination.

    Args:
        kind: `FileEntry` for files with their statistics.

    Raises:
        NoSuchKey: There is no commit, or no such job or generation.
        HistoryRewound: A rollback came after the generation ``since``.
        InvalidRecord: The log, a manifest or a list was changed, or has a key outside the destination.
    """
    if choice.job_id is None:
        return _table_at(store, place, choice, kind)
    manifest = manifest_of(store, place, choice.job_id)
    directories: dict[str, str] = {}
    listed = _table_files(place, manifest.job_id, manifest_files(store, manifest), directories)
    files = {file.path: file for file in listed}
    schemas = [JobSchema.of(manifest.job_id, text, place.uri) for text in manifest.schemas]
    has_all = schemas and all(schema.columns.arrow for schema in schemas)
    first = [] if has_all else [*islice(files.values(), 1)]
    return Table(place.uri, None, files, {*directories.values()}, (), schemas, bool(schemas), first)


def _table_at(
    store: ObjectStore,
    place: Destination,
    choice: Choice,
    kind: type[FileEntry] | type[FileSummary],
) -> Table:
    try:
        table = read_table(store, place, choice.generation)
    except NoSuchKey as error:
        raise NoSuchKey(f"{place.uri} has no generation {choice.generation}; see: s3commit log") from error
    if not table.generation or (choice.generation or table.generation) != table.generation:
        missing = f"generation {choice.generation}" if choice.generation else "commit in its log"
        raise NoSuchKey(
            f"{place.uri} has no {missing}; see what is under way with: s3commit jobs {place.uri}"
        )
    since = choice.since or 0
    if since > table.generation:
        raise NoSuchKey(f"{place.uri} has no generation {since}: the newest is {table.generation}")
    refuse_rewound(store, place, since, table.head.number)
    commits = table.commits(since)
    files, firsts = _files_of(store, place, table, commits, kind)
    sample: list[TableFile] = []
    if not files and (every := table.commits()):
        oldest = min(every)
        sample = [*_files_of(store, place, table, {oldest: every[oldest]}, kind)[0].values()]
    schemas = _schemas_of(table, place.uri)
    bare = {schema.text for schema in schemas if schema.columns.arrow is None}
    unknown = [firsts[number] for number in table.without_schemas() if number in firsts]
    without_arrow = [
        first for number, first in firsts.items() if bare.intersection(table.sources[number].schemas)
    ]
    to_inspect = [*_few(unknown), *_few(without_arrow)]
    if bare or not schemas:
        to_inspect += sample[:1]
    return Table(
        place.uri,
        table.generation,
        files,
        {*table.live},
        sample,
        schemas,
        bool(schemas) and not unknown,
        to_inspect,
    )


def _few(files: Sequence[TableFile]) -> Sequence[TableFile]:
    """Return the oldest of some files, and the newest ones."""
    return [*files[:1], *files[1:][-_MOST_FOOTERS:]]


def _schemas_of(table: LogTable, destination: str) -> list[JobSchema]:
    """Return the different schemas of the table, oldest first, each with the first job that had it."""
    jobs: dict[str, str] = {}
    for number in table.commits():
        source = table.sources[number]
        for text in source.schemas:
            jobs.setdefault(text, source.job_id or OLDER_DATA)
    return [JobSchema.of(jobs.get(text, ""), text, destination) for text in table.schemas()]


def _files_of(
    store: ObjectStore,
    place: Destination,
    table: LogTable,
    commits: Mapping[int, Collection[str]],
    kind: type[FileEntry] | type[FileSummary],
) -> tuple[dict[str, TableFile], dict[int, TableFile]]:
    """Return the files of commits in some of their directories, by path; and the first one of each commit.

    Of two files with one path, whose name does not contain the job's id, the later counts.
    """
    directories: dict[str, str] = {}
    listed: dict[int, list[TableFile]] = {}
    for source, entries in each_list(kind, store, place, (table.sources[number] for number in commits)):
        wanted = frozenset(commits[source.number])
        found = _table_files(place, source.job_id or "", entries, directories)
        listed[source.number] = [file for file in found if file.directory in wanted]
    files: dict[str, TableFile] = {}
    for number in commits:
        files.update((file.path, file) for file in listed[number])
    firsts = {
        number: first
        for number in commits
        if (first := next((file for file in listed[number] if files[file.path] is file), None)) is not None
    }
    return files, firsts


def _table_files(
    place: Destination, job_id: str, entries: Iterable[FileEntry | FileSummary], directories: dict[str, str]
) -> Iterator[TableFile]:
    """Yield the files of a list, after checking their keys.

    A table has many files in few directories: a directory is checked, and held in memory, once.
    """
    for entry in entries:
        key = entry.key
        parent, _, name = key.rpartition("/")
        directory = directories.get(parent)
        if directory is None or len(key) > _SHORT or not _is_plain(name):
            relative = place.check_data_key(place.bucket, key)
            directory = directories.setdefault(parent, partition_of(relative))
        statistics = entry.statistics if isinstance(entry, FileEntry) else None
        yield TableFile(f"{place.bucket}/{key}", entry.size, directory, job_id, entry.rows, statistics)

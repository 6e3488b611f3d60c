"""The files of a read: a table's at a generation, those added since one, or one job's.

A million of them take a third of the memory of as many objects.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from airflow_s3commit.exceptions import NoSuchKey
from airflow_s3commit.protocol.model.columns import WrittenColumns
from airflow_s3commit.protocol.model.layout import OLDER_DATA, partition_of
from airflow_s3commit.protocol.model.manifest import FileEntry
from airflow_s3commit.protocol.steps.files import FileSummary, each_list
from airflow_s3commit.protocol.steps.fold import manifest_files, manifest_of, read_table, refuse_rewound

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_s3commit.protocol.model.columns import ColumnStatistics
    from airflow_s3commit.protocol.model.destination import Destination
    from airflow_s3commit.protocol.model.table import Table as LogTable
    from airflow_s3commit.store.base import ObjectStore


_UNKNOWN = -1


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


class JobFiles:
    """Files of one job, in columns.

    Attributes:
        shared: Paths that another job's files may have too, because the names do not contain the job's id.
    """

    __slots__ = (
        "_directories",
        "_ends",
        "_job_id",
        "_names",
        "_places",
        "_rows",
        "_sizes",
        "_statistics",
        "shared",
    )

    def __init__(self, files: Iterable[TableFile]) -> None:
        places: dict[tuple[str, str], int] = {}
        self._names, self._ends = bytearray(), array("I")
        self._sizes, self._rows, self._directories = array("q"), array("q"), array("I")
        self._job_id = ""
        self._statistics: list[Mapping[str, ColumnStatistics] | None] = []
        self.shared: list[str] = []
        for file in files:
            parent, _, name = file.path.rpartition("/")
            self._names += name.encode()
            self._ends.append(len(self._names))
            self._sizes.append(file.size)
            self._rows.append(_UNKNOWN if file.rows is None else file.rows)
            self._directories.append(places.setdefault((parent, file.directory), len(places)))
            self._job_id = file.job_id
            if file.statistics is not None or self._statistics:
                self._statistics += [None] * (len(self._sizes) - 1 - len(self._statistics))
                self._statistics.append(file.statistics)
            if not file.job_id or file.job_id not in name:
                self.shared.append(file.path)
        self._places = tuple(places)

    def __len__(self) -> int:
        return len(self._sizes)

    def __getitem__(self, number: int) -> TableFile:
        start = self._ends[number - 1] if number else 0
        parent, directory = self._places[self._directories[number]]
        rows = self._rows[number]
        return TableFile(
            f"{parent}/{self._names[start : self._ends[number]].decode()}",
            self._sizes[number],
            directory,
            self._job_id,
            None if rows == _UNKNOWN else rows,
            self._statistics[number] if self._statistics else None,
        )

    def __iter__(self) -> Iterator[TableFile]:
        return map(self.__getitem__, range(len(self)))


class PackedFiles(Sequence[TableFile]):
    """Files of several jobs, one after the other. Of two with one path, the later counts.

    Args:
        lists: The files of each commit, in the order of the commits.

    Attributes:
        lists: The same without files that do not count.
    """

    def __init__(self, lists: Iterable[JobFiles]) -> None:
        self.lists = list(lists)
        latest: dict[str, int] = {}
        for number, files in enumerate(self.lists):
            latest.update(dict.fromkeys(files.shared, number))
        if len(latest) < sum(len(files.shared) for files in self.lists):
            self.lists = [
                JobFiles(file for file in files if latest.get(file.path, number) == number)
                for number, files in enumerate(self.lists)
            ]
        self._ends = list(accumulate(map(len, self.lists)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> TableFile: ...

    @overload
    def __getitem__(self, index: slice) -> list[TableFile]: ...

    def __getitem__(self, index: int | slice) -> TableFile | list[TableFile]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        found = bisect_right(self._ends, number)
        return self.lists[found][number - (self._ends[found - 1] if found else 0)]

    def __iter__(self) -> Iterator[TableFile]:
        return chain.from_iterable(self.lists)


class FilesByPath:
    """Finds files by their paths. It is prepared at the first search, and again after it was pickled."""

    def __init__(self, files: Sequence[TableFile]) -> None:
        self._files = files
        self._index: tuple[memoryview[int], memoryview[int]] | None = None

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, path: str) -> TableFile:
        if not self._files:
            raise KeyError(path)
        if self._index is None:
            self._index = self._sorted()
        hashes, numbers = self._index
        wanted = hash(path)
        for position in range(bisect_left(hashes, wanted), len(hashes)):
            if hashes[position] != wanted:
                break
            file = self._files[numbers[position]]
            if file.path == path:
                return file
        raise KeyError(path)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FilesByPath) or len(self) != len(other):
            return False
        mine, theirs = self._files, other._files
        return mine is theirs or all(one == another for one, another in zip(mine, theirs, strict=True))

    __hash__ = None  # type: ignore[assignment] # it is not a key

    def __getstate__(self) -> dict[str, Any]:
        # Hashes of texts differ from process to process.
        return {"_files": self._files, "_index": None}

    def _sorted(self) -> tuple[memoryview[int], memoryview[int]]:
        hashes = array("q", (hash(file.path) for file in self._files))
        unsorted = pa.Array.from_buffers(pa.int64(), len(hashes), [None, pa.py_buffer(hashes)])
        order = pc.sort_indices(unsorted)
        return _view(unsorted.take(order), "q"), _view(order, "Q")


def _view(values: pa.Array, kind: Literal["q", "Q"]) -> memoryview[int]:
    return memoryview(values.buffers()[1]).cast("B").cast(kind)[: len(values)]


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
    """A schema that a job recorded, as text, and whether that has Arrow's encoding."""

    job_id: str
    text: str
    has_arrow: bool

    @classmethod
    def of(cls, job_id: str, text: str, destination: str) -> JobSchema:
        """Read the text of a job's schema.

        Raises:
            InvalidRecord: It is damaged.
        """
        columns = WrittenColumns.of(text, f"the manifest of job {job_id} on {destination}")
        return cls(job_id, text, columns.arrow is not None)


@dataclass(frozen=True, slots=True)
class Table:
    """Files of a table, all or some of them.

    Attributes:
        destination: URI of the table.
        generation: The generation that they are of; None for the files of one job.
        files: The files, in the order of their commits.
        directories: Every directory of the table at this generation.
        sample: If there are no files, some of the table at this generation, for its columns.
        schemas: The different schemas that the jobs of the table recorded.
        unknown: A file of each commit whose job recorded no schema, or of a few of them.
        without_arrow: The same of commits whose schemas are not all in Arrow's encoding.
    """

    destination: str
    generation: int | None
    files: Sequence[TableFile]
    directories: Collection[str]
    sample: Sequence[TableFile] = ()
    schemas: Sequence[JobSchema] = ()
    unknown: Sequence[TableFile] = ()
    without_arrow: Sequence[TableFile] = ()

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
    entries = manifest_files(store, manifest)
    files = PackedFiles(
        [JobFiles(_table_file(place, manifest.job_id, entry, directories) for entry in entries)]
    )
    known = set(directories.values())
    schemas = [JobSchema.of(manifest.job_id, text, place.uri) for text in manifest.schemas]
    return Table(
        place.uri,
        None,
        files,
        known,
        files[:1],
        schemas,
        () if schemas else files[:1],
        () if all(schema.has_arrow for schema in schemas) else files[:1],
    )


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
    directories, commits = set(table.live), table.commits(since)
    by_commit = _lists_of(store, place, table, commits, kind)
    files = PackedFiles(by_commit.values())
    sample: Sequence[TableFile] = ()
    if not files and (every := table.commits()):
        oldest = min(every)
        sample = PackedFiles(_lists_of(store, place, table, {oldest: every[oldest]}, kind).values())
    schemas = _schemas_of(table, place.uri)
    bare = {schema.text for schema in schemas if not schema.has_arrow}
    unknown = _first_files(by_commit.get(number) for number in table.without_schemas())
    without_arrow = _first_files(
        by_commit.get(number) for number in commits if bare.intersection(table.sources[number].schemas)
    )
    return Table(
        place.uri,
        table.generation,
        files,
        directories,
        sample,
        schemas,
        unknown or ([] if schemas else sample[:1]),
        without_arrow or (sample[:1] if bare else []),
    )


def _first_files(lists: Iterable[JobFiles | None]) -> list[TableFile]:
    """Return the first file of some commits: of the oldest, and of the newest ones."""
    found = [files[0] for files in lists if files]
    return [*found[:1], *found[1:][-_MOST_FOOTERS:]]


def _schemas_of(table: LogTable, destination: str) -> list[JobSchema]:
    """Return the different schemas of the table, oldest first, each with the first job that had it."""
    jobs: dict[str, str] = {}
    for number in table.commits():
        source = table.sources[number]
        for text in source.schemas:
            jobs.setdefault(text, source.job_id or OLDER_DATA)
    return [JobSchema.of(jobs.get(text, ""), text, destination) for text in table.schemas()]


def _lists_of(
    store: ObjectStore,
    place: Destination,
    table: LogTable,
    commits: Mapping[int, Collection[str]],
    kind: type[FileEntry] | type[FileSummary],
) -> dict[int, JobFiles]:
    """Return the files of commits in some of their directories, by number, in order of the commits."""
    directories: dict[str, str] = {}
    listed = {}
    for source, entries in each_list(kind, store, place, (table.sources[number] for number in commits)):
        wanted, job_id = frozenset(commits[source.number]), source.job_id or ""
        files = (_table_file(place, job_id, entry, directories) for entry in entries)
        listed[source.number] = JobFiles(file for file in files if file.directory in wanted)
    packed = PackedFiles(listed[number] for number in commits)
    return dict(zip(commits, packed.lists, strict=True))


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

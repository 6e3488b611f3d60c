"""The files that a read needs, of a table at a generation or added since one, and their partitions.

Partition values come from the directories that Hive, Spark and this package write.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from itertools import islice
from operator import and_
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.dataset as ds
from msgspec import Struct

from airflow_s3commit.exceptions import NoSuchKey
from airflow_s3commit.protocol.model.destination import NULL_DIRECTORY, unescape
from airflow_s3commit.protocol.model.layout import OLDER_DATA, partition_of
from airflow_s3commit.protocol.model.sealed_job import WrittenColumns
from airflow_s3commit.protocol.steps.files import FileSummary, FileWithBounds, each_list
from airflow_s3commit.protocol.steps.fold import read_manifest, read_table, refuse_rewound

if TYPE_CHECKING:
    from airflow_s3commit.protocol.model.destination import Destination
    from airflow_s3commit.protocol.model.table import Table as LogTable
    from airflow_s3commit.store.base import ObjectStore


class TableFile(Struct, frozen=True, gc=False):
    """One file of a table.

    Attributes:
        path: ``bucket/key``.
        size: Committed size in bytes.
        directory: Directory below the destination.
        job_id: The job that committed it; empty if it is older than the log.
        rows: Number of rows; None if the writer did not count them.
        statistics: What the writer recorded of its columns, as JSON; empty if nothing, or if not requested.
    """

    path: str
    size: int
    directory: str
    job_id: str
    rows: int | None = None
    statistics: bytes = b""


#: In a checked directory, a matching name in a key of at most ``_SHORT`` characters needs no further check.
_is_plain = re.compile("[A-Za-z0-9][A-Za-z0-9._=-]*").fullmatch
_SHORT = 256

#: What comes before the id of the write in the path of a file that Spark named: ``part-`` and the task.
_TASK = re.compile(r".*/part-\d+-")

#: Maximum number of footers to read, beside that of the oldest file, for columns that no record has.
_MOST_FOOTERS = 32


class JobSchema(NamedTuple):
    """A schema that a job recorded: its text, and the columns parsed from it."""

    job_id: str
    text: str
    columns: WrittenColumns


@dataclass(frozen=True, slots=True)
class Table:
    """Files of a table, all or some of them.

    Attributes:
        destination: URI of the table.
        generation: The generation of the table that was read.
        files: The files, by path.
        directories: Every directory of the table at this generation.
        sample: If ``files`` is empty, some files of the table at this generation, for its columns.
        schemas: The distinct schemas that the jobs of the table recorded.
        all_recorded: Whether every commit with files here recorded its schema.
        to_inspect: A file of each commit, or of some commits, whose schema must be read from a file because
            it is not recorded, or not in Arrow's encoding; of each write if it recorded several.
        others: Further such files, to inspect if these lack a recorded column.
    """

    destination: str
    generation: int
    files: Mapping[str, TableFile]
    directories: Collection[str]
    sample: Sequence[TableFile] = ()
    schemas: Sequence[JobSchema] = ()
    all_recorded: bool = False
    to_inspect: Sequence[TableFile] = ()
    others: Sequence[TableFile] = ()

    @property
    def examples(self) -> Collection[TableFile]:
        """Files by which to tell the format and the columns."""
        return self.files.values() if self.files else self.sample

    @property
    def recorded(self) -> dict[str, Any]:
        """The columns that every commit recorded with the same type, and that type as in Spark's JSON."""
        found = [{one.name: one.type for one in schema.columns.spark.fields} for schema in self.schemas]
        # Another program's directories, or those of a commit without a record, may have other values.
        first = found[0] if self.all_recorded else {}
        known = {name: kind for name, kind in first.items() if kind != "void"}
        return {name: kind for name, kind in known.items() if all(one.get(name) == kind for one in found)}


def find_table(
    store: ObjectStore,
    place: Destination,
    generation: int | None = None,
    since: int | None = None,
    job_id: str | None = None,
    *,
    kind: type[FileSummary] = FileSummary,
) -> Table:
    """Return files of a destination, chosen as `dataset` chooses them.

    The files have statistics if ``kind`` is `FileWithBounds`.

    Raises:
        ValueError: A generation is out of range, or is given beside a job.
        NoSuchKey: There is no commit or no such generation, or the job has not committed.
        HistoryRewound: A rollback came after the generation ``since``.
        InvalidRecord: The log or a list was changed, or has a key outside the destination.
    """
    if job_id is not None:
        if (generation, since) != (None, None):
            raise ValueError("one job's files are read without generation and since")
        generation = read_manifest(store, place, job_id).generation
        since = generation - 1
    if generation is not None and generation < 1:
        raise ValueError(f"generations count from 1: there is no generation {generation}")
    if since is not None and not 0 <= since <= (generation or since):
        later = f"generation {generation}" if generation else "the newest one"
        raise ValueError(f"since={since} is not a generation before {later}")
    since = since or 0
    try:
        table = read_table(store, place, generation)
    except NoSuchKey as error:
        raise NoSuchKey(f"{place.uri} has no generation {generation}; see: s3commit log") from error
    if not table.generation or (generation or table.generation) != table.generation:
        missing = f"generation {generation}" if generation else "commit in its log"
        raise NoSuchKey(
            f"{place.uri} has no {missing}; see what is under way with: s3commit jobs {place.uri}"
        )
    if since > table.generation:
        raise NoSuchKey(f"{place.uri} has no generation {since}: the newest is {table.generation}")
    refuse_rewound(store, place, since, table.head.number)
    files, firsts = _files_of(store, place, table, table.commits(since), kind)
    sample: list[TableFile] = []
    if not files and (every := table.commits()):
        oldest = min(every)
        sample = [*_files_of(store, place, table, {oldest: every[oldest]}, kind)[0].values()]
    schemas = _schemas_of(table, place.uri)
    bare = {schema.text for schema in schemas if schema.columns.arrow is None}
    unknown = [file for number in table.without_schemas() for file in firsts.get(number, ())]
    with_bare = (number for number in firsts if bare.intersection(table.sources[number].schemas))
    without_arrow = [file for number in with_bare for file in firsts[number]]
    first = [*_few(unknown), *_few(without_arrow), *(sample[:1] if bare or not schemas else ())]
    facts = sample, schemas, bool(schemas) and not unknown, first, without_arrow[1:-_MOST_FOOTERS]
    return Table(place.uri, table.generation, files, {*table.live}, *facts)


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
    found = ((jobs.get(text, ""), text) for text in table.schemas())
    where = "the manifest of job {} on {}".format
    return [
        JobSchema(job_id, text, WrittenColumns.of(text, where(job_id, destination))) for job_id, text in found
    ]


def _files_of(
    store: ObjectStore,
    place: Destination,
    table: LogTable,
    commits: Mapping[int, Collection[str]],
    kind: type[FileSummary] = FileSummary,
) -> tuple[dict[str, TableFile], dict[int, list[TableFile]]]:
    """Return the files of commits in the given directories, by path; and a file of each commit.

    Of a commit that recorded several schemas it is one of each write, by Spark's names of files. If two
    commits list the same path, whose name then has no job id, the later file counts.
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
    firsts: dict[int, list[TableFile]] = {}
    for number in commits:
        there = (file for file in listed[number] if files[file.path] is file)
        some = there if len(table.sources[number].schemas) > 1 else islice(there, 1)
        firsts[number] = [*{_TASK.sub("", file.path): file for file in some}.values()]
    return files, firsts


def _table_files(
    place: Destination, job_id: str, entries: Iterable[FileSummary], directories: dict[str, str]
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
        # A copy: as decoded it would keep the whole line in memory.
        known = bytes(entry.statistics) if isinstance(entry, FileWithBounds) else b""
        yield TableFile(f"{place.bucket}/{key}", entry.size, directory, job_id, entry.rows, known)


_is_integer = re.compile(r"[+-]?[0-9]+").fullmatch
_is_number = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?").fullmatch
_is_date = re.compile(r"(?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2}").fullmatch
# Arrow does not refuse a decimal with more digits: it turns it into another number.
_is_decimal = re.compile(r"[+-]?[0-9]{1,38}").fullmatch

#: The types that can be inferred, narrowest first, each with the form of its texts; Arrow may still refuse.
_INFERRED = (
    (_is_integer, pa.int32()),
    (_is_integer, pa.int64()),
    (_is_decimal, pa.decimal128(38, 0)),
    (_is_number, pa.float64()),
    (_is_date, pa.date32()),
)


class UnreadablePartitions(ValueError):
    """The directories have different partition columns, or a value is not of its column's type."""


def infer_type(values: Iterable[str]) -> pa.DataType:
    """Return the type that Spark would infer for a column of these texts.

    It is the narrowest of 32-bit and 64-bit integer, decimal of 38 digits, double and date that holds all, or
    string. Times stay strings because they depend on a session's time zone; so do infinities and NaN.
    """
    texts = sorted(set(values))
    for is_like, kind in _INFERRED if texts else ():
        if all(map(is_like, texts)):
            with suppress(pa.ArrowInvalid):
                pa.array(texts).cast(kind)
                return kind
    return pa.string()


def _parse(directory: str) -> dict[str, str | None]:
    """Return the partition values of a directory, outermost first; skips elements without ``=``."""
    values = {}
    for element in directory.split("/") if directory else ():
        name, equals, value = element.partition("=")
        if equals:
            values[unescape(name)] = None if value == NULL_DIRECTORY else unescape(value)
    return values


class PartitionColumns:
    """The partition columns of files in some directories, outermost first, and their values by directory.

    Raises `UnreadablePartitions` if the directories have different columns; ``given``, with the types that
    are not inferred, has a column that they lack; or a value is not of its column's type.
    """

    def __init__(self, directories: Iterable[str], given: pa.Schema | None = None) -> None:
        self._values = {directory: _parse(directory) for directory in sorted(set(directories))}
        types = {column.name: column.type for column in given or ()}
        names = self._common_names(types)
        if unknown := types.keys() - set(names):
            raise UnreadablePartitions(
                f"partition_schema has {', '.join(sorted(unknown))}; the files' partition columns are"
                f" {', '.join(names) or 'none'}"
            )
        self.schema = pa.schema([(name, types.get(name) or infer_type(self._texts(name))) for name in names])
        #: By directory, what is true for every row; None without partition columns.
        self.expressions: dict[str, ds.Expression | None] = {
            directory: reduce(and_, (self._part(name, text) for name, text in values.items()))
            if values
            else None
            for directory, values in self._values.items()
        }

    def _common_names(self, given: Iterable[str]) -> list[str]:
        first = next(iter(self._values), None)
        if first is None:
            return [*given]
        names = list(self._values[first])
        for directory, values in self._values.items():
            if names != list(values):
                raise UnreadablePartitions(
                    f"files are in {first!r} and in {directory!r}, which have different partition columns"
                )
        return names

    def _texts(self, name: str) -> Iterable[str]:
        return (text for values in self._values.values() if (text := values[name]) is not None)

    def _part(self, name: str, text: str | None) -> ds.Expression:
        if text is None:
            return ds.field(name).is_null()
        kind = self.schema.field(name).type
        try:
            return ds.field(name) == pa.scalar(text, pa.string()).cast(kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise UnreadablePartitions(
                f"partition column {name!r} has the value {text!r}, which is not {kind}: {error}; give"
                " its type in partition_schema"
            ) from error

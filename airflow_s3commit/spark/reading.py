"""``spark.read.format("s3commit")``: reads a table at one generation, in groups of files, as Arrow batches.

The DataFrame fixes the generation when it is made; later commits do not change its rows.
"""

from __future__ import annotations

import base64
import json
import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.types as pt
from msgspec import structs
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructField, StructType

from airflow_s3commit.exceptions import InvalidOption
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.layout import check_id
from airflow_s3commit.protocol.model.manifest import FileEntry
from airflow_s3commit.protocol.steps.file_list import FileSummary
from airflow_s3commit.reader.formats import (
    FILE_OPTIONS,
    FileOptions,
    FileReading,
    parse_file_options,
    reading_of,
)
from airflow_s3commit.reader.listing import Choice, Table, find_table
from airflow_s3commit.reader.pruning import PartitionColumns, bounds_expression
from airflow_s3commit.reader.table import (
    dataset_of,
    guarded_files,
    partition_columns,
    s3_filesystem,
    schemas_of,
    table_schema,
)
from airflow_s3commit.reader.table_files import FilePart, stripes_of
from airflow_s3commit.spark.options import STORE_OPTIONS, store_address
from airflow_s3commit.spark.pyspark_private import arrow_schema, spark_type
from airflow_s3commit.spark.read_plan import SplitSizes, as_arrow, columns_of, keep, split_files
from airflow_s3commit.spark.session import store_of_process
from airflow_s3commit.store.credentials import StoreAddress
from airflow_s3commit.store.s3.config import S3Config
from airflow_s3commit.tables.options import (
    Option,
    at_least,
    options_of,
    parse_flag,
    read_fields,
    set_by,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from pyarrow.fs import FileSystem
    from pyspark.sql.datasource import Filter

    from airflow_s3commit.reader.listing import Pick
    from airflow_s3commit.reader.table_files import TableFile

logger = logging.getLogger(__name__)

#: The footer entry with Spark's schema of a file; our writer sets it too.
_ROW_METADATA = b"org.apache.spark.sql.parquet.row.metadata"

#: Rows of a batch for Spark.
_BATCH_ROWS = 10_000


def _destination(value: str) -> str:
    return Destination.parse(value).uri


def _job(value: str) -> str | None:
    return check_id(value) if value else None


def _flag_of_pushing(value: str) -> bool:
    wanted = parse_flag(value)
    if wanted and not hasattr(DataSourceReader, "pushFilters"):
        raise ValueError("not possible: PySpark before 4.1 passes no filters to a data source in Python")
    return wanted


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a read.

    Attributes:
        store: The store's address.
        files: The options of reading the files.

    """

    destination: str = set_by(
        Option("path", _destination, "URI of the destination; `.load(path)` sets it.", default="required"),
        default="",
    )
    generation: int | None = set_by(
        Option(
            "generation", at_least(1), "Read the table as it was after this commit.", default="the newest"
        ),
        default=None,
    )
    since: int | None = set_by(
        Option("since", at_least(0), "Read only files that were added after this generation.", default="all"),
        default=None,
    )
    job_id: str | None = set_by(
        Option("job", _job, "Read only the files that the job with this id committed.", default="all"),
        default=None,
    )
    prune_files: bool = set_by(
        Option(
            "pruneFiles",
            _flag_of_pushing,
            "Leave out files without rows for the query's filters. Use such a DataFrame for one query only.",
        ),
        default=False,
    )
    store: StoreAddress = field(default_factory=StoreAddress)
    files: FileOptions = field(default_factory=FileOptions)

    @property
    def choice(self) -> Choice:
        """Which files to read."""
        return Choice(self.generation, self.since, self.job_id)


#: Every option of a read.
READ_OPTIONS: tuple[Option, ...] = (*options_of(ReadOptions), *STORE_OPTIONS, *FILE_OPTIONS)

_READ_FIELDS = {"generation", "since", "job_id", "prune_files"}
_FILE_NAMES = {option.name.lower() for option in FILE_OPTIONS}


def parse_read_options(options: Mapping[str, str], store_defaults: StoreAddress) -> ReadOptions:
    """Parse the options of a read. Their names are not case-sensitive.

    Args:
        options: Texts by option name, as Spark passes them.
        store_defaults: The session's store settings, for options that are not set.

    Raises:
        InvalidOption: An option is unknown or malformed, or there is no path.

    """
    if "owner" in options:
        # A property that Spark gives every table that it creates.
        raise InvalidOption(
            "Spark does not pass on how a SQL table was created: name the columns, CREATE TABLE t"
            " (id BIGINT, dt STRING) USING s3commit, and the path in each statement, SELECT * FROM t WITH"
            " (path = 's3://bucket/table')"
        )
    found, _ = read_fields(options, READ_OPTIONS, " for reading")
    files = parse_file_options({name: text for name, text in options.items() if name.lower() in _FILE_NAMES})
    if "destination" not in found:
        raise InvalidOption(
            "nothing to read: pass the destination to .load(), or in SQL to each statement, SELECT * FROM t"
            " WITH (path = 's3://bucket/table')"
        )
    store = store_address(found)
    chosen = {name: found[name] for name in _READ_FIELDS & found.keys()}
    parsed = ReadOptions(found["destination"], **chosen, store=store.or_else(store_defaults), files=files)
    try:
        _ = parsed.choice
    except ValueError as error:
        raise InvalidOption(str(error)) from error
    return parsed


def read_schema(options: ReadOptions) -> tuple[dict[str, str], StructType]:
    """Return the options that fix what is read, and the columns of all commits and of the directories.

    As in Spark, all columns of CSV files are text unless ``inferSchema`` is true.

    Raises:
        S3CommitError: The log, a manifest or a file cannot be read, as in `airflow_s3commit.reader.dataset`.
        UnreadableFiles: Commits have a column in types without a common one.

    """
    table = _find_table(options)
    reading = _reading(table, options)
    schemas = schemas_of(table, _filesystem(options.store), reading, infer=False)
    columns, partitions = table_schema(table, schemas), partition_columns(table, None, schemas).schema
    known: dict[str, StructField] = {}
    for _, schema in schemas:
        written = (schema.files.metadata or {}).get(_ROW_METADATA)
        for column in StructType.fromJson(json.loads(written)).fields if written is not None else ():
            # A column that was widened has its widest type.
            own, all_ = (found.get_field_index(column.name) for found in (schema.files, columns))
            if own >= 0 and schema.files.field(own).type == columns.field(all_).type:
                known.setdefault(column.name, column)
    fields = [
        known.get(column.name) or StructField(column.name, spark_type(column.type))
        for column in columns
        if column.name not in partitions.names
    ]
    fields += [StructField(column.name, spark_type(column.type)) for column in partitions]
    fixed = {"job": table.job_id} if table.job_id is not None else {"generation": str(table.generation)}
    return fixed, StructType(fields).toNullable()


@dataclass
class FileGroup(InputPartition):
    """The files of one task, with the plan's results: Spark pickles the reader before it plans.

    Attributes:
        table: The files.
        reading: How to read them.
        partition_schema: The partition columns, with types inferred from the files of all tasks.

    """

    table: Table
    reading: FileReading
    partition_schema: pa.Schema


class S3CommitReader(DataSourceReader):
    """Plans a read on the driver and reads in the tasks; pickled to both.

    Args:
        schema: The columns to read, in this order; files' columns and partition columns.
        options: The options of the read.
        sizes: How to size the tasks.

    """

    def __init__(self, schema: StructType, options: ReadOptions, sizes: SplitSizes | None = None) -> None:
        self._schema = schema
        self._options = options
        self._sizes = sizes or SplitSizes()
        self._filters: list[Filter] = []

    def partitions(self) -> list[InputPartition]:
        """Return the files of each task; large files of Parquet and ORC are read by several tasks.

        Files without rows that can pass the pushed filters are left out, by their partition values and by the
        bounds of their columns in the list of files.

        Raises:
            S3CommitError: The log or a manifest cannot be read, as in `airflow_s3commit.reader.dataset`.
            UnreadablePartitions: A partition value does not fit its column's type.

        """
        wanted = arrow_schema(self._schema)
        named = columns_of(self._filters) & set(wanted.names)

        def pick(directories: Collection[str]) -> Collection[str]:
            columns = _partition_columns(directories, wanted)
            known = {directory: columns.expression(directory) for directory in directories}
            return keep(known, columns.schema, as_arrow(self._filters, columns.schema))

        table = _find_table(self._options, FileEntry if named else FileSummary, pick if named else None)
        reading = _reading(table, self._options)
        schema = _partition_columns(table.directories, wanted).schema
        bounded = named - set(schema.names)
        files = table.files
        if bounded and not reading.is_text:
            # Bounds are of the written values; text is read in the types that the caller gives.
            bounds = {
                number: bounds_expression(file.statistics or {}, wanted, bounded)
                for number, file in enumerate(files)
            }
            files = [files[number] for number in keep(bounds, wanted, as_arrow(self._filters, wanted))]
        if named:
            logger.info(
                "%s: the filters leave %d of %d files, in %d of %d directories",
                table.destination,
                len(files),
                len(table.files),
                len({file.directory for file in files}),
                len(table.directories),
            )
        groups = split_files(files, self._sizes, splittable=not reading.is_text)
        return [FileGroup(_part(table, group), reading, schema) for group in groups]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a group of files.

        Raises:
            NoSuchKey: A committed file is gone.
            DestinationChanged: A file's size differs from the committed one.

        """
        # For a table without files Spark makes a partition of its own.
        if not isinstance(partition, FileGroup):
            return
        wanted, table, reading = arrow_schema(self._schema), partition.table, partition.reading
        columns = PartitionColumns(table.directories, partition.partition_schema)
        filesystem = _filesystem(self._options.store)
        stripes: list[FilePart] = []
        if reading.format == "orc":
            stripes = [file for file in table.files if isinstance(file, FilePart)]
            table = replace(table, files=[file for file in table.files if not isinstance(file, FilePart)])
        scanned = wanted if reading.format != "json" else pa.schema(map(_in_json, wanted))
        found = dataset_of(table, filesystem, columns, scanned, reading=reading)
        for batch in found.to_batches(columns=wanted.names, batch_size=_BATCH_ROWS):
            if batch.num_rows:
                cast = [_as_type(*pair) for pair in zip(batch.columns, wanted.types, strict=True)]
                yield pa.RecordBatch.from_arrays(cast, schema=wanted)
        guarded = guarded_files(table, filesystem, stripes)
        for part in stripes:
            for stripe in stripes_of(part, guarded, columns, wanted.names):
                yield from _in_schema(stripe, wanted).to_batches(_BATCH_ROWS)


class PruningReader(S3CommitReader):
    """A reader that takes the filters of a query.

    Spark keeps one plan of a DataFrame's source, the last one, for all of its queries: a query without
    filters, or one that was planned earlier, reads what another query's filters left (seen with Spark 4.3).
    So a DataFrame of this reader is for one query.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Keep the filters for `partitions`, and return all of them: Spark applies them to the rows."""
        self._filters = filters
        return filters


def reader_of(schema: StructType, options: ReadOptions, sizes: SplitSizes | None) -> S3CommitReader:
    """Return the reader of a DataFrame."""
    return (PruningReader if options.prune_files else S3CommitReader)(schema, options, sizes)


def _partition_columns(directories: Collection[str], wanted: pa.Schema) -> PartitionColumns:
    """Return the partition columns, in the wanted types.

    Other types are inferred from all files: a task's own files could give another type.
    """
    names = PartitionColumns(directories).schema.names
    return PartitionColumns(directories, pa.schema([column for column in wanted if column.name in names]))


def _in_schema(found: pa.Table, wanted: pa.Schema) -> pa.Table:
    """Return rows of a file in the wanted columns; those that the file lacks are null."""
    columns = []
    for column in wanted:
        if column.name not in found.column_names:
            columns.append(pa.chunked_array([pa.nulls(len(found), column.type)]))
            continue
        chunks = [_as_type(chunk, column.type) for chunk in found[column.name].chunks]
        columns.append(pa.chunked_array(chunks, column.type))
    return pa.Table.from_arrays(columns, schema=wanted)


def _in_json(column: pa.Field) -> pa.Field:
    """Return a column with a type that Arrow can read from JSON: text for dates and bytes."""
    as_text = pt.is_date(column.type) or pt.is_binary(column.type)
    return column.with_type(pa.string()) if as_text else column


def _as_type(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast a column to the type that Spark expects; decode base64 text of bytes."""
    if values.type == kind:
        return values
    if pt.is_binary(kind):
        decoded = (None if value is None else base64.b64decode(value) for value in values.to_pylist())
        return pa.array(decoded, kind)
    return values.cast(kind)


def _find_table(
    options: ReadOptions,
    kind: type[FileEntry] | type[FileSummary] = FileSummary,
    pick: Pick | None = None,
) -> Table:
    store = store_of_process(options.store)
    return find_table(store, Destination.parse(options.destination), options.choice, kind, pick)


def _part(table: Table, files: Sequence[TableFile]) -> Table:
    files = [structs.replace(file, statistics=None) if file.statistics else file for file in files]
    return replace(table, files=files, directories={file.directory for file in files}, sample=())


def _reading(table: Table, options: ReadOptions) -> FileReading:
    return reading_of((file.path for file in table.examples), options.files)


def _filesystem(settings: StoreAddress) -> FileSystem:
    return s3_filesystem(
        S3Config(endpoint_url=settings.endpoint_url, region=settings.region, path_style=settings.path_style)
    )

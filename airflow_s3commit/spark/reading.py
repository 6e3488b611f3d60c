"""``spark.read.format("s3commit")``: reads a table at one generation, in groups of files, as Arrow batches.

The DataFrame fixes the generation when it is made; later commits do not change its rows.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import StructField, StructType

from airflow_s3commit.exceptions import InvalidOption, StoreUnsuitable
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.layout import check_id
from airflow_s3commit.reader.files import s3_filesystem
from airflow_s3commit.reader.formats import (
    FILE_OPTIONS,
    FileOptions,
    FileReading,
    parse_file_options,
    reading_of,
)
from airflow_s3commit.reader.listing import Choice, Table, find_table
from airflow_s3commit.reader.partitions import PartitionColumns
from airflow_s3commit.reader.table import dataset_of, first_schema
from airflow_s3commit.spark.options import STORE_OPTIONS
from airflow_s3commit.spark.session import store_of_process
from airflow_s3commit.store.credentials import StoreAddress
from airflow_s3commit.store.s3.config import S3Config
from airflow_s3commit.tables.option_values import Option, at_least, options_of, read_fields, set_by

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyarrow.fs import FileSystem

    from airflow_s3commit.reader.listing import TableFile

#: The footer entry with Spark's schema of a file; our writer sets it too.
_ROW_METADATA = b"org.apache.spark.sql.parquet.row.metadata"

#: Bytes of files for one task, as the default of ``spark.sql.files.maxPartitionBytes``.
_GROUP_BYTES = 128 * 1024 * 1024

#: Rows of a batch for Spark.
_BATCH_ROWS = 10_000


def _destination(value: str) -> str:
    return Destination.parse(value).uri


def _job(value: str) -> str | None:
    return check_id(value) if value else None


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
    store: StoreAddress = field(default_factory=StoreAddress)
    files: FileOptions = field(default_factory=FileOptions)

    @property
    def choice(self) -> Choice:
        """Which files to read."""
        return Choice(self.generation, self.since, self.job_id)


#: Every option of a read.
READ_OPTIONS: tuple[Option, ...] = (*options_of(ReadOptions), *STORE_OPTIONS, *FILE_OPTIONS)

_CHOICE_FIELDS = {"generation", "since", "job_id"}
_STORE_FIELDS = {option.field for option in STORE_OPTIONS}
_FILE_NAMES = {option.name.lower() for option in FILE_OPTIONS}


def parse_read_options(options: Mapping[str, str], store_defaults: StoreAddress) -> ReadOptions:
    """Parse the options of a read. Their names are not case-sensitive.

    Args:
        options: Texts by option name, as Spark passes them.
        store_defaults: The session's store settings, for options that are not set.

    Raises:
        InvalidOption: An option is unknown or malformed, or there is no path.

    """
    found, _ = read_fields(options, READ_OPTIONS, " for reading")
    files = parse_file_options({name: text for name, text in options.items() if name.lower() in _FILE_NAMES})
    if "destination" not in found:
        raise InvalidOption("nothing to read: pass the destination to .load()")
    try:
        store = StoreAddress(**{name: found[name] for name in _STORE_FIELDS & found.keys()})
    except StoreUnsuitable as error:
        raise InvalidOption(str(error)) from error
    chosen = {name: found[name] for name in _CHOICE_FIELDS & found.keys()}
    parsed = ReadOptions(found["destination"], **chosen, store=store.or_else(store_defaults), files=files)
    try:
        _ = parsed.choice
    except ValueError as error:
        raise InvalidOption(str(error)) from error
    return parsed


def read_schema(options: ReadOptions) -> tuple[dict[str, str], StructType]:
    """Return the options that fix what is read, and the columns of the first file and of the directories.

    As in Spark, all columns of CSV files are text unless ``inferSchema`` is true.

    Raises:
        S3CommitError: The log, a manifest or a file cannot be read, as in `airflow_s3commit.reader.dataset`.

    """
    table = _find_table(options)
    partitions = PartitionColumns(table.directories).schema
    columns = first_schema(table, _filesystem(options.store), _reading(table, options), infer=False)
    written = (columns.metadata or {}).get(_ROW_METADATA)
    if written is not None:
        known = {column.name: column for column in StructType.fromJson(json.loads(written)).fields}
    else:
        known = {}
    fields = [
        known.get(column.name) or StructField(column.name, from_arrow_type(column.type))
        for column in columns
        if column.name not in partitions.names
    ]
    fields += [StructField(column.name, from_arrow_type(column.type)) for column in partitions]
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

    """

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        self._schema = schema
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Return the files in groups of at most 128 MiB; a larger file is a group of its own.

        Raises:
            S3CommitError: The log or a manifest cannot be read, as in `airflow_s3commit.reader.dataset`.
            UnreadablePartitions: A partition value does not fit its column's type.

        """
        table = _find_table(self._options)
        reading = _reading(table, self._options)
        wanted = _arrow(self._schema)
        directories = table.directories
        names = PartitionColumns(directories).schema.names
        given = pa.schema([column for column in wanted if column.name in names])
        # Types are inferred here from all files: a task's own files could give another type.
        schema = PartitionColumns(directories, given).schema
        return [FileGroup(_part(table, files), reading, schema) for files in _groups(table.files)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a group of files.

        Raises:
            NoSuchKey: A committed file is gone.
            DestinationChanged: A file's size differs from the committed one.

        """
        # For a table without files Spark makes a partition of its own.
        if not isinstance(partition, FileGroup):
            return
        wanted, table, reading = _arrow(self._schema), partition.table, partition.reading
        columns = PartitionColumns(table.directories, partition.partition_schema)
        scanned = wanted if reading.format != "json" else pa.schema(map(_in_json, wanted))
        found = dataset_of(table, _filesystem(self._options.store), columns, scanned, reading=reading)
        for batch in found.to_batches(columns=wanted.names, batch_size=_BATCH_ROWS):
            if batch.num_rows:
                cast = [_as_type(*pair) for pair in zip(batch.columns, wanted.types, strict=True)]
                yield pa.RecordBatch.from_arrays(cast, schema=wanted)


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


def _find_table(options: ReadOptions) -> Table:
    store = store_of_process(options.store)
    return find_table(store, Destination.parse(options.destination), options.choice)


def _part(table: Table, files: list[TableFile]) -> Table:
    return replace(table, files=files, directories={file.directory for file in files}, sample=())


def _reading(table: Table, options: ReadOptions) -> FileReading:
    return reading_of((file.path for file in table.examples), options.files)


def _filesystem(settings: StoreAddress) -> FileSystem:
    return s3_filesystem(
        S3Config(endpoint_url=settings.endpoint_url, region=settings.region, path_style=settings.path_style)
    )


def _arrow(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects of a Python data source."""
    return to_arrow_schema(schema, timezone="UTC")


def _groups(files: Iterable[TableFile]) -> Iterator[list[TableFile]]:
    group: list[TableFile] = []
    size = 0
    for file in files:
        if group and size + file.size > _GROUP_BYTES:
            yield group
            group, size = [], 0
        group.append(file)
        size += file.size
    if group:
        yield group

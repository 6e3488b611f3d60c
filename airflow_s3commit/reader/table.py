"""Opens the files of a table as a ``pyarrow.dataset.Dataset``."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.types as pt
from pyarrow import fs
from pyarrow.fs import PyFileSystem, S3FileSystem

from airflow_s3commit.exceptions import DestinationChanged, NoSuchKey
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.reader.listing import PartitionColumns, Table, find_table
from airflow_s3commit.store.credentials import is_aws_host
from airflow_s3commit.store.execute import in_threads
from airflow_s3commit.store.s3.config import S3Config
from airflow_s3commit.store.s3.store import S3Store
from airflow_s3commit.tables.columns import DifferentTypes, WrittenSchema, from_text, merge, rebuilt
from airflow_s3commit.tables.options import FORMATS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyarrow.fs import FileSystem

    from airflow_s3commit.reader.listing import TableFile
    from airflow_s3commit.store.base import ObjectStore


#: Endings of compressed text.
_COMPRESSED = frozenset({"gz", "bz2", "zst", "deflate", "snappy", "lz4", "zstd", "br", "xz", "zip", "Z"})

#: pyarrow's formats, by our names for them.
_KINDS: dict[str, type[ds.FileFormat]] = {
    "parquet": ds.ParquetFileFormat,
    "orc": ds.OrcFileFormat,
    "csv": ds.CsvFileFormat,
    "json": ds.JsonFileFormat,
}

#: The attribute that holds Spark's type of an ORC column where ORC has no such type; our writer sets it too.
_SPARK_TYPE = b"spark.sql.catalyst.type"

#: Types of partition columns that are taken as recorded: Arrow's names, by Spark's.
_INTEGERS = {"byte": "int8", "short": "int16", "integer": "int32", "long": "int64"}
_TAKEN = {"string": "string", "binary": "binary", "boolean": "bool", **_INTEGERS}

#: Prefixes of Spark's interval types that are stored as microseconds, not months.
_DURATIONS = (b"interval day", b"interval hour", b"interval minute", b"interval second")


class UnreadableFiles(ValueError):
    """A table's files have no common format, or one that has to be given as pyarrow's own."""


class FileReading(NamedTuple):
    """How to read the files of one dataset: their format, by our name and as pyarrow's object."""

    format: str
    arrow: ds.FileFormat

    @classmethod
    def of(cls, paths: Iterable[str], given: str | ds.FileFormat | None) -> FileReading:
        """Return how to read files; raises as `format_of` does, and for text that is given by name only."""
        if isinstance(given, ds.FileFormat):
            name = next((name for name, kind in _KINDS.items() if isinstance(given, kind)), None)
            if name is None:
                raise UnreadableFiles(f"{type(given).__name__} is none of the formats {', '.join(FORMATS)}")
            return cls(format_of(paths, name), given)
        name = format_of(paths, given)
        if FORMATS[name].text:
            kind = f"pyarrow.dataset.{_KINDS[name].__name__}()"
            raise UnreadableFiles(
                f"how {name} is to be read only its writer knows: pass format={kind}, with its separator,"
                " quotes and names of columns, or read the table in Spark with read_table"
            )
        # By default INT96 is read in nanoseconds, which turns a time after 2262, such as 9999, into another.
        more = {"coerce_int96_timestamp_unit": "us"} if name == "parquet" else {}
        return cls(name, _KINDS[name](**more))

    @property
    def is_text(self) -> bool:
        """Whether the files are text, whose columns have no types."""
        return FORMATS[self.format].text

    def as_read(self, stored: pa.Schema) -> pa.Schema:
        """Return the columns as they are read from files with a stored schema."""
        return pa.schema([rebuilt(column, _with_spark_type) for column in stored], metadata=stored.metadata)


def format_of(paths: Iterable[str], given: str | None) -> str:
    """Return the format of files: the given one, or the one with which their names end.

    Raises `UnreadableFiles` if the names have several formats, another than the given one, or none.
    """
    found: dict[str | None, str] = {}
    for path in paths:
        found.setdefault(_format_in(path), path)
    name = given or next(iter(found), None) or "parquet"
    for format_, path in found.items():
        if format_ is None and given is None:
            raise UnreadableFiles(
                f"the name of s3://{path} has no known format: set format to one of {', '.join(FORMATS)}"
            )
        if format_ not in (None, name):
            other = f"s3://{found[name]} is {name}" if name in found else f"format={name} was given"
            raise UnreadableFiles(
                f"s3://{path} is {format_}, and {other}: one dataset has files of one format"
            )
    return name


def _format_in(path: str) -> str | None:
    """Return the format that a file's name ends with; for text the compression's ending may follow it."""
    stem, _, last = path.rpartition(".")
    format_ = stem.rpartition(".")[2] if last in _COMPRESSED else last
    return format_ if format_ in FORMATS and (format_ == last or FORMATS[format_].text) else None


def _with_spark_type(column: pa.Field) -> pa.Field:
    """Return a column in the Spark type that its metadata names, if ORC has no such type."""
    note = (column.metadata or {}).get(_SPARK_TYPE, b"")
    if note == b"timestamp_ntz":
        return column.with_type(pa.timestamp("us"))
    if note == b"timestamp":
        return column.with_type(pa.timestamp("us", "UTC"))
    if note.startswith(_DURATIONS) and pt.is_int64(column.type):
        return column.with_type(pa.duration("us"))
    return column


class CommittedFiles(fs.FileSystemHandler):  # type: ignore[misc] # pyarrow has no types
    """A read-only file system that opens files of a table if their sizes are the committed ones.

    Only opening a file goes through Python; reading its bytes does not. Paths are ``bucket/key``.
    """

    def __init__(self, inner: fs.FileSystem, files: Mapping[str, TableFile], destination: str) -> None:
        self._inner = inner
        self._files = files
        self._destination = destination

    def open_input_file(self, path: str) -> pa.NativeFile:
        """Open a file; raises `NoSuchKey` if it is gone, `DestinationChanged` if its size differs."""
        committed = self._files[path]
        try:
            file = self._inner.open_input_file(path)
            size = file.size()
        except FileNotFoundError as error:
            raise NoSuchKey(
                f"s3://{path}, committed by {_committer(committed)}, is gone; {self._advice(committed)}"
            ) from error
        if size != committed.size:
            file.close()
            raise DestinationChanged(
                f"s3://{path} has {size} bytes; {_committer(committed)} committed {committed.size};"
                f" {self._advice(committed)}"
            )
        return file

    open_input_stream = open_input_file

    def _advice(self, committed: TableFile) -> str:
        return (
            "if a later commit has replaced it, open the dataset again, at the newest generation; otherwise"
            f" check the job's files with: s3commit verify {self._destination} {committed.job_id}".rstrip()
        )

    def get_type_name(self) -> str:
        """Return the type name of the inner file system."""
        return str(self._inner.type_name)

    def normalize_path(self, path: str) -> str:
        """Return a path as the inner file system spells it."""
        return str(self._inner.normalize_path(path))

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        """Return type, size and time of files, as the inner file system has them."""
        return list(self._inner.get_file_info(paths))

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError("a dataset read by the log cannot be listed or changed")

    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = delete_file = _refuse
    get_file_info_selector = move = copy_file = open_output_stream = open_append_stream = _refuse


def _committer(committed: TableFile) -> str:
    return f"job {committed.job_id}" if committed.job_id else "another program"


def s3_filesystem(config: S3Config, store: S3Store) -> S3FileSystem:
    """Return pyarrow's file system for a store that was connected with a config.

    Endpoint and region are those of the store's client. Without keys in the config, pyarrow takes credentials
    from the environment, from the profile in ``AWS_PROFILE``, or from the machine's role.

    Raises `ValueError` for a profile or ``verify=False``, which pyarrow does not support.
    """
    if config.profile and not config.access_key:
        raise ValueError(
            f"pyarrow cannot use the profile {config.profile} of an S3Config: set AWS_PROFILE, or pass a"
            " filesystem"
        )
    if config.verify is False:
        raise ValueError("pyarrow always checks the store's certificate: set verify to its authority's file")
    endpoint = urlsplit(store.endpoint)
    is_aws = is_aws_host(endpoint.netloc)
    arguments: dict[str, Any] = {"scheme": endpoint.scheme, "region": config.region or store.region}
    if not is_aws or config.path_style or config.endpoint_url:
        arguments["endpoint_override"] = endpoint.netloc + endpoint.path
        virtual = is_aws if config.path_style is None else not config.path_style
        arguments["force_virtual_addressing"] = virtual
    if config.access_key:
        arguments |= {
            "access_key": config.access_key,
            "secret_key": config.secret_key,
            "session_token": config.session_token,
        }
    if isinstance(config.verify, str):
        arguments["tls_ca_file_path"] = config.verify
    return S3FileSystem(**arguments)


#: Entry of a schema's metadata with the generation that was read.
GENERATION = b"s3commit.generation"


def dataset(
    store: ObjectStore | S3Config,
    destination: str | Destination,
    *,
    generation: int | None = None,
    since: int | None = None,
    job_id: str | None = None,
    schema: pa.Schema | None = None,
    partition_schema: pa.Schema | None = None,
    filesystem: FileSystem | None = None,
    format: str | ds.FileFormat | None = None,  # noqa: A002 - as pyarrow calls it
) -> ds.Dataset:
    """Return the whole table at one generation as a dataset.

    Each commit makes a generation of the table. The call fixes the generation: later commits do not change
    the dataset, whose schema metadata has it as ``s3commit.generation``. A scan opens no file whose partition
    its filter excludes, and reads only selected columns. The call only reads the store and may be repeated.

    Args:
        store: The store with the manifest, or an `S3Config` to connect with.
        destination: URI of the dataset's directory, or a `Destination`.
        generation: Read the table as it was after this commit, by default after the newest.
        since: Read only files that commits after this generation added, and that are still in the table; 0
            reads all. A consumer that passes the generation of its previous read gets each file once.
        job_id: Read only the files that this job's commit added.
        schema: The columns, without partition columns. By default those of all commits: a column has a type
            that holds its values in all of them, and is null where a file lacks it. For text they are those
            of the first file with rows, with types inferred from its first rows.
        partition_schema: Types of partition columns. By default a column has the type that every commit
            recorded, if that is text, bytes, an integer or a boolean; else the values decide.
        filesystem: The file system with the data, by paths ``bucket/key``; by default made from the config.
        format: ``parquet`` or ``orc``, for files whose names do not end with it; or pyarrow's own format,
            which CSV and JSON need: only their writer knows how they are to be read.

    Raises:
        NoSuchKey: No job, or not the one of ``job_id``, has committed to it; it has no such generation; or a
            list of files is gone. A scan raises it if a file is gone, for example replaced later.
        HistoryRewound: A rollback came after the generation ``since``.
        DestinationChanged: Raised by a scan: a file's size differs from the committed one.
        InvalidRecord: The log, a manifest or a list of files is damaged or names a key outside the
            destination; or the destination has no log, and another committer wrote ``_SUCCESS``.
        UnreadablePartitions: Directories differ in partition columns, or a value is not of its column's type.
        UnreadableFiles: The files have several formats, an unknown one, or a text format that is not given
            as pyarrow's; or the types of a column in different commits have no common type.
        ValueError: A generation is out of range, or is given beside a job; ``store`` is not an `S3Config`
            and ``filesystem`` is missing; or pyarrow does not support the config.
    """
    if isinstance(store, S3Config):
        connected = S3Store.connect(store)
        filesystem, store = filesystem or s3_filesystem(store, connected), connected
    if filesystem is None:
        raise ValueError("pass a filesystem, or an S3Config as store")
    table = find_table(store, Destination.of(destination), generation, since, job_id)
    reading = FileReading.of((file.path for file in table.examples), format)
    schemas = schemas_of(table, filesystem, reading) if schema is None else []
    columns = partition_columns(table, partition_schema, schemas)
    if schema is None:
        schema = table_schema(table, schemas)
    return dataset_of(table, filesystem, columns, schema, reading)


def schemas_of(table: Table, filesystem: FileSystem, reading: FileReading) -> list[tuple[str, WrittenSchema]]:
    """Return the different schemas of a table's files, each with a job that wrote it; none without a file.

    They are the recorded schemas, and those of the files to inspect. Text stores no schema: it is inferred
    from the first file with rows. Raises as opening a file does, and `InvalidRecord` for a damaged schema.
    """
    known = [] if reading.is_text else [schema for schema in table.schemas if schema.columns.arrow]
    recorded = [_recorded(table, schema.job_id, schema.text, reading) for schema in known]
    files, others = table.to_inspect, table.others
    if reading.is_text:
        # pyarrow cannot parse a file without rows.
        files, others = [*islice((file for file in table.examples if file.rows != 0), 1)], ()
    guarded = _guarded_files(table, filesystem, {file.path: file for file in (*files, *others)})

    def inspect(file: TableFile) -> tuple[str, WrittenSchema]:
        columns = reading.as_read(reading.arrow.inspect(file.path, guarded))
        return file.job_id, WrittenSchema(columns, pa.schema([]))

    found = [*in_threads(inspect, files, len(files) if len(files) > 1 else 0), *recorded]
    names = {name for _, schema in found for name in schema.files.names}
    told = (one.columns for one in table.schemas)
    if any({one.name for one in each.spark.fields} - names - {*each.partitions} for each in told):
        found += in_threads(inspect, others, 32 if others else 0)
    return found


def _recorded(table: Table, job_id: str, text: str, reading: FileReading) -> tuple[str, WrittenSchema]:
    known = from_text(text, f"the manifest of job {job_id} on {table.destination}")
    return job_id, replace(known, files=reading.as_read(known.files))


def table_schema(
    table: Table, schemas: Sequence[tuple[str, WrittenSchema]], fold: Callable[[str], str] = str
) -> pa.Schema:
    """Return all columns of a table's files, merged as in `merge`, each in a type that holds all values.

    Raises `UnreadableFiles` if there is no such type for a column.
    """
    if not schemas:
        return pa.schema([])
    try:
        return merge([schema.files for _, schema in schemas], fold)
    except DifferentTypes as error:
        one, other = (schemas[number][0] or "another program" for number in error.numbers)
        raise UnreadableFiles(
            f"column {error.column!r} of {table.destination} is {error.kinds[0]} in files of {one}, and"
            f" {error.kinds[1]} in files of {other}: give the columns in schema, or have one of them replaced"
        ) from error


def partition_columns(
    table: Table, given: pa.Schema | None, schemas: Sequence[tuple[str, WrittenSchema]]
) -> PartitionColumns:
    """Return a table's partition columns, in recorded types that all readers treat alike, or inferred ones.

    A table without any file has them in its schemas.
    """
    names = {name for schema in table.schemas for name in schema.columns.partitions}
    kinds = {name: _TAKEN.get(str(kind)) for name, kind in table.recorded.items() if name in names}
    known = {name: pa.field(name, kind) for name, kind in kinds.items() if kind is not None}
    if not table.directories:
        known |= {column.name: column for _, schema in schemas for column in schema.partitions}
    given = pa.schema([*(known | {column.name: column for column in given or ()}).values()])
    return PartitionColumns(table.directories, given)


def dataset_of(
    table: Table, filesystem: FileSystem, columns: PartitionColumns, schema: pa.Schema, reading: FileReading
) -> ds.Dataset:
    """Return a table's files as a dataset with the columns of ``schema``, then the partition columns."""
    kept = pa.schema([field for field in schema if field.name not in columns.schema.names])
    metadata = {**(schema.metadata or {}), GENERATION: str(table.generation)}
    whole = pa.schema([*kept, *columns.schema], metadata=metadata)
    arrow, guarded = reading.arrow, _guarded_files(table, filesystem, table.files)

    def fragments() -> Iterator[ds.Fragment]:
        for file in table.files.values():
            if reading.is_text and file.rows == 0:
                continue
            yield arrow.make_fragment(file.path, guarded, columns.expressions[file.directory])

    return ds.FileSystemDataset(fragments(), whole, arrow, guarded)


def _guarded_files(table: Table, filesystem: FileSystem, files: Mapping[str, TableFile]) -> PyFileSystem:
    return PyFileSystem(CommittedFiles(filesystem, files, table.destination))

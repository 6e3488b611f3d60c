"""Opens the files of a table, or of one job, as a ``pyarrow.dataset.Dataset``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow.fs import PyFileSystem

from airflow_s3commit.protocol.metadata.manifests import FileSummary
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.manifest import FileEntry
from airflow_s3commit.reader.files import CommittedFiles, s3_filesystem
from airflow_s3commit.reader.formats import FileReading, parse_file_options, reading_of
from airflow_s3commit.reader.listing import Choice, Table, find_table
from airflow_s3commit.reader.partitions import PartitionColumns
from airflow_s3commit.reader.parts import FilePart, row_groups_of
from airflow_s3commit.reader.statistics import bounds_expression
from airflow_s3commit.store.s3.config import S3Config
from airflow_s3commit.store.s3.store import S3Store

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from pyarrow.fs import FileSystem

    from airflow_s3commit.reader.listing import TableFile
    from airflow_s3commit.store.base import ObjectStore

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
    prune_by: Collection[str] = (),
    filesystem: FileSystem | None = None,
    format: str | None = None,  # noqa: A002 - as pyarrow and Spark call it
    options: Mapping[str, str] | None = None,
) -> ds.Dataset:
    """Return the whole table at one generation as a dataset.

    Each commit to the destination makes a generation of the table: what the commit replaces goes, its files
    come. The call fixes the generation, the newest by default: later commits do not change the dataset. Its
    schema's metadata names the generation, as ``s3commit.generation``. A scan does not open files whose
    partition its filter excludes, and reads only the columns that it selects. The call changes nothing in
    the store and may be repeated.

    Args:
        store: The store with the manifest, or an `S3Config` to connect with.
        destination: URI of the dataset's directory, or a `Destination`.
        generation: Read the table as it was after this commit. Its files can be read until a later commit
            replaces them.
        since: Read only files that commits after this generation added, and that are still in the table; 0
            reads all. A consumer that passes the generation of its previous read gets each file once.
        job_id: Read the files that one job committed, whether or not a later commit has replaced them. Not
            together with ``generation`` or ``since``.
        schema: The columns, without partition columns, if the files' columns differ. By default those of the
            first file; for text their types are inferred from its first rows. A column that a file lacks is
            null. For CSV without a header the schema names all columns, in order.
        partition_schema: Types of partition columns; the types of others are inferred from their values.
        prune_by: Columns whose bounds in the manifest let a filter exclude a file without opening it. It
            pays for columns by which the rows are sorted.
        filesystem: The file system with the data, by paths ``bucket/key``; by default made from the config.
        format: ``parquet``, ``orc``, ``csv`` or ``json``, for files whose names do not end with it.
        options: Options of reading CSV and JSON, by Spark's names:
            `airflow_s3commit.reader.formats.FILE_OPTIONS`.

    Raises:
        NoSuchKey: No job, or not this one, has committed to the destination; it has no such generation; or a
            list of files is gone. A scan raises it if a file is gone: a later commit has replaced it.
        DestinationChanged: Raised by a scan: a file's size differs from the committed one.
        InvalidRecord: The log, a manifest or a list of files is damaged or names a key outside the
            destination; or the destination has no log, and another committer wrote ``_SUCCESS``.
        UnreadablePartitions: The directories have different partition columns, or a value is not of its
            column's type.
        UnreadableFiles: The files have several formats, an unknown one, or one that pyarrow cannot read
            with these options.
        InvalidOption: An option is unknown, malformed, or does not apply to the format.
        ValueError: ``job_id`` is given together with ``generation`` or ``since``, or one of these is out of
            range; ``store`` is not an `S3Config` and ``filesystem`` is missing; pyarrow does not support the
            config; or a name in ``prune_by`` is not a column.

    """
    if filesystem is None:
        if not isinstance(store, S3Config):
            raise ValueError("pass a filesystem, or an S3Config as store")
        filesystem = s3_filesystem(store)
    file_options = parse_file_options({**(options or {}), **({} if format is None else {"format": format})})
    source = S3Store.connect(store) if isinstance(store, S3Config) else store
    place = Destination.of(destination)
    choice = Choice(generation, since, job_id)
    table = find_table(source, place, choice, FileEntry if prune_by else FileSummary)
    columns = PartitionColumns(table.directories, partition_schema)
    reading = reading_of((file.path for file in table.examples), file_options)
    if schema is None:
        schema = first_schema(table, filesystem, reading)
    return dataset_of(table, filesystem, columns, schema, reading=reading, prune_by=prune_by)


def first_schema(
    table: Table, filesystem: FileSystem, reading: FileReading, *, infer: bool = True
) -> pa.Schema:
    """Return the columns of the first file, with the footer's metadata; no columns without a file.

    Of text files it takes the first one that has rows.

    Args:
        table: The files.
        filesystem: The file system with the files.
        reading: How to read them.
        infer: Whether to infer types of CSV columns if the option ``inferSchema`` is not set; columns are
            text otherwise.

    Raises:
        NoSuchKey: The file is gone.
        DestinationChanged: The file's size differs from the committed one.

    """
    files = table.examples
    if reading.is_text:
        # A text file without rows has nothing to parse but a header.
        files = [file for file in files if file.rows != 0] or (files if reading.options.header else [])
    if not files:
        return pa.schema([])
    return reading.inspect(files[0].path, guarded_files(table, filesystem, files[:1]), infer=infer)


def dataset_of(
    table: Table,
    filesystem: FileSystem,
    columns: PartitionColumns,
    schema: pa.Schema,
    *,
    reading: FileReading,
    prune_by: Collection[str] = (),
) -> ds.Dataset:
    """Return a table's files as a dataset with the columns of ``schema``, then the partition columns.

    Args:
        table: The files.
        filesystem: The file system with the files.
        columns: The partition columns.
        schema: The files' columns; partition columns among them are ignored.
        reading: How to read the files.
        prune_by: Columns whose bounds in the manifest let a filter exclude a file without opening it.

    Raises:
        UnreadableFiles: A column has a type that pyarrow cannot read from text.
        ValueError: A name in ``prune_by`` is not a column.

    """
    kept = pa.schema([field for field in schema if field.name not in columns.schema.names])
    generation = {GENERATION: str(table.generation)} if table.generation is not None else {}
    whole = pa.schema([*kept, *columns.schema], metadata={**(schema.metadata or {}), **generation} or None)
    if missing := set(prune_by) - set(whole.names):
        raise ValueError(f"prune_by names {', '.join(sorted(missing))}; the dataset has no such column")
    reading.check(kept)
    arrow, guarded = (
        reading.arrow(kept.names),
        guarded_files(table, filesystem, table.files, stays=reading.stays),
    )

    def fragments() -> Iterator[ds.Fragment]:
        for file in table.files:
            if reading.is_text and file.rows == 0:
                continue
            guarantee = columns.expression(file.directory)
            bounds = bounds_expression(file.statistics or {}, whole, prune_by) if prune_by else None
            if bounds is not None:
                guarantee = bounds if guarantee is None else guarantee & bounds
            fragment = arrow.make_fragment(file.path, guarded, guarantee)
            if isinstance(file, FilePart):
                groups = row_groups_of(fragment, file)
                if groups:
                    yield fragment.subset(row_group_ids=groups)
                continue
            yield fragment

    return ds.FileSystemDataset(fragments(), whole, arrow, guarded)


def guarded_files(
    table: Table, filesystem: FileSystem, files: Iterable[TableFile], *, stays: str | None = None
) -> PyFileSystem:
    """Return a file system that opens files of the table if their sizes are the committed ones."""
    known = {file.path: file for file in files}
    return PyFileSystem(CommittedFiles(filesystem, known, table.destination, stays=stays))

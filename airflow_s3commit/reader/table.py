"""Opens a manifest's files as a ``pyarrow.dataset.Dataset``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow.fs import PyFileSystem

from airflow_s3commit.protocol.metadata.manifests import manifest_files, manifest_of
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.layout import partition_of
from airflow_s3commit.reader.files import CommittedFiles, s3_filesystem
from airflow_s3commit.reader.formats import FileReading, parse_file_options, reading_of
from airflow_s3commit.reader.partitions import PartitionColumns
from airflow_s3commit.reader.statistics import bounds_expression
from airflow_s3commit.store.s3.config import S3Config
from airflow_s3commit.store.s3.store import S3Store

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pyarrow.fs import FileSystem

    from airflow_s3commit.protocol.model.manifest import ManifestRecord
    from airflow_s3commit.protocol.model.statistics import ColumnStatistics
    from airflow_s3commit.store.base import ObjectStore


def dataset(
    store: ObjectStore | S3Config,
    destination: str | Destination,
    *,
    job_id: str | None = None,
    schema: pa.Schema | None = None,
    partition_schema: pa.Schema | None = None,
    prune_by: Collection[str] = (),
    filesystem: FileSystem | None = None,
    format: str | None = None,  # noqa: A002 - as pyarrow and Spark call it
    options: Mapping[str, str] | None = None,
) -> ds.Dataset:
    """Return the files that one job committed, and no others, as a dataset.

    The call fixes the list of files: later commits do not change the dataset. A scan does not open files
    whose partition its filter excludes, and reads only the columns that it selects. The call changes
    nothing in the store and may be repeated.

    Args:
        store: The store with the manifest, or an `S3Config` to connect with.
        destination: URI of the dataset's directory, or a `Destination`.
        job_id: The job; by default the last one that committed.
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
        NoSuchKey: No job, or not this one, has committed to the destination; or its list of files is gone.
            A scan raises it if a committed file is gone.
        DestinationChanged: Raised by a scan: a file's size differs from the committed one.
        InvalidRecord: A manifest is damaged or lists a key outside the destination, or another committer
            wrote ``_SUCCESS``.
        UnreadablePartitions: The directories have different partition columns, or a value is not of its
            column's type.
        UnreadableFiles: The files have several formats, an unknown one, or one that pyarrow cannot read
            with these options.
        InvalidOption: An option is unknown, malformed, or does not apply to the format.
        ValueError: ``store`` is not an `S3Config` and ``filesystem`` is missing; pyarrow does not support
            the config; or a name in ``prune_by`` is not a column.

    """
    if filesystem is None:
        if not isinstance(store, S3Config):
            raise ValueError("pass a filesystem, or an S3Config as store")
        filesystem = s3_filesystem(store)
    file_options = parse_file_options({**(options or {}), **({} if format is None else {"format": format})})
    source = S3Store.connect(store) if isinstance(store, S3Config) else store
    place = Destination.of(destination)
    table = list_table(source, manifest_of(source, place, job_id))
    columns = PartitionColumns((file.directory for file in table.files), partition_schema)
    reading = reading_of((file.path for file in table.files), file_options)
    if schema is None:
        schema = first_schema(table, filesystem, reading)
    return dataset_of(table, filesystem, columns, schema, reading=reading, prune_by=prune_by)


@dataclass(frozen=True, slots=True)
class TableFile:
    """One file of a manifest.

    Attributes:
        path: ``bucket/key``.
        size: Committed size in bytes.
        directory: Directory below the destination.
        rows: Number of rows; None if the writer did not count them.
        statistics: Column statistics, by column; None if the writer has none.

    """

    path: str
    size: int
    directory: str
    rows: int | None = None
    statistics: Mapping[str, ColumnStatistics] | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """Committed files of one job, all or some of them.

    Attributes:
        job_id: The job.
        destination: URI of the job's destination.
        files: The files, in the manifest's order.

    """

    job_id: str
    destination: str
    files: Sequence[TableFile]

    def guarded(self, filesystem: FileSystem, *, stays: str | None = None) -> PyFileSystem:
        """Return a file system that opens these files if their sizes are the committed ones.

        Args:
            filesystem: The file system with the files.
            stays: Why a dataset of the files cannot be pickled; None if it can.

        """
        sizes = {file.path: file.size for file in self.files}
        return PyFileSystem(CommittedFiles(filesystem, sizes, self.job_id, self.destination, stays=stays))


def list_table(store: ObjectStore, manifest: ManifestRecord) -> Table:
    """Return the files of a manifest.

    Raises:
        NoSuchKey: The manifest's list of files is gone.
        InvalidRecord: The list was changed, or has a key outside the destination.

    """
    place = Destination.parse(manifest.destination)
    files = [
        TableFile(
            f"{place.bucket}/{entry.key}",
            entry.size,
            partition_of(place.check_data_key(place.bucket, entry.key)),
            entry.rows,
            entry.statistics,
        )
        for entry in manifest_files(store, manifest)
    ]
    return Table(manifest.job_id, place.uri, files)


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
    files = list(table.files)
    if reading.is_text:
        # A text file without rows has nothing to parse but a header.
        files = [file for file in files if file.rows != 0] or (files if reading.options.header else [])
    if not files:
        return pa.schema([])
    return reading.inspect(files[0].path, table.guarded(filesystem), infer=infer)


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
    whole = pa.schema([*kept, *columns.schema], metadata=schema.metadata)
    if missing := set(prune_by) - set(whole.names):
        raise ValueError(f"prune_by names {', '.join(sorted(missing))}; the dataset has no such column")
    reading.check(kept)
    arrow, guarded = reading.arrow(kept.names), table.guarded(filesystem, stays=reading.stays)
    fragments = []
    for file in table.files:
        if reading.is_text and file.rows == 0:
            continue
        guarantee = columns.expression(file.directory)
        bounds = bounds_expression(file.statistics or {}, whole, prune_by)
        if bounds is not None:
            guarantee = bounds if guarantee is None else guarantee & bounds
        fragments.append(arrow.make_fragment(file.path, guarded, guarantee))
    return ds.FileSystemDataset(fragments, whole, arrow, guarded)

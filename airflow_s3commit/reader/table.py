"""A manifest as a ``pyarrow.dataset.Dataset``."""

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

    The files are chosen when this is called: nothing that is committed later is in it. Files whose partition
    a filter excludes are not opened, and of the others only the columns that are asked for are read.

    Args:
        store: Where the manifest is: how to reach the store, or a store.
        destination: URI of the dataset's directory, or a `Destination`.
        job_id: The job; by default the last one that committed.
        schema: The columns, without partition columns, where the files differ in theirs; by default those of
            the first file, inferred from its first rows where it is text. What a file lacks is null. For CSV
            without a header it names all columns, in their order.
        partition_schema: Types of partition columns that are not to be inferred from their values.
        prune_by: Columns whose bounds in the manifest may exclude a file without opening it, where a filter
            asks for other values. Worth naming are columns by which the rows are sorted.
        filesystem: Where the data is, with paths ``bucket/key``; by default made from the config.
        format: ``parquet``, ``orc``, ``csv`` or ``json``, where the files' names do not say it.
        options: How CSV and JSON are read, by Spark's names:
            `airflow_s3commit.reader.formats.FILE_OPTIONS`.

    Raises:
        NoSuchKey: No job, or not this one, has committed to the destination; or its list of files is gone.
            Raised when reading: a file that was committed is gone.
        DestinationChanged: When reading: a file has not the size that was committed.
        InvalidRecord: A manifest is damaged or names what lies outside the destination, or ``_SUCCESS`` is
            another committer's.
        UnreadablePartitions: The directories do not make one set of columns, or do not fit their types.
        UnreadableFiles: The files have several formats, none that their names or ``format`` say, or one that
            pyarrow cannot read as asked.
        InvalidOption: An option is unknown, malformed, or none of the format's.
        ValueError: ``filesystem`` is missing, and ``store`` is no config from which it could be made; or
            ``prune_by`` names no column.

    """
    if filesystem is None:
        if not isinstance(store, S3Config):
            raise ValueError("give a filesystem, or an S3Config in place of the store")
        filesystem = s3_filesystem(store)
    read = parse_file_options({**(options or {}), **({} if format is None else {"format": format})})
    source = S3Store.connect(store) if isinstance(store, S3Config) else store
    place = Destination.of(destination)
    table = list_table(source, manifest_of(source, place, job_id))
    columns = PartitionColumns((file.directory for file in table.files), partition_schema)
    reading = reading_of((file.path for file in table.files), read)
    if schema is None:
        schema = first_schema(table, filesystem, reading)
    return dataset_of(table, filesystem, columns, schema, reading=reading, prune_by=prune_by)


@dataclass(frozen=True, slots=True)
class TableFile:
    """One file of a manifest.

    Attributes:
        path: ``bucket/key``.
        size: Its bytes.
        directory: Its directory below the destination.
        rows: Its rows, where its writer counted them.
        statistics: What its writer knew of its columns.

    """

    path: str
    size: int
    directory: str
    rows: int | None = None
    statistics: Mapping[str, ColumnStatistics] | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """Files of one job, all or some of them.

    Attributes:
        job_id: The job.
        destination: URI of its destination.
        files: The files.

    """

    job_id: str
    destination: str
    files: Sequence[TableFile]

    def guarded(self, filesystem: FileSystem, *, stays: str | None = None) -> PyFileSystem:
        """Return a file system that opens these files as long as they are as they were committed.

        Args:
            filesystem: Where they are.
            stays: Why a dataset of them cannot be pickled; None if it can.

        """
        sizes = {file.path: file.size for file in self.files}
        return PyFileSystem(CommittedFiles(filesystem, sizes, self.job_id, self.destination, stays=stays))


def list_table(store: ObjectStore, manifest: ManifestRecord) -> Table:
    """Return the files of a manifest.

    Raises:
        NoSuchKey: The list of files is gone.
        InvalidRecord: It was changed, or names what lies outside the destination.

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
    """Return the columns of the first file, with the footer's metadata; none where there is no file.

    Args:
        table: The files.
        filesystem: Where they are.
        reading: How they are read; of text the first file that has rows is meant.
        infer: Whether types of CSV columns are inferred, if the options do not say it; else they are text.

    Raises:
        NoSuchKey: The file is gone.
        DestinationChanged: Its size is not the committed one.

    """
    files = list(table.files)
    if reading.is_text:
        # Without rows there may be nothing to parse at all, but for a header.
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
    """Return a table's files as a dataset: the columns of ``schema``, then the partition columns.

    Raises:
        UnreadableFiles: A column has a type that pyarrow cannot read from text.
        ValueError: ``prune_by`` names no column.

    """
    kept = pa.schema([field for field in schema if field.name not in columns.schema.names])
    whole = pa.schema([*kept, *columns.schema], metadata=schema.metadata)
    if missing := set(prune_by) - set(whole.names):
        raise ValueError(f"prune_by names {', '.join(sorted(missing))}, which is no column")
    reading.check(kept)
    arrow, guarded = reading.arrow(kept.names), table.guarded(filesystem, stays=reading.stays)
    fragments = []
    for file in table.files:
        if reading.is_text and file.rows == 0:
            continue
        promise = columns.expression(file.directory)
        bounds = bounds_expression(file.statistics or {}, whole, prune_by)
        if bounds is not None:
            promise = bounds if promise is None else promise & bounds
        fragments.append(arrow.make_fragment(file.path, guarded, promise))
    return ds.FileSystemDataset(fragments, whole, arrow, guarded)

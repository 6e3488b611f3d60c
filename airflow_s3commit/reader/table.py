"""A manifest as a ``pyarrow.dataset.Dataset``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow.fs import PyFileSystem

from airflow_s3commit.protocol.destination import Destination
from airflow_s3commit.protocol.layout import partition_of
from airflow_s3commit.protocol.manifest import manifest_files
from airflow_s3commit.reader.bounds import bounds_expression
from airflow_s3commit.reader.committed_files import CommittedFiles
from airflow_s3commit.reader.filesystem import s3_filesystem
from airflow_s3commit.reader.generation import find_generation
from airflow_s3commit.reader.partition_columns import PartitionColumns
from airflow_s3commit.store.connection import S3Config
from airflow_s3commit.store.s3 import S3Store

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pyarrow.fs import FileSystem

    from airflow_s3commit.protocol.records import ManifestRecord
    from airflow_s3commit.protocol.statistics import ColumnStatistics
    from airflow_s3commit.store.base import ObjectStore

__all__ = ["Table", "TableFile", "dataset", "dataset_of", "first_schema", "list_table"]


def dataset(
    store: ObjectStore | S3Config,
    destination: str,
    *,
    job_id: str | None = None,
    schema: pa.Schema | None = None,
    partition_schema: pa.Schema | None = None,
    prune_by: Collection[str] = (),
    filesystem: FileSystem | None = None,
) -> ds.Dataset:
    """Return the Parquet files that one job committed, and no others, as a dataset.

    The files are chosen when this is called: nothing that is committed later is in it. Files whose partition
    a filter excludes are not opened, and of the others only the columns that are asked for are read.

    Args:
        store: Where the manifest is: how to reach the store, or a store.
        destination: URI of the dataset's directory.
        job_id: The job; by default the last one that committed.
        schema: The columns, without partition columns, where the files differ in theirs; by default those of
            the first file. What a file lacks is null.
        partition_schema: Types of partition columns that are not to be inferred from their values.
        prune_by: Columns whose bounds in the manifest may exclude a file without opening it, where a filter
            asks for other values. Worth naming are columns by which the rows are sorted.
        filesystem: Where the data is, with paths ``bucket/key``; by default made from the config.

    Raises:
        NoSuchKey: No job, or not this one, has committed to the destination; or its list of files is gone.
            Raised when reading: a file that was committed is gone.
        DestinationChanged: When reading: a file has not the size that was committed.
        InvalidRecord: A manifest is damaged or names what lies outside the destination, or ``_SUCCESS`` is
            another committer's.
        UnreadablePartitions: The directories do not make one set of columns, or do not fit their types.
        ValueError: ``filesystem`` is missing, and ``store`` is no config from which it could be made; or
            ``prune_by`` names no column.

    """
    if filesystem is None:
        if not isinstance(store, S3Config):
            raise ValueError("give a filesystem, or an S3Config in place of the store")
        filesystem = s3_filesystem(store)
    source = S3Store.connect(store) if isinstance(store, S3Config) else store
    place = Destination.parse(destination)
    table = list_table(source, find_generation(source, place, job_id))
    columns = PartitionColumns((file.directory for file in table.files), partition_schema)
    if schema is None:
        schema = first_schema(table, filesystem)
    return dataset_of(table, filesystem, columns, schema, prune_by)


@dataclass(frozen=True, slots=True)
class TableFile:
    """One file of a manifest.

    Attributes:
        path: ``bucket/key``.
        size: Its bytes.
        directory: Its directory below the destination.
        statistics: What its writer knew of its columns.

    """

    path: str
    size: int
    directory: str
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

    def guarded(self, filesystem: FileSystem) -> PyFileSystem:
        """Return a file system that opens these files as long as they are as they were committed."""
        sizes = {file.path: file.size for file in self.files}
        return PyFileSystem(CommittedFiles(filesystem, sizes, self.job_id, self.destination))


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
            entry.statistics,
        )
        for entry in manifest_files(store, manifest)
    ]
    return Table(manifest.job_id, place.uri, files)


def first_schema(table: Table, filesystem: FileSystem) -> pa.Schema:
    """Return the columns of the first file, with the footer's metadata; none where there is no file.

    Raises:
        NoSuchKey: The file is gone.
        DestinationChanged: Its size is not the committed one.

    """
    if not table.files:
        return pa.schema([])
    return ds.ParquetFileFormat().inspect(table.files[0].path, table.guarded(filesystem))


def dataset_of(
    table: Table,
    filesystem: FileSystem,
    columns: PartitionColumns,
    schema: pa.Schema,
    prune_by: Collection[str] = (),
) -> ds.Dataset:
    """Return a table's files as a dataset: the columns of ``schema``, then the partition columns.

    Raises:
        ValueError: ``prune_by`` names no column.

    """
    kept = [field for field in schema if field.name not in columns.schema.names]
    whole = pa.schema([*kept, *columns.schema], metadata=schema.metadata)
    if missing := set(prune_by) - set(whole.names):
        raise ValueError(f"prune_by names {', '.join(sorted(missing))}, which is no column")
    parquet, guarded = ds.ParquetFileFormat(), table.guarded(filesystem)
    fragments = []
    for file in table.files:
        promise = columns.expression(file.directory)
        bounds = bounds_expression(file.statistics or {}, whole, prune_by)
        if bounds is not None:
            promise = bounds if promise is None else promise & bounds
        fragments.append(parquet.make_fragment(file.path, guarded, promise))
    return ds.FileSystemDataset(fragments, whole, parquet, guarded)

"""Compaction: rewrites the files of a table's partitions as fewer, larger ones, in one commit.

No row changes. Streams and hourly appends leave many small files, each of which costs every reader a request
or two. Rows are read with pyarrow on this machine, file by file in bounded memory.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from itertools import chain
from tempfile import SpooledTemporaryFile
from typing import IO, TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct
from msgspec.structs import replace

from airflow_s3commit._format import Column, number, size
from airflow_s3commit.exceptions import (
    DestinationChanged,
    DestinationNotEmpty,
    InvalidOption,
    NoSuchKey,
    PreconditionFailed,
)
from airflow_s3commit.protocol.metadata.context import JobContext, new_uuid
from airflow_s3commit.protocol.model.codec import Plain
from airflow_s3commit.protocol.model.delta import COMPACTION, SAME_ROWS
from airflow_s3commit.protocol.model.destination import Destination, join_uri, partition_form
from airflow_s3commit.protocol.model.job import JobOptions
from airflow_s3commit.protocol.model.layout import OLDER_DATA, Layout, owner_of, partition_of
from airflow_s3commit.protocol.steps.files import files_in, unowned_objects
from airflow_s3commit.protocol.steps.fold import read_table
from airflow_s3commit.protocol.table_rollback import is_intact
from airflow_s3commit.protocol.write_job import write_job
from airflow_s3commit.store.execute import in_batches, in_threads
from airflow_s3commit.tables.columns import UnsupportedColumn, decoded, from_text, in_types, merge, to_text
from airflow_s3commit.tables.options import parse_table_options
from airflow_s3commit.tables.write import TablePlan, write_batches

if TYPE_CHECKING:
    from airflow_s3commit.protocol.model.manifest import FileEntry
    from airflow_s3commit.protocol.model.table import Pieces, Table
    from airflow_s3commit.protocol.write_job import JobWriter
    from airflow_s3commit.store.base import ObjectStore

logger = logging.getLogger(__name__)

#: Bytes of a file after which the next one begins, unless the caller says otherwise.
TARGET_BYTES = 128 * 1024 * 1024

#: Partitions whose lists of files are in memory at once.
_PARTITIONS = 100

#: Rows that are read and cast at a time, at most: a dictionary may give each of them a long text.
_ROWS = 4_096

#: Files that are read at once; as many more are read ahead.
_AHEAD = 8

#: Bytes that are read at a time; a file larger than this is kept on disk while it is read.
_PIECE = 4 * 1024 * 1024


#: The prefix of Spark's entries in a footer; other entries, and types of columns, that pyarrow does not keep.
_SPARK = b"org.apache.spark."
_ENTRIES = {_SPARK + b"legacyDateTime", _SPARK + b"legacyINT96", b"geo"}
_TYPES = re.compile(
    r"INT96(?=/)|(?<=/)(?:Interval|Time\(isAdjustedToUTC=true|Geo\w+)|(?<=\()Variant(?=\()"
    r"|duration(?=\[)|list_view(?=<)|extension<(?!arrow\.(?:uuid|json)>)[\w.]+"
)


class Compacted(Plain, Struct, frozen=True, kw_only=True):
    """A partition that a compaction rewrites, or has rewritten.

    Attributes:
        partition: Its directory below the destination; empty for a table without partitions.
        after: How many files are expected after the compaction.
    """

    columns = (
        Column("partition", "partition", lambda name: name or ".", folds=True),
        Column("files", "files", number),
        Column("size", "bytes", size),
        Column("files after", "after", number),
    )

    partition: str
    files: int
    bytes: int
    after: int


class Compaction(Plain, Struct, frozen=True, kw_only=True):
    """What a compaction does, or has done.

    Attributes:
        destination: URI of the table.
        seen: The generation whose files are read; the commit is refused if a partition changed since.
        partitions: The partitions that are rewritten.
        left: How many of the requested partitions have too few small files to gain anything.
        generation: The generation that the compaction made; None for a dry run, or if nothing was rewritten.
        files: How many files the compaction wrote.
        rows: How many rows these files have, as many as the old ones.
    """

    destination: str
    seen: int
    partitions: list[Compacted]
    left: int
    generation: int | None = None
    files: int = 0
    rows: int = 0


def compact(
    store: ObjectStore,
    destination: str | Destination,
    *,
    partitions: Collection[str] | None = None,
    target_bytes: int = TARGET_BYTES,
    options: Mapping[str, str] | None = None,
    job_options: JobOptions | None = None,
    context: Mapping[str, str] | None = None,
    dry_run: bool = False,
) -> Compaction:
    """Rewrite partitions with many small files, in one ``replace`` commit that changes no row.

    A partition is compacted if that at least halves its files. The rows of each file stay together, in order.
    Readers see the old files until the commit, and the new ones after it. The old files are then deleted, or
    retained for the time in the job's option ``retain``. Repeatable: a compact table is left alone.

    Args:
        store: The store of the table.
        destination: URI of the table's directory, or a `Destination`.
        partitions: Directories below it, such as ``dt=2013-01-01``; None for every partition.
        target_bytes: Size in bytes at which a file ends, and the next one begins.
        options: Options of the files, by Spark's names, such as ``compression``.
        job_options: Further options of the job; its conflict mode is ``replace`` by partition in any case.
        context: Facts to keep with the job.
        dry_run: Check, and report what would be compacted.

    Raises:
        InvalidOption: A partition is not in the table, or pyarrow cannot rewrite its files without changing
            them: they are not Parquet, their columns are not recorded, or no job wrote all columns.
        DestinationNotEmpty: Another job has uploads in a partition, or another program put objects there.
        DestinationChanged: Another job or program changed a partition or file meanwhile. Nothing was changed.
        S3CommitError: As `write_job` raises it.
    """
    home = Destination.of(destination)
    table = read_table(store, home)
    plan = _plan(table, home, partitions, target_bytes)
    chosen = [one.partition for one in plan.partitions]
    if not chosen:
        return plan
    pieces = table.left_by("partitions", chosen)
    columns = _columns(table, home, pieces)
    _refuse_company(store, home, table, chosen)
    if dry_run:
        return plan
    asked = {**(options or {}), "targetFileBytes": str(target_bytes)}
    # Never the whole destination: only the chosen partitions are rewritten.
    own = replace(job_options or JobOptions(), conflict_mode="replace", committer="partitioned")
    facts, seen = {**(context or {}), **SAME_ROWS}, plan.seen
    try:
        with write_job(
            home, store=store, job_options=own, context=facts, name=COMPACTION, generation=seen
        ) as writer:
            for names in in_batches(chosen, _PARTITIONS):
                found = files_in(store, home, table.sources, {name: pieces[name] for name in names})
                _rewrite(writer, store, columns, found, asked)
    except DestinationChanged as error:
        # The commit's message is for jobs that can be aborted.
        error.add_note("the job of this compaction is aborted, and no row was changed: compact again")
        raise
    assert writer.manifest is not None
    made = writer.manifest.counts
    return replace(plan, generation=writer.manifest.generation, files=made.files, rows=made.rows or 0)


def _plan(table: Table, home: Destination, partitions: Collection[str] | None, target: int) -> Compaction:
    """Return the partitions that gain from a compaction, and how many do not."""
    if target < 1:
        raise InvalidOption(f"target_bytes is {target}; give a number of bytes above 0")
    by_form = {partition_form(name): name for name in partitions or ()}
    # Directories whose names differ only in their escapes are one partition.
    wanted = [name for name in sorted(table.live) if partitions is None or partition_form(name) in by_form]
    if unknown := sorted(by_form.keys() - {partition_form(name) for name in wanted}):
        raise InvalidOption(f"{home.uri} has no files in the partition {by_form[unknown[0]]!r}")
    found = []
    for name in wanted:
        counts = table.counts_of({name: table.live[name]})
        after = max(1, -(-counts.bytes // target))
        if counts.files >= 2 * after and counts.rows != 0:
            found.append(Compacted(partition=name, files=counts.files, bytes=counts.bytes, after=after))
    left = len(wanted) - len(found)
    return Compaction(destination=home.uri, seen=table.head.number, partitions=found, left=left)


def _columns(table: Table, home: Destination, pieces: Pieces) -> tuple[pa.Schema, str | None]:
    """Return the columns of all files of some pieces, and as text what new files with all of them have."""
    owners: dict[str, str] = {}
    for one in sorted(set(chain.from_iterable(pieces.values()))):
        source = table.sources[one]
        owner = f"job {source.job_id or OLDER_DATA}"
        if not source.schemas:
            raise _not_by_pyarrow(home, f"{owner} recorded no columns of its files")
        owners |= dict.fromkeys(source.schemas, owner)
    try:
        known = {text: from_text(text, owner).files for text, owner in owners.items()}
        whole = merge(list(known.values()))
    except ValueError as error:
        raise _not_by_pyarrow(home, str(error)) from error
    texts = [text for text, files in known.items() if files.equals(whole)]
    if not texts:
        raise _not_by_pyarrow(home, "no job has written all columns of these partitions")
    # One that knows the types of the partition columns, if there is one: a file that was put has none.
    text = min(texts, key=lambda text: '"void"' in text)
    partitions = from_text(text, owners[text]).partitions
    return whole, to_text("parquet", decoded(whole), partitions, typed='"void"' not in text)


def _not_by_pyarrow(home: Destination, why: str) -> InvalidOption:
    return InvalidOption(
        f"{home.uri} cannot be compacted by pyarrow: {why}. Have Spark read the partitions with read_table,"
        " and write them with conflict mode replace"
    )


def _refuse_company(store: ObjectStore, home: Destination, table: Table, chosen: Collection[str]) -> None:
    """Raise `DestinationNotEmpty` if another job has uploads, or another program objects, in partitions."""
    for upload in store.list_uploads(home.bucket, home.prefix):
        partition = partition_of(home.relative(upload.key) or "")
        if partition in chosen:
            owner = owner_of(upload.key)
            who = f"job {owner}" if owner else "another program"
            raise DestinationNotEmpty(
                f"{home.uri}: {who} has an upload pending in {partition!r}: compact it after that"
            )
    context = JobContext(store, Layout.of(home, new_uuid()))
    if unowned := unowned_objects(context, table, chosen):
        raise DestinationNotEmpty(
            f"{join_uri(home.bucket, unowned[0].key)} is no file of the table, and a compaction would delete"
            f" it ({len(unowned)} such objects): move it, or see: s3commit verify {home.uri}"
        )


def _rewrite(
    writer: JobWriter,
    store: ObjectStore,
    columns: tuple[pa.Schema, str | None],
    files: Iterator[FileEntry],
    options: Mapping[str, str],
) -> None:
    """Rewrite the rows of files, partition by partition."""
    schema, text = columns
    home, job_id = Destination.parse(writer.job.reference.destination), writer.job.reference.job_id
    known = (schema.metadata or {}).items()
    footer = {key.decode(): value.decode() for key, value in known if key.startswith(_SPARK)}
    plan = TablePlan(
        decoded(schema), (), parse_table_options(options, format="parquet", partition_by=()), footer
    )
    by_partition: dict[str, list[FileEntry]] = {}
    for file in files:
        by_partition.setdefault(file.partition, []).append(file)
    for partition, found in sorted(by_partition.items()):
        copies = in_threads(lambda file: _copied(store, home.bucket, file), found, _AHEAD)
        batches = (
            batch
            for file, copy in zip(found, copies, strict=True)
            for batch in _batches(join_uri(home.bucket, file.key), file, copy, schema)
        )
        stem = f"{partition}/part-00000-{job_id}".removeprefix("/")
        try:
            writer.describe(write_batches(writer, batches, plan, stem, empty_file=False).files, text)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, UnsupportedColumn) as error:
            raise _not_by_pyarrow(home, f"{partition or '.'}: {error}") from error
        logger.info("%s: %d files of %r are written anew", home.uri, len(found), partition or ".")


def _batches(where: str, file: FileEntry, copy: IO[bytes], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file in the columns of a schema; a column that the file lacks is null."""
    read = 0
    with closing(copy), pq.ParquetFile(copy) as parquet:
        leaves = (parquet.schema.column(number) for number in range(len(parquet.schema)))
        types = [*(f"{one.physical_type}/{one.logical_type}" for one in leaves), *parquet.schema_arrow.types]
        # pyarrow would write INT96 times as another type; without a legacy key Spark would read other dates.
        odd = {key.decode() for key in parquet.metadata.metadata or () if key in _ENTRIES}
        odd.update(_TYPES.findall("\n".join(map(str, [*types, parquet.schema]))))
        if odd := odd | ({*parquet.schema_arrow.names} - {*schema.names}):
            raise InvalidOption(f"{where} cannot be compacted by pyarrow without a change of {min(odd)!r}")
        empty, plain = schema.empty_table(), decoded(schema)
        most = min(_ROWS, parquet.metadata.num_rows * _PIECE // file.size + 1)
        for batch in parquet.iter_batches(batch_size=most):
            read += batch.num_rows
            rows = pa.concat_tables([empty, pa.Table.from_batches([batch])], promote_options="permissive")
            yield from in_types(rows, plain).to_batches()
    if file.rows not in (None, read):
        raise DestinationChanged(f"{where} has {read} rows; {file.rows} were committed")


def _copied(store: ObjectStore, bucket: str, file: FileEntry) -> IO[bytes]:
    """Return a copy of a committed file, in memory if it is small and otherwise on the local disk."""
    where = join_uri(bucket, file.key)
    try:
        found = store.head(bucket, file.key)
        if not is_intact(file, found):
            raise DestinationChanged(f"{where} is not what was committed; see: s3commit verify")
        copy = SpooledTemporaryFile(max_size=_PIECE)  # noqa: SIM115 - its reader closes it
        for first in range(0, file.size, _PIECE):
            copy.write(store.get_range(bucket, file.key, first, _PIECE, etag=found.etag))
    except (NoSuchKey, PreconditionFailed) as error:
        raise DestinationChanged(
            f"{where} is gone or changed: another job has replaced it, or see: s3commit verify"
        ) from error
    return copy

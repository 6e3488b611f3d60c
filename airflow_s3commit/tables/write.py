"""Writes tables of any library to files: casts rows, splits them by partition, buffers and encodes them.

Rows arrive as Arrow batches in types that the file formats and their readers support. A type that Spark lacks
is replaced by an equivalent one: a dictionary by its values, a time by microseconds. Values are never
rounded.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as pt

from airflow_s3commit.tables.columns import to_text
from airflow_s3commit.tables.encoder import OtherForm, ParquetForm, footer_schema
from airflow_s3commit.tables.formats import UnsupportedColumn
from airflow_s3commit.tables.open_files import OpenFiles, give_memory_back
from airflow_s3commit.tables.options import parse_table_options
from airflow_s3commit.tables.partitions import PartitionSplitter, resolve_columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from airflow_s3commit.tables.encoder import FileForm
    from airflow_s3commit.tables.formats import TableOpener
    from airflow_s3commit.tables.options import TableOptions

_DECIMAL_DIGITS = 38

#: Rows that are cast at once: a table in memory may be one large batch.
_ROWS = 65_536


def _reader_of(data: Any) -> pa.RecordBatchReader:
    """Return a reader of a table of pyarrow, pandas, polars, DuckDB, or any library with Arrow's C interface.

    The index of a pandas table is not among its columns.
    """
    if type(data).__module__.partition(".")[0] == "pandas":
        return pa.Table.from_pandas(data, preserve_index=False).to_reader()
    if hasattr(data, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(data)
    if hasattr(data, "__arrow_c_array__"):
        return pa.Table.from_batches([pa.record_batch(data)]).to_reader()
    raise TypeError(
        f"{type(data).__name__} is not a table: it has no __arrow_c_stream__; pass a table of pyarrow, pandas"
        " or polars, or a DuckDB relation such as con.sql(...)"
    )


def _stored_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema in types that can be written.

    Raises:
        UnsupportedColumn: A column has a type without an equivalent, or two columns have the same name.
    """
    if len(set(schema.names)) < len(schema.names):
        raise UnsupportedColumn(f"two columns have the same name: {', '.join(schema.names)}; rename one")
    return pa.schema([_storable(field) for field in schema])


def _stored_rows(reader: pa.RecordBatchReader, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the batches in a schema's types.

    Raises:
        UnsupportedColumn: A value does not fit its column's type, such as a time with nanoseconds.
    """
    for whole in reader:
        for batch in pa.Table.from_batches([whole]).to_batches(max_chunksize=_ROWS):
            columns = [_decodable(column) for column in batch.columns]
            try:
                table = pa.Table.from_arrays(columns, names=schema.names).cast(schema)
            except pa.ArrowInvalid as error:
                raise UnsupportedColumn(
                    f"a column cannot be written without loss ({error}): round or cast it first"
                ) from error
            yield from table.to_batches()


def _decodable(column: pa.Array) -> pa.Array:
    """Return a column with a dictionary that Arrow can decode: not one of string views."""
    if pt.is_dictionary(column.type) and pt.is_string_view(column.type.value_type):
        return pa.DictionaryArray.from_arrays(column.indices, column.dictionary.cast(pa.string()))
    return column


def _storable(field: pa.Field) -> pa.Field:
    return pa.field(field.name, _stored_type(field.name, field.type), field.nullable)


def _stored_type(name: str, kind: pa.DataType) -> pa.DataType:
    """Return the type that a column is written as."""
    if pt.is_dictionary(kind) or pt.is_run_end_encoded(kind):
        return _stored_type(name, kind.value_type)
    if pt.is_struct(kind):
        return pa.struct([_storable(kind.field(number)) for number in range(kind.num_fields)])
    if pt.is_map(kind):
        return pa.map_(_stored_type(name, kind.key_type), _storable(kind.item_field))
    if pt.is_nested(kind) and hasattr(kind, "value_field"):
        return pa.list_(_storable(kind.value_field))
    return _plain_type(name, kind)


def _plain_type(name: str, kind: pa.DataType) -> pa.DataType:
    if pt.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pt.is_decimal(kind):
        if kind.precision > _DECIMAL_DIGITS:
            raise UnsupportedColumn(
                f"column {name!r} has decimals of more than {_DECIMAL_DIGITS} digits: round them"
            )
        return pa.decimal128(kind.precision, kind.scale)
    for is_kind, stored in _STORED:
        if is_kind(kind):
            return stored
    if not any(is_kind(kind) for is_kind in _AS_THEY_ARE):
        raise UnsupportedColumn(
            f"column {name!r} has the type {kind}, which files cannot hold: cast it first"
        )
    return kind


_AS_THEY_ARE = (pt.is_integer, pt.is_floating, pt.is_boolean, pt.is_null, pt.is_time)

_STORED = (
    (pt.is_string, pa.string()),
    (pt.is_large_string, pa.string()),
    (pt.is_string_view, pa.string()),
    (pt.is_binary, pa.binary()),
    (pt.is_large_binary, pa.binary()),
    (pt.is_binary_view, pa.binary()),
    (pt.is_fixed_size_binary, pa.binary()),
    (pt.is_date, pa.date32()),
    (pt.is_float16, pa.float32()),
)


def write_table(
    opener: TableOpener,
    data: Any,
    *,
    stem: str,
    numbers: dict[str, int],
    partition_by: Sequence[str] = (),
    format: str | None = None,  # noqa: A002 - as Spark calls it
    options: Mapping[str, str] | None = None,
) -> WrittenTable:
    """Write a table to files; every file is closed afterwards.

    Another call with the same ``numbers`` writes further files.

    Args:
        opener: Opens files. If this raises, the caller discards the files that it has opened.
        data: A table of pyarrow, pandas or polars, a DuckDB relation, or a reader of Arrow batches.
        stem: First part of the file names.
        numbers: Number of files with that stem, by directory; updated in place.
        partition_by: Partition columns, outermost first.
        format: ``parquet`` (the default), ``orc``, ``csv`` or ``json``.
        options: Values by the names of `airflow_s3commit.tables.options.TABLE_OPTIONS`.

    Raises:
        InvalidOption: An option is unknown, malformed, or does not apply to the format.
        UnsupportedColumn: The format cannot hold a column or a value.
        UnsupportedPartition: A partition column is missing, or a value cannot be part of a path.
        TypeError: The data is not a table.
        S3CommitError: A file could not be written.
    """
    table_options = parse_table_options(options or {}, format=format, partition_by=partition_by)
    reader = _reader_of(data)
    schema = _stored_schema(reader.schema)
    columns = resolve_columns(schema, table_options.partition_by)
    form: FileForm = ParquetForm(table_options.codec)
    if table_options.format != "parquet":
        form = OtherForm(table_options.format, table_options.codec, table_options.header)
        form.check(pa.schema([field for field in schema if field.name not in columns]))
    plan = TablePlan(schema, columns, form, table_options)
    return write_batches(opener, _stored_rows(reader, schema), plan, stem, empty_file=True, numbers=numbers)


#: Rows are written out when they have this part of the bytes of a task: the others are for a sorted copy.
_BUFFERED_SHARE = 2

#: Then the largest partitions are written until one part in this number is left.
_KEPT_SHARE = 4

#: A batch larger than one part in this number of a full buffer is cut.
_CUT_SHARE = 8

#: Bytes that a small batch takes besides its values, as measured: objects, and padding of each column.
_BATCH_OVERHEAD = 512

_COLUMN_OVERHEAD = 384

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_]")

_DIGEST_DIGITS = 8


@dataclass(frozen=True)
class TablePlan:
    """The settings that all tasks of a write share; pickled to each task.

    Attributes:
        schema: Schema of the rows, for a task without batches.
        partition_by: Partition columns, outermost first, as the schema spells them.
        form: The files' encoding.
        options: The options of the write.
        partition_types: Types of the partition columns before they were rendered as text; None for those in
            ``schema``. An empty table has no directories that show them.
    """

    schema: pa.Schema
    partition_by: tuple[str, ...]
    form: FileForm
    options: TableOptions
    partition_types: tuple[pa.DataType, ...] | None = None


@dataclass(frozen=True, slots=True)
class WrittenTable:
    """The result of writing a table.

    Attributes:
        files: Number of files written.
        rows: Number of rows written.
        schema: The columns, as a record keeps them; None for text, and if there are too many.
    """

    files: int
    rows: int
    schema: str | None = None


def file_stem(task: str, stage: str | None, job_id: str) -> str:
    """Return the first part of a task's file names, unique within the job.

    Args:
        task: Name of the task in its stage.
        stage: Name of the stage; None for the stage whose files have no stage in their names.
    """
    # The stage precedes the job id: a sweep recognises the id by the characters after it.
    middle = "" if stage is None else f"{_plain(stage)}-"
    return f"part-{_plain(task)}-{middle}{job_id}"


def write_batches(
    opener: TableOpener,
    batches: Iterable[pa.RecordBatch],
    plan: TablePlan,
    stem: str,
    *,
    empty_file: bool,
    numbers: dict[str, int] | None = None,
) -> WrittenTable:
    """Write rows to files, split by their partition values; every file is closed afterwards.

    Args:
        opener: Opens files. If this raises, the caller discards the files that it has opened.
        stem: First part of the file names.
        empty_file: Whether to write an empty file with the schema if there are no rows and no partition
            columns.
        numbers: Number of files with that stem, by directory; updated in place.

    Raises:
        UnsupportedPartition: A value cannot be part of a path.
        UnsupportedColumn: The format cannot hold a value.
        InvalidOption: The job's table is published, and could not have the columns.
        S3CommitError: A file could not be written.
    """
    options = plan.options
    most = min(options.group_bytes, options.row_bytes)
    kept = 0
    if plan.partition_by:
        most = options.row_bytes // _BUFFERED_SHARE
        kept = most // _KEPT_SHARE
    remaining = _cut(batches, most // _CUT_SHARE)
    first = next(remaining, None)
    schema = plan.schema if first is None else first[0].schema
    # Named as in the options, as in Spark; not as the schema spells them.
    names = options.partition_by or plan.partition_by
    splitter = PartitionSplitter(schema, plan.partition_by, names)
    rows = size = 0
    waiting: list[pa.RecordBatch] = []
    columns = _columns(plan, schema, names, splitter.file_schema)
    opener.expect(columns)
    with OpenFiles(opener, splitter.file_schema, plan.form, options, stem=stem, numbers=numbers) as files:
        for batch, held in remaining if first is None else chain([first], remaining):
            if size >= most:
                waiting, size = _write_largest(waiting, schema, splitter, files, kept)
            waiting.append(batch)
            size += held
            rows += batch.num_rows
        for directory, piece in splitter.split(pa.Table.from_batches(waiting, schema)):
            files.write(directory, piece.select(splitter.file_schema.names))
            files.end(directory)
        if rows == 0 and empty_file and not plan.partition_by:
            files.write_empty("")
        files.close()
    return WrittenTable(files.files, rows, columns)


def _write_largest(
    batches: list[pa.RecordBatch], schema: pa.Schema, splitter: PartitionSplitter, files: OpenFiles, kept: int
) -> tuple[list[pa.RecordBatch], int]:
    """Write the partitions with most rows, and return a copy of the other rows, and their bytes.

    Partitions with few rows wait for more of them, so that fewer files and row groups are small.

    At most ``kept`` bytes of rows are left.
    """
    if kept:
        # A sorted copy needs room.
        give_memory_back()
    pieces = list(splitter.split(pa.Table.from_batches(batches, schema)))
    batches.clear()
    sizes = sorted((piece.nbytes, number) for number, (_, piece) in enumerate(pieces)) if kept else []
    totals = accumulate(size for size, _ in sizes)
    small = {number for (_, number), total in zip(sizes, totals, strict=True) if total <= kept}
    # In their order: the file of a partition whose rows go on is the last to be closed.
    for number, (directory, piece) in enumerate(pieces):
        if number not in small:
            files.write(directory, piece.select(splitter.file_schema.names))
    rest = pa.concat_tables([schema.empty_table(), *(pieces[number][1] for number in sorted(small))])
    copied: list[pa.RecordBatch] = rest.combine_chunks().to_batches()
    return copied, sum(batch.nbytes for batch in copied)


def _columns(plan: TablePlan, schema: pa.Schema, names: Sequence[str], file_schema: pa.Schema) -> str | None:
    """Return the columns of a write as a record keeps them."""
    types = plan.partition_types or [schema.field(column).type for column in plan.partition_by]
    partitions = pa.schema(list(zip(names, types, strict=True)))
    stored = footer_schema(plan.form, file_schema)
    return to_text(plan.form.name, stored, partitions) if stored is not None else None


def _plain(name: str) -> str:
    """Return a name in characters that are safe in a file's name; different names stay different."""
    plain = _NOT_IN_NAMES.sub("_", name)
    return plain if plain == name else f"{plain}_{hashlib.sha256(name.encode()).hexdigest()[:_DIGEST_DIGITS]}"


def _cut(batches: Iterable[pa.RecordBatch], most_bytes: int) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield batches, large ones in pieces, and the bytes that each takes."""
    for batch in batches:
        size = int(batch.nbytes)
        rows = max(batch.num_rows * most_bytes // size, 1) if size > most_bytes else batch.num_rows
        overhead = _BATCH_OVERHEAD + _COLUMN_OVERHEAD * batch.num_columns
        for start in range(0, batch.num_rows, max(rows, 1)):
            piece = batch.slice(start, rows)
            yield piece, size * piece.num_rows // batch.num_rows + overhead

"""Writes tables of any library, as Arrow batches in types that the file formats and their readers support.

A type that Spark lacks is replaced by an equivalent one: a dictionary by its values, a time by microseconds.
Values are never rounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as pt

from airflow_s3commit.tables.formats import UnsupportedColumn
from airflow_s3commit.tables.options import parse_table_options
from airflow_s3commit.tables.partitions import resolve_columns
from airflow_s3commit.tables.write import TablePlan, WrittenTable, form_of, write_batches

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_s3commit.tables.formats import FileOpener

_DECIMAL_DIGITS = 38

#: Rows that are cast at once: a table in memory may be one large batch.
_ROWS = 65_536


class Rows:
    """Batches of one schema, cast to types that can be written. It can be iterated once.

    Args:
        reader: The original batches.

    Attributes:
        schema: Schema of the cast batches.

    Raises:
        UnsupportedColumn: A column has a type without an equivalent, or two columns have the same name.

    """

    def __init__(self, reader: pa.RecordBatchReader) -> None:
        self._reader = reader
        names = reader.schema.names
        if len(set(names)) < len(names):
            raise UnsupportedColumn(f"two columns have the same name: {', '.join(names)}; rename one")
        self.schema = pa.schema([_storable(field) for field in reader.schema])

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the cast batches.

        Raises:
            UnsupportedColumn: A value does not fit its column's type, such as a time with nanoseconds.

        """
        for whole in self._reader:
            for batch in pa.Table.from_batches([whole]).to_batches(max_chunksize=_ROWS):
                yield from self._stored(batch)

    def _stored(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        columns = [_decodable(column) for column in batch.columns]
        try:
            table = pa.Table.from_arrays(columns, names=batch.schema.names).cast(self.schema)
        except pa.ArrowInvalid as error:
            raise UnsupportedColumn(
                f"a column cannot be written as it is ({error}); round or cast it first"
            ) from error
        batches: list[pa.RecordBatch] = table.to_batches()
        return batches


def rows_of(data: Any) -> Rows:
    """Return the rows of a table of pyarrow, pandas, polars, DuckDB, or any library with Arrow's C interface.

    Args:
        data: A table, or a reader of batches, which is read once while its rows are written. The index of a
            pandas table is not written.

    Raises:
        UnsupportedColumn: A column has a type without an equivalent, or two columns have the same name.
        TypeError: The data is not a table.

    """
    if type(data).__module__.partition(".")[0] == "pandas":
        return Rows(pa.Table.from_pandas(data, preserve_index=False).to_reader())
    if hasattr(data, "__arrow_c_stream__"):
        return Rows(pa.RecordBatchReader.from_stream(data))
    if hasattr(data, "__arrow_c_array__"):
        return Rows(pa.Table.from_batches([pa.record_batch(data)]).to_reader())
    raise TypeError(
        f"{type(data).__name__} is not a table: it has no __arrow_c_stream__; pass a table of pyarrow, pandas"
        " or polars, or a DuckDB relation such as con.sql(...)"
    )


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
    opener: FileOpener,
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
    rows = rows_of(data)
    columns = resolve_columns(rows.schema, table_options.partition_by)
    form = form_of(table_options)
    form.check(pa.schema([field for field in rows.schema if field.name not in columns]))
    plan = TablePlan(rows.schema, columns, form, table_options)
    return write_batches(opener, rows, plan, stem, empty_file=True, numbers=numbers)

"""The columns of rows: their types in files, their schema as records keep it, and partition columns.

Rows are written in types that the file formats and their readers support; values are never rounded.

The text of a schema has the columns as a file's footer has them, then the partition columns, in Arrow's
encoding and as Spark's JSON; Spark's own writers record only the JSON. So a reader learns the columns without
opening a file, even those of an empty table. The schemas of several commits are merged into one.

Rows are split by their partition values into directories that are named exactly as Spark names them. Values
are rendered as Spark casts them to string; times in their column's zone, which in Spark's batches is the
session's. Columns of types that only Spark can render are refused, such as floating-point numbers.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from airflow_s3commit.exceptions import InvalidOption, InvalidRecord
from airflow_s3commit.protocol.model.codec import decode
from airflow_s3commit.protocol.model.destination import NULL_DIRECTORY, escape
from airflow_s3commit.protocol.model.sealed_job import SparkField, SparkSchema, WrittenColumns

#: The entry of a Parquet footer with the files' Spark schema, without partition columns, as JSON.
ROW_METADATA = "org.apache.spark.sql.parquet.row.metadata"

_DECIMAL_DIGITS = 38


class UnsupportedColumn(ValueError):
    """The format cannot hold a column or one of its values; the message says what to do."""


def rebuilt(field: pa.Field, change: Callable[[pa.Field], pa.Field]) -> pa.Field:
    """Return a column after applying ``change`` to it, and then to each of its fields, at any depth."""
    field = change(field)
    kind = field.type
    if pt.is_struct(kind):
        kind = pa.struct([rebuilt(inner, change) for inner in kind])
    elif pt.is_map(kind):
        kind = pa.map_(rebuilt(kind.key_field, change).type, rebuilt(kind.item_field, change))
    elif pt.is_list(kind):
        kind = pa.list_(rebuilt(kind.value_field, change))
    return field.with_type(kind)


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema in types that can be written.

    A type that Spark lacks is replaced by an equivalent: a dictionary by its values, a time by microseconds.

    Raises `UnsupportedColumn` if there is no column, a type has no equivalent, or two have the same name.
    """
    if not schema.names:
        raise UnsupportedColumn("the table has no columns, and its rows would be lost: give it one")
    if len(set(schema.names)) < len(schema.names):
        raise UnsupportedColumn(f"two columns have the same name: {', '.join(schema.names)}; rename one")
    return pa.schema([rebuilt(field, partial(_storable, field.name)) for field in schema])


def decoded(schema: pa.Schema) -> pa.Schema:
    """Return a schema without dictionaries, whose indices may overflow, and without views, at any depth."""
    return pa.schema([rebuilt(field, _decoded) for field in schema], schema.metadata)


def _decoded(field: pa.Field) -> pa.Field:
    kind = field.type.value_type if pt.is_dictionary(field.type) else field.type
    if (pt.is_large_list(kind) or pt.is_fixed_size_list(kind)) and "dictionary<" in str(kind):
        kind = pa.list_(kind.value_field)
    return field.with_type({pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}.get(kind, kind))


def in_types(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows in the types of a schema. Equal types are not cast: Arrow would break lists of nulls."""
    pairs = zip(rows.columns, schema.types, strict=True)
    columns = [column if column.type.equals(kind) else column.cast(kind) for column, kind in pairs]
    return pa.Table.from_arrays(columns, schema=schema)


def _storable(column: str, field: pa.Field) -> pa.Field:
    kind = field.type
    while pt.is_dictionary(kind):
        kind = kind.value_type
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        kind = pa.list_(kind.value_field)
    elif pt.is_timestamp(kind):
        kind = pa.timestamp("us", kind.tz)
    elif pt.is_decimal(kind):
        if kind.precision > _DECIMAL_DIGITS or kind.scale < 0:
            what = (
                f"decimals of more than {_DECIMAL_DIGITS} digits" if kind.scale >= 0 else f"the type {kind}"
            )
            raise UnsupportedColumn(f"column {column!r} has {what}: round or cast them first")
        kind = pa.decimal128(kind.precision, kind.scale)
    elif not any(is_kind(kind) for is_kind in _AS_THEY_ARE):
        # No list views: Arrow's casts read beyond their offsets. Run-end encodings it does not cast at all.
        stored = next((stored for stored, kinds in _STORED if any(is_kind(kind) for is_kind in kinds)), None)
        if stored is None:
            raise UnsupportedColumn(
                f"column {column!r} has the type {kind}, which files cannot hold: cast it first"
            )
        kind = stored
    return pa.field(field.name, kind, field.nullable)


_AS_THEY_ARE = (
    pt.is_integer, pt.is_float32, pt.is_float64, pt.is_boolean, pt.is_null, pt.is_struct, pt.is_map,
)  # fmt: skip

_STORED = (
    (pa.string(), (pt.is_string, pt.is_large_string, pt.is_string_view)),
    (pa.binary(), (pt.is_binary, pt.is_large_binary, pt.is_binary_view, pt.is_fixed_size_binary)),
    (pa.date32(), (pt.is_date,)),
    (pa.time64("us"), (pt.is_time,)),
    (pa.float32(), (pt.is_float16,)),
)


@dataclass(frozen=True, slots=True)
class WrittenSchema:
    """The columns that a writer wrote.

    Attributes:
        files: The files' columns, with the metadata of their footers.
        partitions: The partition columns, outermost first.
    """

    files: pa.Schema
    partitions: pa.Schema


def to_text(form: str, stored: pa.Schema, partitions: pa.Schema, *, typed: bool = True) -> str | None:
    """Return the text of a schema: the files' columns, then the partition columns; None if it is too long.

    ``typed`` says whether the types of the partition columns are known.
    """
    known = [
        _spark_field(field) if typed else SparkField(name=field.name, type="void") for field in partitions
    ]
    whole = pa.schema([field.with_nullable(True) for field in (*stored, *partitions)], stored.metadata)
    columns = WrittenColumns(
        format=form,
        spark=SparkSchema(fields=[*_of_footer(stored), *known]),
        partitions=partitions.names,
        arrow=base64.b64encode(whole.serialize().to_pybytes()).decode(),
    )
    with suppress(InvalidRecord):
        return columns.text()
    return None


def footer_text(end: bytes, partitions: Sequence[str]) -> str | None:
    """Return the text of the schema of a Parquet file; None if it is too long, or the file is not Parquet.

    ``end`` has the last bytes of the file, with the whole footer. Partition columns have no known type.
    """
    try:
        stored = pq.ParquetFile(pa.BufferReader(end), coerce_int96_timestamp_unit="us").schema_arrow
    except (pa.ArrowException, OSError, ValueError):
        return None
    return to_text("parquet", stored, pa.schema([(name, pa.string()) for name in partitions]), typed=False)


def _of_footer(stored: pa.Schema) -> list[SparkField]:
    """Return the columns of a file by Spark's names of types.

    The footer of Spark's own writer has these names; Arrow reads its intervals and variants as other types.
    """
    written = (stored.metadata or {}).get(ROW_METADATA.encode(), b"")
    with suppress(InvalidRecord):  # none, or a damaged one, which Spark ignores too
        fields = decode(SparkSchema, written, ROW_METADATA).fields
        return [SparkField(name=one.name, type=one.type) for one in fields]
    return [_spark_field(field) for field in stored]


def _spark_field(field: pa.Field) -> SparkField:
    return SparkField(name=field.name, type=_spark_type(field.type))


def _spark_type(kind: pa.DataType) -> str | dict[str, Any]:
    """Return a type as in Spark's JSON; a type that Spark lacks has Arrow's name."""
    if pt.is_struct(kind):
        fields = [
            {"name": one.name, "type": _spark_type(one.type), "nullable": True, "metadata": {}}
            for one in kind
        ]
        return {"type": "struct", "fields": fields}
    if pt.is_map(kind):
        key, value = _spark_type(kind.key_type), _spark_type(kind.item_type)
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    if pt.is_list(kind) or pt.is_large_list(kind):
        return {"type": "array", "elementType": _spark_type(kind.value_type), "containsNull": True}
    if pt.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pt.is_timestamp(kind) and kind.unit in ("ms", "us"):
        return "timestamp" if kind.tz is not None else "timestamp_ntz"
    return _SPARK_NAMES.get(kind, str(kind))


_SPARK_NAMES = {
    pa.int8(): "byte", pa.int16(): "short", pa.int32(): "integer", pa.int64(): "long",
    pa.float32(): "float", pa.float64(): "double", pa.bool_(): "boolean", pa.date32(): "date",
    pa.string(): "string", pa.large_string(): "string", pa.binary(): "binary", pa.large_binary(): "binary",
}  # fmt: skip


def from_text(text: str, where: str) -> WrittenSchema:
    """Read the text of a schema in Arrow's encoding. Files may have columns with names of partition columns.

    Raises `InvalidRecord` if damaged; `InvalidOption` if it lacks Arrow's encoding, as after Spark's writers.
    """
    columns = WrittenColumns.of(text, where)
    if columns.arrow is None:
        raise InvalidOption(f"{where} has columns without Arrow's encoding, as Spark's own writers do")
    try:
        whole = pa.ipc.read_schema(pa.BufferReader(base64.b64decode(columns.arrow, validate=True)))
        partitions = pa.schema([whole[whole.get_all_field_indices(name)[-1]] for name in columns.partitions])
    except (pa.ArrowException, binascii.Error, OSError, ValueError, TypeError, LookupError) as error:
        raise InvalidRecord(f"{where} has columns that cannot be read: {error}") from error
    inner = [field for field in whole if field.name not in columns.partitions]
    return WrittenSchema(pa.schema(inner, metadata=whole.metadata), partitions)


class DifferentTypes(ValueError):
    """Two schemas, given by their numbers, have a column in types that have no common type."""

    def __init__(self, column: str, numbers: tuple[int, int], kinds: tuple[pa.DataType, pa.DataType]) -> None:
        super().__init__(f"column {column!r} is {kinds[0]} and {kinds[1]}")
        self.column = column
        self.numbers = numbers
        self.kinds = kinds


def merge(schemas: Sequence[pa.Schema], fold: Callable[[str], str] = str) -> pa.Schema:
    """Return the columns of all schemas, each in the narrowest type that holds its types in all of them.

    The columns are in the order of the schemas; the metadata is that of the first schema that equals the
    result. Names that are equal after ``fold`` are one column, which has the first of these names.

    Raises `DifferentTypes` if a column has no such type.
    """
    if len(schemas) == 1:
        return schemas[0]
    fields: dict[str, tuple[int, pa.Field]] = {}
    for number, schema in enumerate(schemas):
        for field in schema:
            first, known = fields.setdefault(fold(field.name), (number, field))
            kind = _common(known.type, field.type, fold)
            if kind is None:
                raise DifferentTypes(field.name, (first, number), (known.type, field.type))
            if not kind.equals(known.type):
                # An error names a schema that has the type.
                first, known = number, known.with_type(kind)
            fields[fold(field.name)] = (first, known.with_nullable(known.nullable or field.nullable))
    everywhere = set.intersection(*({*map(fold, schema.names)} for schema in schemas))
    # Where a field is missing it is null, even if it is required elsewhere.
    found = ((field, name in everywhere) for name, (_, field) in fields.items())
    whole = pa.schema([field if is_there else field.with_nullable(True) for field, is_there in found])
    same = (schema.metadata for schema in schemas if schema.equals(whole))
    return whole.with_metadata(next(same, None))


def _common(one: pa.DataType, other: pa.DataType, fold: Callable[[str], str]) -> pa.DataType | None:
    """Return the narrowest type that holds the values of both; None if there is none."""
    if one.equals(other) or pt.is_null(one) or pt.is_null(other):
        return other if pt.is_null(one) else one
    for is_kind in (pt.is_signed_integer, pt.is_unsigned_integer, pt.is_floating):
        if is_kind(one) and is_kind(other):
            return one if one.bit_width >= other.bit_width else other
    if pt.is_decimal(one) and pt.is_decimal(other):
        scale = max(one.scale, other.scale)
        digits = max(one.precision - one.scale, other.precision - other.scale) + scale
        return pa.decimal128(digits, scale) if digits <= _DECIMAL_DIGITS else None
    if pt.is_timestamp(one) and pt.is_timestamp(other):
        return pa.timestamp("us", one.tz) if one.tz == other.tz else None
    with suppress(UnsupportedColumn):
        # Other libraries have several types of texts, bytes and lists, and files keep their names.
        plain, others = stored_schema(pa.schema([("one", one), ("other", other)])).types
        if (plain, others) != (one, other):
            return _common(plain, others, fold)
    return _nested(one, other, fold)


def _nested(one: pa.DataType, other: pa.DataType, fold: Callable[[str], str]) -> pa.DataType | None:
    if pt.is_list(one) and pt.is_list(other):
        item = _field(one.value_field, other.value_field, fold)
        return pa.list_(item) if item is not None else None
    if pt.is_map(one) and pt.is_map(other):
        key = _common(one.key_type, other.key_type, fold)
        item = _field(one.item_field, other.item_field, fold)
        return pa.map_(key, item) if key is not None and item is not None else None
    if pt.is_struct(one) and pt.is_struct(other):
        with suppress(DifferentTypes):
            return pa.struct(list(merge([pa.schema(list(one)), pa.schema(list(other))], fold)))
    return None


def _field(one: pa.Field, other: pa.Field, fold: Callable[[str], str]) -> pa.Field | None:
    kind = _common(one.type, other.type, fold)
    return one.with_type(kind).with_nullable(one.nullable or other.nullable) if kind is not None else None


#: Decimals with more digits after the point have an exponent in Spark, unless its session has ANSI rules.
_MOST_SCALE = 6


class UnsupportedPartition(ValueError):
    """A column cannot be a partition column; the message says what to do."""


def resolve_columns(schema: pa.Schema, names: Sequence[str]) -> tuple[str, ...]:
    """Check partition columns, and return their names as the schema spells them.

    A name that the schema does not have is looked up regardless of case, as in Spark. Raises
    `UnsupportedPartition` if a column is missing, ambiguous or named twice, begins with a dot, or has a type
    that cannot be rendered as Spark does; or if all columns are partition columns.
    """
    resolved = tuple(resolve_name(schema.names, name) for name in names)
    for name in resolved:
        if name.startswith("."):
            raise UnsupportedPartition(
                f"partition column {name!r} begins with a dot: readers skip such directories; rename it"
            )
        if resolved.count(name) > 1:
            raise UnsupportedPartition(f"partition column {name!r} is named twice: name it once")
        _renderer(name, schema.field(name).type)
    if resolved and len(resolved) == len(schema.names):
        raise UnsupportedPartition(
            "all columns are partition columns, so none is left for the files: leave one of them out"
        )
    return resolved


class PartitionSplitter:
    """Splits rows by directory.

    Args:
        columns: Partition columns as `resolve_columns` returns them, outermost first.
        names: Their names in directories; by default the same.

    Attributes:
        file_schema: Schema of the files: all columns but the partition columns.
    """

    def __init__(self, schema: pa.Schema, columns: Sequence[str], names: Sequence[str] = ()) -> None:
        self._columns = list(columns)
        self._names = [escape(name) for name in names or columns]
        self._renderers = [_renderer(name, schema.field(name).type) for name in columns]
        self.file_schema = pa.schema([field for field in schema if field.name not in set(columns)])

    def split(self, rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        """Yield each partition's directory and its rows, with all columns and in their order.

        The rows are slices of the given ones, or of a copy that is sorted by partition if they are not.
        """
        if not self._columns or rows.num_rows == 0:
            yield from [("", rows)] if rows.num_rows else ()
            return
        codes = self._codes(rows)
        if (codes[1:] < codes[:-1]).any():
            # Sorting 16-bit integers is several times as fast.
            narrow = codes.astype(np.int16) if np.max(codes) <= np.iinfo(np.int16).max else codes
            order = np.argsort(narrow, kind="stable")
            codes, rows = codes[order], rows.take(pa.array(order))
        bounds = [0, *(np.flatnonzero(codes[1:] != codes[:-1]) + 1).tolist(), len(codes)]
        for start, end in itertools.pairwise(bounds):
            piece = rows.slice(start, end - start)
            yield self._directory(piece), piece

    def _codes(self, rows: pa.Table) -> npt.NDArray[np.int64]:
        """Return a number for each row; rows of one partition have the same number."""
        codes = np.zeros(rows.num_rows, dtype=np.int64)
        for number, name in enumerate(self._columns):
            encoded = rows.column(name).combine_chunks().dictionary_encode()
            size = len(encoded.dictionary)
            codes = codes * (size + 1) + encoded.indices.fill_null(size).to_numpy(zero_copy_only=False)
            if number:
                # Renumbered from 0 after each column, so that many columns cannot overflow.
                codes = np.unique(codes, return_inverse=True)[1].reshape(-1).astype(np.int64)
        return codes

    def _directory(self, rows: pa.Table) -> str:
        parts = []
        for column, name, render in zip(self._columns, self._names, self._renderers, strict=True):
            try:
                value = rows.column(column)[0].as_py()
            except (ValueError, OverflowError, KeyError) as error:
                raise UnsupportedPartition(
                    f"partition column {column!r} has a value that Python cannot represent ({error});"
                    f" {_remedy(column)}"
                ) from error
            text = "" if value is None else render(value)
            if "\x00" in text:
                raise UnsupportedPartition(
                    f"partition column {column!r} has a value with a NUL character, which paths cannot have;"
                    " remove it from the value"
                )
            parts.append(f"{name}={escape(text) or NULL_DIRECTORY}")
        return "/".join(parts)


def _remedy(name: str) -> str:
    return f"cast it to string first, in Spark: df.withColumn({name!r}, df[{name!r}].cast('string'))"


def resolve_name(names: Sequence[str], name: str) -> str:
    """Return the column with a name: the exact match, or the only match regardless of case."""
    if name in names:
        return name
    alike = [known for known in names if known.lower() == name.lower()]
    if len(alike) == 1:
        return alike[0]
    if alike:
        raise UnsupportedPartition(
            f"partition column {name!r} is ambiguous: {', '.join(alike)}; rename one of them"
        )
    raise UnsupportedPartition(
        f"partition column {name!r} is not among {', '.join(names[:20])}; name one of the columns,"
        " without backticks, and make a field or an expression a column first"
    )


def _renderer(name: str, kind: pa.DataType) -> Callable[[Any], str]:
    for is_kind, render in _RENDERERS:
        if is_kind(kind):
            return render
    raise unfit(name, kind)


def unfit(name: str, kind: object) -> UnsupportedPartition:
    """Return the error for a column whose type a partition column cannot have."""
    return UnsupportedPartition(
        f"column {name!r} has the type {kind}, which a partition column cannot have; {_remedy(name)}"
    )


def _moment(value: dt.datetime) -> str:
    """Return a time as Spark casts it to string: without trailing zeros of the second's fraction."""
    text = value.replace(tzinfo=None).isoformat(sep=" ")
    return text.rstrip("0") if value.microsecond else text


_RENDERERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any], str]], ...] = (
    *((is_kind, str) for is_kind in (pt.is_string, pt.is_large_string, pt.is_integer)),
    (pt.is_boolean, lambda value: "true" if value else "false"),
    (pt.is_date32, dt.date.isoformat),
    (lambda kind: pt.is_decimal(kind) and 0 <= kind.scale <= _MOST_SCALE, str),
    (pt.is_timestamp, _moment),
)

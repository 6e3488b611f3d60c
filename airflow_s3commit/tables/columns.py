"""The columns of files: their types when rows are written, and their schema as records keep it.

Rows are written in types that the file formats and their readers support; values are never rounded.

The text of a schema has the columns as a file's footer has them, then the partition columns, in Arrow's
encoding and as Spark's JSON; that of Spark's own writers has the JSON alone. So a reader learns the columns
without opening a file, even those of an empty table. The schemas of several commits are merged into one.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from airflow_s3commit.exceptions import InvalidOption, InvalidRecord
from airflow_s3commit.protocol.model.sealed_job import SparkField, SparkSchema, WrittenColumns

#: The entry of a Parquet footer with the files' Spark schema, without partition columns, as JSON.
ROW_METADATA = "org.apache.spark.sql.parquet.row.metadata"

_DECIMAL_DIGITS = 38


class UnsupportedColumn(ValueError):
    """The format cannot hold a column or one of its values; the message says what to do."""


def rebuilt(field: pa.Field, change: Callable[[pa.Field], pa.Field]) -> pa.Field:
    """Return a column after a change to it, and to each field that it then has, at any depth."""
    field = change(field)
    kind = field.type
    if pt.is_struct(kind):
        kind = pa.struct([rebuilt(kind.field(number), change) for number in range(kind.num_fields)])
    elif pt.is_map(kind):
        kind = pa.map_(rebuilt(kind.key_field, change).type, rebuilt(kind.item_field, change))
    elif pt.is_list(kind):
        kind = pa.list_(rebuilt(kind.value_field, change))
    return field.with_type(kind)


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema in types that can be written.

    A type that Spark lacks is replaced by an equivalent one: a dictionary by its values, a time by
    microseconds.

    Raises:
        UnsupportedColumn: A column has a type without an equivalent, or two columns have the same name.
    """
    if len(set(schema.names)) < len(schema.names):
        raise UnsupportedColumn(f"two columns have the same name: {', '.join(schema.names)}; rename one")
    return pa.schema([rebuilt(field, _storable) for field in schema])


def _storable(field: pa.Field) -> pa.Field:
    name, kind = field.name, field.type
    while pt.is_dictionary(kind) or pt.is_run_end_encoded(kind):
        kind = kind.value_type
    if pt.is_nested(kind):
        if hasattr(kind, "value_field"):
            kind = pa.list_(kind.value_field)
    elif pt.is_timestamp(kind):
        kind = pa.timestamp("us", kind.tz)
    elif pt.is_decimal(kind):
        if kind.precision > _DECIMAL_DIGITS:
            raise UnsupportedColumn(
                f"column {name!r} has decimals of more than {_DECIMAL_DIGITS} digits: round them"
            )
        kind = pa.decimal128(kind.precision, kind.scale)
    elif not any(is_kind(kind) for is_kind in _AS_THEY_ARE):
        stored = next((stored for is_kind, stored in _STORED if is_kind(kind)), None)
        if stored is None:
            raise UnsupportedColumn(
                f"column {name!r} has the type {kind}, which files cannot hold: cast it first"
            )
        kind = stored
    return pa.field(name, kind, field.nullable)


_AS_THEY_ARE = (pt.is_integer, pt.is_float32, pt.is_float64, pt.is_boolean, pt.is_null, pt.is_time)

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
    """Return the text of a schema, ``stored`` in the footers of the files; None if it is too long.

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
    try:
        return columns.text()
    except InvalidRecord:
        return None


def footer_text(end: bytes, partitions: Sequence[str]) -> str | None:
    """Return the text of the schema of a Parquet file; None if it is too long, or the file is no Parquet.

    ``end`` has the last bytes of the file, the whole footer among them. Partition columns have no known type.
    """
    try:
        stored = pq.read_schema(pa.BufferReader(end))
    except (pa.ArrowException, OSError, ValueError):
        return None
    return to_text("parquet", stored, pa.schema([(name, pa.string()) for name in partitions]), typed=False)


def _of_footer(stored: pa.Schema) -> list[SparkField]:
    """Return the columns of a file by Spark's names of types.

    Spark's own footer has them; Arrow takes its intervals and variants for other types.
    """
    written = (stored.metadata or {}).get(ROW_METADATA.encode())
    if written is None:
        return [_spark_field(field) for field in stored]
    return [SparkField(name=one["name"], type=one["type"]) for one in json.loads(written)["fields"]]


def _spark_field(field: pa.Field) -> SparkField:
    return SparkField(name=field.name, type=_spark_type(field.type))


def _spark_type(kind: pa.DataType) -> str | dict[str, Any]:
    """Return a type as in Spark's JSON; one that Spark lacks by Arrow's name."""
    if pt.is_struct(kind):
        inner = [kind.field(number) for number in range(kind.num_fields)]
        fields = [
            {"name": one.name, "type": _spark_type(one.type), "nullable": True, "metadata": {}}
            for one in inner
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
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.bool_(): "boolean",
    pa.date32(): "date",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
}


def from_text(text: str, where: str) -> WrittenSchema:
    """Read the text of a schema in Arrow's encoding.

    Raises:
        InvalidRecord: It is damaged.
        InvalidOption: It lacks Arrow's encoding, as Spark's own writers wrote the files.
    """
    columns = WrittenColumns.of(text, where)
    names = columns.partitions
    if columns.arrow is None:
        raise InvalidOption(
            f"{where} has columns without Arrow's encoding, as Spark's own writers record them"
        )
    try:
        whole = pa.ipc.read_schema(pa.BufferReader(base64.b64decode(columns.arrow, validate=True)))
        partitions = pa.schema([whole.field(name) for name in names])
    except (pa.ArrowException, binascii.Error, OSError, ValueError, TypeError, KeyError) as error:
        raise InvalidRecord(f"{where} has columns that cannot be read: {error}") from error
    files = pa.schema([field for field in whole if field.name not in names], metadata=whole.metadata)
    return WrittenSchema(files, partitions)


class DifferentTypes(ValueError):
    """Two schemas, by their numbers, have a column in types that cannot hold each other's values."""

    def __init__(self, column: str, numbers: tuple[int, int], kinds: tuple[pa.DataType, pa.DataType]) -> None:
        super().__init__(f"column {column!r} is {kinds[0]} and {kinds[1]}")
        self.column = column
        self.numbers = numbers
        self.kinds = kinds


def merge(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """Return a schema with all columns, by name, each in the narrowest type that holds those of all schemas.

    The columns are in the order of the schemas; the metadata is that of the first schema with all of them.

    Raises:
        DifferentTypes: There is no such type for a column.
    """
    if len(schemas) == 1:
        return schemas[0]
    fields: dict[str, tuple[int, pa.Field]] = {}
    for number, schema in enumerate(schemas):
        for field in schema:
            first, known = fields.setdefault(field.name, (number, field))
            kind = _common(known.type, field.type)
            if kind is None:
                raise DifferentTypes(field.name, (first, number), (known.type, field.type))
            if not kind.equals(known.type):
                # An error names a schema that has the type.
                first, known = number, field.with_type(kind).with_nullable(known.nullable)
            fields[field.name] = (first, known.with_nullable(known.nullable or field.nullable))
    whole = pa.schema([field for _, field in fields.values()])
    same = (schema.metadata for schema in schemas if schema.equals(whole))
    return whole.with_metadata(next(same, None))


def _common(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the narrowest type that holds the values of both; None if there is none."""
    if one.equals(other) or pt.is_null(other):
        return one
    if pt.is_null(one):
        return other
    for is_kind in (pt.is_signed_integer, pt.is_unsigned_integer, pt.is_floating):
        if is_kind(one) and is_kind(other):
            return one if one.bit_width >= other.bit_width else other
    if pt.is_decimal(one) and pt.is_decimal(other):
        scale = max(one.scale, other.scale)
        digits = max(one.precision - one.scale, other.precision - other.scale) + scale
        return pa.decimal128(digits, scale) if digits <= _DECIMAL_DIGITS else None
    if pt.is_timestamp(one) and pt.is_timestamp(other):
        return pa.timestamp("us", one.tz) if one.tz == other.tz else None
    return _nested(one, other)


def _nested(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    if pt.is_list(one) and pt.is_list(other):
        item = _field(one.value_field, other.value_field)
        return pa.list_(item) if item is not None else None
    if pt.is_map(one) and pt.is_map(other):
        key, item = _common(one.key_type, other.key_type), _field(one.item_field, other.item_field)
        return pa.map_(key, item) if key is not None and item is not None else None
    if pt.is_struct(one) and pt.is_struct(other):
        try:
            return pa.struct(list(merge([pa.schema(list(one)), pa.schema(list(other))])))
        except DifferentTypes:
            return None
    return None


def _field(one: pa.Field, other: pa.Field) -> pa.Field | None:
    kind = _common(one.type, other.type)
    return one.with_type(kind).with_nullable(one.nullable or other.nullable) if kind is not None else None

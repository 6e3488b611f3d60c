"""The columns of written files as records keep them: their schema as text, and their statistics.

The text has the columns as a file's footer has them, then the partition columns, in Arrow's encoding and as
Spark's JSON; that of Spark's own writers has the JSON alone. So a reader learns the columns without opening a
file, even those of an empty table. The schemas of several commits are merged into one.

Null counts come from the rows, least and greatest values from a Parquet footer. There are no bounds where
readers may order values differently (binary and nested values, intervals, floats with a NaN among them), and
none for long strings.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from airflow_s3commit.exceptions import InvalidRecord
from airflow_s3commit.protocol.model.columns import (
    ColumnStatistics,
    SparkField,
    SparkSchema,
    Value,
    WrittenColumns,
)
from airflow_s3commit.tables.formats import ROW_METADATA

_DECIMAL_DIGITS = 38


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
    """Return the text of a schema; None if it is too long.

    Args:
        form: Name of the files' format.
        stored: The schema in the footers of the files.
        typed: Whether the types of the partition columns are known.
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

    Args:
        end: The last bytes of the file, the whole footer among them.
        partitions: Names of the partition columns, outermost first. Their types are unknown.
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
        InvalidRecord: It is damaged, or lacks Arrow's encoding.
    """
    columns = WrittenColumns.of(text, where)
    names = columns.partitions
    if columns.arrow is None:
        raise InvalidRecord(
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
    """Two schemas have a column in types that cannot hold each other's values.

    Attributes:
        numbers: Numbers of the two schemas.
    """

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


#: The longest text that is a bound, in characters: a manifest is read whole.
_LONGEST_TEXT = 128

#: The largest number of columns with statistics: a wide table would make pendingsets and manifests long.
MAX_COLUMNS = 32


class ColumnCounts:
    """Counts the values of one file's columns while it is written."""

    def __init__(self, schema: pa.Schema) -> None:
        self._columns = _ordered_leaves(schema)
        self._rows = 0
        self._nulls = [0] * len(schema)
        self._with_nan: set[int] = set()

    def add(self, rows: pa.Table) -> None:
        """Count the values of further rows."""
        self._rows += rows.num_rows
        for number, column in enumerate(rows.columns[:MAX_COLUMNS]):
            self._nulls[number] += column.null_count
            if number not in self._with_nan and pt.is_floating(column.type) and _has_nan(column):
                self._with_nan.add(number)

    def statistics(self, footer: pq.FileMetaData | None = None) -> dict[str, ColumnStatistics]:
        """Return the statistics of the first `MAX_COLUMNS` top-level columns, by column.

        Args:
            footer: The footer of the Parquet file; without it the statistics have no bounds.
        """
        known = {}
        for number, (name, leaf, is_decimal) in enumerate(self._columns):
            least, greatest = (None, None)
            if footer is not None and leaf is not None and number not in self._with_nan:
                least, greatest = _bounds(footer, leaf)
            known[name] = ColumnStatistics(
                values=self._rows - self._nulls[number],
                nulls=self._nulls[number],
                least=_value(least),
                greatest=_value(greatest),
                decimal=is_decimal,
            )
        return known


@lru_cache(maxsize=4)
def _ordered_leaves(schema: pa.Schema) -> list[tuple[str, int | None, bool]]:
    """Return each column's name, the number of its leaf if it has an order, and whether it is decimal."""
    found, leaf = [], 0
    for field in schema:
        ordered = any(is_kind(field.type) for is_kind in _ORDERED)
        found.append((field.name, leaf if ordered else None, bool(pt.is_decimal(field.type))))
        leaf += sum(1 for _ in leaves(field))
    return found[:MAX_COLUMNS]


_ORDERED = (
    pt.is_integer, pt.is_floating, pt.is_boolean, pt.is_string, pt.is_large_string,
    pt.is_date32, pt.is_timestamp, pt.is_decimal,
)  # fmt: skip


def _has_nan(column: pa.ChunkedArray) -> bool:
    return bool(pc.any(pc.is_nan(column)).as_py())


def _bounds(footer: pq.FileMetaData, leaf: int) -> tuple[Any, Any]:
    """Return the least and greatest value of all row groups; None if a row group has no bounds."""
    least, greatest = [], []
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        found = group.column(leaf).statistics
        if found is None:
            return None, None
        if found.has_null_count and found.null_count == group.num_rows:
            continue
        if not found.has_min_max:
            return None, None
        try:
            least.append(found.min)
            greatest.append(found.max)
        except (OverflowError, ValueError):
            # Spark has years that Python does not support.
            return None, None
    return min(least, default=None), max(greatest, default=None)


def _value(bound: Any) -> Value:
    """Return a bound as a JSON value; the texts of one type sort as their values do."""
    if isinstance(bound, dt.datetime):
        moment = bound.astimezone(dt.UTC) if bound.tzinfo is not None else bound
        return moment.isoformat(timespec="microseconds")
    if isinstance(bound, dt.date):
        return bound.isoformat()
    if isinstance(bound, Decimal):
        return format(bound, "f")
    if isinstance(bound, float):
        # JSON has no infinity.
        return bound if math.isfinite(bound) else None
    if isinstance(bound, str):
        return bound if len(bound) <= _LONGEST_TEXT else None
    known: Value = bound
    return known


def leaves(field: pa.Field, within: str = "") -> Iterator[str]:
    """Yield the paths of a column's leaves in a Parquet file."""
    kind, path = field.type, f"{within}{field.name}"
    if pt.is_struct(kind):
        for number in range(kind.num_fields):
            yield from leaves(kind.field(number), f"{path}.")
    elif pt.is_map(kind):
        yield from leaves(kind.key_field.with_name("key"), f"{path}.key_value.")
        yield from leaves(kind.item_field.with_name("value"), f"{path}.key_value.")
    elif pt.is_list(kind) or pt.is_large_list(kind):
        yield from leaves(kind.value_field.with_name("element"), f"{path}.list.")
    else:
        yield path

"""Schemas of written files as text for records, and how the schemas of several commits add up to one.

The text is Arrow's own encoding of a schema, in base64: the columns as a file's footer has them, then the
partition columns. So a reader opens no file to learn the columns, and an empty table has some.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt
from pyarrow import orc

from airflow_s3commit.exceptions import InvalidRecord
from airflow_s3commit.tables.formats import FORMATS

if TYPE_CHECKING:
    from airflow_s3commit.tables.formats import FileForm

#: The entry of a schema's metadata with the names of the partition columns.
_PARTITIONS = b"s3commit.partitions"

#: Maximum characters of a text; a schema of about 500 columns. Larger ones are not recorded.
LONGEST = 64 * 1024

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


def to_text(form: FileForm, files: pa.Schema, partitions: pa.Schema) -> str | None:
    """Return the text of a schema; None if the files have no schema, or its text is too long.

    Args:
        form: The files' encoding.
        files: Schema of the rows in the files.
        partitions: The partition columns, outermost first.

    """
    if FORMATS[form.name].text:
        return None
    sink = io.BytesIO()
    form.encoder(sink, files).close()
    footer = pa.BufferReader(sink.getvalue())
    stored = pq.read_schema(footer) if form.name == "parquet" else orc.ORCFile(footer).schema
    names = json.dumps(partitions.names).encode()
    fields = [field.with_nullable(True) for field in (*stored, *partitions)]
    whole = pa.schema(fields, metadata={**(stored.metadata or {}), _PARTITIONS: names})
    text = base64.b64encode(whole.serialize().to_pybytes()).decode()
    return text if len(text) <= LONGEST else None


def from_text(text: str, where: str) -> WrittenSchema:
    """Read the text of a schema.

    Args:
        text: The text.
        where: Where it was found, for the message.

    Raises:
        InvalidRecord: It is damaged.

    """
    try:
        whole = pa.ipc.read_schema(pa.BufferReader(base64.b64decode(text, validate=True)))
        metadata = whole.metadata or {}
        names = json.loads(metadata.get(_PARTITIONS, b"[]"))
        partitions = pa.schema([whole.field(name) for name in names])
    except (pa.ArrowException, binascii.Error, OSError, ValueError, TypeError, KeyError) as error:
        raise InvalidRecord(f"{where} has columns that cannot be read: {error}") from error
    rest = {key: value for key, value in metadata.items() if key != _PARTITIONS}
    files = pa.schema([field for field in whole if field.name not in names], metadata=rest or None)
    return WrittenSchema(files, partitions)


class DifferentTypes(ValueError):
    """Two schemas have a column in types of which none holds the values of the other.

    Attributes:
        column: Name of the column.
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

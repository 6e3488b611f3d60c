"""Rows as lines of JSON, exactly as Spark writes them."""

from __future__ import annotations

import base64
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from airflow_s3commit.tables.formats import UnsupportedColumn
from airflow_s3commit.tables.options import TextOptions
from airflow_s3commit.tables.text import value_text

#: JSON's short escapes; other control characters are written as ``\\u00XX``.
_SHORT = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}
_CONTROL = r"[\x00-\x1f]"
_UNSAFE = r'[\x00-\x1f"\\]'


class JsonRows:
    """Turns rows of one schema into lines.

    Args:
        schema: Schema of the rows.
        options: The text options of the write.

    Raises:
        UnsupportedColumn: A column has a type that JSON cannot hold.

    """

    def __init__(self, schema: pa.Schema, options: TextOptions) -> None:
        self._options = options
        for field in schema:
            _check(field.name, field.type)

    def header(self) -> pa.Array:
        """Return no line: every line of JSON has the columns' names."""
        return pa.array([], pa.string())

    def lines(self, batch: pa.RecordBatch) -> pa.Array:
        """Return a line for each row, without line separator.

        Raises:
            UnsupportedColumn: A date or time cannot be written by its pattern.

        """
        return self._object(batch.schema.names, batch.columns, batch.num_rows)

    def _object(self, names: list[str], columns: list[pa.Array], count: int) -> pa.Array:
        members = []
        for name, column in zip(names, columns, strict=True):
            values = self._value(column)
            if not self._options.ignore_null_fields:
                values = values.fill_null("null")
            members.append(_join(_quoted_name(name) + ":", values, ","))
        if not members:
            return pa.array(["{}"] * count, pa.string())
        # With null_handling="skip" Arrow drops rows that have only nulls (seen with Arrow 26).
        inner = pc.binary_join_element_wise(*members, "", null_handling="replace", null_replacement="")
        return _join("{", pc.ascii_rtrim(inner, characters=","), "}")

    def _value(self, values: pa.Array) -> pa.Array:
        """Return each value as JSON text; a null stays null."""
        kind = values.type
        if pt.is_struct(kind):
            names = [kind.field(number).name for number in range(kind.num_fields)]
            objects = self._object(names, values.flatten(), len(values))
            return pc.if_else(values.is_valid(), objects, pa.scalar(None, pa.string()))
        if pt.is_map(kind):
            first, items = _items(values)
            keys = _quoted(self._scalar(items.field(0)))
            pairs = pc.binary_join_element_wise(keys, self._value(items.field(1)).fill_null("null"), ":")
            return _join("{", _lists(values, first, pairs), "}")
        if pt.is_list(kind) or pt.is_large_list(kind):
            first, items = _items(values)
            return _join("[", _lists(values, first, self._value(items).fill_null("null")), "]")
        texts = self._scalar(values)
        if pt.is_floating(kind):
            not_finite = pc.invert(pc.is_finite(values)).fill_null(False)
            return pc.if_else(not_finite, _quoted(texts), texts)
        if pt.is_boolean(kind) or pt.is_integer(kind) or pt.is_decimal(kind) or pt.is_null(kind):
            return texts
        return _quoted(texts)

    def _scalar(self, values: pa.Array) -> pa.Array:
        if pt.is_binary(values.type) or pt.is_large_binary(values.type):
            texts = (None if v is None else base64.b64encode(v).decode() for v in values.to_pylist())
            return pa.array(texts, pa.string())
        return value_text(values, self._options)


def _check(name: str, kind: pa.DataType, *, key: bool = False) -> None:
    nested = [kind.field(number).type for number in range(kind.num_fields)] if pt.is_struct(kind) else []
    if pt.is_list(kind) or pt.is_large_list(kind):
        nested = [kind.value_type]
    if pt.is_map(kind):
        _check(name, kind.key_type, key=True)
        nested = [kind.item_type]
    for inner in nested:
        _check(name, inner)
    plain = (pt.is_string, pt.is_large_string, pt.is_integer, pt.is_boolean, pt.is_decimal)
    others = (pt.is_float32, pt.is_float64, pt.is_null, pt.is_date32, pt.is_timestamp, pt.is_binary,
              pt.is_large_binary, pt.is_struct, pt.is_map, pt.is_list, pt.is_large_list)  # fmt: skip
    if not any(is_kind(kind) for is_kind in (plain if key else plain + others)):
        as_key = " as the key of a map" if key else ""
        raise UnsupportedColumn(
            f"column {name!r} has the type {kind}{as_key}, which JSON cannot hold: cast it to string, or"
            " write parquet"
        )


def _join(*pieces: Any) -> pa.Array:
    """Join texts row by row; null where any of them is null."""
    whole = [pa.scalar(piece) if isinstance(piece, str) else piece for piece in pieces]
    return pc.binary_join_element_wise(*whole, "")


def _quoted_name(name: str) -> str:
    quoted: str = _quoted(pa.array([name], pa.string()))[0].as_py()
    return quoted


def _quoted(values: pa.Array) -> pa.Array:
    if pc.any(pc.match_substring_regex(values, _UNSAFE)).as_py():
        for character, escaped in _SHORT.items():
            values = pc.replace_substring(values, character, escaped)
        if pc.any(pc.match_substring_regex(values, _CONTROL)).as_py():
            for code in range(ord(" ")):
                values = pc.replace_substring(values, chr(code), f"\\u{code:04X}")
    return _join('"', values, '"')


def _items(values: pa.Array) -> tuple[int, pa.Array]:
    """Return the offset of the first item of lists or maps in their buffer, and the items."""
    first, last = values.offsets[0].as_py(), values.offsets[-1].as_py()
    if pt.is_map(values.type):
        items = pa.StructArray.from_arrays([values.keys, values.items], names=["key", "value"])
        return first, items.slice(first, last - first)
    return first, values.values.slice(first, last - first)


def _lists(values: pa.Array, first: int, texts: pa.Array) -> pa.Array:
    """Join each list's texts with commas; null where the list is null."""
    large = pt.is_large_list(values.type)
    offsets = pc.subtract(values.offsets, pa.scalar(first, values.offsets.type))
    made = (pa.LargeListArray if large else pa.ListArray).from_arrays(offsets, texts)
    return pc.if_else(values.is_valid(), pc.binary_join(made, ","), pa.scalar(None, pa.string()))

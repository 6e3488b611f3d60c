"""Rows as lines of CSV, exactly as Spark writes them.

Spark's writer quotes a value that contains the separator, the quote or an end of line, or starts with a
quote. It escapes quotes and escape characters in quoted values only. It drops a line that would be empty.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from airflow_s3commit.tables.formats import UnsupportedColumn
from airflow_s3commit.tables.options import TextOptions
from airflow_s3commit.tables.text import value_text

#: White space: every character up to the space.
_SPACE = "".join(map(chr, range(ord(" ") + 1)))

#: The supported types besides bytes, which CSV writes in its own way.
_WITH_TEXT = (pt.is_string, pt.is_large_string, pt.is_boolean, pt.is_integer, pt.is_decimal, pt.is_null,
              pt.is_float32, pt.is_float64, pt.is_date32, pt.is_timestamp)  # fmt: skip

#: The first value of a line is quoted if it starts with this, so that it is not read as a comment.
_COMMENT = "#"


class CsvRows:
    """Turns rows of one schema into lines.

    Args:
        schema: Schema of the rows.
        options: The text options of the write.

    Raises:
        UnsupportedColumn: A column has a type that CSV cannot hold.

    """

    def __init__(self, schema: pa.Schema, options: TextOptions) -> None:
        self._schema = schema
        self._options = options
        self._texts = [_text_of(field, options) for field in schema]
        triggers = {options.separator, "\n", "\r", *options.line_separator}
        if options.escape_quotes:
            triggers.add(options.quote)
        self._triggers = "[" + "".join(re.escape(character) for character in sorted(triggers)) + "]"

    def header(self) -> pa.Array:
        """Return the line with the columns' names; no line without the option ``header``."""
        if not self._options.header:
            return pa.array([], pa.string())
        names = [pa.array([name], pa.string()) for name in self._schema.names]
        return self._joined([self._field(number, name) for number, name in enumerate(names)])

    def lines(self, batch: pa.RecordBatch) -> pa.Array:
        """Return a line for each row, without line separator; empty lines are left out.

        Raises:
            UnsupportedColumn: A date or time cannot be written by its pattern.

        """
        if not batch.num_columns:
            return pa.array([], pa.string())
        texts = [text(column) for text, column in zip(self._texts, batch.columns, strict=True)]
        return self._joined([self._field(number, text) for number, text in enumerate(texts)])

    def _joined(self, fields: list[pa.Array]) -> pa.Array:
        lines = pc.binary_join_element_wise(*fields, self._options.separator)
        return lines.filter(pc.not_equal(lines, "")) if len(fields) == 1 else lines

    def _field(self, number: int, values: pa.Array) -> pa.Array:
        options = self._options
        began = pc.ascii_ltrim(values, characters=_SPACE) if options.trim_leading else values
        empty = pc.equal(began, "")
        quoted = pc.or_(
            pc.starts_with(began, options.quote), pc.match_substring_regex(began, pattern=self._triggers)
        )
        if number == 0:
            quoted = pc.or_(quoted, pc.starts_with(values, _COMMENT))
        if options.quote_all:
            quoted = pc.is_valid(began)
        ended = pc.ascii_rtrim(began, characters=_SPACE) if options.trim_trailing else began
        result = ended
        if pc.any(quoted).as_py():
            result = pc.if_else(quoted, self._quoted(ended), ended)
        if pc.any(empty).as_py():
            result = pc.if_else(empty, self._constant(number, options.empty_value), result)
        return result.fill_null(self._constant(number, options.null_value))

    def _quoted(self, values: pa.Array) -> pa.Array:
        quote, escape = self._options.quote, self._options.escape
        if escape != quote:
            values = pc.replace_substring(values, escape, escape * 2)
        values = pc.replace_substring(values, quote, escape + quote)
        return pc.binary_join_element_wise(pa.scalar(quote), values, pa.scalar(quote), "")

    def _constant(self, number: int, value: str) -> str:
        """Return the text of null or of an empty string, quoted where Spark quotes it."""
        quote = self._options.quote
        if len(value) >= len(quote) * 2 and value.startswith(quote) and value.endswith(quote):
            return value
        commented = number == 0 and value.startswith(_COMMENT)
        if not (
            self._options.quote_all
            or commented
            or re.search(self._triggers, value)
            or value.startswith(quote)
        ):
            return value
        result: str = self._quoted(pa.array([value], pa.string()))[0].as_py()
        return result


def _text_of(field: pa.Field, options: TextOptions) -> Callable[[pa.Array], pa.Array]:
    kind = field.type
    if pt.is_binary(kind) or pt.is_large_binary(kind):
        return _bytes_text
    if any(is_kind(kind) for is_kind in _WITH_TEXT):
        return lambda values: value_text(values, options)
    raise UnsupportedColumn(
        f"column {field.name!r} has the type {kind}, which CSV cannot hold: cast it to string, or write"
        " json, parquet or orc"
    )


def _bytes_text(values: pa.Array) -> pa.Array:
    texts = (None if value is None else f"[{value.hex(' ').upper()}]" for value in values.to_pylist())
    return pa.array(texts, pa.string())

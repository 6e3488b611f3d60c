"""What is known about a file before it is opened, as expressions that let pyarrow skip files.

Partition values come from the directories that Hive, Spark and this package write, and bounds of columns from
the lists of files. A bound is used only if it orders values as pyarrow does and fits the column's type
without loss; otherwise the file is read. Floats are left out, because pyarrow draws wrong conclusions from
bounds when a filter compares with NaN.
"""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.types as pt

from airflow_s3commit.protocol.model.destination import unescape
from airflow_s3commit.tables.partitions import NULL_DIRECTORY

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from airflow_s3commit.protocol.model.columns import ColumnStatistics, Value

_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_INTEGER_DIGITS = 38


class UnreadablePartitions(ValueError):
    """The directories have different partition columns, or a value is not of its column's type."""


def infer_type(values: Iterable[str]) -> pa.DataType:
    """Return the type that Spark would infer for a column of these texts.

    It is the narrowest of 32-bit integer, 64-bit integer, decimal of 38 digits, double and date that holds
    all of them, or string. Times stay strings because their meaning depends on a session's time zone;
    infinities and NaN stay strings too.
    """
    texts = set(values)
    if texts and all(_INTEGER.fullmatch(text) for text in texts):
        return _integer_type([int(text) for text in texts])
    if texts and all(_NUMBER.fullmatch(text) for text in texts):
        return pa.float64()
    if texts and all(map(_is_date, texts)):
        return pa.date32()
    return pa.string()


def _integer_type(numbers: list[int]) -> pa.DataType:
    for bits, kind in ((31, pa.int32()), (63, pa.int64())):
        if all(-(2**bits) <= number < 2**bits for number in numbers):
            return kind
    if all(abs(number) < 10**_INTEGER_DIGITS for number in numbers):
        return pa.decimal128(_INTEGER_DIGITS, 0)
    return pa.float64()


def _is_date(text: str) -> bool:
    if not _DATE.fullmatch(text):
        return False
    try:
        dt.date.fromisoformat(text)
    except ValueError:
        return False
    return True


def _parse(directory: str) -> dict[str, str | None]:
    """Return the partition values of a directory, outermost first; skips elements without ``=``."""
    values = {}
    for element in directory.split("/") if directory else ():
        name, equals, value = element.partition("=")
        if equals:
            values[unescape(name)] = None if value == NULL_DIRECTORY else unescape(value)
    return values


class PartitionColumns:
    """The partition columns of a set of files, and their values by directory.

    Args:
        directories: The files' directories below the destination.
        given: Columns whose types are given, not inferred.

    Attributes:
        schema: The columns, outermost first.

    Raises:
        UnreadablePartitions: The directories have different columns, ``given`` has a column that they do not
            have, or a value is not of its column's type.
    """

    def __init__(self, directories: Iterable[str], given: pa.Schema | None = None) -> None:
        self._values = {directory: _parse(directory) for directory in sorted(set(directories))}
        names = self._common_names(given)
        types = dict(zip(given.names, given.types, strict=True)) if given is not None else {}
        if unknown := types.keys() - set(names):
            raise UnreadablePartitions(
                f"partition_schema has {', '.join(sorted(unknown))}; the files' partition columns are"
                f" {', '.join(names) or 'none'}"
            )
        self.schema = pa.schema([(name, types.get(name) or infer_type(self._texts(name))) for name in names])
        self._known: dict[tuple[str, str], ds.Expression] = {}
        self._expressions = {directory: self._make_expression(directory) for directory in self._values}

    def expression(self, directory: str) -> ds.Expression | None:
        """Return an expression that is true for every row of a directory; None without partition columns."""
        return self._expressions[directory]

    def _common_names(self, given: pa.Schema | None) -> list[str]:
        names: list[str] | None = None
        first = ""
        for directory, values in self._values.items():
            if names is None:
                names, first = list(values), directory
            elif names != list(values):
                raise UnreadablePartitions(
                    f"files are in {first!r} and in {directory!r}, which have different partition columns"
                )
        if names is None:
            return [] if given is None else list(given.names)
        return names

    def _texts(self, name: str) -> Iterable[str]:
        return (text for values in self._values.values() if (text := values[name]) is not None)

    def _make_expression(self, directory: str) -> ds.Expression | None:
        whole = None
        for name, text in self._values[directory].items():
            part = ds.field(name).is_null() if text is None else self._equals(name, text)
            whole = part if whole is None else whole & part
        return whole

    def _equals(self, name: str, text: str) -> ds.Expression:
        known = self._known.get((name, text))
        if known is None:
            kind = self.schema.field(name).type
            try:
                value = pa.scalar(text, pa.string()).cast(kind)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise UnreadablePartitions(
                    f"partition column {name!r} has the value {text!r}, which is not {kind}: {error}; give"
                    " its type in partition_schema"
                ) from error
            known = self._known[name, text] = ds.field(name) == value
        return known


#: The beginning of a time in a list of files.
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T")


def bounds_expression(
    statistics: Mapping[str, ColumnStatistics], schema: pa.Schema, columns: Collection[str]
) -> ds.Expression | None:
    """Return an expression that is true for every row of a file; None without usable statistics.

    Args:
        statistics: The file's statistics, by column.
        schema: The dataset's schema.
        columns: The columns whose bounds to use.
    """
    whole = None
    for name in columns:
        known = statistics.get(name)
        if known is None or known.values is None or known.nulls is None:
            continue
        for part in _column_bounds(name, known, schema.field(name).type):
            whole = part if whole is None else whole & part
    return whole


def _column_bounds(name: str, known: ColumnStatistics, kind: pa.DataType) -> list[ds.Expression]:
    field, parts = ds.field(name), []
    least, greatest = (_scalar(bound, kind, known.decimal) for bound in (known.least, known.greatest))
    if least is not None:
        parts.append(field >= least)
    if greatest is not None:
        parts.append(field <= greatest)
    if known.nulls:
        parts = [part | field.is_null() for part in parts]
    return parts


def _scalar(bound: Value, kind: pa.DataType, decimal: bool) -> pa.Scalar | None:
    value = _value(bound, kind, decimal)
    if value is None:
        return None
    try:
        return pa.scalar(value, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return None


def _value(bound: Value, kind: pa.DataType, decimal: bool) -> Any:
    """Return a bound as a Python value; None if it does not fit this type of column."""
    if isinstance(bound, bool) or decimal != pt.is_decimal(kind):
        return None
    if isinstance(bound, int):
        return bound if pt.is_integer(kind) else None
    return _read(bound, kind) if isinstance(bound, str) else None


def _read(text: str, kind: pa.DataType) -> Any:
    try:
        if pt.is_decimal(kind):
            return Decimal(text)
        if pt.is_date32(kind):
            return dt.date.fromisoformat(text)
        if pt.is_timestamp(kind):
            return _moment(text, kind)
    except (ValueError, ArithmeticError):
        return None
    if _TIME.match(text):
        # The bounds of times that are read as text: their text in the list of files is another one.
        return None
    return text if pt.is_string(kind) or pt.is_large_string(kind) else None


def _moment(text: str, kind: pa.TimestampType) -> dt.datetime | None:
    """Return a time; None if its column has another precision, or zone, than manifests hold."""
    moment = dt.datetime.fromisoformat(text)
    zoned = moment.tzinfo is not None
    return moment if kind.unit == "us" and zoned == (kind.tz is not None) else None

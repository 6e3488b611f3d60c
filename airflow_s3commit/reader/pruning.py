"""What is known about a file before it is opened, as expressions that let pyarrow skip files.

Partition values come from the directories that Hive, Spark and this package write, and bounds of columns from
the lists of files. A bound is used only if it orders values as pyarrow does and fits the column's type
without loss; otherwise the file is read. Floats are left out, because pyarrow draws wrong conclusions from
bounds when a filter compares with NaN.
"""

from __future__ import annotations

import datetime as dt
import re
from contextlib import suppress
from decimal import Decimal
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.types as pt

from airflow_s3commit.protocol.model.destination import unescape
from airflow_s3commit.tables.partitions import NULL_DIRECTORY

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from airflow_s3commit.protocol.model.sealed_job import ColumnStatistics, Value

_is_integer = re.compile(r"[+-]?[0-9]+").fullmatch
_is_number = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?").fullmatch
_is_date = re.compile(r"(?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2}").fullmatch
# Arrow does not refuse a decimal of more digits: it makes another number of it.
_is_decimal = re.compile(r"[+-]?[0-9]{1,38}").fullmatch

#: The types that are inferred, narrowest first, with what all texts look like; Arrow reads them then, or not.
_INFERRED = (
    (_is_integer, pa.int32()),
    (_is_integer, pa.int64()),
    (_is_decimal, pa.decimal128(38, 0)),
    (_is_number, pa.float64()),
    (_is_date, pa.date32()),
)


class UnreadablePartitions(ValueError):
    """The directories have different partition columns, or a value is not of its column's type."""


def infer_type(values: Iterable[str]) -> pa.DataType:
    """Return the type that Spark would infer for a column of these texts.

    It is the narrowest of 32-bit integer, 64-bit integer, decimal of 38 digits, double and date that holds
    all of them, or string. Times stay strings because their meaning depends on a session's time zone;
    infinities and NaN stay strings too.
    """
    texts = sorted(set(values))
    for is_like, kind in _INFERRED if texts else ():
        if all(map(is_like, texts)):
            with suppress(pa.ArrowInvalid):
                pa.array(texts).cast(kind)
                return kind
    return pa.string()


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
        self._expressions = {
            directory: _all_of([self._part(name, text) for name, text in values.items()])
            for directory, values in self._values.items()
        }

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

    def _part(self, name: str, text: str | None) -> ds.Expression:
        if text is None:
            return ds.field(name).is_null()
        kind = self.schema.field(name).type
        try:
            return ds.field(name) == pa.scalar(text, pa.string()).cast(kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise UnreadablePartitions(
                f"partition column {name!r} has the value {text!r}, which is not {kind}: {error}; give"
                " its type in partition_schema"
            ) from error


def _all_of(parts: list[ds.Expression]) -> ds.Expression | None:
    return reduce(and_, parts) if parts else None


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
    parts: list[ds.Expression] = []
    for name in columns:
        known, kind, field = statistics.get(name), schema.field(name).type, ds.field(name)
        if known is None or known.values is None or known.nulls is None:
            continue
        least, greatest = (_scalar(bound, kind, known.decimal) for bound in (known.least, known.greatest))
        bounds = [] if least is None else [field >= least]
        bounds += [] if greatest is None else [field <= greatest]
        parts += [bound | field.is_null() for bound in bounds] if known.nulls else bounds
    return _all_of(parts)


def _scalar(bound: Value, kind: pa.DataType, decimal: bool) -> pa.Scalar | None:
    """Return a bound as a value of a column; None if it does not fit the type."""
    if isinstance(bound, bool) or decimal != pt.is_decimal(kind):
        return None
    if isinstance(bound, int):
        value = bound if pt.is_integer(kind) else None
    else:
        value = _read(bound, kind) if isinstance(bound, str) else None
    with suppress(pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return pa.scalar(value, kind) if value is not None else None
    return None


def _read(text: str, kind: pa.DataType) -> Any:
    with suppress(ValueError, ArithmeticError):
        if pt.is_decimal(kind):
            return Decimal(text)
        if pt.is_date32(kind):
            return dt.date.fromisoformat(text)
        if pt.is_timestamp(kind):
            moment = dt.datetime.fromisoformat(text)
            # Manifests hold microseconds.
            return moment if kind.unit == "us" and (moment.tzinfo is None) == (kind.tz is None) else None
        # The bounds of times that are read as text: their text in the list of files is another one.
        if (pt.is_string(kind) or pt.is_large_string(kind)) and not _TIME.match(text):
            return text
    return None

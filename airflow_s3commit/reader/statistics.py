"""The manifest's column statistics, as expressions by which pyarrow skips files.

A bound is used only if it orders values as pyarrow does and fits the column's type without loss; otherwise
the file is read. Floats are left out: pyarrow draws wrong conclusions from bounds when a filter compares
with NaN.
"""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.types as pt

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from airflow_s3commit.protocol.model.statistics import ColumnStatistics, Value

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

"""Column statistics of a file, for the manifest.

Null counts come from the rows, least and greatest values from a Parquet footer. There are no bounds where
readers may order values differently: binary and nested values, intervals, floats with a NaN among them. Long
texts have none either.
"""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from airflow_s3commit.protocol.model.statistics import ColumnStatistics, Value

if TYPE_CHECKING:
    import pyarrow.parquet as pq

#: The longest text that is a bound, in characters: a manifest is read whole.
_LONGEST_TEXT = 128

#: The largest number of columns with statistics: a wide table would make pendingsets and manifests long.
MAX_COLUMNS = 32


class ColumnCounts:
    """Counts the values of one file's columns while it is written.

    Args:
        schema: Schema of the rows.

    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._rows = 0
        self._nulls = [0] * len(schema)
        self._unordered = {number for number, field in enumerate(schema) if not _has_order(field.type)}

    def add(self, rows: pa.Table) -> None:
        """Count the values of further rows."""
        self._rows += rows.num_rows
        for number, column in enumerate(rows.columns):
            self._nulls[number] += column.null_count
            if number not in self._unordered and pt.is_floating(column.type) and _has_nan(column):
                self._unordered.add(number)

    def statistics(self, footer: pq.FileMetaData | None = None) -> dict[str, ColumnStatistics]:
        """Return the statistics of the first `MAX_COLUMNS` top-level columns, by column.

        Args:
            footer: The footer of the Parquet file; without it the statistics have no bounds.

        """
        leaf, known = 0, {}
        for number, field in islice(enumerate(self._schema), MAX_COLUMNS):
            least, greatest = (None, None)
            if footer is not None and number not in self._unordered:
                least, greatest = _bounds(footer, leaf)
            known[field.name] = ColumnStatistics(
                values=self._rows - self._nulls[number],
                nulls=self._nulls[number],
                least=_value(least),
                greatest=_value(greatest),
                decimal=pt.is_decimal(field.type),
            )
            leaf += _leaves(field.type)
        return known


def _has_order(kind: pa.DataType) -> bool:
    return any(
        is_kind(kind)
        for is_kind in (
            pt.is_integer, pt.is_floating, pt.is_boolean, pt.is_string, pt.is_large_string,
            pt.is_date32, pt.is_timestamp, pt.is_decimal,
        )
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


def _leaves(kind: pa.DataType) -> int:
    """Return the number of a type's leaf columns in the file."""
    if pt.is_struct(kind):
        return sum(_leaves(kind.field(number).type) for number in range(kind.num_fields))
    if pt.is_map(kind):
        return _leaves(kind.key_type) + _leaves(kind.item_type)
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        return _leaves(kind.value_type)
    return 1

"""ORC files with the columns and attributes that Spark's own writer stores.

Times with a zone are stored as instants, which read back the same in any zone. Spark's own files depend on
the zone of the reader's JVM. Times without a zone and intervals are stored as integers with Spark's type in
an attribute.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from pyarrow import orc

from airflow_s3commit.tables.columns import ColumnCounts
from airflow_s3commit.tables.formats import (
    FORMATS,
    DetachableSink,
    SparkFooter,
    UnsupportedColumn,
    first_within,
)

if TYPE_CHECKING:
    from airflow_s3commit.protocol.model.statistics import ColumnStatistics
    from airflow_s3commit.tables.formats import Sink

#: The attribute of a column with Spark's type.
_SPARK_TYPE = "spark.sql.catalyst.type"

#: Spark's type of a duration with unknown units.
_INTERVAL = "interval day to second"

#: The first day of the Gregorian calendar, in days since 1970.
_GREGORIAN_DAY = -141_427

#: Microseconds of a second, and of a day.
_SECOND = 1_000_000
_DAY = 86_400 * _SECOND


@dataclass(frozen=True, slots=True)
class OrcForm:
    """The encoding of one write's ORC files.

    Attributes:
        name: The format's name.
        compression: A key of the format's codecs.
        spark: Spark's footer metadata; None without Spark.
        stripe_bytes: Size of a stripe, in bytes.

    """

    name: ClassVar[str] = "orc"

    compression: str = "zstd"
    spark: SparkFooter | None = None
    stripe_bytes: int = 64 * 1024 * 1024

    def check(self, schema: pa.Schema) -> None:
        """Refuse columns that ORC cannot hold.

        Raises:
            UnsupportedColumn: ORC cannot hold a column's type.

        """
        for field in schema:
            _check(field.name, field.type)

    def encoder(self, sink: Sink, schema: pa.Schema) -> OrcEncoder:
        """Return the encoder of a new file with this schema."""
        return OrcEncoder(sink, schema, self)

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the file's schema for rows of a schema."""
        types = self.spark.types if self.spark is not None else {}
        fields = [_stored(field, types.get(field.name)) for field in schema]
        return pa.schema(fields, metadata=self.spark.orc if self.spark is not None else None)


class OrcEncoder:
    """Writes one ORC file.

    Args:
        sink: Receives the bytes; the caller closes it.
        schema: Schema of the rows.
        form: The encoding.

    Attributes:
        rows: Rows written so far.
        statistics: Column statistics, by column; None until the encoder is closed.

    """

    def __init__(self, sink: Sink, schema: pa.Schema, form: OrcForm) -> None:
        self._sink = DetachableSink(sink)
        self._schema = form.schema(schema)
        self._writer = orc.ORCWriter(
            pa.PythonFile(self._sink, mode="w"),
            compression=FORMATS[form.name].codecs[form.compression].engine,
            stripe_size=form.stripe_bytes,
        )
        self._counts = ColumnCounts(schema)
        self.rows = 0
        self.statistics: dict[str, ColumnStatistics] | None = None

    @property
    def bytes(self) -> int:
        """Bytes written so far."""
        return self._sink.bytes

    def write(self, table: pa.Table) -> None:
        """Write rows.

        Raises:
            UnsupportedColumn: Spark would read a date or time, or what follows a null within structs, as
                another one.

        """
        for name, column in zip(table.column_names, table.columns, strict=True):
            if first_within(column.type, pt.is_date, pt.is_timestamp) is not None:
                for chunk in column.chunks:
                    _check_times(name, chunk)
            if first_within(column.type, pt.is_struct) is not None:
                for chunk in column.chunks:
                    _check_nulls(name, chunk)
        self._writer.write(_unsliced(table.cast(self._schema)))
        self._counts.add(table)
        self.rows += table.num_rows

    def close(self) -> None:
        """Write the footer; a file without rows has its schema too."""
        if self.rows == 0:
            self._writer.write(self._schema.empty_table())
        self._writer.close()
        self.statistics = self._counts.statistics()

    def abandon(self) -> None:
        """Release the encoder's memory, and write no further byte to the sink."""
        self._sink.detached = True
        with suppress(pa.lib.ArrowException, RuntimeError, OSError):
            self._writer.close()


def _unsliced(table: pa.Table) -> pa.Table:
    """Copy columns with structs: Arrow's ORC writer takes the nulls of a struct's slice from other rows.

    Seen with pyarrow 26: ``[{x: 1}, {x: 2}, None][2:]`` is read back as ``[{x: 1}]``.
    """
    for number, column in enumerate(table.columns):
        if first_within(column.type, pt.is_struct) is not None:
            rows = pa.array(np.arange(table.num_rows, dtype=np.int64))
            table = table.set_column(number, table.schema.field(number), column.take(rows))
    return table


def _check(name: str, kind: pa.DataType) -> None:
    unknown = (pt.is_null, pt.is_time, pt.is_fixed_size_list, pt.is_decimal256, pt.is_unsigned_integer)
    if (found := first_within(kind, *unknown)) is not None:
        raise UnsupportedColumn(
            f"column {name!r} has the type {found}, which ORC cannot hold: cast it, or write parquet"
        )


def _check_nulls(name: str, values: pa.Array) -> None:
    """Refuse null structs in structs: Arrow's ORC writer shifts the values of the structs after them.

    Seen with pyarrow 26: ``[{s: None}, {s: {x: 1}}]`` is read back as ``[{s: None}, {s: {x: 0}}]``, also by
    Spark.
    """
    kind = values.type
    if pt.is_struct(kind):
        for number, child in enumerate(values.flatten()):
            if pt.is_struct(child.type):
                both = pc.and_(values.is_valid(), child.is_null())
                inner = f"{name}.{kind.field(number).name}"
                _refuse_any(inner, both, "null structs within structs")
            _check_nulls(name, child)
    elif pt.is_map(kind):
        _check_nulls(name, _entries(values)[1])
    elif pt.is_list(kind) or pt.is_large_list(kind):
        _check_nulls(name, values.flatten())


def _entries(values: pa.Array) -> list[pa.Array]:
    """Return the keys and values of a map's rows; ``keys`` and ``items`` include those of other slices."""
    kind = values.type
    entries = values.cast(pa.list_(pa.struct([kind.key_field, kind.item_field]))).flatten()
    return [entries.field(0), entries.field(1)]


def _check_times(name: str, values: pa.Array) -> None:
    """Refuse dates and times that Spark's reader would misread, or fail on, in Arrow's ORC files."""
    kind = values.type
    if pt.is_struct(kind):
        for child in values.flatten():
            _check_times(name, child)
    elif pt.is_map(kind):
        for child in _entries(values):
            _check_times(name, child)
    elif pt.is_nested(kind):
        _check_times(name, values.flatten())
    elif pt.is_date(kind):
        # Spark takes earlier dates for Julian in an ORC file that does not name its calendar.
        _refuse_any(name, pc.less(values.cast(pa.int32()), _GREGORIAN_DAY), "dates before 1582-10-15")
    elif pt.is_timestamp(kind) and kind.tz is not None:
        ticks = values.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
        _refuse_any(name, pc.less(ticks, _GREGORIAN_DAY * _DAY), "times before 1582-10-15")
        fractions = pc.subtract(ticks, pc.multiply(pc.divide(ticks, _SECOND), _SECOND))
        _refuse_any(name, pc.less(fractions, 0), "times before 1970 with fractions of a second")


def _refuse_any(name: str, found: pa.Array, what: str) -> None:
    if pc.any(found).as_py():
        raise UnsupportedColumn(f"column {name!r} has {what}, which cannot be written to ORC: write parquet")


def _stored(field: pa.Field, spark_type: str | None) -> pa.Field:
    """Return a column's field in the file, with Spark's type as an attribute where ORC has no such type."""
    kind = field.type
    if pt.is_timestamp(kind):
        type_name = "timestamp_ntz" if kind.tz is None else "timestamp"
        stored = pa.int64() if kind.tz is None else kind
        return pa.field(field.name, stored, metadata={_SPARK_TYPE: type_name})
    if pt.is_duration(kind):
        return pa.field(field.name, pa.int64(), metadata={_SPARK_TYPE: spark_type or _INTERVAL})
    # ORC has no required columns; a null struct's fields are null, whatever Spark's schema promises.
    return pa.field(field.name, _stored_type(kind))


def _stored_type(kind: pa.DataType) -> pa.DataType:
    if pt.is_struct(kind):
        return pa.struct([_stored(kind.field(number), None) for number in range(kind.num_fields)])
    if pt.is_map(kind):
        return pa.map_(_stored_type(kind.key_type), _stored(kind.item_field, None))
    if pt.is_list(kind) or pt.is_large_list(kind):
        return pa.list_(_stored(kind.value_field, None))
    if pt.is_large_string(kind):
        return pa.string()
    return pa.binary() if pt.is_large_binary(kind) else kind

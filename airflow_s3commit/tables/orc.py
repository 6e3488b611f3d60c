"""ORC files without Spark, as pyarrow writes them, of columns that come back as they were.

Nested columns are refused: Arrow's writer (pyarrow 26) misplaces what follows a null struct.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from pyarrow import orc

from airflow_s3commit.tables.columns import ColumnCounts
from airflow_s3commit.tables.formats import FORMATS, DetachableSink, UnsupportedColumn

if TYPE_CHECKING:
    from airflow_s3commit.protocol.model.statistics import ColumnStatistics
    from airflow_s3commit.tables.formats import Sink

#: The first day of the Gregorian calendar, in days since 1970.
_GREGORIAN_DAY = -141_427

#: Microseconds of a second, and of a day.
_SECOND = 1_000_000
_DAY = 86_400 * _SECOND

_REFUSED = (pt.is_nested, pt.is_null, pt.is_time, pt.is_unsigned_integer)


@dataclass(frozen=True, slots=True)
class OrcForm:
    """The encoding of one write's ORC files.

    Attributes:
        name: The format's name.
        compression: A key of the format's codecs.

    """

    name: ClassVar[str] = "orc"

    compression: str = "zstd"

    def check(self, schema: pa.Schema) -> None:
        """Refuse columns that pyarrow cannot write to ORC.

        Raises:
            UnsupportedColumn: A column has such a type.

        """
        for field in schema:
            if any(is_kind(field.type) for is_kind in _REFUSED):
                raise UnsupportedColumn(
                    f"column {field.name!r} has the type {field.type}, which pyarrow cannot write to ORC:"
                    " cast it, or write parquet"
                )

    def encoder(self, sink: Sink, schema: pa.Schema) -> OrcEncoder:
        """Return the encoder of a new file with this schema."""
        return OrcEncoder(sink, schema, self)


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
        self._schema = schema
        codec = FORMATS[form.name].codecs[form.compression].engine
        self._writer = orc.ORCWriter(pa.PythonFile(self._sink, mode="w"), compression=codec)
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
            UnsupportedColumn: Another reader would take a date or time for another one.

        """
        for name, column in zip(table.column_names, table.columns, strict=True):
            _check_times(name, column)
        self._writer.write(table)
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


def _check_times(name: str, column: pa.ChunkedArray) -> None:
    """Refuse what Spark misreads: it takes early dates for Julian, and early fractions for later ones."""
    if pt.is_date(column.type):
        _refuse_any(name, pc.less(column.cast(pa.int32()), _GREGORIAN_DAY), "dates before 1582-10-15")
    elif pt.is_timestamp(column.type):
        ticks = column.cast(pa.int64())
        _refuse_any(name, pc.less(ticks, _GREGORIAN_DAY * _DAY), "times before 1582-10-15")
        fractions = pc.subtract(ticks, pc.multiply(pc.divide(ticks, _SECOND), _SECOND))
        _refuse_any(name, pc.less(fractions, 0), "times before 1970 with fractions of a second")


def _refuse_any(name: str, found: pa.ChunkedArray, what: str) -> None:
    if pc.any(found).as_py():
        raise UnsupportedColumn(f"column {name!r} has {what}, which cannot be written to ORC: write parquet")

"""The columns of written files as records keep them: as Spark's JSON, in Arrow's encoding, in statistics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

from airflow_s3commit.protocol.model.codec import MAX_COLUMNS, Count, Line, Schema, decode, encode


class SparkField(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A column as in Spark's JSON.

    Attributes:
        name: Its name.
        type: Its type. One that Spark lacks has Arrow's name; ``void`` is unknown.
        nullable: Whether it may have nulls.
        metadata: What else Spark knows of it.
    """

    name: Line
    type: Line | dict[str, Any]
    nullable: bool = True
    metadata: dict[str, Any] = {}


class SparkSchema(Struct, frozen=True, kw_only=True):
    """Columns as in Spark's ``StructType.json``."""

    type: Literal["struct"] = "struct"
    fields: list[SparkField]


class WrittenColumns(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The columns of some files, which records keep as the text of this.

    Attributes:
        format: The files' format, such as ``parquet``.
        spark: The columns of the files, then the partition columns.
        partitions: Names of the partition columns, outermost first.
        arrow: The same columns as base64 of Arrow's encoding; None if Spark's own writers wrote the files.
    """

    format: Line
    spark: SparkSchema
    partitions: list[Line]
    arrow: Schema | None = None

    @classmethod
    def of(cls, text: str, where: str) -> WrittenColumns:
        """Read the text.

        Raises:
            InvalidRecord: It is damaged.
        """
        return decode(cls, text.encode(), where)

    def text(self) -> str:
        """Return the text: the same for the same columns.

        Raises:
            InvalidRecord: There are too many columns.
        """
        return encode(self).decode()


#: A least or greatest value as JSON holds it; dates and times in ISO 8601, decimals as text.
Value: TypeAlias = bool | int | float | Line | None


class ColumnStatistics(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Statistics of one column.

    Attributes:
        values: Number of values that are not null; None if unknown.
        nulls: Number of nulls; None if unknown.
        least: Least value; None if there is none, or it is unknown.
        greatest: Greatest value; None likewise.
        decimal: The bounds are decimal numbers as text, compared as numbers.
    """

    values: Count | None = None
    nulls: Count | None = None
    least: Value = None
    greatest: Value = None
    decimal: bool = False

    def plus(self, other: ColumnStatistics) -> ColumnStatistics:
        """Merge the statistics of two parts of a column; a value unknown in one is unknown in both."""
        return ColumnStatistics(
            values=_sum(self.values, other.values),
            nulls=_sum(self.nulls, other.nulls),
            least=_outer(self, other, self.least, other.least, min),
            greatest=_outer(self, other, self.greatest, other.greatest, max),
            decimal=self.decimal and other.decimal,
        )


Columns: TypeAlias = Mapping[str, ColumnStatistics]

#: The same in a record.
KnownColumns: TypeAlias = Annotated[dict[Line, ColumnStatistics], Meta(max_length=MAX_COLUMNS)]


def add_columns(one: Columns | None, other: Columns | None) -> dict[str, ColumnStatistics] | None:
    """Merge the statistics of two sets of files, for the columns of both; None if one has none."""
    if one is None or other is None:
        return None
    return {name: one[name].plus(other[name]) for name in one if name in other}


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _outer(
    one: ColumnStatistics, other: ColumnStatistics, mine: Value, theirs: Value, pick: Callable[..., Any]
) -> Value:
    """Return the outer of two bounds; a part without values does not count."""
    if one.values == 0:
        return theirs
    if other.values == 0:
        return mine
    numbers = isinstance(mine, int | float) and isinstance(theirs, int | float)
    if not numbers and not (isinstance(mine, str) and isinstance(theirs, str)):
        return None
    if one.decimal != other.decimal:
        return None
    try:
        bound: Value = pick(mine, theirs, key=Decimal if one.decimal else None)
    except ArithmeticError:
        # A bound is marked as decimal and is no number.
        return None
    return bound

"""Clusters rows by partition before they are written, so that each partition has few files.

A shuffle by the partition columns gives all rows of a partition to one task, which writes one file. Spark's
adaptive execution can divide the rows of a large partition among several tasks instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - the name that PySpark's users know it by
from pyspark.sql.types import StringType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True, slots=True)
class Arrangement:
    """The arrangement of rows before they were written.

    Attributes:
        partition_by: The partition columns, outermost first.
        clustered: Whether rows were clustered by partition.
        spread: Whether Spark divided large partitions among several tasks.
    """

    partition_by: tuple[str, ...] = ()
    clustered: bool = False
    spread: bool = False

    def __str__(self) -> str:
        if not self.clustered:
            return "rows were not clustered"
        clustered = f"rows were clustered by {', '.join(self.partition_by)}"
        return f"{clustered}, large partitions over several tasks" if self.spread else clustered


def arrange(
    frame: DataFrame, partition_by: Sequence[str], *, cluster: bool, spread: bool = False
) -> tuple[DataFrame, Arrangement]:
    """Return a frame with partition columns cast to text by Spark, clustered by them; and its arrangement.

    Rows of a partition keep the order of a frame that is sorted, such as by ``sortWithinPartitions``.

    Args:
        partition_by: Partition columns, by their names in the frame.
        cluster: Whether to cluster rows by partition.
        spread: Whether Spark divides partitions larger than its advisory size among several tasks.
    """
    ordered = _ordering(frame, partition_by) if partition_by and cluster else []
    for name in partition_by:
        if not isinstance(frame.schema[name].dataType, StringType):
            frame = frame.withColumn(name, F.col(quoted(name)).cast("string"))
    if not (partition_by and cluster):
        return frame, Arrangement(tuple(partition_by))
    columns = [F.col(quoted(name)) for name in partition_by]
    shuffled = _rebalanced(frame, partition_by) if spread else frame.repartition(*columns)
    arranged = shuffled.sortWithinPartitions(*columns, *ordered)
    return arranged, Arrangement(tuple(partition_by), True, spread)


def _rebalanced(frame: DataFrame, names: Sequence[str]) -> DataFrame:
    # The columns of a hint in Python are expressions from PySpark 4 on only.
    plain = {name: f"c{number}" for number, name in enumerate(frame.columns)}
    columns = ", ".join(plain[name] for name in names)
    query = f"SELECT /*+ REBALANCE({columns}) */ * FROM {{rows}}"  # noqa: S608 - our own names
    rows: DataFrame = frame.sparkSession.sql(query, rows=frame.toDF(*plain.values()))
    return rows.toDF(*frame.columns)


def _ordering(frame: DataFrame, partition_by: Sequence[str]) -> list[Column]:
    """Return the columns that a frame's rows are sorted by, besides partition columns; a shuffle mixes them.

    Only Spark's plan has them: nothing is found in Spark Connect, nor beyond an expression.
    """
    java = getattr(frame, "_jdf", None)
    if java is None:
        return []
    plan = java.queryExecution().optimizedPlan()
    output, found = plan.output(), plan.outputOrdering()
    names = {output.apply(number).exprId().id(): name for number, name in enumerate(frame.columns)}
    columns = []
    for number in range(found.size()):
        order = found.apply(number)
        column = order.child()
        if column.getClass().getSimpleName() != "AttributeReference":
            break
        name = names.get(column.exprId().id())
        if name is None:
            break
        if name not in partition_by:
            words = f"{order.direction().sql()}_{order.nullOrdering().sql()}".lower().replace(" ", "_")
            columns.append(getattr(F.col(quoted(name)), words)())
    return columns


def quoted(name: str) -> str:
    """Quote a column's name for Spark's expressions."""
    return "`" + name.replace("`", "``") + "`"

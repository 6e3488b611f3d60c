"""Clusters rows by partition before they are written, so that each partition has few files.

A shuffle by the partition columns gives all rows of a partition to one task. A partition with far more rows
than a task's fair share would delay the whole write. Such a partition is spread over several tasks, and each
of them writes a file of it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - the name that PySpark's users know it by
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType

from airflow_s3commit.tables.partitions import NULL_DIRECTORY, escape

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

logger = logging.getLogger(__name__)

#: A partition is skewed if it has more rows than this many tasks' fair share.
_SKEW = 2

#: Partitions with fewer rows are never spread.
_LEAST_ROWS = 1_000_000

#: The sample has one row in this number.
_SAMPLED = 20

_SALT = "__s3commit_salt"


@dataclass(frozen=True, slots=True)
class Arrangement:
    """The arrangement of rows before they were written.

    Attributes:
        partition_by: The partition columns, outermost first.
        clustered: Whether rows were clustered by partition.
        counted: Whether a sample of the rows was counted, to find skewed partitions.
        spread: Number of tasks that each skewed partition was spread over, by its directory.

    """

    partition_by: tuple[str, ...] = ()
    clustered: bool = False
    counted: bool = False
    spread: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        if not self.clustered:
            return "rows were not clustered"
        clustered = f"rows were clustered by {', '.join(self.partition_by)}"
        if not self.counted:
            return f"{clustered}; skew was not checked"
        spread = ", ".join(f"{name} over {tasks} tasks" for name, tasks in self.spread.items())
        skew = f"skewed partitions were spread: {spread}" if spread else "no partition is skewed"
        return f"{clustered}; {skew}"


def arrange(
    frame: DataFrame, partition_by: Sequence[str], *, cluster: bool, salt: bool | None
) -> tuple[DataFrame, Arrangement]:
    """Return a frame with partition columns cast to text by Spark, clustered by them; and its arrangement.

    Rows of a partition keep the order of a frame that is sorted, such as by ``sortWithinPartitions``.

    Args:
        frame: The rows.
        partition_by: Partition columns, by their names in the frame.
        cluster: Whether to cluster rows by partition.
        salt: Whether to count a sample of the rows and spread skewed partitions; None for cached frames only,
            because any other frame is computed a second time for the sample.

    """
    ordered = _ordering(frame, partition_by) if partition_by and cluster else []
    for name in partition_by:
        if not isinstance(frame.schema[name].dataType, StringType):
            frame = frame.withColumn(name, F.col(quoted(name)).cast("string"))
    if not (partition_by and cluster):
        return frame, Arrangement(tuple(partition_by))
    columns = [quoted(name) for name in partition_by]
    order: list[Column | str] = [*columns, *ordered]
    counted = frame.is_cached if salt is None else salt
    spread = _find_spread(frame, partition_by) if counted else {}
    if not spread:
        arranged = frame.repartition(*columns).sortWithinPartitions(*order)
        return arranged, Arrangement(tuple(partition_by), True, counted)
    salted = frame.withColumn(_SALT, _salt(frame, partition_by, spread))
    arranged = salted.repartition(*columns, _SALT).sortWithinPartitions(*order).drop(_SALT)
    named = {_directory(partition_by, values): tasks for values, tasks in spread.items()}
    return arranged, Arrangement(tuple(partition_by), True, True, named)


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


def spread_of(counts: Mapping[tuple[str | None, ...], int], tasks: int) -> dict[tuple[str | None, ...], int]:
    """Return the number of tasks to spread each skewed partition over, by its values.

    Args:
        counts: Number of rows, by partition values.
        tasks: Number of concurrent tasks.

    """
    share = max(sum(counts.values()) / max(tasks, 1), 1.0)
    return {
        values: min(math.ceil(rows / share), tasks)
        for values, rows in counts.items()
        if rows >= _LEAST_ROWS and rows > share * _SKEW
    }


def quoted(name: str) -> str:
    """Quote a column's name for Spark's expressions."""
    return "`" + name.replace("`", "``") + "`"


def _find_spread(frame: DataFrame, partition_by: Sequence[str]) -> dict[tuple[str | None, ...], int]:
    columns = [F.col(quoted(name)).alias(f"c{number}") for number, name in enumerate(partition_by)]
    sample = frame.select(*columns).sample(fraction=1 / _SAMPLED, seed=1)
    found: list[Row] = sample.groupBy(*sample.columns).agg(F.count(F.lit(1)).alias("n")).collect()
    counts = {tuple(row)[:-1]: int(row["n"]) * _SAMPLED for row in found}
    return spread_of(counts, _parallelism(frame))


def _parallelism(frame: DataFrame) -> int:
    try:
        return int(frame.sparkSession.sparkContext.defaultParallelism)
    except Exception:
        # Spark Connect has no context. A wrong number makes the write slower, not wrong.
        return int(frame.sparkSession.conf.get("spark.sql.shuffle.partitions", "200") or "200")


def _salt(
    frame: DataFrame, partition_by: Sequence[str], spread: Mapping[tuple[str | None, ...], int]
) -> Column:
    # A hash of the values: a repeated Spark stage sends each row to the same task.
    hashed = F.xxhash64(*(quoted(f.name) for f in frame.schema.fields if _has_hash(f.dataType)))
    salt: Column | None = None
    for values, tasks in spread.items():
        pairs = zip(partition_by, values, strict=True)
        matches = reduce(and_, (F.col(quoted(name)).eqNullSafe(F.lit(value)) for name, value in pairs))
        piece = F.pmod(hashed, F.lit(tasks))
        salt = F.when(matches, piece) if salt is None else salt.when(matches, piece)
    assert salt is not None
    return salt.otherwise(F.lit(0).cast("bigint"))


def _has_hash(kind: DataType) -> bool:
    if isinstance(kind, MapType) or kind.typeName() == "variant":
        return False
    if isinstance(kind, ArrayType):
        return _has_hash(kind.elementType)
    return not isinstance(kind, StructType) or all(_has_hash(each.dataType) for each in kind.fields)


def _directory(partition_by: Sequence[str], values: Sequence[str | None]) -> str:
    named = zip(partition_by, values, strict=True)
    return "/".join(f"{escape(name)}={escape(value or '') or NULL_DIRECTORY}" for name, value in named)

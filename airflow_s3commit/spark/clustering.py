"""Bringing the rows of a partition together before they are written, so that its files are few.

A shuffle by the partition columns gives one task all rows of a partition; where one partition has far more
rows than a task's fair share, that task would be the last to end by far. Such a partition is spread over
several tasks, each of which writes a file of it.
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

#: Partitions with fewer rows are not worth another task.
_LEAST_ROWS = 1_000_000

#: One row in this many is counted.
_SAMPLED = 20

_SALT = "__s3commit_salt"


@dataclass(frozen=True, slots=True)
class Arrangement:
    """How the rows were arranged before they were written.

    Attributes:
        partition_by: The partition columns.
        clustered: Whether the rows of a partition were brought together.
        counted: Whether a sample of the rows was counted, to find skewed partitions.
        spread: Over how many tasks each skewed partition was spread, by its directory.

    """

    partition_by: tuple[str, ...] = ()
    clustered: bool = False
    counted: bool = False
    spread: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        if not self.clustered:
            return "rows were written as they came"
        told = f"rows were brought together by {', '.join(self.partition_by)}"
        if not self.counted:
            return f"{told}; skew was not looked for"
        most = ", ".join(f"{name} over {tasks} tasks" for name, tasks in self.spread.items())
        return f"{told}; {f'skewed partitions were spread: {most}' if most else 'no partition is skewed'}"


def arrange(
    frame: DataFrame, partition_by: Sequence[str], *, cluster: bool, salt: bool | None
) -> tuple[DataFrame, Arrangement]:
    """Return a frame with its partition columns as Spark casts them to text, clustered by them.

    Args:
        frame: The rows.
        partition_by: Partition columns, by their names in the frame.
        cluster: Whether to bring the rows of a partition together.
        salt: Whether to count a sample of the rows and spread skewed partitions; None does where the frame
            is cached, since a frame that isn't is computed once more for it.

    """
    for name in partition_by:
        if not isinstance(frame.schema[name].dataType, StringType):
            frame = frame.withColumn(name, F.col(quoted(name)).cast("string"))
    if not (partition_by and cluster):
        return frame, Arrangement(tuple(partition_by))
    columns = [quoted(name) for name in partition_by]
    counted = frame.is_cached if salt is None else salt
    spread = _find_spread(frame, partition_by) if counted else {}
    if not spread:
        arranged = frame.repartition(*columns).sortWithinPartitions(*columns)
        return arranged, Arrangement(tuple(partition_by), True, counted)
    salted = frame.withColumn(_SALT, _salt(frame, partition_by, spread))
    arranged = salted.repartition(*columns, _SALT).sortWithinPartitions(*columns).drop(_SALT)
    named = {_directory(partition_by, values): tasks for values, tasks in spread.items()}
    return arranged, Arrangement(tuple(partition_by), True, True, named)


def spread_of(counts: Mapping[tuple[str | None, ...], int], tasks: int) -> dict[tuple[str | None, ...], int]:
    """Return the skewed partitions among these, and over how many tasks to spread each.

    Args:
        counts: How many rows each partition has.
        tasks: How many tasks run at once.

    """
    share = max(sum(counts.values()) / max(tasks, 1), 1.0)
    return {
        values: min(math.ceil(rows / share), tasks)
        for values, rows in counts.items()
        if rows >= _LEAST_ROWS and rows > share * _SKEW
    }


def quoted(name: str) -> str:
    """Return a column's name as Spark's expressions take any name."""
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
        # Spark Connect has no context to ask; any number of tasks gives a right, if slower, write.
        return int(frame.sparkSession.conf.get("spark.sql.shuffle.partitions", "200") or "200")


def _salt(
    frame: DataFrame, partition_by: Sequence[str], spread: Mapping[tuple[str | None, ...], int]
) -> Column:
    # By the values, so that a stage that runs again gives each row to the same task again.
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

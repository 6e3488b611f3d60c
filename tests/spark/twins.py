"""A Spark application whose task waits for a task of its twin, which writes at the same time."""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark import TaskContext
from pyspark.sql import SparkSession


def main() -> None:
    """Write to a place, after both twins have opened a named pipe: one for reading, the other for writing."""
    place, pipe, mode = sys.argv[1:]
    spark = SparkSession.builder.getOrCreate()

    def meet(batches):
        if TaskContext.get().partitionId() == 0:
            Path(pipe).open(mode).close()
        yield from batches

    rows = spark.range(30, numPartitions=2).selectExpr("id", f"'{mode}' AS twin", "concat('d', id % 3) AS dt")
    rows.mapInPandas(meet, rows.schema).write.partitionBy("dt").mode("append").parquet(place)


if __name__ == "__main__":
    main()

"""A Spark application that is held while it writes: one task has committed its output, one has not."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pandas as pd
from pyspark import TaskContext
from pyspark.sql import SparkSession

from tests.integration.airflow_live.control import Place


def main(destination: str, dag_id: str, run_id: str, then: str = "") -> None:
    """Write two partitions, the second of which waits for an order; then raise on request."""
    # spark-submit started this process, so these two are the whole driver.
    Place.here(dag_id, run_id).say("driver", {"python": os.getpid(), "spark-submit": os.getppid()})
    spark = SparkSession.builder.appName("held").getOrCreate()

    def held(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        yield from frames
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == 1:
            Place.here(dag_id, run_id).hold("spark", 1)

    rows = spark.range(0, 1000, numPartitions=2).selectExpr("id", "'2013-01-01' as dt")
    written = rows.mapInPandas(held, rows.schema).write.format("s3commit")
    written.option("partitionBy", "dt").mode("append").save(destination)
    if then == "raise":
        raise RuntimeError("told to fail after its write")


if __name__ == "__main__":
    main(*sys.argv[1:])

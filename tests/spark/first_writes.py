"""A Spark application whose eight tasks write at once to tables that are not there; its argument is a URI."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from airflow_s3commit.spark import register

TABLES = 10
TASKS = 8


def main() -> None:
    """Write each table by a job of the write's own."""
    spark = SparkSession.builder.master(f"local[{TASKS}]").getOrCreate()
    register(spark)
    rows = spark.range(10 * TASKS, numPartitions=TASKS)
    for table in range(TABLES):
        rows.write.format("s3commit").mode("append").save(f"{sys.argv[1]}{table}/")


if __name__ == "__main__":
    main()

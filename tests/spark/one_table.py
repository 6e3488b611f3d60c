"""A Spark application that writes 40 rows to a table, whose place is its argument."""

import sys

from pyspark.sql import SparkSession

if __name__ == "__main__":
    SparkSession.builder.getOrCreate().range(40, numPartitions=2).write.mode("append").parquet(sys.argv[1])

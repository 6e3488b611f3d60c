"""A Spark application that writes 30 rows, and ends as it is told to."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from pyspark.sql import SparkSession


def main() -> None:
    """Write rows from a number on; then stop the context, leave it, wait, fail, or kill the JVM."""
    place, start, end = sys.argv[1:]
    spark = SparkSession.builder.getOrCreate()
    rows = spark.range(int(start), int(start) + 30, numPartitions=2)
    rows.write.mode("append").parquet(place)
    if end == "stopped":
        spark.stop()
    elif end == "failed":
        raise RuntimeError("the application fails after its write")
    elif end == "killed":
        os.kill(spark._jvm.java.lang.ProcessHandle.current().pid(), signal.SIGKILL)
    elif end != "left":
        # A named pipe: what is written to it later ends this application.
        Path(end).read_bytes()


if __name__ == "__main__":
    main()

"""A Spark application with a format and a listener of its own; its argument is the destination of a job.

The last line that it prints is the error of the write in that format.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession


def main() -> None:
    """Write in the odd format, and then in Spark's own while no task is reported."""
    place = sys.argv[1]
    spark = SparkSession.builder.getOrCreate()
    rows = spark.range(30, numPartitions=2).selectExpr("cast(id AS string) AS value")
    error = ""
    try:
        rows.write.format("OddParts$WithIndex").mode("append").save(place)
    except Exception as caught:
        error = str(caught)
    rows.write.mode("append").parquet(place)
    Path(os.environ["PIPE"]).write_bytes(b"go on")
    sys.stdout.write(json.dumps(error) + "\n")


if __name__ == "__main__":
    main()

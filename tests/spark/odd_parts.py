"""A Spark application with a format and a listener of its own; its argument is the destination of a job.

The last line that it prints has the errors of the write in that format, and of one to a disk.
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
    errors = []
    for path, form in ((place, "OddParts$WithIndex"), (os.environ["LOCAL"], "parquet")):
        try:
            rows.write.format(form).mode("append").save(path)
        except Exception as caught:
            errors.append(str(caught))
    rows.write.mode("append").parquet(place)
    Path(os.environ["PIPE"]).write_bytes(b"go on")
    sys.stdout.write(json.dumps(errors) + "\n")


if __name__ == "__main__":
    main()

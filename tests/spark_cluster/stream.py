"""A streaming query in a process of its own, which tests kill.

Run as ``python -m tests.spark_cluster.stream <arguments as JSON>``: it turns every file that is in a folder
into a batch, commits each, and ends; it says a line of JSON when it is done.
"""

from __future__ import annotations

import json
import os
import sys

from pyspark.sql import SparkSession

from airflow_s3commit.spark import foreach_batch


def main() -> None:
    """Run the query until it has taken every file."""
    told = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    spark = SparkSession.builder.appName("stream").master("local[1]").config(map=told["conf"]).getOrCreate()
    rows = spark.readStream.schema("id long, p string").option("maxFilesPerTrigger", "1").json(told["source"])
    write = foreach_batch(
        destination=told["destination"], partition_by=["p"], mode=told["mode"], cluster=False
    )
    query = (
        rows.writeStream.foreachBatch(write)
        .option("checkpointLocation", told["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
        said = {"query": str(query.id), "error": None}
    except Exception as error:  # any error is the answer
        said = {"query": str(query.id), "error": str(error)}
    answers.write(json.dumps(said) + "\n")
    answers.flush()
    spark.stop()


if __name__ == "__main__":
    main()

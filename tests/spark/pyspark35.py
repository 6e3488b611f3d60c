"""An application for PySpark 3.5: a write for a job, one without, and a stream; prints what it saw."""

from __future__ import annotations

import json
import sys

from pyspark import __version__
from pyspark.sql import SparkSession

from airflow_s3commit.spark import MissingLibrary, foreach_batch, write_pending


def main() -> None:
    """Write below the URI in the first argument; the second is a local folder."""
    place, local = sys.argv[1:]
    spark = SparkSession.builder.getOrCreate()
    rows = spark.range(60).selectExpr(
        "id", "id / 8 AS ratio", "timestamp_seconds(id) AS at", "array(id, null) AS list",
        "named_struct('name', concat('n', id)) AS one",
        "date_add(date'2013-01-01', cast(id % 3 AS int)) AS dt",
    )  # fmt: skip
    rows.write.partitionBy("dt").parquet(f"{local}/sparks-own")
    write_pending(rows, partition_by=["dt"])
    # A batch is its own job, so the query must not see the job in the conf.
    for key in ("id", "destination", "staging"):
        spark.conf.unset(f"spark.s3commit.job.{key}")
    # The second write replaces one partition of the first.
    write_pending(rows.selectExpr("id", "dt"), destination=f"{place}own/", partition_by=["dt"])
    one = rows.where("id % 3 = 1").selectExpr("id + 1000 AS id", "dt")
    write_pending(one, destination=f"{place}own/", partition_by=["dt"], mode="overwrite")
    for _ in range(2):
        stream = spark.readStream.schema(rows.schema).parquet(f"{local}/sparks-own").selectExpr("id", "dt")
        batches = foreach_batch(destination=f"{place}stream/", partition_by=["dt"])
        query = stream.writeStream.foreachBatch(batches).trigger(availableNow=True)
        query.option("checkpointLocation", f"{local}/checkpoint").start().awaitTermination()
    try:
        from airflow_s3commit.spark import register  # noqa: PLC0415

        refused = f"{register} was imported"
    except MissingLibrary as error:
        refused = str(error)
    sys.stdout.write(json.dumps({"version": __version__, "refused": refused}) + "\n")


if __name__ == "__main__":
    main()

"""A program of Spark with Delta: reads tables at versions, and tries to write; a line of JSON for each."""

from __future__ import annotations

import json
import sys
from typing import Any

WRITES = ("append", "overwrite", "DELETE FROM {0} WHERE id = 1", "VACUUM {0} RETAIN 0 HOURS", "OPTIMIZE {0}")


def main(jars: str, given: str) -> None:
    """Answer each request: rows of a path at a version, or what becomes of each write."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - in an environment of its own

    settings = {
        "spark.jars": jars,
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
        "spark.databricks.delta.snapshotPartitions": "1",
    }
    builder = SparkSession.builder.master("local[1]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    for request in json.loads(given):
        path, version = request["path"], request.get("version")
        if "write" in request:
            print(json.dumps(_written(spark, path, request["write"])), flush=True)
            continue
        reader = spark.read.format("delta")
        reader = reader if version is None else reader.option("versionAsOf", version)
        rows = [row.asDict() for row in reader.load(path).collect()]
        print(json.dumps(rows, default=str), flush=True)
    spark.stop()


def _written(spark: Any, path: str, write: str) -> str:
    try:
        if write in ("append", "overwrite"):
            rows = spark.read.format("delta").load(path)
            rows.write.format("delta").mode(write).save(path)
        else:
            spark.sql(write.format(f"delta.`{path}`")).collect()
    except Exception as error:
        return str(error)
    return ""


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A Spark application that writes in two contexts, one after the other, and a statement with several writes.

Its arguments are the places of four tables. The last line that it prints says how a write without the conf's
extensions ended.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession


def main() -> None:
    """Write each table."""
    appended, dynamic, parts, mixed = sys.argv[1:]
    for number in range(2):
        spark = SparkSession.builder.config(
            "spark.sql.sources.partitionOverwriteMode", "dynamic"
        ).getOrCreate()
        rows = spark.range(30 * number, 30 * number + 30, numPartitions=2).selectExpr(
            "id", f"concat('d', id % 2 + {number}) AS dt"
        )
        rows.write.mode("append").parquet(appended)
        rows.write.partitionBy("dt").mode("overwrite").parquet(dynamic)
        spark.stop()
    spark = SparkSession.builder.getOrCreate()
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "static")
    spark.range(30).createOrReplaceTempView("rows")
    for name, place in (("parts", parts), ("mixed", mixed)):
        spark.sql(
            f"CREATE TABLE {name} (id BIGINT, dt STRING) USING parquet PARTITIONED BY (dt) LOCATION '{place}'"
        )
    for offset in (100, 0):
        spark.sql(
            f"WITH moved AS (SELECT id, id + {offset} AS there FROM rows) FROM moved"
            " INSERT OVERWRITE parts PARTITION (dt = 'a') SELECT there WHERE id % 3 = 0"
            " INSERT OVERWRITE parts PARTITION (dt = 'b') SELECT there WHERE id % 3 = 1"
            " INSERT OVERWRITE parts PARTITION (dt = 'c {1}/') SELECT there WHERE id % 3 = 2"
            " INSERT INTO mixed PARTITION (dt = 'a') SELECT there WHERE id % 3 = 0"
            " INSERT INTO mixed PARTITION (dt) SELECT there, 'b' AS dt WHERE id % 3 > 0"
        )
    spark.stop()
    spark = SparkSession.builder.config("spark.sql.extensions", "org.example.Missing").getOrCreate()
    error = ""
    try:
        spark.range(60, 90).write.mode("append").parquet(appended)
    except Exception as caught:
        error = str(caught)
    sys.stdout.write(json.dumps({"version": spark.version, "error": error}) + "\n")


if __name__ == "__main__":
    main()

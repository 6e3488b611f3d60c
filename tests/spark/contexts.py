"""A Spark application that writes in two contexts, one after the other, and one statement with two writes.

Its arguments are the places of four tables.
"""

from __future__ import annotations

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
    spark.sql(
        "FROM rows INSERT OVERWRITE parts PARTITION (dt = 'a') SELECT id WHERE id < 10"
        " INSERT OVERWRITE parts PARTITION (dt = 'b') SELECT id WHERE id >= 10"
    )
    spark.sql(
        "FROM rows INSERT INTO mixed PARTITION (dt = 'a') SELECT id WHERE id < 10"
        " INSERT INTO mixed PARTITION (dt = 'b') SELECT id WHERE id >= 10"
    )


if __name__ == "__main__":
    main()

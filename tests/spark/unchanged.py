"""A Spark application that knows nothing of jobs: it writes tables to S3, and the same to a disk."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession


def fail_once(rows: DataFrame) -> DataFrame:
    """Return the rows, of which one fails the first attempt of its task, after others were written."""

    def values(batches):
        yield from batches
        if TaskContext.get().attemptNumber() == 0:
            raise RuntimeError("the first attempt fails")

    return rows.mapInPandas(values, rows.schema)


def write_tables(spark: SparkSession, place: Callable[[str], str], name: str) -> None:
    """Write each table, whose name says how."""
    rows = spark.range(60).selectExpr("id", "concat('d', id % 3) AS dt", "cast(id % 2 AS int) AS h")
    rows = rows.repartition(2, "id")
    rows.createOrReplaceTempView("rows")
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "static")
    rows.where("dt <> 'd2'").write.partitionBy("dt", "h").mode("overwrite").parquet(place("static"))

    spark.sql(
        f"CREATE TABLE {name} (id BIGINT, dt STRING, h INT) USING parquet PARTITIONED BY (dt, h)"
        f" LOCATION '{place('partition')}'"
    )
    spark.sql(
        f"INSERT OVERWRITE {name} PARTITION (dt = 'd1', h) SELECT id, h FROM rows WHERE dt = 'd1' AND h = 0"
    )

    fail_once(rows.where("dt = 'd0'").coalesce(1)).write.partitionBy("dt", "h").mode("append").parquet(
        place("added")
    )

    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    rows.where("dt <> 'd2'").write.partitionBy("dt", "h").mode("overwrite").parquet(place("dynamic"))
    dynamic = rows.where("dt = 'd0'").selectExpr("id + 1000 AS id", "dt", "h").write.partitionBy("dt", "h")
    dynamic.option("maxRecordsPerFile", 4).mode("overwrite").parquet(place("dynamic"))

    rows.where("id < 5").selectExpr("id", "dt", "h").write.mode("append").json(f"{place('elsewhere')}/json")


def main() -> None:
    """Write the tables at the places that the arguments name."""
    places, local = json.loads(sys.argv[1]), sys.argv[2]
    spark = SparkSession.builder.getOrCreate()
    write_tables(spark, places.__getitem__, "there")
    write_tables(spark, lambda table: f"file://{local}/{table}", "here")


if __name__ == "__main__":
    main()

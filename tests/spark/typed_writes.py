"""A Spark application that writes columns of many types and in several formats, each to a table of its own.

Arguments: a directory, and the formats of lines to write. The last line that it prints has the error of each
write.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import DataFrame, SparkSession

#: Columns around those of partitions.
COLUMNS = (
    "id % 2 AS h",
    "id",
    "named_struct('x', id, 'y', array(cast(id AS int))) AS nested",
    "map('k', id % 3 = 0) AS flags",
    "cast(id AS decimal(9,2)) AS price",
    "timestamp'2013-01-01 00:00:00' AS at",
    "timestamp_ntz'2013-01-01 00:00:00' AS local",
    "date'2013-01-01' AS day",
    "concat('d', id % 3) AS dt",
    "X'01' AS raw",
)


def insert(spark: SparkSession, root: str) -> None:
    """Insert into a table of the catalog, by position, with a static partition."""
    spark.sql(
        "CREATE TABLE inserted (Id BIGINT NOT NULL, code CHAR(3), name VARCHAR(9), dt STRING, h INT)"
        f" USING parquet PARTITIONED BY (dt, h) LOCATION '{root}/inserted'"
    )
    spark.sql("INSERT OVERWRITE inserted PARTITION (dt = 'a', h) SELECT id, 'x', 'y', 1 FROM range(3)")


def insert_for_hive(spark: SparkSession, root: str) -> None:
    """Insert into a table of Hive's Parquet."""
    spark.sql(
        "CREATE EXTERNAL TABLE hived (id BIGINT, code CHAR(3)) PARTITIONED BY (dt STRING)"
        f" STORED AS PARQUET LOCATION '{root}/hived'"
    )
    spark.conf.set("hive.exec.dynamic.partition.mode", "nonstrict")
    spark.sql("INSERT INTO hived SELECT id, 'x', 'd' FROM range(3)")


def twice(rows: DataFrame, path: str) -> None:
    """Append rows with two sets of columns."""
    rows.select("id").write.mode("append").parquet(path)
    rows.selectExpr("id", "'x' AS more").write.mode("append").parquet(path)


def main() -> None:
    """Write the tables."""
    root, formats = sys.argv[1], sys.argv[2:]
    spark = SparkSession.builder.getOrCreate()
    rows = spark.range(6).selectExpr(*COLUMNS)
    flat = rows.select("id", "dt", "h")
    wide = spark.range(2).selectExpr(*(f"id AS c{number}{'x' * 8_000}" for number in range(20)))
    long = spark.range(2).selectExpr(f"id AS {'x' * 8_193}")
    spans = spark.range(2).selectExpr("array(named_struct('x', interval '1' day)) AS span")
    below = flat.drop("dt").write.partitionBy("h")
    writes = {
        "typed": lambda: rows.write.partitionBy("dt", "h").mode("append").parquet(f"{root}/typed"),
        "inserted": lambda: insert(spark, root),
        "below": lambda: below.mode("append").orc(f"{root}/below/a%3Ab=1/dt=x"),
        "twice": lambda: twice(rows, f"{root}/twice"),
        "doubled": lambda: flat.write.mode("append").parquet(f"{root}/doubled/dt=x"),
        "wide": lambda: wide.write.mode("append").parquet(f"{root}/wide"),
        "long": lambda: long.write.mode("append").orc(f"{root}/long"),
        "spaced": lambda: spark.range(2).selectExpr("id AS `a b`").write.parquet(f"{root}/spaced", "append"),
        "spans": lambda: spans.write.mode("append").parquet(f"{root}/spans"),
        "orc": lambda: flat.write.mode("append").orc(f"{root}/orc"),
        "unknown": lambda: flat.write.mode("append").parquet(f"{root}/unknown/dt=x"),
        "empty": lambda: flat.limit(0).write.mode("overwrite").parquet(f"{root}/empty"),
    }
    if spark.conf.get("spark.sql.catalogImplementation") == "hive":
        writes["hived"] = lambda: insert_for_hive(spark, root)
    for name in formats:
        write = flat.write.format(name).partitionBy("dt").option("rowTag", "row").mode("append")
        writes[name] = lambda write=write, name=name: write.save(f"{root}/{name}")
    errors = {}
    for name, write in writes.items():
        try:
            write()
            errors[name] = ""
        except Exception as error:
            errors[name] = str(error)
    sys.stdout.write(json.dumps(errors) + "\n")


if __name__ == "__main__":
    main()

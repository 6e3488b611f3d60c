"""A Spark application that knows nothing of jobs: it writes tables to S3, and the same to a disk."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable

from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession


def fail_once(rows: DataFrame, jvm: int | None) -> DataFrame:
    """Return the rows, whose first task attempt fails after them, or kills the driver if it has an id."""

    def values(batches):
        yield from batches
        if jvm is not None:
            os.kill(jvm, signal.SIGKILL)
        if TaskContext.get().attemptNumber() == 0:
            raise RuntimeError("the first attempt fails")

    return rows.mapInPandas(values, rows.schema)


def write_tables(spark: SparkSession, place: Callable[[str], str], name: str, jvm: int | None) -> None:
    """Write each table, whose name says how."""
    rows = spark.range(60).selectExpr("id", "concat('d', id % 3) AS dt", "cast(id % 2 AS int) AS h")
    rows = rows.repartition(2, "id")
    rows.createOrReplaceTempView("rows")
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "static")
    for offset in (100, 0):
        moved = rows.where("dt <> 'd2'").selectExpr(f"id + {offset} AS id", "dt", "h")
        moved.write.partitionBy("dt", "h").mode("overwrite").parquet(place("static"))

    spark.sql(
        f"CREATE TABLE {name} (id BIGINT, dt STRING, h INT) USING parquet PARTITIONED BY (dt, h)"
        f" LOCATION '{place('partition')}'"
    )
    spark.sql(
        f"INSERT OVERWRITE {name} PARTITION (dt = 'd1', h) SELECT id, h FROM rows WHERE dt = 'd1' AND h = 0"
    )

    saved = rows.where("dt <> 'd2'").write.partitionBy("dt", "h").bucketBy(2, "id").sortBy("id")
    saved.option("path", place("saved")).mode("overwrite").saveAsTable(f"saved_{name}")

    spark.conf.set("spark.sql.legacy.allowNonEmptyLocationInCTAS", "true")
    spark.sql(
        f"CREATE TABLE created_{name} USING parquet PARTITIONED BY (dt, h) LOCATION '{place('created')}'"
        " AS SELECT * FROM rows WHERE dt <> 'd2'"
    )

    overwrite_new_partitions(spark, place("twice"), f"twice_{name}")

    added = rows.where("dt = 'd0'").select("id")
    for offset, scheme in ((0, "s3a:"), (100, "s3:")):
        moved = added.selectExpr(f"id + {offset} AS id")
        there = f"{place('added').replace('s3a:', scheme)}/dt=new/h=0"
        moved.write.mode("append").parquet(there)
    added.where("id < 30").write.mode("append").parquet(f"{place('added')}/dt=d0/h=0")
    # Small batches: files have rows when the attempt fails.
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "2")
    fail_once(added.where("id >= 30"), jvm).write.mode("append").parquet(f"{place('added')}/dt=d0/h=1")

    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    rows.where("dt <> 'd2'").write.partitionBy("dt", "h").mode("overwrite").parquet(place("dynamic"))
    dynamic = rows.where("dt = 'd0'").selectExpr("id + 1000 AS id", "dt", "h").write.partitionBy("dt", "h")
    dynamic.option("maxRecordsPerFile", 4).mode("overwrite").parquet(place("dynamic"))

    rows.where("id < 5").write.mode("append").json(f"{place('elsewhere')}/json")


def overwrite_new_partitions(spark: SparkSession, place: str, name: str) -> None:
    """Overwrite partitions that did not exist before the application, twice each."""
    spark.sql(
        f"CREATE TABLE {name} (id BIGINT, dt STRING, h INT) USING parquet PARTITIONED BY (dt, h)"
        f" LOCATION '{place}'"
    )
    for condition in ("id < 8", "id >= 4 AND h = 0"):
        rows = f"FROM rows WHERE dt = 'd0' AND {condition}"
        spark.sql(f"INSERT OVERWRITE {name} PARTITION (dt = 'a:b/c %', h = 1) SELECT id {rows}")
        spark.sql(f"INSERT OVERWRITE {name} PARTITION (dt = 'some', h) SELECT id, h {rows}")
        frame = spark.sql(f"SELECT id, h {rows}")
        frame.select("id").write.mode("overwrite").parquet(f"{place}/dt=path/h=0")
        spark.sql(f"INSERT OVERWRITE {name} PARTITION (dt = 'mixed', h) SELECT id, h {rows}")
        frame.write.partitionBy("h").mode("overwrite").parquet(f"{place}/dt=mixed")
        spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
        spark.sql(f"INSERT OVERWRITE {name} PARTITION (dt = 'dynamic', h) SELECT id, h {rows}")
        spark.conf.set("spark.sql.sources.partitionOverwriteMode", "static")


def try_what_is_refused(spark: SparkSession, place: str) -> dict[str, str]:
    """Return the errors of writes that look at the destination, or an empty text if there is none."""
    rows = spark.range(2).selectExpr("id", "'d1' AS dt")
    spark.sql(
        f"CREATE TABLE located (id BIGINT, dt STRING) USING json PARTITIONED BY (dt) LOCATION '{place}'"
    )
    spark.sql(f"ALTER TABLE located ADD PARTITION (dt = 'd1') LOCATION '{place}-elsewhere'")
    rows.createOrReplaceTempView("rows")
    attempts = {
        "exists": lambda: rows.write.json(place),
        "ignored": lambda: rows.write.mode("ignore").json(place),
        "created": lambda: spark.sql(
            f"CREATE TABLE made USING json LOCATION '{place}' AS SELECT * FROM rows"
        ),
        "located": lambda: spark.sql("INSERT INTO located PARTITION (dt = 'd1') SELECT id FROM rows"),
    }
    for mode in ("errorifexists", "ignore"):
        write = rows.write.mode(mode)
        attempts |= {
            f"{mode} once": lambda write=write, mode=mode: write.json(f"{place}/{mode}"),
            f"{mode} again": lambda write=write, mode=mode: write.json(f"{place}/{mode}"),
            f"{mode} beside": lambda write=write, mode=mode: write.json(f"{place}/{mode}-2"),
        }
    errors = {}
    for name, attempt in attempts.items():
        try:
            attempt()
            errors[name] = ""
        except Exception as error:
            errors[name] = str(error)
    return errors


def main() -> None:
    """Write the tables at the places that the arguments name."""
    places, local = json.loads(sys.argv[1]), sys.argv[2]
    spark = SparkSession.builder.getOrCreate()
    if "REFUSED" in os.environ:
        sys.stdout.write(json.dumps(try_what_is_refused(spark, places["static"])) + "\n")
        return
    jvm = spark._jvm.java.lang.ProcessHandle.current().pid() if "KILLED" in os.environ else None
    write_tables(spark, places.__getitem__, "there", jvm)
    write_tables(spark, lambda table: f"file://{local}/{table}", "here", None)


if __name__ == "__main__":
    main()

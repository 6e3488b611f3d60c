"""A Spark application that changes tables of its catalog, and prints how each change ended."""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession


def make(spark: SparkSession, name: str, using: str) -> None:
    """Create a managed table with a file in one partition, or without partitions for a table of Hive's."""
    partitioned = "" if "STORED" in using else "PARTITIONED BY (dt)"
    spark.sql(f"CREATE TABLE {name} (id BIGINT, dt STRING) {using} {partitioned}")
    location = spark.sql(f"DESCRIBE EXTENDED {name}").where("col_name = 'Location'").first()[1]
    path = spark._jvm.org.apache.hadoop.fs.Path(f"{location}/dt=a/old")
    path.getFileSystem(spark._jsc.hadoopConfiguration()).create(path).close()
    if partitioned:
        spark.sql(f"ALTER TABLE {name} ADD PARTITION (dt = 'a')")


def change(spark: SparkSession, name: str, statement: str) -> str:
    """Change a table, and return Spark's answer."""
    try:
        if statement == "saveAsTable":
            rows = spark.range(3).selectExpr("id", "'c' AS dt").write.mode("overwrite")
            rows.partitionBy("dt").saveAsTable(name)
        else:
            spark.sql(statement)
    except Exception as error:
        return str(error)
    return "done"


def main() -> None:
    """Make and change the tables that the argument names: each with its format and its statement."""
    builder, tables = SparkSession.builder, json.loads(sys.argv[1])
    if any("STORED" in using for using, _ in tables.values()):
        builder = builder.enableHiveSupport()
    spark = builder.getOrCreate()
    spark.sql("CREATE DATABASE other")
    said = {}
    for name, (using, statement) in tables.items():
        make(spark, name, using)
        said[name] = change(spark, name, statement.format(name=name))
    tables = {name: spark.catalog.tableExists(name) for name in said}
    sys.stdout.write(json.dumps({"said": said, "exists": tables}) + "\n")


if __name__ == "__main__":
    main()

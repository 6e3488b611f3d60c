"""An application for any release of PySpark: writes through both doors, and reads what it wrote.

Its argument is a URI. The last line that it prints names the release, and each table whose rows differ.
"""

from __future__ import annotations

import json
import sys

from pyspark import __version__
from pyspark.sql import SparkSession

from airflow_s3commit.spark import read_table, write_pending

#: Columns of types that PySpark's private functions translate.
COLUMNS = (
    "id", "id / 8 AS ratio", "timestamp_seconds(id) AS at",
    "cast(timestamp_seconds(id) AS timestamp_ntz) AS clock",
    "array(id, null) AS list", "named_struct('name', concat('n', id)) AS one", "map('a', id) AS named",
    "cast(id AS decimal(9, 2)) AS price", "cast(cast(id AS string) AS binary) AS raw",
    "date_add(date'2013-01-01', cast(id % 3 AS int)) AS dt",
)  # fmt: skip


def main() -> None:
    """Write below the URI; the store's address is in the conf alone."""
    place = sys.argv[1]
    spark = SparkSession.builder.getOrCreate()
    rows = spark.range(30, numPartitions=2).selectExpr(*COLUMNS)
    expected = sorted(map(repr, rows.collect()))
    write_pending(rows, destination=f"{place}pending/", partition_by=["dt"])
    names = ["pending"]
    if not __version__.startswith("3."):
        from airflow_s3commit.spark import register  # noqa: PLC0415 - PySpark 3 has no data sources of Python

        register(spark)
        write = rows.write.format("s3commit").mode("append").option("partitionBy", "dt")
        write.save(f"{place}format/")
        names.append("format")
    different = []
    for name in names:
        found = read_table(spark, f"{place}{name}/")
        if found.columns != rows.columns or sorted(map(repr, found.collect())) != expected:
            different.append(name)
    sys.stdout.write(json.dumps({"version": __version__, "different": different}) + "\n")


if __name__ == "__main__":
    main()

"""An application for any release of PySpark: writes through both doors, and reads what it wrote.

Its argument is a URI. The last line that it prints names the release, each table whose rows differ, and each
filter of which the rows or the number of files that are read differ.
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

#: Columns of six files with ten rows each, and the files that a filter leaves of them.
BOUNDED = (
    "id", "cast(id AS int) AS small", "id / 8 AS ratio", "cast(id AS decimal(9, 2)) AS price",
    "timestamp_seconds(id) AS at", "cast(timestamp_seconds(id) AS timestamp_ntz) AS clock",
    "date_add(date'2013-01-01', cast(id AS int)) AS day", "lpad(id, 2, '0') AS name",
    "if(id = 33, double('NaN'), id) AS odd", "if(id < 30, null, id) AS late", "id % 2 = 0 AS even",
    "named_struct('id', id) AS one", "date_add(date'1500-01-01', cast(id AS int)) AS old", "id AS file_size",
)  # fmt: skip
FILTERS = {
    "id = 7": 1, "7 = id": 1, "id < 10": 1, "id <= 10": 2, "10 >= id": 2, "id > 49": 1, "49 <= id": 2,
    "id > 24 AND id < 35": 2, "id = 3 OR small > 57": 2, "NOT id > 3": 1, "id IN (3, 55)": 2,
    "id IN (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 59)": 3, "id > 1000": 0, "id <=> 7": 6, "id <> 7": 6,
    "ratio >= 6.25": 1, "price < 9.5": 1, "name >= '50'": 1, "name LIKE '0%'": 6, "name > ''": 6,
    "at < timestamp'1970-01-01 00:00:10Z'": 1, "at < timestamp'1970-01-01 00:00:09.5Z'": 1,
    "clock >= timestamp_ntz'1970-01-01 00:00:50'": 1, "day = date'2013-02-01'": 1, "odd > 40": 3,
    "late IS NULL": 6, "late IS NOT NULL": 3, "late < 100": 3, "even": 6, "one.id = 3": 6, "id + 1 = 8": 6,
    "id = small": 6, "id < small": 6, "id > late": 3, "old < date'1500-01-03'": 6,
    "file_size > 100": 0, "_metadata.file_size > 100": 6,
}  # fmt: skip


def misread(spark: SparkSession, uri: str) -> list[str]:
    """Return the filters with which other rows or another number of files are read than expected."""
    rows = spark.range(60, numPartitions=6).selectExpr(*BOUNDED)
    write_pending(rows, destination=uri, cluster=False)
    # Files have a size to Spark; here each has one of more bytes than any row's column of that name.
    expected = rows.selectExpr("*", "named_struct('file_size', 1000) AS _metadata")
    # A task for each file.
    spark.conf.set("spark.sql.files.openCostInBytes", "1g")
    found = read_table(spark, uri)
    wrong = []
    for text, files in FILTERS.items():
        left = found.where(text)
        same = sorted(map(repr, left.collect())) == sorted(
            map(repr, expected.where(text).drop("_metadata").collect())
        )
        if not same or left.rdd.getNumPartitions() != files:
            wrong.append(
                f"{text}: {left.rdd.getNumPartitions()} files, {'the same' if same else 'other'} rows"
            )
    spark.conf.set("spark.sql.sources.useV1SourceList", "")
    if read_table(spark, uri).where("id < 7").count() != 7:
        wrong.append("by sources of version 2: other rows")
    return wrong


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
    told = {"version": __version__, "different": different, "misread": misread(spark, f"{place}bounded/")}
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()

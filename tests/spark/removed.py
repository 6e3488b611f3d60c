"""A Spark application that writes above a job's destination, and then saves a model in its place."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

from pyspark.sql import SparkSession


def error_of(attempt: Callable[[], None]) -> str:
    """Return the error of a write, or an empty text."""
    try:
        attempt()
    except Exception as error:
        return str(error)
    return ""


def main() -> None:
    """Write around the destination that the argument names, and print the errors."""
    place = sys.argv[1]
    above = place.rsplit("/", 1)[0]
    spark = SparkSession.builder.getOrCreate()
    rows = spark.range(60).repartition(2)
    errors = {
        "written": error_of(lambda: rows.write.mode("append").parquet(f"{place}/_dt=d1")),
        "overwritten": error_of(lambda: rows.write.mode("overwrite").parquet(above)),
        "appended": error_of(lambda: rows.write.mode("append").parquet(above)),
        "tracked": error_of(lambda: rows.write.mode("append").parquet(f"{above}-tracked")),
        "swapped": error_of(lambda: rows.write.mode("append").parquet(f"{above}-swapped")),
    }
    model = spark._jvm.org.apache.spark.ml.feature.Binarizer()
    errors["saved"] = error_of(lambda: model.write().overwrite().save(place))
    errors["deleted"] = error_of(lambda: rows.write.mode("append").parquet(place))
    sys.stdout.write(json.dumps(errors) + "\n")


if __name__ == "__main__":
    main()

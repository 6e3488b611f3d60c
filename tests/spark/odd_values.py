"""A Spark application whose partition values share directories, or are of characters that are rare in keys.

Argument: a directory of S3A. The last line that it prints has the error of each write, by its table.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

#: Partition values that one task writes, by the table's name: the last three cannot be written.
VALUES: dict[str, list[str | None]] = {
    "shared": [None, "", "__HIVE_DEFAULT_PARTITION__", "a", None],
    "rare": ["a\x80", "b\x85", "c\x9f", "d\u2028e", "f\u2029", "g\U0001f600"],
    "unlisted": ["a\ufffeb"],
    "long": ["x" * 900],
    "hidden": ["a._COPYING_"],
}

#: Moments of which two pairs have one text in Berlin: the hour at the end of summer time, twice.
HOUR = ["2013-10-27T00:30:00Z", "2013-10-27T01:30:00Z", "2013-10-27T02:30:00Z"]


def main() -> None:
    """Write each table, in one task, which Spark sorts by the values."""
    spark = SparkSession.builder.config("spark.sql.session.timeZone", "Europe/Berlin").getOrCreate()
    errors = {}
    for table, values in VALUES.items():
        rows = spark.createDataFrame(list(enumerate(values)), "id INT, p STRING").coalesce(1)
        try:
            rows.write.partitionBy("p").mode("append").parquet(f"{sys.argv[1]}/{table}")
        except Exception as error:
            errors[table] = str(error)
    try:
        rows.write.mode("append").parquet(f"{sys.argv[1]}/backslash/a\\b")
    except Exception as error:
        errors["backslash"] = str(error)
    moments = spark.createDataFrame(list(enumerate(HOUR)), "id INT, t STRING").coalesce(1)
    moments = moments.selectExpr("id", "cast(t AS timestamp) AS p")
    moments.write.partitionBy("p").mode("append").parquet(f"{sys.argv[1]}/hours")
    print(json.dumps(errors))


if __name__ == "__main__":
    main()

"""An application that reads snapshots of an Iceberg table by its metadata, and prints their rows."""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import col


def main() -> None:
    """Take the URI of the metadata, then ids of snapshots; the last line printed has each one's rows."""
    metadata, *snapshots = sys.argv[1:]
    spark = SparkSession.builder.getOrCreate()
    found = []
    for snapshot in snapshots:
        table = spark.read.format("iceberg").option("versionAsOf", snapshot).load(metadata)
        texts = table.select(
            "id", "name", *(col(one).cast("string") for one in ("amount", "day", "place", "at"))
        )
        found.append([row.asDict() for row in texts.sort("id").collect()])
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()

"""Print the rows of each day as plain Spark sees them, which lists the dataset's files."""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
counted = spark.read.parquet(sys.argv[1]).groupBy("dt").count().collect()
print(json.dumps({str(row["dt"]): row["count"] for row in counted}))

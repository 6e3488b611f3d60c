"""An application as `spark-submit` runs it: it imports the package from what was sent with it, or not at all.

Arguments: a destination. It writes by both doors, and says where its package was.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession


def main(destination: str) -> None:
    """Write two tables below a destination, and tell."""
    import airflow_s3commit  # noqa: PLC0415 - the test is that it is here
    from airflow_s3commit.spark import register, write_pending  # noqa: PLC0415

    spark = SparkSession.builder.getOrCreate()
    register(spark)
    rows = spark.range(100, numPartitions=2).selectExpr("id", "cast(id % 3 as string) as p")
    written = write_pending(rows, destination=f"{destination}pending/", partition_by=["p"])
    assert written.manifest is not None
    rows.write.format("s3commit").mode("append").option("partitionBy", "p").save(f"{destination}format/")
    told = {
        "package": airflow_s3commit.__file__,
        "rows": written.manifest.counts.rows,
    }
    sys.stdout.write(f"told: {json.dumps(told)}\n")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])

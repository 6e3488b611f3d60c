"""A Spark application that overwrites tables of its catalog, ends the jobs, and registers partitions."""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

from airflow_s3commit import Job, JobReference, S3Config, S3Store
from airflow_s3commit.spark import register_partitions


def main() -> None:
    """Overwrite the tables that the argument names, each with its job, and ``commit`` or ``abort`` these."""
    tables = json.loads(sys.argv[1])
    builder = SparkSession.builder
    spark = builder.enableHiveSupport().getOrCreate() if sys.argv[2] == "hive" else builder.getOrCreate()
    store = S3Store.connect(S3Config())
    seen = {}
    for name, told in tables.items():

        def partitions(name: str = name) -> list[str]:
            return sorted(row[0] for row in spark.sql(f"SHOW PARTITIONS {name}").collect())

        job = Job.at(store, JobReference.from_dict(told["job"]))
        place = job.reference.destination.replace("s3:", "s3a:")
        spark.sql(
            f"CREATE TABLE {name} (id BIGINT, dt STRING, h INT) USING parquet PARTITIONED BY (dt, h)"
            f" LOCATION '{place}'"
        )
        moments = [partitions()]
        register_partitions(spark, name, store)
        moments.append(partitions())
        values = r"""id, if(id = 0, "it's\\", 'new'), cast(id AS int)"""
        spark.sql(f"INSERT OVERWRITE {name} SELECT {values} FROM range(2)")
        moments.append(partitions())
        if told["end"] == "abort":
            job.abort()
        else:
            job.seal_stage("load", "1")
            job.seal()
            job.commit()
        report = register_partitions(spark, name, store)
        again = register_partitions(spark, name, store)
        moments.append(partitions())
        spark.sql(f"REFRESH TABLE {name}")
        ids = sorted(row.id for row in spark.table(name).collect())
        seen[name] = {
            "moments": moments,
            "ids": ids,
            "generation": report.generation,
            "again": [*again.added, *again.removed],
        }
    sys.stdout.write(json.dumps(seen) + "\n")


if __name__ == "__main__":
    main()

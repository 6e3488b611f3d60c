"""A client of Spark Connect, with a server beside it; says a line of JSON for everything it tried.

Run as ``python -m tests.spark_cluster.connect_client <arguments as JSON>``.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from airflow_s3commit.spark import foreach_batch, read_table, register, write_pending

if TYPE_CHECKING:
    from collections.abc import Callable

#: Spark gives the process that runs a stream's function ten seconds to start, whatever else runs.
_IMPATIENT = "Python worker failed to connect back"


def main() -> None:
    """Try each way to write or read, and print its result."""
    told = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    spark = SparkSession.builder.remote("local[1]").config(map=told["conf"]).getOrCreate()
    tables, home = told["tables"], told["home"]

    def by_format() -> None:
        register(spark)
        spark.range(10).write.format("s3commit").mode("append").save(tables["format"])

    def by_function() -> int:
        frame = spark.range(10).selectExpr("id", "id % 2 = 0 as even")
        written = write_pending(frame, destination=tables["write_pending"], partition_by=["even"])
        assert written.manifest is not None
        return written.manifest.counts.rows or 0

    def read() -> list[list[Any]]:
        found = read_table(spark, tables["write_pending"])
        assert found.columns == ["id", "even"]
        return sorted(list(row) for row in found.where("even or id > 6").collect())

    def by_stream(stream: str | None) -> str | None:
        rows = spark.readStream.schema("id long").json(f"{home}/source")
        write = foreach_batch(destination=tables["foreach_batch"], stream=stream)
        query = (
            rows.writeStream.foreachBatch(write)
            .option("checkpointLocation", f"{home}/checkpoint-{stream}")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return None

    tried: dict[str, Callable[[], Any]] = {
        "format": by_format,
        "write_pending": by_function,
        "read_table": read,
        "foreach_batch": lambda: by_stream("orders-1"),
        "foreach_batch without a stream": lambda: by_stream(None),
    }
    for name, attempt in tried.items():
        said = outcome(attempt)
        answers.write(json.dumps({"what": name, **said}) + "\n")
        answers.flush()
    spark.stop()


def outcome(attempt: Callable[[], Any]) -> dict[str, Any]:
    """Return the outcome of an attempt; repeat it where a busy machine took Spark's ten seconds and more."""
    for _ in range(10):
        try:
            return {"result": attempt()}
        except Exception as error:  # any error is the answer
            said = {"error": f"{type(error).__name__}: {error}"}
            if _IMPATIENT not in said["error"]:
                break
    return said


if __name__ == "__main__":
    main()

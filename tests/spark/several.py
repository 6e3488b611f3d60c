"""A Spark application that writes 30 rows twice through each door of this package, in each of several ways.

Arguments: the conf of each case, as JSON, by its name; a URI; a local folder; the first row. Each case has a
table of its name below the URI. The last line that it prints has the errors of each case.
"""

from __future__ import annotations

import json
import sys
from threading import Thread

from pyspark.sql import DataFrame, SparkSession

from airflow_s3commit.spark import foreach_batch, register, write_pending

DOORS = ("format", "write_pending")
WAYS = ("contexts", "threads")
STREAMS = ("stream contexts", "stream named", "stream unnamed")


class Writes:
    """Two writes of each case, and the errors that they ended with."""

    def __init__(self, confs: dict[str, dict[str, str]], place: str, local: str, start: int) -> None:
        self.confs, self.place, self.local, self.start = confs, place, local, start
        self.errors: dict[str, list[str]] = {}

    def uri(self, case: str) -> str:
        return f"{self.place}{case.replace(' ', '-')}/"

    def attempt(self, case: str, write) -> None:
        try:
            write()
        except Exception as error:
            self.errors.setdefault(case, []).append(str(error))

    def once(self, spark: SparkSession, case: str, number: int) -> None:
        """Write 30 rows for the job in the session's conf, or without one."""
        first = self.start + 30 * number
        rows = spark.range(first, first + 30, numPartitions=2)
        if case.startswith("format"):
            self.attempt(case, lambda: rows.write.format("s3commit").mode("append").save(self.uri(case)))
        else:
            self.attempt(case, lambda: write_pending(rows, destination=self.uri(case), mode="append"))

    def in_session(self, spark: SparkSession, case: str, numbers: tuple[int, ...]) -> None:
        """Make some writes of a case at once, with its conf."""
        conf = self.confs.get(case, {})
        for key, value in conf.items():
            spark.conf.set(key, value)
        if len(numbers) == 1:
            self.once(spark, case, numbers[0])
        else:
            threads = [Thread(target=self.once, args=(spark, case, number)) for number in numbers]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        for key in conf:
            if "endpoint" not in key and "path.style" not in key:
                spark.conf.unset(key)

    def stream(self, spark: SparkSession, case: str, number: int) -> None:
        """Write 30 rows as a batch; or as two writes of one batch, with different names or none."""
        source = f"{self.local}/{case}-{number}"
        first = self.start + 30 * number
        spark.range(first, first + 30, numPartitions=1).write.mode("append").parquet(source)
        writes = [
            foreach_batch(destination=self.uri(case), name=name if case == "stream named" else "")
            for name in (("low", "high") if case != "stream contexts" else ("",))
        ]

        def both(frame: DataFrame, batch: int) -> None:
            for half, write in enumerate(writes):
                write(frame.where(f"id % {len(writes)} = {half}"), batch)

        stream = spark.readStream.schema("id long").parquet(source)
        query = stream.writeStream.foreachBatch(both).trigger(availableNow=True)
        query = query.option("checkpointLocation", f"{self.local}/checkpoint {case} {number}").start()
        self.attempt(case, query.awaitTermination)


def main() -> None:
    """Make all writes."""
    writes = Writes(json.loads(sys.argv[1]), *sys.argv[2:4], int(sys.argv[4]))
    for number in range(2):
        spark = SparkSession.builder.getOrCreate()
        register(spark)
        for door in DOORS:
            for job in ("job ", ""):
                writes.in_session(spark, f"{door} {job}contexts", (number,))
                if number:
                    writes.in_session(spark, f"{door} {job}threads", (0, 1))
        for case in STREAMS:
            writes.stream(spark, case, number)
        spark.stop()
    sys.stdout.write(json.dumps(writes.errors) + "\n")


if __name__ == "__main__":
    main()

"""A Spark application that writes in uncommon ways, to S3 and the same to a disk.

Arguments: a directory of S3A, and one of the disk. The last line that it prints has the error of each write.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Thread

from pyspark.sql import DataFrame, SparkSession

PROTOCOL = "spark.sql.sources.commitProtocolClass"
HADOOPS = "org.apache.spark.sql.execution.datasources.SQLHadoopMapReduceCommitProtocol"


class Writes:
    """Ways to write; each method writes to a table of its own name below a directory."""

    def __init__(self, spark: SparkSession, root: str, suffix: str) -> None:
        self.spark, self.root, self.suffix = spark, root, suffix
        rows = spark.range(40).selectExpr("id", "concat('d', id % 3) AS dt")
        self.rows: DataFrame = rows.repartition(2, "id")
        self.rows.createOrReplaceTempView("rows")

    def table(self, name: str) -> str:
        """Create an external partitioned table, and return its name."""
        full = f"{name}_{self.suffix}"
        self.spark.sql(
            f"CREATE TABLE {full} (id BIGINT, dt STRING) USING parquet PARTITIONED BY (dt)"
            f" LOCATION '{self.root}/{name}'"
        )
        return full

    def option_path(self) -> None:
        """Name the path in an option."""
        path = f"{self.root}/option_path"
        self.rows.write.partitionBy("dt").mode("overwrite").option("path", path).save()

    def insert_into(self) -> None:
        """Overwrite a table by position, and dynamically by an option of the write."""
        name = self.table("insert_into")
        self.rows.write.insertInto(name, overwrite=True)
        moved = self.rows.selectExpr("id + 100 AS id", "dt").where("dt = 'd1'")
        moved.write.option("partitionOverwriteMode", "dynamic").insertInto(name, overwrite=True)

    def dynamic_option(self) -> None:
        """Overwrite dynamically by an option, twice."""
        for condition in ("dt <> 'd2'", "dt = 'd1' AND id > 9"):
            write = self.rows.where(condition).write.option("partitionOverwriteMode", "dynamic")
            write.partitionBy("dt").mode("overwrite").parquet(f"{self.root}/dynamic_option")

    def text_gzip(self) -> None:
        """Write compressed lines."""
        lines = self.rows.selectExpr("concat(id, ' ', dt) AS value")
        lines.write.option("compression", "gzip").mode("overwrite").text(f"{self.root}/text_gzip")

    def lines(self) -> None:
        """Write formats of lines, with options."""
        rows = self.rows.selectExpr("id", "concat(dt, ', \"', id) AS text", "dt").write.partitionBy("dt")
        rows.mode("append").option("header", "true").csv(f"{self.root}/lines")
        rows.mode("append").option("compression", "gzip").json(f"{self.root}/lines")

    def typed(self) -> None:
        """Write partitions by days, times, numbers and booleans."""
        rows = self.rows.selectExpr(
            "id",
            "date_add(DATE '2013-01-01', cast(id % 2 AS int)) AS day",
            "TIMESTAMP '2013-01-01 12:30:00' + make_interval(0, 0, 0, 0, 0, cast(id % 3 AS int)) AS at",
            "cast(id % 2 AS decimal(5, 2)) AS price",
            "id % 2 = 0 AS even",
        )
        rows.write.partitionBy("day", "at", "price", "even").mode("overwrite").orc(f"{self.root}/typed")

    def threads(self) -> None:
        """Append from several threads at once, but on a disk in turn, where some would lose files."""

        def append(number: int) -> None:
            part = self.rows.where(f"id % 4 = {number}").write.partitionBy("dt")
            part.mode("append").parquet(f"{self.root}/threads")

        threads = [Thread(target=append, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
            if not self.root.startswith("s3a:"):
                thread.join()
        for thread in threads:
            thread.join()

    def empty(self) -> None:
        """Overwrite with no rows."""
        self.rows.limit(0).write.mode("overwrite").parquet(f"{self.root}/empty")

    def null_partition(self) -> None:
        """Write partitions without a value, and with an empty one, a slash and a percent sign."""
        rows = self.rows.selectExpr(
            "id", "CASE id % 4 WHEN 0 THEN '' WHEN 1 THEN 'a/b' WHEN 2 THEN '5%' END AS dt"
        )
        rows.write.partitionBy("dt").mode("append").parquet(f"{self.root}/null_partition")

    def directory(self) -> None:
        """Overwrite a directory in SQL."""
        path = f"{self.root}/directory"
        self.spark.sql(f"INSERT OVERWRITE DIRECTORY '{path}' USING parquet SELECT * FROM rows WHERE id < 9")

    def special(self) -> None:
        """Write to a path with spaces, umlauts and signs."""
        self.rows.write.partitionBy("dt").mode("append").parquet(f"{self.root}/special a ü+%41=1")

    def jvm(self) -> None:
        """Use the API of Scala and Java."""
        mode = self.spark._jvm.org.apache.spark.sql.SaveMode.Overwrite
        columns = self.spark.sparkContext._gateway.new_array(self.spark._jvm.java.lang.String, 1)
        columns[0] = "dt"
        self.rows._jdf.write().mode(mode).partitionBy(columns).orc(f"{self.root}/jvm")

    def noop(self) -> None:
        """Write nothing."""
        self.rows.write.format("noop").mode("overwrite").save()

    def v2(self) -> None:
        """Overwrite partitions with the newer interface's writer, which Spark has for other tables."""
        self.rows.writeTo(self.table("v2")).overwritePartitions()

    def updated(self) -> None:
        """Change rows in place."""
        self.spark.sql(f"UPDATE {self.table('updated')} SET id = 1")

    def merged(self) -> None:
        """Merge rows."""
        name = self.table("merged")
        self.spark.sql(f"MERGE INTO {name} t USING rows r ON t.id = r.id WHEN MATCHED THEN DELETE")

    def binary(self) -> None:
        """Write a format that Spark only reads."""
        self.rows.write.format("binaryFile").mode("append").save(f"{self.root}/binary")

    def own_protocol(self) -> None:
        """Set another commit protocol in the session."""
        before = self.spark.conf.get(PROTOCOL)
        self.spark.conf.set(PROTOCOL, HADOOPS)
        try:
            self.rows.write.mode("overwrite").parquet(f"{self.root}/own_protocol")
        finally:
            self.spark.conf.set(PROTOCOL, before)

    def batches(self) -> None:
        """Write the batches of a stream with Spark's own writer."""
        self._stream(
            lambda stream: stream.foreachBatch(
                lambda frame, _: frame.write.mode("append").parquet(f"{self.root}/batches")
            )
        )

    def batch_threads(self) -> None:
        """Write the batches of a stream in a thread, which lacks Spark's mark of them."""

        def write(frame: DataFrame, _: int) -> None:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(frame.write.mode("append").parquet, f"{self.root}/batch_threads").result()

        self._stream(lambda stream: stream.foreachBatch(write))

    def beside_a_stream(self) -> None:
        """Write while a stream runs that writes elsewhere."""
        source = self.spark.readStream.format("rate").load()
        query = source.writeStream.format("noop").start()
        try:
            self.rows.write.partitionBy("dt").mode("append").parquet(f"{self.root}/beside_a_stream")
        finally:
            query.stop()

    def sink(self) -> None:
        """Write a stream to files."""
        self._stream(lambda stream: stream.format("parquet").option("path", f"{self.root}/sink"))

    def _stream(self, to: Callable) -> None:
        source = self.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
        stream = to(source.writeStream.trigger(once=True))
        stream.option("checkpointLocation", f"{sys.argv[2]}/checkpoint-{id(to)}").start().awaitTermination()


NAMES = [name for name in vars(Writes) if not name.startswith("_") and name != "table"]


def main() -> None:
    """Write everything to both places."""
    spark = SparkSession.builder.getOrCreate()
    errors = {}
    for root, suffix in ((sys.argv[1], "there"), (f"file://{sys.argv[2]}", "here")):
        writes = Writes(spark, root, suffix)
        for name in NAMES:
            try:
                getattr(writes, name)()
                error = ""
            except Exception as caught:
                error = str(caught)
            errors[f"{name} {suffix}"] = error
    sys.stdout.write(json.dumps(errors) + "\n")


if __name__ == "__main__":
    main()

"""A Spark application that has many jobs, one after the other and in threads, for Spark's own writers.

Arguments: a URI below which the tables are; the reference of another owner's job, as JSON; a folder with two
pipes. The last line that it prints has the error of each way to write that ends with one.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path
from select import select
from threading import Barrier, Thread
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from airflow_s3commit import Job, JobOptions, JobReference
from airflow_s3commit.exceptions import InvalidOption
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.spark import commit_job, read_table, write_pending
from airflow_s3commit.spark.session import store_of_process
from airflow_s3commit.spark.writer_settings import s3a_address


def both_ends(pipe: Path) -> FileIO:
    """Open a pipe without waiting for its other end."""
    return FileIO(pipe, "r+")


class Turns:
    """Ways to write; each writes to the tables that begin with its name."""

    def __init__(self, spark: SparkSession, place: str, other: JobReference, folder: Path) -> None:
        self.spark, self.place, self.other, self.folder = spark, place, other, folder

    def rows(self, first: int, last: int) -> DataFrame:
        """Return numbered rows of two days, in two tasks."""
        rows = self.spark.range(first, last, numPartitions=2)
        return rows.selectExpr("id", "concat('d', id % 2) AS dt")

    def uri(self, table: str) -> str:
        return f"{self.place}{table}/"

    def append(self, table: str, first: int, last: int) -> None:
        """Append rows as an application does that knows nothing of jobs."""
        path = self.uri(table).replace("s3://", "s3a://").rstrip("/")
        self.rows(first, last).write.partitionBy("dt").mode("append").parquet(path)

    def write_pending(self) -> None:
        """Append, overwrite one partition and no other layout, and find data; partitions keep their type."""
        for format in ("parquet", "orc"):  # noqa: A001 - as Spark calls it
            where: dict[str, Any] = {"destination": self.uri(f"write_pending-{format}"), "format": format}
            where |= {"partition_by": ["dt"], "engine": "spark"}
            for first in (0, 10):
                write_pending(self.rows(first, first + 10), **where, mode="append")
            one = self.rows(100, 110).where("dt = 'd1'")
            written = write_pending(one, **where, mode="overwrite", options={"compression": "none"})
            assert written.manifest is not None
            assert written.manifest.counts.rows == 5
            assert write_pending(one, **where, mode="ignore").ignored
            for rows, columns in ((one.where("false"), ["dt"]), (one, ["id"]), (one, [])):
                try:
                    write_pending(rows, **where | {"partition_by": columns}, mode="overwrite")
                except InvalidOption:
                    continue
                raise AssertionError(f"an overwrite by {columns} of a table by dt was committed")
        typed = where | {"destination": self.uri("write_pending-typed")}
        write_pending(one.selectExpr("dt AS name", "id AS Dt"), **typed)
        assert read_table(self.spark, typed["destination"]).dtypes == [("name", "string"), ("dt", "bigint")]
        write_pending(one, **where)

    def block(self) -> None:
        """Write several times, by Spark and in Python, to two destinations, in blocks of which one fails."""
        with commit_job(self.spark, self.uri("block-outer")) as job:
            self.append("block-outer", 0, 6)
            for stage, first in ((None, 6), ("more", 8)):
                write_pending(self.rows(first, first + 2), job=job, stage=stage, partition_by=["dt"])
            with commit_job(self.spark, self.uri("block-inner")):
                self.append("block-inner", 0, 10)
            self.append("block-outer", 10, 20)
        assert job.manifest().counts.rows == 20
        try:
            with commit_job(self.spark, self.uri("block-outer")):
                self.append("block-outer", 20, 30)
                raise KeyError("the block fails")
        except KeyError:
            pass
        with commit_job(self.spark, self.uri("block-outer"), options=JobOptions(conflict_mode="fail")):
            self.append("block-outer", 0, 10)

    def thread(self) -> None:
        """Write in threads at once, each for a job of its own, to one destination and two others."""
        barrier, failed = Barrier(2), []

        def both(number: int) -> None:
            try:
                for table in ("thread-same", f"thread-{number}"):
                    with commit_job(self.spark, self.uri(table)):
                        barrier.wait(300)
                        self.append(table, 10 * number, 10 * number + 10)
                        barrier.wait(300)
            except Exception as error:
                failed.append(error)
                barrier.abort()

        threads = [Thread(target=both, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failed:
            raise failed[0]

    def nameless(self) -> None:
        """Write in a thread that has begun none of the jobs of a destination."""
        failed: list[Exception] = []

        def write() -> None:
            try:
                self.append("nameless", 0, 10)
            except Exception as error:
                failed.append(error)

        with commit_job(self.spark, self.uri("nameless")), commit_job(self.spark, self.uri("nameless")):
            thread = Thread(target=write)
            thread.start()
            thread.join()
            raise failed[0]

    def late(self) -> None:
        """Leave a block while another thread still writes."""
        folder, failed = self.folder, []

        def waiting(batches: Iterator[Any]) -> Iterator[Any]:
            with both_ends(folder / "out") as out, both_ends(folder / "in") as into:
                out.write(b"a task runs")
                into.read(1)
            yield from batches

        def write() -> None:
            rows = self.rows(0, 10).coalesce(1).mapInPandas(waiting, "id long, dt string")
            try:
                rows.write.mode("append").parquet(self.uri("late").replace("s3://", "s3a://").rstrip("/"))
            except Exception as error:
                failed.append(str(error))

        thread = Thread(target=write)
        with both_ends(folder / "out") as out, both_ends(folder / "in") as into:
            try:
                with commit_job(self.spark, self.uri("late")):
                    thread.start()
                    assert select([out], [], [], 120)[0], failed
            finally:
                into.write(b"go on")
                thread.join()
                assert "the job has ended" in failed[0], failed

    def seen(self) -> None:
        """Read on in the session of a commit what it has listed or cached before."""
        path = self.uri("seen").replace("s3://", "s3a://")
        with commit_job(self.spark, self.uri("seen")):
            self.rows(0, 10).write.mode("append").parquet(path)
        self.spark.sql(f"CREATE TABLE seen (id BIGINT, dt STRING) USING parquet LOCATION '{path}'")
        cached = self.spark.read.parquet(path).cache()
        with commit_job(self.spark, self.uri("seen")):
            self.rows(10, 20).write.mode("append").parquet(path)
            assert [cached.count(), self.spark.table("seen").count()] == [10, 10]
        frames = (cached, self.spark.table("seen"), self.spark.read.parquet(path))
        assert [frame.count() for frame in frames] == [20, 20, 20]

    def empty(self) -> None:
        """Write nothing in a block."""
        with commit_job(self.spark, self.uri("empty")):
            pass

    def aborted(self) -> None:
        """Leave a block whose job another process has aborted."""
        with commit_job(self.spark, self.uri("aborted")) as job:
            self.append("aborted", 0, 10)
            bucket = Destination.parse(job.reference.destination).bucket
            Job.at(store_of_process(s3a_address(self.spark, bucket)), job.reference).abort()

    def other_owner(self) -> None:
        """Write two stages of a job that another process commits, and one of them twice."""
        for stage, first in (("a", 0), ("b", 10), ("a", 20)):
            rows = self.rows(first, first + 10)
            write_pending(rows, job=self.other, stage=stage, partition_by=["dt"], engine="spark")

    def killed(self) -> None:
        """Commit one job, and die in the next."""
        with commit_job(self.spark, self.uri("killed")):
            self.append("killed", 0, 10)
        with commit_job(self.spark, self.uri("killed")):
            self.append("killed", 10, 20)
            jvm: Any = self.spark.sparkContext._jvm
            os.kill(jvm.java.lang.ProcessHandle.current().pid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Write in each way; the last one ends the application."""
    place, other, folder = sys.argv[1:]
    spark = SparkSession.builder.getOrCreate()
    turns = Turns(spark, place, JobReference.from_dict(json.loads(other)), Path(folder))
    ways: list[Callable[[], None]] = [
        turns.write_pending, turns.block, turns.thread, turns.nameless, turns.late, turns.seen,
        turns.empty, turns.aborted, turns.other_owner,
    ]  # fmt: skip
    errors = {}
    for way in ways:
        try:
            way()
        except Exception as error:
            errors[way.__name__] = f"{type(error).__name__}: {error}"
    print(json.dumps(errors), flush=True)
    turns.killed()


if __name__ == "__main__":
    main()

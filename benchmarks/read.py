"""What it costs to read a table in Spark by its log: `read_table` compared with Spark's own listing.

    python benchmarks/read.py [--quick] [--json] [--jars DIRECTORY] [--rows N] [--small N] [--rounds N]
        [--latency MILLISECONDS]

One Spark session on two cores reads the same tables in turn, round after round, from one SeaweedFS:

- listing: `spark.read.parquet("s3a://…")`;
- read_table: the same files by the log, with the jar of the package.

A table of 40 partitions is read by five queries; a table of many small files is planned, which ends when
Spark knows the tasks. Reported are the median wall time, and the ratio to the listing in each round (median
and range) of wall time and of the processor time of driver and JVM, without the store's. Requests are those
of one more round, through a proxy that costs time: its other figures are dropped. With --latency each request
takes that much longer, as in a cloud; it passes through a proxy in Python, whose time slows both readers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from meter import Meter
from report import as_markdown, machine, show, write_section
from request_counter import RequestCounter
from spark_with_s3a import start_session

from airflow_s3commit import Job, S3Store
from airflow_s3commit.spark import pending_jar, read_table, write_pending
from airflow_s3commit.testing.s3_server import S3Server

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

BUCKET = "lake"
LARGE, SMALL, PATTERN = (f"s3://{BUCKET}/{name}/" for name in ("large", "small", "pattern"))
#: Rows of the table whose first file is copied as every small file; that file has a hundred of them.
SMALL_ROWS = 4_000
ENDPOINTS = ("fs.s3a.endpoint", "spark.s3commit.endpoint.url")
COLUMNS = (
    "query",
    "listing s",
    "read_table s",
    "to listing",
    "CPU to listing",
    "listing asks",
    "read_table asks",
)

QUERIES: dict[str, tuple[str, Callable[[DataFrame], object]]] = {
    "count": (LARGE, lambda rows: rows.count()),
    "sum of one column": (LARGE, lambda rows: rows.selectExpr("sum(id)").collect()),
    "every column": (LARGE, lambda rows: rows.write.format("noop").mode("overwrite").save()),
    "a range of ids": (LARGE, lambda rows: rows.where("id < 100000").selectExpr("max(name)").collect()),
    "one day": (LARGE, lambda rows: rows.where("dt = 'd7'").write.format("noop").mode("overwrite").save()),
    "plan of small files": (SMALL, lambda rows: rows.rdd.getNumPartitions()),
}
READERS: dict[str, Callable[[SparkSession, str], DataFrame]] = {
    "listing": lambda spark, uri: spark.read.parquet(uri.replace("s3:", "s3a:")),
    "read_table": read_table,
}


@dataclass(slots=True)
class Cost:
    """What one reader spent on one query, in seconds by round."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


def fill(spark: SparkSession, store: S3Store, rows: int, small: int) -> None:
    """Write both tables."""
    columns = "id", "concat('d', id % 40) AS dt", "id * 1.5 AS delay", "md5(cast(id AS string)) AS name"
    for uri, count in ((LARGE, rows), (PATTERN, SMALL_ROWS)):
        frame = spark.range(count, numPartitions=4 if uri == LARGE else 1).selectExpr(*columns)
        write_pending(frame, destination=uri, partition_by=["dt"], cluster=False)
    one = next(info.key for info in store.list_objects(BUCKET, "pattern/dt=") if info.size)
    body = store.get(BUCKET, one).body
    with ThreadPoolExecutor(16) as pool:
        keys = [f"small/dt=d{number % 40}/{number}.parquet" for number in range(small)]
        list(pool.map(lambda key: store.put(BUCKET, key, body), keys))
    # The first set-up on a table lists the existing files as the first generation.
    Job.setup(store, SMALL)


def point_at(spark: SparkSession, endpoint: str) -> None:
    """Point both readers at another endpoint, and close S3A's cached file systems, which keep the old one."""
    for key in ENDPOINTS:
        spark.conf.set(key, endpoint)
    jvm: Any = spark._jvm  # noqa: SLF001
    jvm.org.apache.hadoop.fs.FileSystem.closeAll()


def run(options: argparse.Namespace) -> tuple[dict[str, float], list[tuple[str, ...]]]:
    """Measure every query with both readers; return the figures and the rows of the table."""
    figures: dict[str, float] = {}
    rows: list[tuple[str, ...]] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        S3Server(Path(folder), (BUCKET,)) as server,
        RequestCounter(server.endpoint_url) as counter,
        RequestCounter(server.endpoint_url, options.latency / 1_000) as door,
    ):
        timed = door.endpoint_url if options.latency else server.endpoint_url
        conf = {ENDPOINTS[1]: server.endpoint_url}
        spark, with_s3a = start_session(server, options.jars, conf=conf, more_jars=[pending_jar()])
        if not with_s3a:
            sys.exit("nothing can be read without the jars of S3A")
        fill(spark, S3Store.connect(server.config), options.rows, options.small)
        meter = Meter(spark)
        for name, (uri, query) in QUERIES.items():
            asked: dict[str, Counter[str]] = {}
            point_at(spark, counter.endpoint_url)
            for reader, read in READERS.items():
                counter.take()
                query(read(spark, uri))
                asked[reader] = counter.take()
            point_at(spark, timed)
            costs = {reader: Cost() for reader in READERS}
            for number in range(options.rounds):
                turn = list(READERS.items())
                for reader, read in turn[:: -1 if number % 2 else 1]:
                    cpu, began = meter.cpu(), perf_counter()
                    query(read(spark, uri))
                    costs[reader].wall.append(perf_counter() - began)
                    costs[reader].cpu.append(meter.cpu() - cpu)
            base, ours = costs["listing"], costs["read_table"]
            cells = [f"{statistics.median(one.wall):.2f}" for one in (base, ours)]
            for mine, its in ((ours.wall, base.wall), (ours.cpu, base.cpu)):
                ratios = [a / max(b, 0.01) for a, b in zip(mine, its, strict=True)]
                cells.append(f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
            cells += [
                ", ".join(f"{count:,} {kind}" for kind, count in one.most_common()) for one in asked.values()
            ]
            rows.append((name, *cells))
            for reader, cost in costs.items():
                figures[f"wall_seconds {reader}: {name}"] = round(statistics.median(cost.wall), 3)
                figures[f"cpu_seconds {reader}: {name}"] = round(statistics.median(cost.cpu), 3)
                figures[f"requests {reader}: {name}"] = asked[reader].total()
        spark.stop()
    return figures, rows


def main() -> None:
    """Measure and print; record a run that is not the quick one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="once, with few rows and files")
    parser.add_argument("--json", action="store_true", help="print one JSON object with the figures")
    parser.add_argument("--jars", type=Path, help="a folder with the jars of S3A, in place of Maven's")
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows of the large table (10,000,000)")
    parser.add_argument("--small", type=int, default=20_000, help="small files (20,000)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds (5)")
    parser.add_argument("--latency", type=int, default=0, help="milliseconds more for each request (0)")
    options = parser.parse_args()
    if options.quick:
        options.rows, options.small, options.rounds = min(options.rows, 10_000), 100, 1
    figures, rows = run(options)
    title = f"{options.rows:,} rows in 40 partitions, and {options.small:,} small files"
    title += f", {options.latency} ms a request" if options.latency else ""
    show(title, COLUMNS, rows, to_stderr=options.json)
    if options.json:
        print(json.dumps({"benchmark": "read", "machine": machine(), **figures}))
    if not options.quick:
        name = f"read, {options.latency} ms" if options.latency else "read"
        write_section(name, f"{machine()} {options.rounds} rounds.\n\n{as_markdown(title, COLUMNS, rows)}")


if __name__ == "__main__":
    main()

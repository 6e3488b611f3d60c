"""What it costs to keep a Spark job unchanged: our commit protocol against S3A magic and our data source.

    python benchmarks/unchanged.py [--quick] [--json] [--jars DIRECTORY]
        [--rows N] [--rounds N] [--only many|one|small ...] [--latency MILLISECONDS]

One Spark session, with a driver and an executor of two cores as processes of their own, writes the same rows
in turn, round after round, another writer first each time. All go to one SeaweedFS:

- s3a magic: `df.write.partitionBy("dt").mode("append").parquet("s3a://…")`, committed by Hadoop, which tracks
  uploads in memory and skips the probes of the store that `fs.s3a.performance.flags=*` lets it skip;
- unchanged: the same line in a block of `commit_job`, with our jar: the application commits, as S3A's does;
- in steps: the same line, with our jar, for a job that is set up, sealed and committed step by step, as other
  processes would, all of it within the measured time: in a DAG other tasks take these steps;
- ours magic: `df.write.format("s3commit")`, which sets its job up and commits it too.

Reported are whole-job wall time and the processor time of the driver, the executor and the Python processes,
without the store's: medians with their range, and the ratio to S3A's in each round, its median and range.
"heap MiB" is the peak of the driver's heap beyond what it held before, garbage included, of which the
young generation holds at most 24 MiB; "Python MiB" is the peak of the Python process that commits, or of the
largest worker, beyond what it held before. Requests are counted in one more round, through a proxy that costs
time, so that round's other figures are dropped: "writes" are what S3 charges as PUT, COPY, POST or LIST, and
"reads" GET and HEAD; deletes and aborts are free. Every write begins a table: the first job of a table
measures the store, which is in its time and its requests. With --latency each request takes that much longer,
as in a cloud; it passes through a proxy in Python, whose time on these cores slows all writers.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import tempfile
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from meter import Meter
from report import as_markdown, machine, show, write_section
from request_counter import RequestCounter
from spark_with_s3a import PACKAGES, start_session
from write import Case, flights

from airflow_s3commit import Job, JobOptions, S3Store, latest_manifest
from airflow_s3commit.spark import commit_job, committer_conf, pending_conf, pending_jar, register
from airflow_s3commit.spark.session import IN_MEMORY
from airflow_s3commit.store.base import ObjectToDelete
from airflow_s3commit.testing.s3_server import S3Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

#: Buckets of the timed rounds, and of the one whose requests are counted.
TIMED, COUNTED = "timed", "counted"
FREE = {"DELETE", "bulk delete", "abort"}
READS = {"GET", "HEAD"}
COLUMNS = (
    "writer",
    "wall s",
    "to s3a",
    "CPU s",
    "to s3a",
    "heap MiB",
    "Python MiB",
    "writes",
    "reads",
    "files",
)

#: Rows into many partitions, into one, and a fifth of the rows in many small files.
CASES = ("many", "one", "small")
PROTOCOL = "spark.sql.sources.commitProtocolClass"


@dataclass(slots=True)
class Writer:
    """One way to write, and its cost in each round."""

    name: str
    write: Callable[[Lake, S3Store, DataFrame, str], None]
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    heap: list[float] = field(default_factory=list)
    python: list[float] = field(default_factory=list)
    requests: Counter[str] = field(default_factory=Counter)
    files: int = 0


@dataclass(frozen=True, slots=True)
class Lake:
    """A bucket, and the address under which every client reaches it."""

    server: S3Server
    bucket: str
    endpoint_url: str

    def connect(self) -> S3Store:
        """Return a new store on it."""
        return S3Store.connect(replace(self.server.config, endpoint_url=self.endpoint_url))

    def uri(self, name: str, scheme: str = "s3") -> str:
        """Return the URI of a table."""
        return f"{scheme}://{self.bucket}/{name}/"

    def listed(self) -> list[str]:
        """Return all keys, asking the server itself."""
        return [info.key for info in S3Store.connect(self.server.config).list_objects(self.bucket, "")]

    def empty(self) -> None:
        """Remove all objects."""
        store = S3Store.connect(self.server.config)
        keys = list(self.listed())
        for at in range(0, len(keys), 1_000):
            assert not store.delete_many(self.bucket, [ObjectToDelete(key) for key in keys[at : at + 1_000]])


def through_s3a(lake: Lake, _: S3Store, frame: DataFrame, name: str) -> None:
    """Write with Spark's own writer through the S3A magic committer."""
    frame.write.partitionBy("dt").mode("append").parquet(lake.uri(name, "s3a"))


def unchanged(lake: Lake, _: S3Store, frame: DataFrame, name: str) -> None:
    """Write with Spark's own writer for a job that the application commits, as S3A's driver does."""
    with as_pending(frame.sparkSession), commit_job(frame.sparkSession, lake.uri(name)):
        frame.write.partitionBy("dt").mode("append").parquet(lake.uri(name, "s3a"))


def in_steps(lake: Lake, store: S3Store, frame: DataFrame, name: str) -> None:
    """Write with Spark's own writer for a job whose steps could each be another process's, as in a DAG."""
    spark = frame.sparkSession
    job = Job.setup(store, lake.uri(name), options=JobOptions(conflict_mode="as-written"))
    conf = committer_conf(job.reference, "load", "1", writer="spark")
    # The session runs already; an application has these in its conf from the start, for one job only.
    application = {key: value for key, value in conf.items() if key.startswith("spark.s3commit.")}
    sparks = spark.sparkContext._jsc.sc().conf()  # noqa: SLF001
    for key, value in application.items():
        sparks.set(key, value)
    with as_pending(spark):
        frame.write.partitionBy("dt").mode("append").parquet(lake.uri(name, "s3a"))
    for key in application:
        sparks.remove(key)
    job.seal_stage("load", "1")
    job.seal([("load", "1")])
    job.commit()


@contextmanager
def as_pending(spark: SparkSession) -> Iterator[None]:
    """Let the session's writes be pending, and S3A's again after the block."""
    before = str(spark.conf.get(PROTOCOL))
    spark.conf.set(PROTOCOL, pending_conf()[PROTOCOL])
    yield
    spark.conf.set(PROTOCOL, before)


def ours(lake: Lake, _: S3Store, frame: DataFrame, name: str) -> None:
    """Write with this package's data source."""
    options = {
        "partitionBy": "dt",
        "committer": "magic",
        "endpointUrl": lake.endpoint_url,
        "pathStyle": "true",
    }
    frame.write.format("s3commit").mode("append").options(**options).save(lake.uri(name))


def check(lake: Lake, writer: Writer, name: str, rows: int) -> None:
    """Raise unless a write was committed by the committer that its name says, with all rows."""
    store = S3Store.connect(lake.server.config)
    if writer.write is through_s3a:
        marker = json.loads(store.get(lake.bucket, f"{name}/_SUCCESS").body)
        assert (marker["committer"], len(marker["filenames"])) == ("magic", min(writer.files, 100))
    else:
        assert latest_manifest(store, lake.uri(name)).counts.rows == rows


class DriversHeap:
    """The heap of the driver's JVM."""

    #: A small young generation, because used memory includes garbage; and py4j may call an internal package.
    OPTIONS = "-XX:+UseSerialGC -Xmn24m --add-opens=java.management/sun.management=ALL-UNNAMED"

    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = spark.sparkContext._jvm  # noqa: SLF001

    def _pools(self) -> list[Any]:
        pools = self._jvm.java.lang.management.ManagementFactory.getMemoryPoolMXBeans()
        return [pool for pool in pools if pool.getType().name() == "HEAP"]

    def reset(self) -> float:
        """Collect garbage, begin again, and return the bytes in use."""
        self._jvm.System.gc()
        for pool in self._pools():
            pool.resetPeakUsage()
        return self.peak()

    def peak(self) -> float:
        """Return the sum of the pools' peaks, in bytes."""
        return sum(pool.getPeakUsage().getUsed() for pool in self._pools())


def turn(writer: Writer, lake: Lake, frame: DataFrame, rows: int, *, meter: Meter, heap: DriversHeap) -> None:
    """Let a writer write once, record its cost, and check what it wrote outside of the clock."""
    meter.reset_peaks()
    Path("/proc/self/clear_refs").write_text("5")
    own, held, name = _own("VmRSS"), heap.reset(), writer.name.replace(" ", "-")
    # Made outside the measured time, as S3A's is; and new, so that a table's first job measures the store.
    store = lake.connect()
    gc.collect()
    cpu, began = meter.cpu(), perf_counter()
    writer.write(lake, store, frame, name)
    wall, used = perf_counter() - began, meter.cpu() - cpu
    writer.wall.append(wall)
    writer.cpu.append(used)
    writer.heap.append((heap.peak() - held) / (1 << 20))
    writer.python.append(max(meter.peak(), (_own("VmHWM") - own) / 1024))
    writer.files = len([key for key in lake.listed() if key.endswith(".parquet")])
    check(lake, writer, name, rows)
    print(f"  {writer.name}: {wall:.1f} s, CPU {used:.1f} s", file=sys.stderr, flush=True)
    lake.empty()


def _own(field_name: str) -> int:
    """Return one figure of this process, in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field_name + ":"))


def run(options: argparse.Namespace, figures: dict[str, float], keep: Callable[[list[str]], None]) -> None:
    """Measure every case, print its table, and save all tables so far as Markdown after each."""
    sections: list[str] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        S3Server(Path(folder), (TIMED, COUNTED)) as server,
        RequestCounter(server.endpoint_url) as counter,
        RequestCounter(server.endpoint_url, options.latency / 1_000) as door,
    ):
        address = door.endpoint_url if options.latency else server.endpoint_url
        conf = {
            "spark.master": "local-cluster[1,2,2048]",
            "spark.executor.memory": "2g",
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": DriversHeap.OPTIONS,
            IN_MEMORY: "true",
            "spark.hadoop.fs.s3a.performance.flags": "*",
            f"spark.hadoop.fs.s3a.bucket.{COUNTED}.endpoint": counter.endpoint_url,
            f"spark.hadoop.fs.s3a.bucket.{TIMED}.endpoint": address,
        }
        spark, with_s3a = start_session(server, options.jars, conf=conf, more_jars=(pending_jar(),))
        if not with_s3a:
            sys.exit("neither S3A nor the unchanged job can be measured without the jars of S3A")
        register(spark)
        meter, heap = Meter(spark), DriversHeap(spark)
        timed, counted = Lake(server, TIMED, address), Lake(server, COUNTED, counter.endpoint_url)
        for case, tasks in _cases(options):
            title = f"{case.rows:,} rows, {tasks} tasks, {case.partitions} partitions"
            title += f", {options.latency} ms a request" if options.latency else ""
            print(title, file=sys.stderr, flush=True)
            frame = flights(spark, case, tasks)
            writers = [
                Writer("s3a magic", through_s3a),
                Writer("unchanged", unchanged),
                Writer("in steps", in_steps),
                Writer("ours magic", ours),
            ]
            for writer in writers:
                turn(writer, timed, frame, case.rows, meter=meter, heap=heap)
                turn(writer, counted, frame, case.rows, meter=meter, heap=heap)
                counter.take()
                turn(writer, counted, frame, case.rows, meter=meter, heap=heap)
                writer.requests = counter.take()
                for dropped in (writer.wall, writer.cpu, writer.heap, writer.python):
                    dropped.clear()
            for number in range(options.rounds):
                at = number % len(writers)
                for writer in writers[at:] + writers[:at]:
                    turn(writer, timed, frame, case.rows, meter=meter, heap=heap)
            frame.unpersist(blocking=True)
            sections.append(report(title, writers, figures, to_stderr=options.json))
            keep(sections)
        spark.stop()


def _cases(options: argparse.Namespace) -> list[tuple[Case, int]]:
    if options.quick:
        return [(Case(100_000, 10, arranged=False), 4)]
    known = {
        "many": (Case(options.rows, 40, arranged=False), 4),
        "one": (Case(options.rows, 1, arranged=False), 4),
        "small": (Case(options.rows // 5, 40, arranged=False), 50),
    }
    return [known[name] for name in options.only]


def report(title: str, writers: list[Writer], figures: dict[str, float], *, to_stderr: bool) -> str:
    """Print one table, add its figures to ``figures``, and return it as Markdown."""
    rows, base = [], writers[0]
    for one in writers:
        kinds = one.requests
        reads = sum(count for kind, count in kinds.items() if kind in READS)
        writes = sum(count for kind, count in kinds.items() if kind not in READS | FREE)
        cells = [one.name]
        for mine, its in ((one.wall, base.wall), (one.cpu, base.cpu)):
            ratios = [a / b for a, b in zip(mine, its, strict=True)]
            cells.append(f"{statistics.median(mine):.2f} ({min(mine):.1f} to {max(mine):.1f})")
            cells.append(f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
        cells += [f"{statistics.median(of):,.0f}" for of in (one.heap, one.python)]
        rows.append((*cells, f"{writes:,}", f"{reads:,}", f"{one.files:,}"))
        name = f"{one.name.replace(' ', '_')}: {title}"
        figures[f"wall_seconds {name}"] = round(statistics.median(one.wall), 3)
        figures[f"cpu_seconds {name}"] = round(statistics.median(one.cpu), 3)
        figures[f"writes {name}"], figures[f"reads {name}"] = writes, reads
    show(title, COLUMNS, rows, to_stderr=to_stderr)
    told = [
        f"- {one.name}: " + ", ".join(f"{count:,} {kind}" for kind, count in one.requests.most_common())
        for one in writers
    ]
    return "\n".join([as_markdown(title, COLUMNS, rows), "", *told])


def main() -> None:
    """Measure and print; record a run that is not the quick one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smaller edition, in about two minutes")
    parser.add_argument("--json", action="store_true", help="print one JSON object with the figures")
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows of the large writes (2,000,000)")
    parser.add_argument("--only", nargs="+", choices=CASES, default=CASES, help="these cases (all)")
    parser.add_argument("--rounds", type=int, default=3, help="counted rounds (3)")
    parser.add_argument("--latency", type=int, default=0, help="milliseconds more for each request (0)")
    parser.add_argument(
        "--jars", type=Path, help="a folder with the jars of hadoop-aws and spark-hadoop-cloud"
    )
    options = parser.parse_args()
    figures: dict[str, float] = {}

    def keep(sections: list[str]) -> None:
        if not options.quick:
            name = f"unchanged, {options.latency} ms" if options.latency else "unchanged"
            write_section(name, "\n\n".join([_about(), *sections]))

    run(options, figures, keep)
    about = _about()
    print(json.dumps({"benchmark": "unchanged", "machine": about, **figures}) if options.json else about)


def _about() -> str:
    spark = f"PySpark {version('pyspark')}, a driver and an executor of two cores"
    return f"{machine()} {spark}; {PACKAGES.replace(',', ', ')}."


if __name__ == "__main__":
    main()

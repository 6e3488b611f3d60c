"""What writing a DataFrame costs: our writer, Spark's own to local disk, and the same through Hadoop's S3A.

    python benchmarks/write.py [--quick] [--json] [--jars DIRECTORY]
        [--rows N] [--rounds N] [--s3a-rounds N] [--partitions N ...] [--only unsorted|arranged|startup ...]

One Spark session writes the same rows, in turn, round after round, another writer first each time:

- spark: `df.write.partitionBy("dt").parquet("file:…")`: Spark's own writer, to local disk, by renaming;
- ours, magic / partitioned: `df.write.format("s3commit")` to SeaweedFS, sealed and committed;
- ours, weighed: as ours magic, but with Arrow batches limited as Spark does by itself, in bytes too;
- s3a magic: Spark's own writer through Hadoop's S3A magic committer to the same SeaweedFS;
- to Python: nothing is written; Spark hands the rows to Python as Arrow's, and they are dropped there. Every
  data source in Python pays this, and Spark's code alone decides how much it is.

The rows come as they are ("unsorted": every task has rows of every partition) or arranged (sorted by the
partition column within each task), and go into 1 or 40 partitions; S3A, which takes longest at 40, has fewer
rounds there. Every write is printed when it ends, and every case's table saved when it is complete. Reported
are whole-job wall time; the processor time of the driver, the JVM and the Python workers, without the
store's; their ratios, the median of those of each round; files and bytes; and (MiB) the largest Python
worker's peak of memory beyond what a worker has that only passes rows through.

The case `startup` is what a task of ours adds to a worker before its first row is taken and after its last,
less the time that its calls to the store take: in a worker that has just been started, and in warm ones.

S3A needs jars that PySpark's wheel lacks. They are resolved from Maven's registry by Spark itself, or taken
from --jars; where neither works the comparison is left out, with a message.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import uuid
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from meter import Meter
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from report import machine, show, write_section
from spark_with_s3a import PACKAGES, start_session
from write_startup import startup

from airflow_s3commit import S3Store
from airflow_s3commit.spark import register
from airflow_s3commit.spark.session import BATCHES_BY_COUNT, count_rows
from airflow_s3commit.store.base import ObjectToDelete
from airflow_s3commit.testing.s3_server import S3Server

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

BUCKET = "lake"
NAMES = ("unsorted", "arranged")
CASES = (*NAMES, "startup")
COLUMNS = ("writer", "wall s", "from - to", "CPU s", "wall/spark", "CPU/spark", "wall/s3a", "CPU/s3a")
COLUMNS += ("files", "MB", "MiB", "rounds")


@dataclass(slots=True)
class Writer:
    """One way to write, and its cost in each round.

    ``write`` takes the rows and a name, and is measured. ``collect`` then checks what is there under that
    name, and returns the numbers of files and bytes.
    """

    name: str
    write: Callable[[DataFrame, str], None]
    collect: Callable[[str], tuple[int, int]]
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    worker: list[float] = field(default_factory=list)
    files: int = 0
    bytes: int = 0
    rounds: int = 0


@dataclass(frozen=True, slots=True)
class Case:
    """What is written: a number of rows into a number of partitions, sorted by partition or not."""

    rows: int
    partitions: int
    arranged: bool

    @property
    def name(self) -> str:
        """Return the name of the case in figures."""
        return f"{NAMES[self.arranged]}_{self.partitions}"


def flights(spark: SparkSession, case: Case, tasks: int) -> DataFrame:
    """Return rows of 14 columns, held in memory: numbers, strings of few and many values, times, decimals."""
    digest = F.xxhash64("id")
    spread = F.pmod(digest, F.lit(case.partitions)).cast("int")
    rows = spark.range(0, case.rows, 1, tasks).select(
        "id",
        F.pmod(digest, F.lit(1_000_003)).cast("int").alias("flight"),
        F.pmod(F.shiftright(digest, 7), F.lit(24)).cast("smallint").alias("hour"),
        (F.pmod(F.shiftright(digest, 9), F.lit(100_000)) / 7).alias("delay"),
        (F.pmod(F.shiftright(digest, 13), F.lit(1 << 20)) * 1.5).alias("distance"),
        F.pmod(F.shiftright(digest, 17), F.lit(1 << 30)).alias("air_time"),
        F.concat(F.lit("N"), F.pmod(F.shiftright(digest, 3), F.lit(4_000)).cast("string")).alias("tail"),
        F.element_at(F.array(*map(F.lit, ("EWR", "JFK", "LGA"))), F.pmod(digest, F.lit(3)).cast("int") + 1)
        .alias("origin"),
        F.hex(digest).alias("ticket"),
        F.when(F.pmod(digest, F.lit(5)) != 0, F.concat(F.lit("gate "), F.pmod(digest, F.lit(80))))
        .alias("gate"),
        F.timestamp_seconds(F.lit(1_356_998_400) + F.pmod(digest, F.lit(31_536_000))).alias("departed"),
        F.pmod(F.shiftright(digest, 5), F.lit(10_000_000)).cast("decimal(12,2)").alias("fare"),
        (F.pmod(digest, F.lit(11)) == 0).alias("cancelled"),
        F.date_add(F.lit("2013-01-01").cast("date"), spread).cast("string").alias("dt"),
    )  # fmt: skip
    if case.arranged:
        rows = rows.sortWithinPartitions("dt")
    kept = rows.cache()
    assert kept.count() == case.rows
    return kept


def store_of(server: S3Server) -> S3Store:
    """Return a store on the server."""
    return S3Store.connect(server.config)


def to_disk(folder: Path) -> Callable[[DataFrame, str], None]:
    """Return a function that writes to local disk with Spark's own writer."""

    def write(frame: DataFrame, name: str) -> None:
        frame.write.partitionBy("dt").parquet((folder / name).as_uri())

    return write


def on_disk(folder: Path) -> Callable[[str], tuple[int, int]]:
    """Return a function that counts the files written to local disk, and removes them."""

    def collect(name: str) -> tuple[int, int]:
        sizes = [path.stat().st_size for path in (folder / name).rglob("*.parquet")]
        shutil.rmtree(folder / name)
        return len(sizes), sum(sizes)

    return collect


def ours(committer: str) -> Callable[[DataFrame, str], None]:
    """Return a function that writes with our writer and one of its committers."""

    def write(frame: DataFrame, name: str) -> None:
        options = {"partitionBy": "dt", "committer": committer}
        frame.write.format("s3commit").mode("append").options(**options).save(f"s3://{BUCKET}/{name}")

    return write


def weighed(write: Callable[[DataFrame, str], None]) -> Callable[[DataFrame, str], None]:
    """Return a function that calls a writer with the batches that Spark makes by default."""

    def write_weighed(frame: DataFrame, name: str) -> None:
        session = frame.sparkSession
        for key in BATCHES_BY_COUNT:
            session.conf.unset(key)
        try:
            write(frame, name)
        finally:
            count_rows(session)

    return write_weighed


def to_python(frame: DataFrame, name: str) -> None:
    """Hand the rows to Python, and drop them there."""
    del name
    assert (
        frame.mapInArrow(lambda batches: (batch.slice(0, 0) for batch in batches), frame.schema).count() == 0
    )


def to_s3a(frame: DataFrame, name: str) -> None:
    """Write with Spark's own writer through the S3A magic committer."""
    frame.write.partitionBy("dt").parquet(f"s3a://{BUCKET}/{name}")


def stored(server: S3Server, committer: str | None = None) -> Callable[[str], tuple[int, int]]:
    """Return a function that counts the files in the store, and checks S3A's committer if one is given."""

    def collect(name: str) -> tuple[int, int]:
        store = store_of(server)
        if committer is not None:
            success = json.loads(store.get(BUCKET, f"{name}/_SUCCESS").body)
            assert success["committer"] == committer, success["committer"]
        listed = store.list_objects(BUCKET, f"{name}/")
        sizes = [info.size for info in listed if info.key.endswith(".parquet")]
        return len(sizes), sum(sizes)

    return collect


def in_turn(writers: list[Writer], frame: DataFrame, meter: Meter, server: S3Server) -> None:
    """Let each writer have its turn in each of its rounds, in rotating order; the first round warms up."""
    for number in range(max(writer.rounds for writer in writers) + 1):
        at = number % len(writers)
        for writer in writers[at:] + writers[:at]:
            if number <= writer.rounds:
                _turn(writer, frame, meter, counted=number > 0)
                _empty(server)


def _turn(writer: Writer, frame: DataFrame, meter: Meter, *, counted: bool) -> None:
    meter.reset_peaks()
    name = uuid.uuid4().hex
    cpu, began = meter.cpu(), perf_counter()
    writer.write(frame, name)
    wall, used = perf_counter() - began, meter.cpu() - cpu
    peak, found = meter.peak(), writer.collect(name)
    which = f"round {len(writer.wall) + 1} of {writer.rounds}" if counted else "warm-up"
    told = f"  {writer.name}, {which}: {wall:.1f} s, CPU {used:.1f} s"
    print(told, file=sys.stderr, flush=True)
    if counted:
        writer.wall.append(wall)
        writer.cpu.append(used)
        writer.worker.append(peak)
        writer.files, writer.bytes = found


def _empty(server: S3Server) -> None:
    """Remove what was written, so that the next writer finds the same server."""
    store = store_of(server)
    doomed = [ObjectToDelete(info.key) for info in store.list_objects(BUCKET, "")]
    for at in range(0, len(doomed), 1_000):
        assert not store.delete_many(BUCKET, doomed[at : at + 1_000])


def run(options: argparse.Namespace, figures: dict[str, float], keep: Callable[[list[str]], None]) -> None:
    """Measure every case, print its table, and save all tables so far as Markdown after each."""
    rows, rounds = (400_000, 1) if options.quick else (options.rows, options.rounds)
    arrangements = [arranged for arranged in (False, True) if NAMES[arranged] in options.only]
    sections: list[str] = []
    with tempfile.TemporaryDirectory() as folder, S3Server(Path(folder), (BUCKET,)) as server:
        disk = Path(folder, "spark")
        spark, with_s3a = start_session(server, options.jars)
        register(spark)
        meter = Meter(spark)
        if "startup" in options.only:
            sections.append(startup(spark, server, figures, to_stderr=options.json))
            keep(sections)
        for case in [Case(rows, n, arranged) for n in options.partitions for arranged in arrangements]:
            print(f"{case.rows:,} rows, {case.name}", file=sys.stderr, flush=True)
            frame = flights(spark, case, tasks=4)
            writers = [Writer("spark to disk", to_disk(disk), on_disk(disk), rounds=rounds)]
            writers += [
                Writer(f"ours {one}", ours(one), stored(server), rounds=rounds)
                for one in ("magic", "partitioned")
            ]
            writers.append(Writer("ours weighed", weighed(ours("magic")), stored(server), rounds=rounds))
            writers.append(Writer("to Python", to_python, lambda _: (0, 0), rounds=rounds))
            if with_s3a:
                fewer = rounds if case.partitions == 1 else min(rounds, options.s3a_rounds)
                writers.append(Writer("s3a magic", to_s3a, stored(server, "magic"), rounds=fewer))
            in_turn(writers, frame, meter, server)
            frame.unpersist(blocking=True)
            sections.append(report(case, writers, figures, to_stderr=options.json))
            keep(sections)
        spark.stop()


def report(case: Case, writers: list[Writer], figures: dict[str, float], *, to_stderr: bool) -> str:
    """Print one table, add its figures to ``figures``, and return it as Markdown."""
    native, s3a_magic = writers[0], next((one for one in writers if one.name == "s3a magic"), None)
    rows = []
    for one in writers:
        ratios = [_ratio(one.wall, native.wall), _ratio(one.cpu, native.cpu)]
        ratios += (
            [_ratio(one.wall, s3a_magic.wall), _ratio(one.cpu, s3a_magic.cpu)] if s3a_magic else [None] * 2
        )
        rows.append(
            (
                one.name,
                f"{statistics.median(one.wall):.2f}",
                f"{min(one.wall):.1f} - {max(one.wall):.1f}",
                f"{statistics.median(one.cpu):.2f}",
                *("" if ratio is None else f"{ratio:.2f}" for ratio in ratios),
                f"{one.files:,}",
                f"{one.bytes / 1e6:,.0f}",
                f"{statistics.median(one.worker):,.0f}" if "ours" in one.name else "",
                str(one.rounds),
            )
        )
        figures |= _figures(case, one, ratios)
    arranged = "arranged" if case.arranged else "as they come"
    title = f"{case.rows:,} rows, {arranged}, into {case.partitions} partitions"
    show(title, COLUMNS, rows, to_stderr=to_stderr)
    lines = [f"### {title}", "", f"| {' | '.join(COLUMNS)} |", "|---" + "|---:" * (len(COLUMNS) - 1) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def _figures(case: Case, one: Writer, ratios: list[float | None]) -> dict[str, float]:
    name = f"{one.name.replace(' ', '_')}_{case.name}"
    wall, cpu = statistics.median(one.wall), statistics.median(one.cpu)
    found = {
        f"wall_seconds_{name}": wall,
        f"cpu_seconds_per_million_rows_{name}": cpu / case.rows * 1e6,
        f"rows_per_second_{name}": case.rows / wall,
        f"bytes_per_second_{name}": one.bytes / wall,
        f"files_{name}": one.files,
    }
    names = ("wall_to_spark", "cpu_to_spark", "wall_to_s3a", "cpu_to_s3a")
    found |= {f"{of}_{name}": ratio for of, ratio in zip(names, ratios, strict=True) if ratio is not None}
    if "ours" in one.name:
        found[f"worker_mib_{name}"] = statistics.median(one.worker)
    return {key: round(value, 3) for key, value in found.items()}


def _ratio(ours: list[float], theirs: list[float]) -> float:
    """Return the median of the ratios of shared rounds, in which other load on the machine slowed both."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=False))


def main() -> None:
    """Measure and print; a run of all cases that is not the quick one is recorded as it goes on."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smaller edition, in about two minutes")
    parser.add_argument("--json", action="store_true", help="print one JSON object with the figures")
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows of each write (2,000,000)")
    parser.add_argument("--rounds", type=int, default=3, help="counted rounds (3)")
    parser.add_argument("--s3a-rounds", type=int, default=1, help="of them, S3A's with many partitions (1)")
    parser.add_argument("--partitions", type=int, nargs="+", default=[1, 40], help="partitions (1 40)")
    parser.add_argument("--only", nargs="+", choices=CASES, default=CASES, help="these cases (all)")
    parser.add_argument(
        "--jars", type=Path, help="a folder with the jars of hadoop-aws and spark-hadoop-cloud"
    )
    options = parser.parse_args()
    figures: dict[str, float] = {}
    whole = not options.quick and set(options.only) == set(CASES) and options.partitions == [1, 40]

    def keep(sections: list[str]) -> None:
        if whole:
            write_section("write", "\n\n".join([_about(), *sections]))

    run(options, figures, keep)
    about = _about()
    if options.json:
        print(json.dumps({"benchmark": "write", "machine": about, **figures}))
    else:
        print(about)


def _about() -> str:
    return f"{machine()} PySpark {version('pyspark')}, local[2]; {PACKAGES.replace(',', ', ')}."


if __name__ == "__main__":
    main()

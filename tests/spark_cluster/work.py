"""Functions that applications on the cluster run, with plain arguments and results."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Any

from airflow_s3commit.spark import write_pending
from tests.spark_cluster.cluster import wait_until
from tests.spark_cluster.faults import Fault

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Bounds so tight that files are opened, and sent, while rows still come.
TIGHT = {"committer": "magic", "rowBytes": "64k", "openFiles": "2"}


def write(
    spark: SparkSession,
    *,
    door: str,
    destination: str,
    rows: int,
    tasks: int,
    conf: dict[str, str],
    shuffle: bool = False,
    fault: dict[str, Any] | None = None,
    python: str | None = None,
    options: dict[str, str] | None = None,
) -> int | None:
    """Write numbered rows of about a kilobyte, of three partitions, through one of the doors.

    Args:
        door: ``format``, ``write_pending``, or ``spark`` for Spark's own writer.
        destination: URI of the destination.
        rows: How many.
        tasks: By how many tasks.
        conf: What the session's conf has meanwhile.
        shuffle: Whether the rows come out of a shuffle.
        fault: What goes wrong in the tasks; see `Fault`.
        python: The Python of the executors, if not this one.
        options: Further options of the write.

    Returns:
        How many rows were committed; None where the job's owner commits.
    """
    usual = spark.sparkContext.pythonExec
    scheduling = spark.sparkContext._jsc.sc().conf()
    multiplier = scheduling.get(_MULTIPLIER, "3")
    before = {key: spark.conf.get(key, None) for key in conf}
    for key, value in conf.items():
        spark.conf.set(key, value)
        if door == "spark":
            # The protocol reads the application's conf, not the session's.
            scheduling.set(key, value)
    spark.sparkContext.pythonExec = python or usual
    try:
        frame = numbered(spark, rows, tasks)
        if fault is not None and fault["kind"] != "linger":
            # A fault strikes the attempt that has uploads pending; a twin's would be taken for its own.
            # Each stage's scheduler reads the conf anew.
            scheduling.set(_MULTIPLIER, "1000000")
        if shuffle:
            _await_both_executors(spark)
            frame = frame.repartition(tasks)
        if fault is not None:
            frame = Fault(**fault).of(frame)
        if door == "spark":
            _write_unchanged(frame, destination)
            return None
        return _write(frame, door, destination, {**TIGHT, **(options or {})})
    finally:
        scheduling.set(_MULTIPLIER, multiplier)
        spark.sparkContext.pythonExec = usual
        for key, earlier in before.items():
            spark.conf.unset(key) if earlier is None else spark.conf.set(key, earlier)


def _await_both_executors(spark: SparkSession) -> None:
    """See to it that each of two executors has shuffle files to lose, not only the first."""
    context = spark.sparkContext._jsc.sc()
    # The driver is among them.
    wait_until("both executors are there", lambda: context.getExecutorMemoryStatus().size() > 2)
    # One that is there may not take tasks yet, and the other do all of a short stage meanwhile. The tasks of
    # a barrier stage start together or not at all.
    spark.sparkContext.parallelize(range(2), 2).barrier().mapPartitions(lambda rows: rows).collect()


def numbered(spark: SparkSession, rows: int, tasks: int) -> DataFrame:
    """Return rows of about a kilobyte each, of three partitions."""
    frame = spark.range(rows, numPartitions=tasks)
    return frame.selectExpr("id", "cast(id % 3 as string) as p", "repeat(id, 300) as pad")


def _write(frame: DataFrame, door: str, destination: str, options: dict[str, str]) -> int | None:
    if door == "format":
        options = {**options, "partitionBy": "p"}
        frame.write.format("s3commit").mode("append").options(**options).save(destination)
        return None
    own = frame.sparkSession.conf.get("spark.s3commit.job.id", None) is None
    written = write_pending(
        frame,
        destination=destination,
        partition_by=["p"],
        mode="append" if own else None,
        cluster=False,
        options=options,
    )
    return written.manifest.counts.rows if written.manifest is not None else None


def _write_unchanged(frame: DataFrame, destination: str) -> None:
    # Without writers of several files at a time, all rows are sorted before the first file is opened.
    frame.sparkSession.conf.set("spark.sql.maxConcurrentOutputFileWriters", "10")
    writer = frame.write.partitionBy("p").mode("append").option("maxRecordsPerFile", "100")
    writer.parquet(destination.replace("s3://", "s3a://").rstrip("/"))


def ship(spark: SparkSession, *, path: str) -> None:
    """Send a zip to every executor, as ``--py-files`` does."""
    spark.sparkContext.addPyFile(path)


#: By how much a task is to be slower than the others for a twin to be started.
_MULTIPLIER = "spark.speculation.multiplier"

#: What Spark itself copies from the driver's environment into its Hadoop configuration, for Hadoop's clients.
_COPIED_BY_SPARK = re.compile(
    r"fs\.s3[an]?\.(aws(AccessKeyId|SecretAccessKey)|(access|secret)\.key|session\.token)"
)


def whole_conf(spark: SparkSession) -> list[str]:
    """Return everything that this application's configuration says, but for what Spark puts there itself."""
    context = spark.sparkContext
    said = [f"{key}={value}" for key, value in context.getConf().getAll()]
    assert context._jvm is not None
    hadoop = context._jvm.java.io.StringWriter()
    configuration = context._jsc.hadoopConfiguration()
    context._jvm.org.apache.hadoop.conf.Configuration.dumpConfiguration(configuration, hadoop)
    said += [
        f"{one['key']}={one['value']}"
        for one in json.loads(hadoop.toString())["properties"]
        if not _COPIED_BY_SPARK.fullmatch(one["key"])
    ]
    return said + [f"{row.key}={row.value}" for row in spark.sql("SET").collect()] + sys.argv

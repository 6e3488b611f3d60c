"""``write_pending`` in a real Spark session, on a real S3 server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from airflow_s3commit import Job
from airflow_s3commit.exceptions import DestinationNotEmpty, InvalidOption, JobMismatch
from airflow_s3commit.protocol.model.sealed_job import ColumnStatistics
from airflow_s3commit.spark import PendingWrite, write_pending
from airflow_s3commit.tables import UnsupportedPartition
from tests.spark.conftest import wait_until_idle
from tests.spark.faults import fault

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.conftest import Lake

pytestmark = [pytest.mark.spark, pytest.mark.seaweedfs, pytest.mark.xdist_group("spark")]


def pend(frame: DataFrame, lake: Lake, **arguments: Any) -> PendingWrite:
    """Write a frame to this test's table."""
    options = {**lake.options, **arguments.pop("options", {})}
    return write_pending(frame, destination=lake.uri, options=options, **arguments)


def ids(lake: Lake, *partition_by: str) -> list[int]:
    """Return the visible rows' ids, in order."""
    return sorted(lake.table(*partition_by)["id"].to_pylist())


def test_rows_are_clustered_committed_and_reported(spark: SparkSession, lake: Lake) -> None:
    """Each partition is one file, and the result names the pendingsets, files and rows."""
    frame = spark.range(900, numPartitions=3).selectExpr("id", "cast(id % 6 as int) as P", "id % 2 = 0 as b")
    done = pend(frame, lake, partition_by=["p", "b"])
    assert ids(lake, "p", "b") == list(range(900))
    assert {path.rpartition("/")[0] for path in lake.visible()} == {
        f"p={n}/b={str(n % 2 == 0).lower()}" for n in range(6)
    }
    assert len(lake.visible()) == 6
    assert not done.ignored
    assert done.manifest is not None
    assert done.seal is not None
    assert (done.manifest.counts.files, done.manifest.counts.rows) == (6, 900)
    assert sum(task.rows or 0 for task in done.tasks) == 900
    assert sorted(done.seal.partitions) == sorted(done.manifest.partitions)
    first = next(entry for entry in lake.files() if entry.partition == "p=0/b=true")
    assert first.statistics == {"id": ColumnStatistics(values=150, nulls=0, least=0, greatest=894)}
    assert lake.pending() == []


def test_partition_columns_of_any_type_are_named_as_spark_names_them(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    """Timestamps, doubles, intervals and odd names give the directories of Spark's own writer."""
    frame = spark.sql(
        """select * from values
        (timestamp'2013-01-01 00:00:00', 1e10D, interval '1' day, 1, 0.0000001),
        (timestamp'0099-12-31 23:59:59.5', double('NaN'), null, 2, 1),
        (null, -0.1D, interval '-2' day, 3, null) t(`at.the time`, d, i, id, n)"""
    )
    columns = ["at.the time", "d", "i", "n"]
    frame.coalesce(1).write.partitionBy(*columns).parquet(str(tmp_path / "native"))
    native = {str(path.parent.relative_to(tmp_path / "native")) for path in tmp_path.rglob("*.parquet")}
    pend(frame, lake, partition_by=columns)
    assert {path.rpartition("/")[0] for path in lake.visible()} == native


@pytest.mark.parametrize(
    "value",
    [
        "array('a')",
        "map('a', 1)",
        "named_struct('a', 'x, y', 'b', 'z')",
        "null",
        "parse_json('{}')",
        "'A' COLLATE UTF8_LCASE",
    ],
)
def test_partition_columns_that_spark_refuses_are_refused(
    value: str, spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    """Of such a value its directory would not tell which one it was, or one value had several."""
    frame = spark.range(2).selectExpr("id", f"{value} AS odd")
    with pytest.raises(Exception, match="INVALID_PARTITION_COLUMN_DATA_TYPE"):
        frame.write.partitionBy("odd").parquet(str(tmp_path / "native"))
    with pytest.raises(UnsupportedPartition, match=r"'odd' has the type .*; cast it to string first"):
        pend(frame, lake, partition_by=["odd"])
    assert lake.everything() == lake.pending() == []


def test_save_modes_match_spark_s(spark: SparkSession, lake: Lake) -> None:
    """By default existing data is an error; ignore, append and overwrite do as they say."""
    first = spark.range(4, numPartitions=1).selectExpr("id", "concat('d', id % 2) as dt")
    later = first.where("dt = 'd1'").selectExpr("id + 10 as id", "dt")
    assert pend(first, lake, partition_by=["dt"]).manifest is not None
    everything = lake.everything()
    with pytest.raises(DestinationNotEmpty):
        pend(later, lake, partition_by=["dt"])
    ignored = pend(later, lake, partition_by=["dt"], mode="ignore")
    assert (ignored.ignored, ignored.seal, ignored.tasks) == (True, None, ())
    assert lake.everything() == everything
    pend(later, lake, partition_by=["dt"], mode="append", cluster=False)
    assert ids(lake, "dt") == [0, 1, 2, 3, 11, 13]
    pend(later, lake, partition_by=["dt"], mode="overwrite", options={"committer": "magic"})
    assert ids(lake, "dt") == [0, 2, 11, 13]
    assert lake.pending() == []


def test_ignore_writes_to_an_empty_table(spark: SparkSession, lake: Lake) -> None:
    """An empty table is written in mode ignore, and rows known to be none leave the schema."""
    done = pend(spark.sql("select 1 as id, 'a' as s where false"), lake, mode="ignore")
    assert not done.ignored
    assert lake.table().schema.names == ["id", "s"]
    assert lake.table().num_rows == 0


def test_for_a_job_it_only_seals(spark: SparkSession, lake: Lake, job_conf: Any) -> None:
    """The job that is passed, or in the conf, gets a sealed stage; its owner commits both."""
    in_conf = job_conf("append")
    frame = spark.range(20, numPartitions=2)
    one = write_pending(frame, options=lake.options)
    assert (one.job, one.stage, one.stage_attempt) == (in_conf.reference, "load", "1")
    with pytest.raises(JobMismatch, match="save mode overwrite contradicts conflict mode append"):
        write_pending(frame, mode="overwrite", options=lake.options)
    with pytest.raises(InvalidOption, match="mode ignore is only for writes without a job"):
        write_pending(frame, mode="ignore", options=lake.options)
    more = frame.selectExpr("id + 20 as id")
    given = Job.at(lake.store, in_conf.reference)
    two = pend(more, lake, job=given.reference, stage="late", stage_attempt="7", mode="append")
    assert two.manifest is None
    assert two.seal == given.stage_seal("late", "7")
    assert lake.visible() == []
    given.seal()
    given.commit()
    assert ids(lake) == list(range(40))
    assert lake.pending() == []


def test_arguments_are_not_options(spark: SparkSession, lake: Lake) -> None:
    """A setting with an argument is not accepted as an option, and an unknown mode is refused."""
    frame = spark.range(1)
    for options, says in (({"partitionBy": "id"}, "partition_by"), ({"format": "parquet"}, "format")):
        with pytest.raises(InvalidOption, match=f"argument {says}"):
            pend(frame, lake, options=options)
    with pytest.raises(InvalidOption, match="stage='load' names a stage of the argument job"):
        pend(frame, lake, stage="load")
    with pytest.raises(InvalidOption, match="'merge' is not one of append"):
        pend(frame, lake, mode="merge")
    assert lake.everything() == []


@pytest.mark.parametrize("committer", ["magic", pytest.param("partitioned", marks=pytest.mark.all)])
def test_a_write_that_fails_leaves_nothing(
    spark: SparkSession, lake: Lake, tmp_path: Path, committer: str
) -> None:
    """If tasks that have left uploads fail for good, nothing of the job remains."""
    frame = spark.range(1_000, numPartitions=1).selectExpr("id", "repeat(id, 300) as pad")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "200")
    failing = fault(lake, tmp_path, 99, streams=committer == "magic").of(frame)
    try:
        with pytest.raises(Exception, match="injected into what feeds the writer"):
            pend(failing, lake, options={"committer": committer, "rowBytes": "64k"})
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert "0-0" in {path.name for path in tmp_path.iterdir()}
    wait_until_idle(spark)
    assert lake.pending() == []
    assert lake.left() == []
    assert (len(lake.kept("jobs")), len(lake.kept("log"))) == (1, 2)

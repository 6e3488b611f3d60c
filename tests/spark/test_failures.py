"""What a write leaves behind when its tasks fail: in a real Spark session, on a real S3 server.

Spark ends the writer's input as if it were whole when what feeds it fails. So failed attempts leave
pendingsets that lack rows, and only the messages of successful ones say what counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from airflow_s3commit.spark import register
from tests.spark.conftest import wait_until_idle, write
from tests.spark.faults import fault

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.conftest import Lake

pytestmark = [
    pytest.mark.spark,
    pytest.mark.seaweedfs,
    pytest.mark.xdist_group("spark"),
    pytest.mark.usefixtures("small_batches"),
]

#: Bounds so tight that files are opened, and with the committer magic sent, while rows still arrive.
TIGHT = {"rowBytes": "64k", "openFiles": "2", "partitionBy": "p"}

by_committer = pytest.mark.parametrize(
    "committer", ["magic", pytest.param("partitioned", marks=pytest.mark.all)]
)


@pytest.fixture
def small_batches(spark: SparkSession) -> Iterator[None]:
    """Pass rows to Python a few at a time, so that a writer begins before its input ends."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "200")
    yield
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def padded(spark: SparkSession, rows: int, tasks: int) -> DataFrame:
    """Return rows of about a kilobyte each, in three partitions."""
    frame = spark.range(rows, numPartitions=tasks)
    return frame.selectExpr("id", "cast(id % 3 as int) as p", "repeat(id, 300) as pad")


def leftovers(lake: Lake) -> list[str]:
    """Return the table's pending uploads and all its keys except those that outlive an aborted job."""
    return lake.pending() + lake.left()


@by_committer
def test_a_retried_task_counts_once(spark: SparkSession, lake: Lake, tmp_path: Path, committer: str) -> None:
    """If each task fails once and leaves uploads, each row exists once and nothing is pending."""
    streams = committer == "magic"
    failing = fault(lake, tmp_path, streams=streams).of(padded(spark, 2_000, 2))
    write(failing, lake, committer=committer, maxRecordsPerFile="200", **TIGHT)
    # A writer that stages uploads after its input has ended, and may be killed before that.
    seen = {path.name for path in tmp_path.iterdir()}
    assert seen == {"0-0", "1-0"} if streams else seen <= {"0-0", "1-0"}
    assert sorted(lake.table("p")["id"].to_pylist()) == list(range(2_000))
    assert lake.manifest().counts.rows == 2_000
    assert max(entry.rows or 0 for entry in lake.files()) <= 200
    assert lake.pending() == []


@by_committer
def test_a_write_that_fails_leaves_nothing(
    spark: SparkSession, lake: Lake, tmp_path: Path, committer: str
) -> None:
    """If a task that has left uploads fails for good, no file, upload or staging stays."""
    failing = fault(lake, tmp_path, 99, streams=committer == "magic").of(padded(spark, 1_000, 1))
    with pytest.raises(Exception, match="injected into what feeds the writer"):
        write(failing, lake, committer=committer, **TIGHT)
    # A writer that stages uploads after its input has ended, and may be killed before that.
    assert committer != "magic" or (tmp_path / "0-0").exists()
    assert leftovers(lake) == []


def test_a_task_that_outlives_its_job_leaves_nothing(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    """A task with pending uploads that Spark kills only after the abort began leaves nothing either."""
    failing = fault(lake, tmp_path, 99, streams=True, bystander=1).of(padded(spark, 2_000, 2))
    with pytest.raises(Exception, match="injected into what feeds the writer"):
        write(failing, lake, committer="magic", **TIGHT)
    # Either task's attempts count: a busy machine can miss the first.
    assert {path.name[0] for path in tmp_path.iterdir()} == {"0", "1"}
    wait_until_idle(spark)
    assert leftovers(lake) == []


def test_a_failed_attempt_under_a_job_can_be_repeated(
    spark: SparkSession, lake: Lake, job_conf: Any, tmp_path: Path
) -> None:
    """Output of a failed stage attempt never appears: the next one's rows count, the commit sweeps."""
    frame = padded(spark, 600, 1)
    job = job_conf("append", "1", "magic")
    failing = fault(lake, tmp_path, 99, streams=True).of(frame)
    with pytest.raises(Exception, match="injected into what feeds the writer"):
        failing.write.format("s3commit").mode("append").options(**TIGHT).save()
    assert "0-0" in {path.name for path in tmp_path.iterdir()}
    assert job.stage_seal("load", "1") is None
    assert len(lake.pending()) >= 3
    job_conf("append", "2", "magic")
    frame.write.format("s3commit").mode("append").options(**TIGHT).save()
    job.seal()
    job.commit()
    assert sorted(lake.table("p")["id"].to_pylist()) == list(range(600))
    assert lake.pending() == []


@pytest.mark.all
def test_registration_carries_the_store_s_address(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    """After `register`, the session's endpoint is used even by the writer's own process on abort."""
    conf = {"spark.s3commit.endpoint.url": lake.server.endpoint_url, "spark.s3commit.path.style": "true"}
    for key, value in conf.items():
        spark.conf.set(key, value)
    try:
        register(spark)
        spark.range(10).write.format("s3commit").mode("append").save(lake.uri)
        failing = fault(lake, tmp_path, 99, streams=True).of(padded(spark, 1_000, 1))
        with pytest.raises(Exception, match="injected into what feeds the writer"):
            failing.write.format("s3commit").mode("append").options(committer="magic", **TIGHT).save(lake.uri)
    finally:
        for key in conf:
            spark.conf.unset(key)
    assert "0-0" in {path.name for path in tmp_path.iterdir()}
    assert sorted(lake.table()["id"].to_pylist()) == list(range(10))
    assert lake.pending() == []
    assert not [key for key in lake.everything() if "__magic_job" in key and "_s3commit/" not in key]

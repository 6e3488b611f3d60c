"""What ``foreach_batch`` refuses before a batch is written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from airflow_s3commit import JobReference
from airflow_s3commit.exceptions import InvalidOption
from airflow_s3commit.spark import committer_conf, foreach_batch, write_pending

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

REFERENCE = JobReference(job_id="j1", destination="s3://lake/t/", staging="s3://lake/t/__magic_job-j1/")


def test_modes_that_make_no_sense_for_batches_are_refused() -> None:
    """A stream's batches repeat, so they append or overwrite."""
    with pytest.raises(InvalidOption, match="errorifexists"):
        foreach_batch(destination="s3://lake/t/", mode="errorifexists")  # type: ignore[arg-type]


def test_unknown_options_are_refused_before_the_query_starts() -> None:
    """A misspelt option is an error of the call that makes the function."""
    with pytest.raises(InvalidOption, match="compresion"):
        foreach_batch(destination="s3://lake/t/", options={"compresion": "zstd"})


@pytest.mark.parametrize("option", ["path", "PartitionBy"])
def test_arguments_are_not_options_of_a_stream(option: str) -> None:
    """A setting with an argument is refused as an option before the query starts."""
    with pytest.raises(InvalidOption, match=f"pass {option} as the argument "):
        foreach_batch(destination="s3://lake/t/", options={option: "x"})


def test_a_job_in_the_conf_is_refused() -> None:
    """A job that its owner commits as a whole cannot be the job of batches that commit one by one."""
    conf: dict[str, Any] = committer_conf(REFERENCE, "load", "1")
    frame = SimpleNamespace(sparkSession=SimpleNamespace(conf=SimpleNamespace(getAll=conf)))
    with pytest.raises(InvalidOption, match="names job j1"):
        foreach_batch(destination="s3://lake/t/")(frame, 0)  # type: ignore[arg-type]


@pytest.mark.spark
@pytest.mark.seaweedfs
@pytest.mark.xdist_group("spark")
def test_a_thread_that_runs_no_stream_is_refused(spark: SparkSession) -> None:
    """Outside a streaming query's own thread there is no query id, and none is made up."""
    with pytest.raises(InvalidOption, match="this thread does not run a streaming query's batches"):
        foreach_batch(destination="s3://lake/t/")(spark.range(1), 0)


@pytest.mark.spark
@pytest.mark.seaweedfs
@pytest.mark.xdist_group("spark")
def test_a_batch_that_would_be_written_twice_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """In a function of foreachBatch, write_pending refuses to append: Spark may repeat the batch."""

    def append(frame: DataFrame, _: int) -> None:
        write_pending(frame, destination="s3://lake/t/", mode="append")

    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    stream = rows.writeStream.option("checkpointLocation", str(tmp_path)).foreachBatch(append)
    with pytest.raises(StreamingQueryException, match="a repeated batch would be written twice"):
        stream.start().awaitTermination()

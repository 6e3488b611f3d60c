"""What ``foreach_batch`` refuses before a batch is written."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from airflow_s3commit import JobReference
from airflow_s3commit.exceptions import InvalidOption
from airflow_s3commit.spark import commit_job, committer_conf, foreach_batch, write_pending
from tests.spark.conftest import write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.conftest import Lake

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


def _append(frame: DataFrame, lake: Lake) -> None:
    write_pending(frame, destination=lake.uri, mode="append")


def _append_in_a_thread(frame: DataFrame, lake: Lake) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(_append, frame, lake).result()


def _commit_in_a_thread(frame: DataFrame, lake: Lake) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(commit_job(frame.sparkSession, lake.uri).__enter__).result()


@pytest.mark.spark
@pytest.mark.seaweedfs
@pytest.mark.xdist_group("spark")
@pytest.mark.parametrize("writes", [_append, _append_in_a_thread, _commit_in_a_thread, write])
def test_a_batch_that_would_be_written_twice_is_refused(
    spark: SparkSession, lake: Lake, tmp_path: Path, writes: Callable[[DataFrame, Lake], None]
) -> None:
    """In a function of foreachBatch no write appends, nor commits by itself: Spark may repeat the batch."""
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    batches = rows.writeStream.foreachBatch(lambda frame, _: writes(frame, lake)).trigger(once=True)
    stream = batches.option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(StreamingQueryException, match="a repeated batch would be written twice"):
        stream.awaitTermination()
    assert (lake.visible(), lake.pending()) == ([], [])


@pytest.mark.spark
@pytest.mark.seaweedfs
@pytest.mark.xdist_group("spark")
def test_a_batch_may_overwrite(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    """In a function of foreachBatch an overwrite is allowed, also in a thread: it may be repeated."""
    options = {**lake.options, "partitionOverwriteMode": "static"}

    def overwrite(frame: DataFrame, _: int) -> None:
        frame.write.format("s3commit").mode("overwrite").options(**options).save(lake.uri)
        with ThreadPoolExecutor(1) as pool:
            written = partial(write_pending, mode="overwrite", options=options)
            pool.submit(written, frame, destination=lake.uri).result()

    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    batches = rows.writeStream.foreachBatch(overwrite).trigger(once=True)
    batches.option("checkpointLocation", str(tmp_path)).start().awaitTermination()
    assert (lake.table().num_rows, len(lake.kept("jobs"))) == (5, 2)

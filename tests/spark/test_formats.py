"""How a write's files are laid out, compared with Spark's own writer, and the formats that it refuses."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from airflow_s3commit.exceptions import InvalidOption
from airflow_s3commit.spark import write_pending
from tests.spark.conftest import write

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.spark.conftest import Lake

pytestmark = [pytest.mark.spark, pytest.mark.seaweedfs, pytest.mark.xdist_group("spark")]

_VALUES = """select * from values
    (1, timestamp'2013-01-01 00:00:00.123456', timestamp_ntz'2013-01-01 00:00:00.123456', 1.50),
    (2, timestamp'1970-01-01 09:00:00', timestamp_ntz'0001-01-01 00:00:00', -0.01),
    (3, timestamp'1850-06-01 12:00:00', timestamp_ntz'9999-12-31 23:59:59.999999', null),
    (4, timestamp'9999-12-31 23:59:59.999999', null, 0)
    t(id, ts, ntz, d9)"""


def test_partition_columns_of_the_data_source_are_rendered_as_sparks(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    """Times of the session's zone, and decimals, need no cast: their directories are Spark's own."""
    frame = spark.sql(_VALUES).coalesce(1)
    columns = ["ts", "ntz", "d9"]
    write(frame, lake, partitionBy=",".join(columns))
    native = tmp_path / "native"
    frame.write.partitionBy(*columns).parquet(str(native))
    theirs = {str(path.parent.relative_to(native)) for path in native.rglob("*.parquet")}
    assert {path.rpartition("/")[0] for path in lake.visible()} == theirs


@pytest.mark.parametrize("format_", ["orc", "csv", "json", "avro", "xml", "text"])
def test_another_format_is_refused_with_the_calls_that_write_it(
    spark: SparkSession, lake: Lake, format_: str
) -> None:
    """Both doors name Spark's own writer in one line, whatever the format's options, before any upload."""
    frame = spark.range(3).selectExpr("cast(id as string) as value")
    calls = r"format='{}' of s3commit: .*only parquet.*write_pending\(df, engine='spark'.*commit_job\(spark"
    options = {"header": "true", **lake.options}
    with pytest.raises(InvalidOption, match=calls.format(format_)):
        write_pending(frame, destination=lake.uri, format=format_, options=options)
    with pytest.raises(Exception, match=calls.format(format_)):
        write(frame, lake, format=format_, header="true")
    assert lake.everything() == []


def test_skewed_partitions_are_spread_and_reported(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition with most of the rows has files of several tasks, the others one; the result says so."""
    monkeypatch.setattr("airflow_s3commit.spark.clustering._LEAST_ROWS", 1_000)
    monkeypatch.setattr("airflow_s3commit.spark.clustering._parallelism", lambda _: 4)
    frame = spark.range(20_000, numPartitions=2).selectExpr("id", "if(id < 19000, 'big', 'd' || id % 3) as p")
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    spark.conf.set("spark.sql.shuffle.partitions", "4")
    try:
        done = write_pending(frame, destination=lake.uri, partition_by=["p"], salt=True, options=lake.options)
    finally:
        spark.conf.unset("spark.sql.adaptive.enabled")
        spark.conf.set("spark.sql.shuffle.partitions", "2")
    files = Counter(path.rpartition("/")[0] for path in lake.visible())
    assert files.pop("p=big") > 1
    assert set(files.values()) == {1}
    assert done.arrangement.spread == {"p=big": 4}
    assert "skewed partitions were spread: p=big over 4 tasks" in str(done)
    assert sorted(lake.table("p")["id"].to_pylist()) == list(range(20_000))

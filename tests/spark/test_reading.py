"""``spark.read.format("s3commit")`` in a real Spark session, on a real S3 server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_s3commit.spark.options import InvalidOption
from airflow_s3commit.spark.reading import ReadOptions, parse_read_options
from airflow_s3commit.spark.session import StoreSettings
from tests.spark.conftest import write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.conftest import Lake


def read(spark: SparkSession, lake: Lake, **options: str) -> DataFrame:
    """Read a table as a notebook would."""
    return spark.read.format("s3commit").options(**lake.options, **options).load(lake.uri)


@pytest.mark.spark
@pytest.mark.seaweedfs
@pytest.mark.xdist_group("spark")
def test_what_was_written_is_read_back_as_it_was(spark: SparkSession, lake: Lake) -> None:
    """Rows and types come back, partition columns typed; the DataFrame stays with the job it was made for."""
    frame = spark.range(20, numPartitions=2).selectExpr(
        "id", "cast(id as decimal(12, 2)) as cost", "timestamp_millis(id * 86400000) as at",
        "cast(timestamp_millis(id) as timestamp_ntz) as local", "cast(cast(id as string) as binary) as raw",
        "if(id = 3, null, array(struct(id as x, map('k', id) as m))) as nested",
        "date_add(date'2013-01-01', cast(id % 3 as int)) as dt", "if(id % 2 = 0, 'a/b', null) as kind",
    )  # fmt: skip
    write(frame, lake, partitionBy="dt,kind")
    first = lake.manifest().job_id
    found = read(spark, lake)
    assert found.schema == frame.schema.toNullable()
    wanted = sorted(frame.collect(), key=lambda row: row["id"])
    assert sorted(found.collect(), key=lambda row: row["id"]) == wanted
    assert found.where("dt = date'2013-01-02' and kind is null").count() == 4

    write(spark.range(100, 105).selectExpr("id", "date'2020-01-01' as dt"), lake, partitionBy="dt")
    assert found.count() == 20
    assert read(spark, lake).selectExpr("sum(id)").first()[0] == 510
    assert read(spark, lake, job=first).count() == 20
    few = spark.read.format("s3commit").schema("dt string, id int").options(**lake.options).load(lake.uri)
    assert sorted(few.collect()) == [("2020-01-01", id_) for id_ in range(100, 105)]


def test_options_of_a_read_are_checked() -> None:
    """What is unknown, malformed or missing is named; what is left out comes from the session."""
    defaults = StoreSettings(region="eu-central-1")
    parsed = parse_read_options({"PATH": "s3a://lake/flights", "Job": "j1", "pathStyle": "true"}, defaults)
    store = StoreSettings(region="eu-central-1", path_style=True)
    assert parsed == ReadOptions("s3://lake/flights/", "j1", store)
    for options, complaint in (
        ({"path": "s3://lake/x", "partitionBy": "dt"}, "no option partitionby for reading"),
        ({"job": "j1"}, "nothing to read"),
        ({"path": "file:///x"}, "not an S3 URI"),
        ({"path": "s3://lake/x", "job": "../x"}, "job id"),
    ):
        with pytest.raises(InvalidOption, match=complaint):
            parse_read_options(options, defaults)

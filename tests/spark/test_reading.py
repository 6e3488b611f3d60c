"""``spark.read.format("s3commit")`` in a real Spark session, on a real S3 server."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

import pytest

from airflow_s3commit import history
from airflow_s3commit.exceptions import InvalidOption
from airflow_s3commit.reader.formats import FileOptions
from airflow_s3commit.spark import register
from airflow_s3commit.spark.reading import ReadOptions, parse_read_options
from airflow_s3commit.store.credentials import StoreAddress
from tests.spark.conftest import Lake, fill, write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read(spark: SparkSession, lake: Lake, **options: str) -> DataFrame:
    """Read a table as a notebook would."""
    return spark.read.format("s3commit").options(**lake.options, **options).load(lake.uri)


@pytest.mark.spark
@pytest.mark.seaweedfs
@pytest.mark.xdist_group("spark")
def test_written_rows_are_read_back(spark: SparkSession, lake: Lake) -> None:
    """Rows and types come back, partition columns typed, and the DataFrame stays with its generation."""
    frame = spark.range(20, numPartitions=2).selectExpr(
        "id", "cast(id as decimal(12, 2)) as cost", "timestamp_millis(id * 86400000) as at",
        "cast(timestamp_millis(id) as timestamp_ntz) as local", "cast(cast(id as string) as binary) as raw",
        "if(id = 3, null, array(struct(id as x, map('k', id) as m))) as nested",
        "date_add(date'2013-01-01', cast(id % 3 as int)) as dt", "if(id % 2 = 0, 'a/b', null) as kind",
    )  # fmt: skip
    fill(frame, lake, partitionBy="dt,kind")
    first = lake.manifest().job_id
    found = read(spark, lake)
    assert found.schema == frame.schema.toNullable()
    wanted = sorted(frame.collect(), key=lambda row: row["id"])
    assert sorted(found.collect(), key=lambda row: row["id"]) == wanted
    assert found.where("dt = date'2013-01-02' and kind is null").count() == 4

    days = "date'2020-01-01' as dt", "'new' as kind"
    fill(spark.range(100, 105).selectExpr("id", *days), lake, partitionBy="dt,kind")
    assert found.count() == 20
    second = lake.manifest().job_id
    assert read(spark, lake).count() == 25
    for options in ({"job": second}, {"since": "2"}, {"since": "2", "generation": "3"}):
        assert read(spark, lake, **options).selectExpr("sum(id)").collect() == [(510,)]
    for options in ({"job": first}, {"generation": "2"}):
        assert read(spark, lake, **options).count() == 20
    assert read(spark, lake, since="3").columns == found.columns
    assert read(spark, lake, since="3").count() == 0
    few = (
        spark.read.format("s3commit")
        .schema("dt string, id int")
        .option("job", second)
        .options(**lake.options)
        .load(lake.uri)
    )
    assert sorted(few.collect()) == [("2020-01-01", id_) for id_ in range(100, 105)]
    with pytest.raises(Exception, match="has no generation 7"):
        read(spark, lake, generation="7")


@pytest.mark.spark
@pytest.mark.seaweedfs
@pytest.mark.xdist_group("spark")
def test_a_partition_column_has_the_given_type(spark: SparkSession, lake: Lake) -> None:
    """A text of digits stays text if the schema says so."""
    fill(spark.sql("select 1 as id, '007' as zip"), lake, partitionBy="zip")
    zipped = spark.read.format("s3commit").schema("id int, zip string").options(**lake.options)
    assert zipped.load(lake.uri).collect() == [(1, "007")]


@pytest.mark.spark
@pytest.mark.seaweedfs
@pytest.mark.xdist_group("spark")
def test_files_that_the_filters_exclude_are_not_read(spark: SparkSession, lake: Lake) -> None:
    """By partition and by bounds, a query that needs few files succeeds even if all others are gone."""
    fill(spark.range(0, 10).selectExpr("id", "'early' as kind", "id % 2 as half"), lake, partitionBy="half")
    fill(spark.range(10, 20).selectExpr("id", "'late' as kind", "id % 2 as half"), lake, partitionBy="half")

    def rows(where: str, **options: str) -> int:
        # Otherwise Spark reads the columns from the first file.
        reader = spark.read.format("s3commit").schema("id bigint, kind string, half int")
        return reader.options(**lake.options, **options).load(lake.uri).where(where).count()

    assert rows("half = 1 and id >= 12") == 4
    with pytest.raises(Exception, match="DATA_SOURCE_PUSHDOWN_DISABLED"):
        rows("half = 1", pruneFiles="true")
    first = next(entry.job_id for entry in history(lake.store, lake.uri) if entry.generation == 2)
    for path in lake.visible():
        if "half=0" in path or first in path:
            lake.store.delete(lake.destination.bucket, lake.destination.key(path))
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        assert rows("half = 1 and id >= 12", pruneFiles="true") == 4
        assert rows("half = 1 and kind = 'late'", pruneFiles="true") == 5
        assert rows("half = 1 and id in (13, 15)", pruneFiles="true") == 2
        assert rows("half is null", pruneFiles="true") == 0
        with pytest.raises(Exception, match="is gone"):
            rows("half = 1 and id >= 9", pruneFiles="true")
        with pytest.raises(Exception, match="is gone"):
            rows("half = 1 and id >= 12")
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.spark
@pytest.mark.seaweedfs
@pytest.mark.xdist_group("spark")
def test_a_large_file_is_read_by_several_tasks(spark: SparkSession, lake: Lake) -> None:
    """The session's sizes apply, and each row is read once, with its partition."""
    rows = spark.range(200_000, numPartitions=1).selectExpr("id", "md5(cast(id as string)) as s", "7 as p")
    write(rows, lake, partitionBy="p", **{"parquet.block.size": "1m"})
    assert len(lake.visible()) == 1
    spark.conf.set("spark.sql.files.maxPartitionBytes", "1m")
    try:
        register(spark)
    finally:
        spark.conf.unset("spark.sql.files.maxPartitionBytes")
    found = read(spark, lake)
    assert found.rdd.getNumPartitions() > 3
    assert found.selectExpr("count(*)", "sum(id)", "count(distinct s)", "min(p)").collect() == [
        (200_000, 19_999_900_000, 200_000, 7)
    ]
    assert found.select("s", "id").where("id = 5").collect() == [("e4da3b7fbbce2345d7772b0674a318d5", 5)]


@pytest.mark.spark
@pytest.mark.seaweedfs
@pytest.mark.xdist_group("spark")
def test_the_columns_are_those_of_all_commits(spark: SparkSession, lake: Lake) -> None:
    """An empty table has its columns; ones that later commits add or widen are read from all files."""
    first = spark.range(0).selectExpr("cast(id as int) as n", "cast(id as varchar(3)) as v", "1 as p")
    by_pending = Lake(lake.store, lake.server, f"{lake.uri.rstrip('/')}-pending/")
    for put, table in ((write, lake), (fill, by_pending)):
        put(first, table, partitionBy="p")
        assert table.visible() == []
        assert read(spark, table).schema == first.schema.toNullable()
    write(spark.sql("select 1 as n, 'x' as v, 1 as p"), lake, partitionBy="p")
    write(spark.sql("select 5000000000 as n, 'y' as v, 2.50 as added, 2 as p"), lake, partitionBy="p")
    found = read(spark, lake)
    assert found.dtypes == [("n", "bigint"), ("v", "string"), ("added", "decimal(3,2)"), ("p", "int")]
    assert sorted(found.collect()) == [(1, "x", None, 1), (5_000_000_000, "y", Decimal("2.50"), 2)]
    write(spark.sql("select 'text' as n, 3 as p"), lake, partitionBy="p")
    with pytest.raises(Exception, match=r"column 'n' of .* is int64 in files of .* and string in files of"):
        read(spark, lake)


def test_options_of_a_read_are_checked() -> None:
    """Unknown, malformed and missing options are named; omitted ones come from the session."""
    defaults = StoreAddress(region="eu-central-1")
    given = {"PATH": "s3a://lake/flights", "Job": "j1", "pathStyle": "true", "Header": "true"}
    store = StoreAddress(region="eu-central-1", path_style=True)
    files = FileOptions(header=True, given=("header",))
    assert parse_read_options(given, defaults) == ReadOptions(
        "s3://lake/flights/", job_id="j1", store=store, files=files
    )
    for options, complaint in (
        ({"path": "s3://lake/x", "partitionBy": "dt"}, "no option partitionBy for reading"),
        ({"job": "j1"}, "nothing to read"),
        ({"path": "file:///x"}, "not an S3 URI"),
        ({"path": "s3://lake/x", "job": "../x"}, "job id"),
        ({"path": "s3://lake/x", "generation": "0"}, "option generation='0' of s3commit: less than 1"),
        ({"path": "s3://lake/x", "since": "new"}, "option since='new' of s3commit"),
        ({"path": "s3://lake/x", "since": "3", "job": "j1"}, "without generation and since"),
        ({"path": "s3://lake/x", "since": "3", "generation": "2"}, "since=3 is not a generation before"),
        ({"path": "s3://lake/x", "sep": "ab"}, "option sep='ab' of s3commit: not one ASCII character"),
    ):
        with pytest.raises(InvalidOption, match=complaint):
            parse_read_options(options, defaults)

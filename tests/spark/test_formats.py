"""How a write's files are laid out, compared with Spark's own writer, and the formats that it refuses."""

from __future__ import annotations

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


def test_other_formats_are_refused_with_the_calls_that_write_them(spark: SparkSession, lake: Lake) -> None:
    """Both doors name Spark's own writer in one line, whatever the format's options, before any upload."""
    frame = spark.range(3).selectExpr("cast(id as string) as value")
    calls = r"format='{}' of s3commit: .*only parquet.*write_pending\(df, engine='spark'.*commit_job\(spark"
    options = {"header": "true", **lake.options}
    for format_ in ("orc", "csv", "json", "avro", "xml", "text"):
        with pytest.raises(InvalidOption, match=calls.format(format_)):
            write_pending(frame, destination=lake.uri, format=format_, options=options)
    with pytest.raises(Exception, match=calls.format("csv")):
        write(frame, lake, format="csv", header="true")
    assert lake.everything() == []

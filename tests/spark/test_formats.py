"""Our files compared with those of Spark's own writer, read by Spark and by others."""

from __future__ import annotations

import bz2
import gzip
from collections import Counter
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

from airflow_s3commit.spark import write_pending
from tests.spark.conftest import write

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.conftest import Lake

pytestmark = [pytest.mark.spark, pytest.mark.seaweedfs, pytest.mark.xdist_group("spark")]

#: Values at the limits of text, numbers and calendars.
_VALUES = """select * from values
    (1, 'plain', 1.0D, cast(1.5 as float), true, date'2013-01-01', timestamp'2013-01-01 00:00:00.123456',
     timestamp_ntz'2013-01-01 00:00:00.123456', 1.50, cast(0.0000001 as decimal(20, 10)), X'00FF'),
    (2, '', 1e10D, cast('NaN' as float), false, date'0001-01-01', timestamp'1970-01-01 09:00:00',
     timestamp_ntz'0001-01-01 00:00:00', -0.01, cast(0 as decimal(20, 10)), X''),
    (3, null, double('NaN'), cast('Infinity' as float), null, date'1582-10-04', null,
     timestamp_ntz'9999-12-31 23:59:59.999999', null, cast(1.25E-7 as decimal(20, 10)), null),
    (4, 'a,b "q" \\\\ x', -0.0D, cast(-0.0D as float), true, date'9999-12-31',
     timestamp'9999-12-31 23:59:59.999999', null, null, null, null),
    (5, '"start', 9.99e-4D, cast(1.1e-5 as float), true, null, null, null, null, null, null),
    (6, 'new\\nline\\rreturn\\ttab', 4.9e-324D, cast(1.4e-45 as float), true, null, null, null, null, null, null),
    (7, '  both  ', 1e7D, cast(1e7 as float), true, null, null, null, null, null, null),
    (8, '#no comment é😀', 0.1D, cast(0.1 as float), true, null, null, null, null, null, null)
    t(id, s, d, f, b, day, ts, ntz, d9, d20, raw)"""  # noqa: E501

_OLD = "if(id = 3, timestamp'1850-06-01 12:00:00', ts) as ts"


def ours(frame: DataFrame, lake: Lake, folder: Path, **options: str) -> Path:
    """Write a frame as one task's files, and return the folder with copies of them."""
    write(frame.coalesce(1), lake, **options)
    return lake.download(folder)


def contents(folder: Path) -> list[bytes]:
    """Return the data files of a folder."""
    return [path.read_bytes() for path in sorted(folder.rglob("part-*"))]


@pytest.mark.parametrize(
    ("format_", "options"),
    [
        ("csv", {"header": "true"}),
        ("csv", {"sep": ";", "quote": "'", "escape": "'", "nullValue": "NULL", "quoteAll": "true"}),
        ("json", {"ignoreNullFields": "false", "timeZone": "UTC", "encoding": "US-ASCII"}),
        *(
            pytest.param(*case, marks=pytest.mark.all)
            for case in (
                (
                    "csv",
                    {
                        "dateFormat": "dd/MM/yyyy",
                        "timestampFormat": "yyyy-MM-dd HH:mm:ss.SSSSSS XXX",
                        "encoding": "UTF-32",
                    },
                ),
                ("csv", {"header": "true", "encoding": "UTF-16", "emptyValue": "-", "lineSep": "\r\n"}),
                (
                    "csv",
                    {"encoding": "ISO-8859-1", "dateFormat": "EEE d MMM yyyy", "locale": "de", "sep": "||"},
                ),
                ("json", {}),
                ("json", {"encoding": "UTF-16LE", "lineSep": "\n", "dateFormat": "QQQ yy"}),
            )
        ),
    ],
)
def test_text_files_are_sparks_own_to_the_byte(
    spark: SparkSession, lake: Lake, tmp_path: Path, format_: str, options: dict[str, str]
) -> None:
    """The same rows and options give the same file as Spark's own writer."""
    frame = spark.sql(_VALUES).selectExpr("id", "s", "d", "f", "b", "day", _OLD, "ntz", "d9", "d20", "raw")
    if format_ == "json":
        frame = frame.selectExpr(
            "*", "array(id, null) as a", "map('k\"', d) as m",
            "named_struct('x', if(id = 2, null, id), 'y z', array(named_struct('q', s))) as st",
        )  # fmt: skip
    frame.coalesce(1).write.format(format_).options(**options).save(str(tmp_path / "native"))
    found = ours(frame, lake, tmp_path / "ours", format=format_, **options)
    assert contents(found) == contents(tmp_path / "native")


def test_orc_reads_back_as_from_sparks_own_writer(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    """Spark finds the same schema and values in our ORC files as in its own."""
    frame = spark.sql(_VALUES).selectExpr(
        "* except (day, ts)", "if(id in (2, 3), date'1582-10-15', day) as day",
        "if(id = 3, timestamp'1890-01-01 00:00:00', ts) as ts", "array(date'1582-10-15', null) as days",
        "array(id, null) as a", "map('k', d) as m", "named_struct('x', id, 'n', ntz) as st",
        "make_dt_interval(0, 0, 0, id) as i", "if(id % 2 = 0, null, named_struct('x', id)) as ns",
        "array(null, named_struct('x', id)) as an",
    )  # fmt: skip
    folder = ours(frame, lake, tmp_path / "ours", format="orc")
    frame.write.orc(str(tmp_path / "native"))
    mine, native = spark.read.orc(str(folder)), spark.read.orc(str(tmp_path / "native"))
    assert mine.schema == native.schema
    assert Counter(map(repr, mine.collect())) == Counter(map(repr, native.collect()))
    assert [path.name.partition(".")[2] for path in folder.glob("part-*")] == ["c000.zstd.orc"]


def test_compressed_text_is_read_by_spark(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    """Spark reads gzip and bzip2 by the names of the files."""
    frame = spark.range(100).selectExpr("id")
    for codec, ending, unpack in (("gzip", "csv.gz", gzip.decompress), ("bzip2", "csv.bz2", bz2.decompress)):
        write(frame.coalesce(1), lake, format="csv", compression=codec)
        folder = lake.download(tmp_path / codec)
        (path,) = folder.glob(f"part-*.c000.{ending}")
        assert unpack(path.read_bytes()).split() == [str(n).encode() for n in range(100)]
        found = spark.read.csv(str(path), schema="id bigint")
        assert sorted(row["id"] for row in found.collect()) == list(range(100))


def test_partition_columns_of_the_data_source_are_rendered_as_sparks(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    """Doubles, floats and times of the session's zone need no cast: their directories are Spark's own."""
    frame = spark.sql(_VALUES).selectExpr("id", "d", "f", _OLD, "ntz", "d20").coalesce(1)
    columns = ["d", "f", "ts", "ntz", "d20"]
    write(frame, lake, partitionBy=",".join(columns))
    native = tmp_path / "native"
    frame.write.partitionBy(*columns).parquet(str(native))
    theirs = {str(path.parent.relative_to(native)) for path in native.rglob("*.parquet")}
    assert {path.rpartition("/")[0] for path in lake.visible()} == theirs


@pytest.mark.all
def test_year_month_intervals_are_written_as_spark_stores_them(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    """`write_pending` keeps a type that Python lacks, with negative values too."""
    frame = spark.sql(
        "select * from values (make_ym_interval(1, 2), 1), (make_ym_interval(-3, -4), 2), (null, 3) t(ym, id)"
    )
    write_pending(frame, destination=lake.uri, options=lake.options)
    frame.write.parquet(str(tmp_path / "native"))
    mine = spark.read.parquet(str(lake.download(tmp_path / "ours")))
    native = spark.read.parquet(str(tmp_path / "native"))
    assert mine.schema == native.schema
    told = ["cast(ym as string) as ym", "id"]
    assert Counter(mine.selectExpr(told).collect()) == Counter(native.selectExpr(told).collect())


def test_int96_times_are_those_of_sparks_own_files(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    """With INT96, readers that ignore its zone see the same as in Spark's files."""
    frame = spark.sql(_VALUES).selectExpr("id", _OLD)
    folder = ours(frame, lake, tmp_path / "ours", outputTimestampType="INT96")
    frame.write.parquet(str(tmp_path / "native"))
    told: list[Any] = [
        duckdb.sql(f"select * from read_parquet('{place}/*.parquet') order by id").fetchall()
        for place in (folder, tmp_path / "native")
    ]
    assert told[0] == told[1]
    assert Counter(spark.read.parquet(str(folder)).collect()) == Counter(frame.collect())


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
